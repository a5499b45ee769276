"""Read a bundle without following links, and check that it cannot run arbitrary code. The check executes nothing.

MONAI instantiates every `_target_` and evaluates every string that begins with `$`, so a bundle's config is a program.
Only the classes and expressions below are allowed. MONAI reads `model.pt` with `weights_only=True`. Programs
(`torch.export`, TorchScript) are refused, because loading or running one can run code or write files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from monai.networks import nets

from medfed.core.errors import UserError
from medfed.core.files import check_checksums
from medfed.functional.weights import check_same_entries, first_non_finite
from medfed.networks.parts.memory import SizeLimit
from medfed.networks.parts.pretrained import read_state_dict
from medfed.outputs.bundle.program import PROGRAM
from medfed.tasks.bundle_entries import INTERPOLATE, NARROW
from medfed.tasks.bundle_template import CONVERTERS, PREDICTIONS
from medfed.tasks.bundle_training import LOGGING_CONF, LOSS, TRAINED

INFERENCE, METADATA, WEIGHTS = "configs/inference.json", "configs/metadata.json", "models/model.pt"
REQUIRED = ("LICENSE", INFERENCE, METADATA, WEIGHTS)
FILES = (
    *REQUIRED,
    "configs/evaluate.json",
    "configs/logging.conf",
    "configs/train.json",
    "docs/README.md",
    "docs/data_license.txt",
    "docs/ledger.csv",
)
SCHEMA = Path(__file__).with_name("schema.json")
IMAGE_FOLDERS = ("input", "eval")  # the user's images and results, which are not part of the bundle
MAX_CONFIG_BYTES, MAX_DEPTH = 1 << 20, 40
MIN_ALLOWED_VALUES = 1 << 20  # of a network whose file of weights is small; otherwise one for each byte of the file
_CLASSES = {
    "monai.data": "CacheDataset DataLoader Dataset partition_dataset",
    "monai.engines": "SupervisedEvaluator SupervisedTrainer",
    "monai.handlers": "CheckpointLoader CheckpointSaver ConfusionMatrix MeanDice StatsHandler ValidationHandler",
    "monai.inferers": "SimpleInferer SliceInferer SlidingWindowInferer",
    "monai.losses": "DiceLoss",
    "monai.networks.nets": "AttentionUnet BasicUNet BasicUNetPlusPlus DenseNet DenseNet121 DenseNet169 "
    "DenseNet201 DenseNet264 DynUNet FlexibleUNet ResNet SEResNet50 SegResNet SwinUNETR UNet UNETR VNet resnet10 "
    "resnet18 resnet34 resnet50",
    "monai.networks.utils": "copy_model_state",
    "monai.transforms": "Activationsd AsDiscreted Compose ConcatItemsd CopyItemsd EnsureChannelFirstd EnsureTyped "
    "FromMetaTensord Invertd KeepLargestConnectedComponentd Lambdad LoadImaged NormalizeIntensityd Orientationd "
    "RandAffined RandCropByPosNegLabeld RandFlipd RandSpatialCropSamplesd Resized SaveClassificationd SaveImaged "
    "ScaleIntensityRanged ScaleIntensityRangePercentilesd Spacingd SpatialPadd SplitDimd SqueezeDimd Transposed",
    "monai.utils": "set_determinism",
    "torch": "load",
    "torch.nn": "CrossEntropyLoss",
    "torch.optim": "Adam SGD",
}
FUNCTIONS = (INTERPOLATE, NARROW)  # that Lambdad may call
TARGETS = {f"{module}.{name}" for module, names in _CLASSES.items() for name in names.split()}
TARGETS |= {*FUNCTIONS}
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
    "monai.transforms.SaveImaged": {"_target_", "keys", "output_dir", "output_postfix", "separate_folder"}
    | {"output_ext", "scale", "output_dtype", "resample"},
}
VALUES_OF = {  # allowed values of some keys; with them, a bundle writes in its own folder only
    "_mode_": ("callable",),
    "bundle_root": (".",),
    "filename": (PREDICTIONS,),
    "output_dir": ("$@bundle_root + '/eval'", "@output_dir"),
    "output_ext": (".png", ".nii.gz"),
    "weights_only": (True,),
    "save_dir": ("@ckpt_dir",),
    "ckpt_dir": ("$@bundle_root + '/models'",),
    "final_filename": (TRAINED,),
}
FILE_NAME = re.compile(r"[^@/\\][^/\\]*")  # and no path or reference
# `reader` and `writer` name classes that MONAI imports and calls without a `_target_`. The other keys start a debugger,
# unpickle a file, or download weights.
FORBIDDEN_KEYS = {"reader", "writer", "_debug_", "pickle_module", "pretrained", "pretrained_url"}
IMPORTS = ("$import glob", "$import PIL.ImageOps as ImageOps")
_NAME = r"""('[^'\\@#]+'|"[^"\\@#]+")"""  # of a structure or a class, without a reference, a comment or an escape
_FOLDER = rf"@dataset_dir \+ {_NAME}"
_CLASS_FILES = (
    rf"\[\{{'image': {_FOLDER} \+ name, 'label': \[[\d., ]+\]\}} "
    rf"for name in sorted\(glob\.glob\(@image_pattern, root_dir={_FOLDER}\)\)\]"
)
EXPRESSIONS = (  # that MONAI may evaluate; it replaces references (`@key`) before it parses them
    *IMPORTS,
    *CONVERTERS.values(),
    LOSS,
    "$@bundle_root + '/eval'",
    "$@bundle_root + '/input'",
    "$@bundle_root + '/models'",
    "$@bundle_root + '/models/model.pt'",
    "$@dataset_dir + '/' + @image_pattern",
    "$@evaluator.run()",
    "$@network.parameters()",
    "$@network_def.to(@device)",
    "$@parts[0]",
    "$@parts[1]",
    "$@train#trainer.run()",
    "$@validate#evaluator.run()",
    "$[{'image': path} for path in @datalist]",
    "$monai.handlers.from_engine(['pred', 'label'])",
    "$not @load_pretrain",
    "$np.uint8",
    "$sorted(glob.glob(@image_pattern, root_dir=@dataset_dir + '/images'))",
    "$sorted(glob.glob(@images)) or [@images]",
    "$sorted(glob.glob(@images)) or sorted(glob.glob(@dataset_dir + '/*/')) or [@images]",
    "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
)
# The cases of a training: the image and the mask of each structure, or the images of each class.
CASES = re.compile(
    rf"\$(\[\{{'image': {_FOLDER} \+ name(, {_NAME}: {_FOLDER} \+ name)+\}} for name in @names\]"
    rf"|{_CLASS_FILES}( \+ {_CLASS_FILES})*)"
)


@dataclass(frozen=True)
class BundleFiles:
    """The files of a bundle, by their path within it."""

    path: Path
    names: dict[str, Path]

    def read(self, name: str) -> bytes:
        """The content of a small file; UserError if it has more than 1 MiB."""
        with self.names[name].open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise UserError(f"{self.path}: {name} has more than {MAX_CONFIG_BYTES:,} bytes; expected a few thousand")
        return data

    def json(self, name: str) -> Any:
        """The values in a JSON file; UserError if it is too large or damaged, KeyError if it does not exist."""
        try:
            return json.loads(self.read(name))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.path}: {name} is not JSON ({error}); export the bundle again") from error

    def check_weights(self, name: str) -> None:
        """UserError if a file of weights differs from the CRC-32 checksums that PyTorch stores, or has none."""
        with self.names[name].open("rb") as file:
            check_checksums(file, f"{self.path}: {name}", "copy the bundle again")


def open_bundle(path: Path) -> BundleFiles:
    """List the files of a bundle; UserError if it is not a folder, or contains links."""
    if not path.is_dir():
        raise UserError(f"{path}: is not a folder; expected the folder of a bundle; unpack a zip file first")
    names = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            raise UserError(f"{path}: '{name.as_posix()}' is a link, a pipe or a device; replace it by the file itself")
        if name.parts[0] in IMAGE_FOLDERS or file.is_dir():
            continue
        names[name.as_posix()] = file
    return BundleFiles(path, names)


def check_bundle(path: Path, own_program: bool = False) -> None:
    """UserError for what is missing, damaged or not allowed in a bundle; medfed's `own_program` is allowed."""
    files = open_bundle(path)
    names = set(files.names) - {PROGRAM} if own_program else set(files.names)
    if PROGRAM in names:
        raise UserError(
            f"{path}: {PROGRAM} is a program, which can run code when it is loaded; run the bundle only if you trust "
            "its sender, or score it with medfed.score, which never loads the program"
        )
    if unknown := sorted(names.difference(FILES)):
        raise UserError(
            f"{path}: contains '{unknown[0]}', which is not part of a medfed bundle; expected {', '.join(FILES)}"
        )
    if missing := [name for name in REQUIRED if name not in names]:
        raise UserError(f"{path}: {missing[0]} is missing; copy the bundle again, or export it again")
    files.check_weights(WEIGHTS)
    for name in sorted(name for name in names if name.endswith(".json")):
        content, source = files.json(name), f"{path}: {name}"
        if name == METADATA:
            check_metadata(content, source)
        else:
            check_inference(content | {"network_def": None} if own_program else content, source)
    if "configs/logging.conf" in names and files.read("configs/logging.conf") != LOGGING_CONF.encode():
        raise UserError(f"{path}: configs/logging.conf names code, and is not medfed's; export it again")
    _check_network(files, own_program)


def _check_network(files: BundleFiles, own_program: bool) -> None:
    """UserError if the weights are not tensors, are not finite, or do not fit the network of `network_def`."""
    file, place = files.names[WEIGHTS], f"{files.path}: {WEIGHTS}"
    weights = read_state_dict(file)
    if name := first_non_finite(weights):
        raise UserError(f"{place} contains NaN or infinite values, first in '{name}'; export another run")
    if own_program:
        return
    definition = files.json(INFERENCE).get("network_def")
    if not isinstance(definition, dict):
        raise UserError(f"{files.path}: {INFERENCE} has no network_def that builds a network; export the bundle again")
    try:
        network = getattr(nets, str(definition["_target_"]).rpartition(".")[2])
        with SizeLimit(max(file.stat().st_size, MIN_ALLOWED_VALUES)):
            expected = network(**{key: value for key, value in definition.items() if key != "_target_"}).state_dict()
        check_same_entries(expected, weights)
    except Exception as error:  # MONAI's networks raise many types for wrong arguments
        reason = str(error).strip().partition("\n")[0][:200]
        raise UserError(f"{place} does not fit network_def ({reason}); export the bundle again") from error


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
        if name in VALUES_OF and value not in VALUES_OF[name]:
            expected = " or ".join(f"'{allowed}'" for allowed in VALUES_OF[name])
            raise UserError(f"{source}: {key}: '{value}' is not allowed here; expected {expected}")
        if name == "output_postfix" and not (isinstance(value, str) and FILE_NAME.fullmatch(value)):
            raise UserError(f"{source}: {key}: '{value}' is not the name of a structure; export the bundle again")
        if isinstance(value, dict):
            _check_keys(value, f"{source}: {key}")
        if isinstance(value, str) and value.startswith("%"):
            raise UserError(f"{source}: {key}: '{value}' refers to another file; write the value itself")
        if isinstance(value, str) and value.startswith("$") and value not in EXPRESSIONS and not CASES.fullmatch(value):
            raise UserError(f"{source}: {key}: the expression '{value}' is not one of medfed's, and could run any code")


def _check_keys(content: dict[str, Any], source: str) -> None:
    """Check the keys of the classes in `KEYS_OF`, and that only `FUNCTIONS` use `_mode_` and `Lambdad`."""
    target = content.get("_target_")
    known = KEYS_OF.get(target) if isinstance(target, str) else None
    if known and (unexpected := [key for key in content if key not in known]):
        raise UserError(
            f"{source}: {target} has the unknown argument '{unexpected[0]}'; allowed are {', '.join(sorted(known))}"
        )
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
