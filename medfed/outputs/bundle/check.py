"""Check that a folder or zip file is a MONAI bundle that cannot run arbitrary code. The check executes nothing.

MONAI instantiates every `_target_` and evaluates every string that begins with `$`, so a bundle's config is a program.
Only the classes listed below and the grammar of `expressions` are allowed. MONAI reads `model.pt` with
`weights_only=True`; `program` checks `model.pt2`. TorchScript is refused, because it can write files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from medfed.core.errors import UserError
from medfed.outputs.bundle.expressions import CALLS, IMPORTS, is_allowed_expression
from medfed.outputs.bundle.files import open_bundle
from medfed.outputs.bundle.program import LOAD, PROGRAM, PROGRAM_DEF, UNFLATTEN, check_program
from medfed.tasks.bundle_entries import INTERPOLATE, NARROW
from medfed.tasks.bundle_template import PREDICTIONS
from medfed.tasks.bundle_training import LOGGING_CONF, TRAINED

FILES = (
    "LICENSE",
    "configs/evaluate.json",
    "configs/inference.json",
    "configs/logging.conf",
    "configs/metadata.json",
    "configs/train.json",
    "docs/README.md",
    "docs/data_license.txt",
    "docs/ledger.csv",
    "models/model.pt",
    PROGRAM,
)
REQUIRED = ("LICENSE", "configs/inference.json", "configs/metadata.json", "models/model.pt")
WEIGHTS = ("models/model.pt", PROGRAM)
SCHEMA = Path(__file__).with_name("schema.json")
CONFIGS = ("metadata", "inference")
TRAINING_CONFIGS = ("train", "evaluate")  # a bundle whose network MONAI cannot build has none
MAX_DEPTH = 40

_NETWORKS = (
    "AttentionUnet BasicUNet BasicUNetPlusPlus DenseNet DynUNet FlexibleUNet ResNet SEResNet50 SegResNet SwinUNETR "
    "UNet UNETR VNet"
).split()
_TRANSFORMS = (
    "Activationsd AsDiscreted Compose ConcatItemsd CopyItemsd EnsureChannelFirstd FromMetaTensord Invertd "
    "KeepLargestConnectedComponentd Lambdad LoadImaged NormalizeIntensityd Orientationd Resized SaveClassificationd "
    "SaveImaged ScaleIntensityRanged ScaleIntensityRangePercentilesd SplitDimd SqueezeDimd Transposed"
).split()
TARGETS = frozenset(
    [f"monai.networks.nets.{name}" for name in _NETWORKS]
    + [f"monai.transforms.{name}" for name in _TRANSFORMS]
    + ["monai.data.DataLoader", "monai.data.Dataset", "monai.engines.SupervisedEvaluator"]
    + ["monai.handlers.CheckpointLoader", "monai.inferers.SimpleInferer", "monai.inferers.SliceInferer"]
    + [LOAD, UNFLATTEN, INTERPOLATE, NARROW]
)
TRAINING_TARGETS = TARGETS | {
    "monai.data.CacheDataset",
    "monai.data.partition_dataset",
    "monai.engines.SupervisedTrainer",
    "monai.handlers.CheckpointSaver",
    "monai.handlers.ConfusionMatrix",
    "monai.handlers.MeanDice",
    "monai.handlers.StatsHandler",
    "monai.handlers.ValidationHandler",
    "monai.losses.DiceLoss",
    "monai.networks.utils.copy_model_state",
    "monai.transforms.EnsureTyped",
    "monai.transforms.RandAffined",
    "monai.transforms.RandFlipd",
    "monai.transforms.RandSpatialCropSamplesd",
    "monai.utils.set_determinism",
    "torch.load",
    "torch.nn.CrossEntropyLoss",
    "torch.optim.Adam",
    "torch.optim.SGD",
}
# Allowed keys of some classes. Some could do more than a bundle needs: call any function (Lambdad), write a file
# with any name (SaveClassificationd, CheckpointSaver), or unpickle (torch.load).
LAMBDA, SAVER = "monai.transforms.Lambdad", "monai.handlers.CheckpointSaver"
FUNCTIONS = (INTERPOLATE, NARROW)  # that Lambdad may call
KEYS_OF = {
    INTERPOLATE: {"_target_", "_mode_", "size", "mode", "align_corners", "antialias"},
    NARROW: {"_target_", "_mode_", "dim", "start", "length"},
    LAMBDA: {"_target_", "keys", "func"},
    "torch.load": {"_target_", "f", "map_location", "weights_only"},  # a pickle could run code
    "monai.networks.utils.copy_model_state": {"_target_", "_disabled_", "dst", "src"},
    SAVER: {"_target_", "save_dir", "save_dict", "save_final", "final_filename"},
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
FORBIDDEN_KEYS = frozenset({"reader", "writer", "_debug_", "pickle_module", "pretrained", "pretrained_url"})


def check_bundle(path: Path) -> None:
    """Check a bundle's folder or zip; UserError names the file or key that is missing, damaged or not allowed."""
    with open_bundle(path) as files:
        for name in files.names:
            if name not in FILES:
                raise UserError(
                    f"{path}: contains '{name}', which is not part of a medfed bundle; expected {', '.join(FILES)}"
                )
        for name in REQUIRED:
            if name not in files.names:
                raise UserError(f"{path}: {name} is missing; copy the bundle again, or export it again")
        content = {name: files.json(f"configs/{name}.json") for name in CONFIGS}
        check_metadata(content["metadata"], f"{path}: configs/metadata.json")
        check_inference(content["inference"], f"{path}: configs/inference.json")
        for name in TRAINING_CONFIGS:
            if f"configs/{name}.json" in files.names:
                source = f"{path}: configs/{name}.json"
                check_inference(files.json(f"configs/{name}.json"), source, TRAINING_TARGETS)
        if "configs/logging.conf" in files.names and files.text("configs/logging.conf") != LOGGING_CONF:
            raise UserError(
                f"{path}: configs/logging.conf names code, and differs from the file that medfed writes; "
                "export the bundle again"
            )
        for name in WEIGHTS:
            if name in files.names:
                files.check_weights(name)
        if PROGRAM in files.names:
            with files.names[PROGRAM]() as file:
                check_program(file, f"{path}: {PROGRAM}")
        elif content["inference"].get("network_def") == PROGRAM_DEF:
            raise UserError(f"{path}: {PROGRAM} is missing; copy the bundle again, or export it again")


def check_metadata(content: Any, source: str, schema: Path = SCHEMA) -> None:
    """Check `metadata.json` against the JSON Schema, and that MONAI could evaluate nothing in it; UserError names the
    key."""
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
    if fault := jsonschema.exceptions.best_match(validator.iter_errors(content)):
        key = ".".join(map(str, fault.absolute_path)) or "at the top"
        raise UserError(f"{source}: {key}: {fault.message[:200]}; correct it there, or export the bundle again")
    changelog = content.get("changelog")
    if changelog is not None and content["version"] not in changelog:
        raise UserError(f"{source}: version {content['version']} is not in the changelog ({', '.join(changelog)})")
    for key, name, value in _walk(content):
        if name.endswith("_target_") or (isinstance(value, str) and value[:1] in ("$", "%")):
            raise UserError(f"{source}: {key}: found '{value}', which MONAI could evaluate; metadata are plain values")


def check_inference(content: Any, source: str, targets: frozenset[str] = TARGETS) -> None:
    """Check that a config such as `inference.json` has only allowed classes (`targets`), keys (`KEYS_OF`) and
    expressions; UserError names the key."""
    if not isinstance(content, dict):
        raise UserError(f"{source}: expected a JSON object of keys and values, got a {type(content).__name__}")
    _check_keys(content, source)
    for key, name, value in _walk(content):
        if not name.isidentifier() and not name.isdecimal():
            raise UserError(f"{source}: the key '{key}' is not a plain word, and MONAI could interpret it; rename it")
        if name in FORBIDDEN_KEYS:
            raise UserError(f"{source}: {key}: '{name}' is not allowed in a bundle, because it can run code; remove it")
        if name == "_target_" and not (isinstance(value, str) and value in targets):
            allowed = ", ".join(sorted(targets))
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
