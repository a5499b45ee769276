"""Check that a folder or zip file is a MONAI bundle that cannot run arbitrary code. The check executes nothing.

MONAI instantiates every `_target_` and evaluates every string that begins with `$`, so a bundle's config is a program.
Only the classes and the small grammar of expressions below are allowed. MONAI reads `model.pt` with
`weights_only=True`; `program` checks `model.pt2`. TorchScript is refused, because it can write files.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from medfed.core.errors import UserError
from medfed.outputs.bundle.files import open_bundle
from medfed.outputs.bundle.program import LOAD, PROGRAM, PROGRAM_DEF, UNFLATTEN, check_program
from medfed.tasks.bundle_entries import INTERPOLATE, NARROW
from medfed.tasks.bundle_template import CONVERTERS, PREDICTIONS
from medfed.tasks.bundle_training import LOGGING_CONF, LOSS, TRAINED

WEIGHTS = ("models/model.pt", PROGRAM)
REQUIRED = ("LICENSE", "configs/inference.json", "configs/metadata.json", "models/model.pt")
FILES = (
    *REQUIRED,
    "configs/evaluate.json",
    "configs/logging.conf",
    "configs/train.json",
    "docs/README.md",
    "docs/data_license.txt",
    "docs/ledger.csv",
    PROGRAM,
)
SCHEMA = Path(__file__).with_name("schema.json")
MAX_DEPTH = 40
_CLASSES = {
    "monai.data": "CacheDataset DataLoader Dataset partition_dataset",
    "monai.engines": "SupervisedEvaluator SupervisedTrainer",
    "monai.handlers": "CheckpointLoader CheckpointSaver ConfusionMatrix MeanDice StatsHandler ValidationHandler",
    "monai.inferers": "SimpleInferer SliceInferer",
    "monai.losses": "DiceLoss",
    "monai.networks.nets": "AttentionUnet BasicUNet BasicUNetPlusPlus DenseNet DynUNet FlexibleUNet ResNet SEResNet50 "
    "SegResNet SwinUNETR UNet UNETR VNet",
    "monai.networks.utils": "copy_model_state",
    "monai.transforms": "Activationsd AsDiscreted Compose ConcatItemsd CopyItemsd EnsureChannelFirstd EnsureTyped "
    "FromMetaTensord Invertd KeepLargestConnectedComponentd Lambdad LoadImaged NormalizeIntensityd Orientationd "
    "RandAffined RandFlipd RandSpatialCropSamplesd Resized SaveClassificationd SaveImaged ScaleIntensityRanged "
    "ScaleIntensityRangePercentilesd SplitDimd SqueezeDimd Transposed",
    "monai.utils": "set_determinism",
    "torch": "load",
    "torch.nn": "CrossEntropyLoss",
    "torch.optim": "Adam SGD",
}
FUNCTIONS = (INTERPOLATE, NARROW)  # that Lambdad may call
TARGETS = {f"{module}.{name}" for module, names in _CLASSES.items() for name in names.split()}
TARGETS |= {LOAD, UNFLATTEN, *FUNCTIONS}
# Allowed keys of some classes. Some could do more than a bundle needs: call any function (Lambdad), write a file
# with any name (SaveClassificationd, CheckpointSaver), or unpickle (torch.load).
LAMBDA = "monai.transforms.Lambdad"
KEYS_OF = {
    INTERPOLATE: {"_target_", "_mode_", "size", "mode", "align_corners", "antialias"},
    NARROW: {"_target_", "_mode_", "dim", "start", "length"},
    LAMBDA: {"_target_", "keys", "func"},
    "torch.load": {"_target_", "f", "map_location", "weights_only"},
    "monai.networks.utils.copy_model_state": {"_target_", "_disabled_", "dst", "src"},
    "monai.handlers.CheckpointSaver": {"_target_", "save_dir", "save_dict", "save_final", "final_filename"},
    "monai.transforms.LoadImaged": {"_target_", "keys", "converter"},
    "monai.transforms.SaveClassificationd": {"_target_", "keys", "meta_keys", "output_dir", "filename"},
}
VALUE_OF = {
    "_mode_": "callable",
    "filename": PREDICTIONS,
    "weights_only": True,
    "save_dir": "@ckpt_dir",
    "ckpt_dir": "$@bundle_root + '/models'",
    "final_filename": TRAINED,
}
# `reader` and `writer` name classes that MONAI imports and calls without a `_target_`. The other keys start a debugger,
# unpickle a file, or download weights.
FORBIDDEN_KEYS = {"reader", "writer", "_debug_", "pickle_module", "pretrained", "pretrained_url"}
IMPORTS = ("$import glob", "$import PIL.ImageOps as ImageOps")
COMPLETE = (*IMPORTS, *CONVERTERS.values(), "$monai.handlers.from_engine(['pred', 'label'])", LOSS)
CALLS = {"sorted", "glob.glob", "torch.device", "torch.cuda.is_available", "REF.parameters", "REF.run", "REF.to"}
VALUES = frozenset({"REF", "np.uint8"})
_REFERENCE = re.compile(r"@[A-Za-z_]\w*(#\w+)*")


def check_bundle(path: Path) -> None:
    """Check a bundle's folder or zip; UserError names the file or key that is missing, damaged or not allowed."""
    with open_bundle(path) as files:
        for name in files.names:
            if name not in FILES:
                raise UserError(
                    f"{path}: contains '{name}', which is not part of a medfed bundle; expected {', '.join(FILES)}"
                )
            if name in WEIGHTS:
                files.check_weights(name)
        needed = list(REQUIRED)
        for name in [name for name in FILES if name.endswith(".json") and name in files.names]:
            content, source = files.json(name), f"{path}: {name}"
            if name == "configs/metadata.json":
                check_metadata(content, source)
            else:
                check_inference(content, source)
                needed += [PROGRAM] * (content.get("network_def") == PROGRAM_DEF)
        if missing := [name for name in needed if name not in files.names]:
            raise UserError(f"{path}: {missing[0]} is missing; copy the bundle again, or export it again")
        if "configs/logging.conf" in files.names:
            with files.names["configs/logging.conf"]() as file:
                if file.read(len(LOGGING_CONF) + 1) != LOGGING_CONF.encode():
                    raise UserError(f"{path}: configs/logging.conf names code, and is not medfed's; export it again")
        if PROGRAM in files.names:
            with files.names[PROGRAM]() as file:
                check_program(file, f"{path}: {PROGRAM}")


def check_metadata(content: Any, source: str) -> None:
    """Check `metadata.json` against the JSON Schema, and that MONAI could evaluate nothing in it."""
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    if fault := jsonschema.exceptions.best_match(validator.iter_errors(content)):
        key = ".".join(map(str, fault.absolute_path)) or "at the top"
        raise UserError(f"{source}: {key}: {fault.message[:200]}; correct it there, or export the bundle again")
    changelog = content.get("changelog")
    if changelog is not None and content["version"] not in changelog:
        raise UserError(f"{source}: version {content['version']} is not in the changelog ({', '.join(changelog)})")
    for key, name, value in _walk(content):
        if name.endswith("_target_") or (isinstance(value, str) and value[:1] in ("$", "%")):
            raise UserError(f"{source}: {key}: found '{value}', which MONAI could evaluate; metadata are plain values")


def check_inference(content: Any, source: str) -> None:
    """Check that a config such as `inference.json` has only allowed classes (`TARGETS`), keys and expressions."""
    if not isinstance(content, dict):
        raise UserError(f"{source}: expected a JSON object of keys and values, got a {type(content).__name__}")
    _check_keys(content, source)
    for key, name, value in _walk(content):
        if not name.isidentifier() and not name.isdecimal():
            raise UserError(f"{source}: the key '{key}' is not a plain word, and MONAI could interpret it; rename it")
        if name in FORBIDDEN_KEYS:
            raise UserError(f"{source}: {key}: '{name}' is not allowed in a bundle, because it can run code; remove it")
        if name == "_target_" and not (isinstance(value, str) and value in TARGETS):
            allowed = ", ".join(sorted(TARGETS))
            raise UserError(f"{source}: {key}: '{value}' is not allowed; a bundle may use {allowed}")
        if name in VALUE_OF and value != VALUE_OF[name]:
            raise UserError(f"{source}: {key}: '{value}' is not allowed here; expected '{VALUE_OF[name]}'")
        if isinstance(value, dict):
            _check_keys(value, f"{source}: {key}")
        if isinstance(value, str) and value.startswith("%"):
            raise UserError(f"{source}: {key}: '{value}' refers to another file; write the value itself")
        if isinstance(value, str) and value.startswith("$") and not is_allowed_expression(value):
            raise UserError(
                f"{source}: {key}: the expression '{value}' is not allowed; only references, paths, lists, "
                f"{', '.join(sorted(CALLS))} and '{IMPORTS[0]}' are"
            )


def _check_keys(content: dict[str, Any], source: str) -> None:
    """Check the keys of the classes in `KEYS_OF`, and that only `FUNCTIONS` use `_mode_` and `Lambdad`."""
    target = content.get("_target_")
    known = KEYS_OF.get(target) if isinstance(target, str) else None
    if known and (unexpected := [key for key in content if key not in known]):
        raise UserError(
            f"{source}: {target} has the unknown argument '{unexpected[0]}'; allowed are {', '.join(sorted(known))}"
        )
    if target in (LOAD, UNFLATTEN) and content not in (PROGRAM_DEF, PROGRAM_DEF["module"]):
        raise UserError(f"{source}: {target} may load {PROGRAM} only, which was checked; expected {PROGRAM_DEF}")
    allowed = " and ".join(FUNCTIONS)
    if (target in FUNCTIONS) != ("_mode_" in content):
        raise UserError(f"{source}: '_mode_' is required by {allowed} and is not allowed elsewhere")
    if target == "torch.load" and "weights_only" not in content:
        raise UserError(f"{source}: torch.load without weights_only could run code in the file; add weights_only: true")
    func = content.get("func")
    if target == LAMBDA and not (isinstance(func, dict) and func.get("_target_") in FUNCTIONS):
        raise UserError(f"{source}: {LAMBDA} may call {allowed} only, found '{func}'; export the bundle again")


def _walk(content: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, str, Any]]:
    """Yield every nested value as (dotted key, last part of the key, value)."""
    if depth > MAX_DEPTH:
        raise UserError(f"'{key[:60]}...' is nested deeper than {MAX_DEPTH} levels, which no medfed bundle is")
    if isinstance(content, (dict, list)):
        for name, value in content.items() if isinstance(content, dict) else enumerate(content):
            here = f"{key}.{name}" if key else str(name)
            yield here, str(name), value
            yield from _walk(value, here, depth + 1)


def is_allowed_expression(text: str) -> bool:
    """Whether MONAI may evaluate an expression (which begins with `$`) of a bundle's config.

    Allowed are the `COMPLETE` ones, and strings, numbers, references (`@key`), lists, dicts, list comprehensions, `+`,
    `or`, `not`, `if ... else` and calls of `CALLS`. MONAI replaces references, and `#` by `::`, before it parses the
    text. So a string with a reference, or a comment, could become code; neither is allowed.
    """
    if text in COMPLETE:
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
