"""A Sphinx extension: docstrings with the Markdown of this project, as reStructuredText for autodoc and napoleon.

Text between single backticks becomes code, an indented block below a paragraph a block of code, and other characters
with a meaning in reStructuredText are escaped. Sections such as `Args:` are left to napoleon.
"""

from __future__ import annotations

import re
from inspect import Signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docutils import nodes

CODE = re.compile(r"(``?)(.+?)\1", re.DOTALL)
SPECIAL = re.compile(r"([\\*|]|(?<=\w)_(?!\w))")  # a backslash, emphasis, a substitution, a reference
SECTION = re.compile(r"(Args|Attributes|Example|Examples|Raises|Returns|Yields):$")


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon, which has 500
    app.connect("autodoc-process-signature", process_signature)
    app.connect("config-inited", configure)
    app.connect("doctree-read", replace_dashes)
    return {"parallel_read_safe": True}


def configure(app: Any, config: Any) -> None:
    config.napoleon_numpy_docstring = False
    config.napoleon_use_ivar = True
    config.autodoc_typehints_format = "short"
    config.autodoc_member_order = "bysource"
    config.autodoc_preserve_defaults = True
    config.maximum_signature_line_length = 100
    config.add_module_names = False
    config.toc_object_entries_show_parents = "hide"
    config.smartquotes = False


def process(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Replace the lines of a docstring in place."""
    lines[:] = to_rst(lines)


def replace_dashes(app: Any, doctree: nodes.document) -> None:
    """Write "x: meaning" instead of "x -- meaning" in the lists of arguments."""
    from docutils import nodes  # here, because `to_rst` is tested without Sphinx

    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(": "))


def process_signature(
    app: Any, what: str, name: str, obj: object, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Hide a constructor with private arguments; show `__init__` of a MONAI transform, and the names of ranges.

    Defaults such as `<factory>` are no Python: Sphinx cannot shorten the types beside them.
    """
    from sphinx.util import inspect

    if signature and " _keep" in signature:
        return "", returns
    if signature and isinstance(obj, type) and (signature == "(*args, **kwargs)" or "FieldInfo" in signature):
        read = Signature.from_callable if "FieldInfo" in signature else inspect.signature  # types as names, or in full
        parameters = list(read(obj.__init__).parameters.values())[1:]
        signature = inspect.stringify_signature(Signature(parameters), unqualified_typehints=True)
    return signature and re.sub(r"<[^<>]*>", "...", signature), returns


def to_rst(lines: list[str]) -> list[str]:
    """The lines of a docstring as reStructuredText, with the sections of napoleon."""
    result: list[str] = []
    for block in _blocks(lines):
        in_section = bool(result) and _in_section(result)
        first = block[0]
        indent = len(first) - len(first.lstrip())
        if first.lstrip().startswith(">>>"):
            result += block
        elif indent >= 4 and not in_section and not _in_list(result):
            result += [" " * (indent - 4) + "::", "", *block]
        else:
            result += _without_type(escape("\n".join(block)).split("\n"))
        result.append("")
    return result


def _without_type(lines: list[str]) -> list[str]:
    """Begin what a function returns with a colon: napoleon takes the text before the first colon as a type."""
    if lines[0] in ("Returns:", "Yields:"):
        lines[1] = re.sub(r"^( *)", r"\1: ", lines[1])
    return lines


def escape(text: str) -> str:
    """Code between backticks as a literal, and the other text without characters that have a meaning."""
    parts, end = [], 0
    for match in CODE.finditer(text):
        parts += [_plain(text[end : match.start()]), f"``{' '.join(match[2].split())}``"]
        end = match.end()
        if text[end : end + 1].isalnum():
            parts.append("\\ ")
    return "".join([*parts, _plain(text[end:])])


def _plain(text: str) -> str:
    """Escape special characters, except the stars of a list and of bold text."""
    bold = [SPECIAL.sub(r"\\\1", part) for part in re.split(r"(?<!\S)\*\*(?=\S)|(?<=\S)\*\*(?!\w)", text)]
    text = "**".join(bold) if len(bold) % 2 else SPECIAL.sub(r"\\\1", text)
    return re.sub(r"^(\s*)\\\* ", r"\1* ", text, flags=re.MULTILINE)


def _blocks(lines: list[str]) -> list[list[str]]:
    """The blocks between empty lines; a section's title begins a block of its own."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if not line.strip() or SECTION.match(line):
            blocks.append([])
        if line.strip():
            blocks[-1].append(line)
    return [block for block in blocks if block]


def _in_section(lines: list[str]) -> bool:
    """Whether the last line at the margin is the title of a section."""
    at_margin = [line for line in lines if line and not line.startswith(" ")]
    return bool(at_margin) and bool(SECTION.match(at_margin[-1]))


def _in_list(lines: list[str]) -> bool:
    """Whether the last line at the margin is an item of a list."""
    at_margin = [line for line in lines if line and not line.startswith(" ")]
    return bool(at_margin) and at_margin[-1].startswith(("* ", "- "))
