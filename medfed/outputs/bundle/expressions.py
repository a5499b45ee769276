"""The small grammar of Python expressions that a bundle's config may contain."""

from __future__ import annotations

import ast
import re

from medfed.tasks.bundle_template import CONVERTERS
from medfed.tasks.bundle_training import LOSS

IMPORTS = ("$import glob", "$import PIL.ImageOps as ImageOps")
OUTPUTS = ("$monai.handlers.from_engine(['pred', 'label'])", LOSS)
CALLS = frozenset(
    {
        "sorted",
        "glob.glob",
        "torch.device",
        "torch.cuda.is_available",
        "REF.parameters",
        "REF.run",
        "REF.to",
    }
)
VALUES = frozenset({"REF", "np.uint8"})
_REFERENCE = re.compile(r"@[A-Za-z_]\w*(#\w+)*")


def is_allowed_expression(text: str) -> bool:
    """Whether MONAI may evaluate an expression (which begins with `$`) of a bundle's config.

    Allowed are strings, numbers, references (`@key`), lists, dicts, list comprehensions, `+`, `or`, `not`, `if ...
    else`, calls of `CALLS`, and a few complete expressions, such as `$import glob`. MONAI replaces references, and `#`
    by `::`, before it parses the text. So a string with a reference, or a comment, could become code; neither is
    allowed.
    """
    if text in (*IMPORTS, *CONVERTERS.values(), *OUTPUTS):
        return True
    expression = _REFERENCE.sub("REF", text[1:])
    try:
        return "#" not in expression and _is_allowed(ast.parse(expression, mode="eval").body, VALUES)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_allowed(node: ast.expr, values: frozenset[str]) -> bool:
    """Whether a syntax tree belongs to the grammar; `values` are the names that it may use."""
    match node:
        case ast.Constant(value=value):
            has_reference = isinstance(value, str) and ("REF" in value or "@" in value)
            return value is None or (isinstance(value, (str, int, float)) and not has_reference)
        case ast.Name() | ast.Attribute():
            return ast.unparse(node) in values
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return all(_is_allowed(part, values) for part in parts)
        case ast.Dict(keys=keys, values=parts):
            return all(part is not None and _is_allowed(part, values) for part in [*keys, *parts])
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _is_allowed(left, values) and _is_allowed(right, values)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return all(_is_allowed(part, values) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_allowed(operand, values)
        case ast.IfExp(test=test, body=body, orelse=otherwise):
            return all(_is_allowed(part, values) for part in (test, body, otherwise))
        case ast.Subscript(value=ast.Name(id="REF"), slice=ast.Constant(value=int())):
            return True
        case ast.Call(func=called, args=[pattern], keywords=[ast.keyword(arg="root_dir", value=root)]):
            return ast.unparse(called) == "glob.glob" and _is_allowed(pattern, values) and _is_allowed(root, values)
        case ast.Call(func=called, args=arguments, keywords=[]):
            return ast.unparse(called) in CALLS and all(_is_allowed(argument, values) for argument in arguments)
        case ast.ListComp(elt=element, generators=[ast.comprehension(ast.Name(id=name), source, [], 0)]):
            shadows = name in {word.partition(".")[0] for word in CALLS | VALUES}
            return not shadows and _is_allowed(source, values) and _is_allowed(element, values | {name})
    return False
