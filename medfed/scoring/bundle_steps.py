"""The transforms and the inferer of a bundle's `configs/inference.json`, built from plain values. No code of it runs.

`read_config` resolves the references of the config. This module builds only the classes listed below, with plain
values, and refuses everything else. medfed's own reading replaces the first transforms, so that any format that medfed
trains with can be scored. Transforms that save files are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import monai.inferers
import monai.transforms
import numpy as np
import torch
import torch.nn.functional as F
from monai.transforms import Compose, MapTransform
from torch import Tensor

from medfed.core.errors import UserError
from medfed.networks.parts.bundle_config import Expression, is_expression
from medfed.tasks.bundle_entries import INTERPOLATE, NARROW
from medfed.tasks.bundle_template import CONVERTERS

Json = dict[str, Any]

READERS = ("PILReader", "NibabelReader", "ITKReader")  # they give the same axes as medfed's own reading
OF_LOADER = frozenset({"keys", "image_only", "ensure_channel_first", "reader", "converter", "dtype"})
LOADER, CHANNEL_FIRST = "LoadImaged", "EnsureChannelFirstd"
BEFORE = frozenset(
    "AsDiscreted CastToTyped CenterSpatialCropd ConcatItemsd CopyItemsd CropForegroundd DivisiblePadd "
    "EnsureChannelFirstd EnsureTyped Flipd Lambdad NormalizeIntensityd Orientationd ResizeWithPadOrCropd Resized "
    "Rotate90d ScaleIntensityRangePercentilesd ScaleIntensityRanged ScaleIntensityd Spacingd SpatialPadd SplitDimd "
    "SqueezeDimd ToTensord Transposed".split()
)  # before the network
AFTER = frozenset(
    "Activationsd AsDiscreted EnsureTyped FillHolesd Invertd KeepLargestConnectedComponentd Lambdad "
    "RemoveSmallObjectsd ToTensord".split()
)  # after the network
SAVING = frozenset({"FromMetaTensord", "SaveClassificationd", "SaveImaged", "SplitDimd"})
FUNCTIONS: dict[str, Callable[..., Tensor]] = {INTERPOLATE: F.interpolate, NARROW: torch.narrow}
DTYPES = {
    f"${module}.{name}": dtype
    for module in ("torch", "np", "numpy")
    for name, dtype in (
        ("float32", torch.float32 if module == "torch" else np.float32),
        ("uint8", torch.uint8 if module == "torch" else np.uint8),
    )
}
DROP_BACKGROUND = "$lambda x: x[1:]"  # the only function that a config may write: recognised by its text, not run
INFERERS = {"SimpleInferer": (), "SliceInferer": ("spatial_dim",), "SlidingWindowInferer": ()}
OF_SLIDING = ("roi_size", "sw_batch_size", "overlap", "mode", "sigma_scale", "padding_mode", "cval", "progress")


def drop_background(masks: Tensor) -> Tensor:
    """Return masks (K + 1, ...) without their first channel."""
    return masks[1:]


class BundleSteps:
    """Builds the steps of one bundle's inference config, and names the key of whatever it refuses."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source

    def preprocessing(self) -> Compose:
        """Return the transforms between reading and the network, among `BEFORE`; the input is {"image": (C, ...)}."""
        steps = self._steps("preprocessing")
        names = [name for _, name, _ in steps]
        if not names or names[0] != LOADER:
            raise self._error(
                "preprocessing",
                f"its first transform is {names[0] if names else 'missing'}, expected "
                f"{LOADER}, which medfed's own reading replaces",
            )
        first = self._check_loader(steps[0])
        n_read = 1
        if first.get("ensure_channel_first") is not True:
            n_read += next((place for place, name in enumerate(names[1:]) if name == CHANNEL_FIRST), 0)
            if set(names[1:n_read]) - {"EnsureTyped"} or names[n_read : n_read + 1] != [CHANNEL_FIRST]:
                raise self._error(
                    "preprocessing",
                    f"{LOADER} is not followed by {CHANNEL_FIRST}, so that the axes of "
                    "the image are not known; expected both, which medfed's own reading replaces",
                )
            n_read += 1
        return Compose([self._transform(key, name, entry, BEFORE) for key, name, entry in steps[n_read:]])

    def postprocessing(self, preprocessing: Compose) -> Compose:
        """Return the transforms, among `AFTER`, that turn the network's output "pred" into masks on the image's grid;
        `Invertd` inverts `preprocessing`."""
        transforms: list[MapTransform] = []
        for key, name, entry in self._steps("postprocessing"):
            if name in SAVING:
                continue
            if name == "Invertd":
                if entry.get("transform") != self.config.get("preprocessing"):
                    raise self._error(f"{key}.transform", "is something else; expected '@preprocessing'")
                known = {k: entry[k] for k in ("keys", "orig_keys", "nearest_interp", "to_tensor") if k in entry}
                known = {k: self.plain(value, f"{key}.{k}") for k, value in known.items()}
                transforms.append(monai.transforms.Invertd(transform=preprocessing, **known))
            else:
                transforms.append(self._transform(key, name, entry, AFTER))
        return Compose(transforms)

    def output_form(self) -> tuple[bool, int]:
        """Return whether "pred" becomes one channel with the numbers of structures instead of one mask for each; and
        the network's channel that its first channel shows, which is 1 if the background is dropped."""
        is_label_map, first, makes_masks = False, 0, False
        for _, name, entry in self._steps("postprocessing"):
            if name == "AsDiscreted" and (entry.get("argmax") or entry.get("threshold") is not None):
                makes_masks = True
                is_label_map = bool(entry.get("argmax")) and not entry.get("to_onehot")
            elif name == "Lambdad":
                first += 1
        if not makes_masks:
            raise self._error(
                "postprocessing", "has no AsDiscreted with argmax or a threshold, so that it makes no masks; add one"
            )
        return is_label_map, first

    def inferer(self) -> monai.inferers.Inferer:
        """Return the object that applies the network to a whole image: at once, slice by slice, or in windows."""
        entry = self.config.get("inferer", {"_target_": "SimpleInferer"})
        name = _class_name(entry, "monai.inferers.") if isinstance(entry, Mapping) else None
        if name not in INFERERS or not isinstance(entry, Mapping):
            raise self._error("inferer", f"found '{name or _text(entry)}', expected one of {', '.join(INFERERS)}")
        allowed = (*OF_SLIDING, *INFERERS[name]) if name != "SimpleInferer" else ()
        arguments = {key: self.plain(value, f"inferer.{key}") for key, value in entry.items() if key in allowed}
        if unknown := [key for key in entry if key not in (*allowed, "_target_", "device", "sw_device")]:
            raise self._error(
                "inferer", f"{name} has the unknown argument '{unknown[0]}'; allowed are {', '.join(allowed) or 'none'}"
            )
        return self._create(monai.inferers, name, arguments, "inferer")

    def plain(self, value: Any, key: str) -> Any:
        """Return a value of the config; UserError for expressions and objects."""
        if isinstance(value, list):
            return [self.plain(entry, f"{key}.{place}") for place, entry in enumerate(value)]
        if isinstance(value, Mapping) and not any(name.startswith("_") for name in value):
            return {name: self.plain(entry, f"{key}.{name}") for name, entry in value.items()}
        if isinstance(value, Expression) and value.text in DTYPES:
            return DTYPES[value.text]
        if is_expression(value):
            raise self._error(
                key,
                f"'{_text(value)}' is an expression or an object, and medfed runs no code of a bundle; write a plain value",
            )
        return value

    def _steps(self, part: str) -> list[tuple[str, str, Json]]:
        """Return (key, class name, entry) of the transforms in one part of the config."""
        compose = self.config.get(part)
        is_compose = isinstance(compose, Mapping) and _class_name(compose, "monai.transforms.") == "Compose"
        entries = compose.get("transforms") if isinstance(compose, Mapping) and is_compose else None
        if not isinstance(entries, list):
            raise self._error(
                part,
                "is not a monai.transforms.Compose with a list of transforms, which medfed needs "
                "to prepare images as the bundle does",
            )
        steps = []
        for place, entry in enumerate(entries):
            key = f"{part}.transforms.{place}"
            if not isinstance(entry, Mapping) or not isinstance(entry.get("_target_"), str):
                raise self._error(key, f"found '{_text(entry)}', expected a transform with its '_target_'")
            disabled = entry.get("_disabled_", False)
            if not isinstance(disabled, bool):
                raise self._error(f"{key}._disabled_", f"found '{_text(disabled)}', expected true or false")
            if not disabled:
                values = {name: value for name, value in entry.items() if name not in ("_target_", "_disabled_")}
                steps.append((key, _class_name(entry, "monai.transforms."), values))
        return steps

    def _check_loader(self, step: tuple[str, str, Json]) -> Json:
        """Check that medfed's own reading gives what the bundle's `LoadImaged` would give; return its arguments."""
        key, _, entry = step
        if unknown := sorted(set(entry) - OF_LOADER):
            raise self._error(
                f"{key}.{unknown[0]}",
                f"is not an argument that medfed's own reading replaces; expected only {', '.join(sorted(OF_LOADER))}",
            )
        if (converter := entry.get("converter")) not in (None, *map(Expression, CONVERTERS.values())):
            raise self._error(
                f"{key}.converter",
                f"'{_text(converter)}' is an expression, and medfed runs no code of a bundle; expected none",
            )
        if entry.get("reader") not in (None, *READERS):
            raise self._error(
                f"{key}.reader", f"found '{_text(entry['reader'])}', expected one of {', '.join(READERS)}"
            )
        keys = self.plain(entry.get("keys"), f"{key}.keys")
        if keys not in ("image", ["image"]):
            raise self._error(f"{key}.keys", f"found {keys}, expected the single key 'image'")
        return entry

    def _transform(self, key: str, name: str, entry: Json, allowed: frozenset[str]) -> MapTransform:
        """Build one transform from the plain values of its entry."""
        if name not in allowed:
            raise self._error(
                key,
                f"the transform {name} is not among those that medfed builds, because it could run "
                f"code or is random; expected one of {', '.join(sorted(allowed))}",
            )
        arguments = {k: v for k, v in entry.items() if k not in ("device", "func")}  # medfed chooses the device
        values = {k: self.plain(v, f"{key}.{k}") for k, v in arguments.items()}
        if name == "Lambdad":
            values["func"] = self._function(entry.get("func"), f"{key}.func")
        return self._create(monai.transforms, name, values, key)

    def _function(self, func: Any, key: str) -> Callable[..., Tensor]:
        """Return the function of a `Lambdad`: one of `FUNCTIONS` with plain arguments, or `drop_background`."""
        if isinstance(func, Expression) and "".join(func.text.split()) == "".join(DROP_BACKGROUND.split()):
            return drop_background
        if isinstance(func, Mapping) and func.get("_target_") in FUNCTIONS and func.get("_mode_") == "callable":
            arguments = {k: self.plain(v, f"{key}.{k}") for k, v in func.items() if not k.startswith("_")}
            return partial(FUNCTIONS[func["_target_"]], **arguments)
        raise self._error(
            key,
            f"found '{_text(func)}', and medfed runs no code of a bundle; expected "
            f"{' or '.join(FUNCTIONS)}, or '{DROP_BACKGROUND}'",
        )

    def _create(self, module: Any, name: str, arguments: Mapping[str, Any], key: str) -> Any:
        """Create an object of MONAI's class `name`; UserError, which names `key`, if it refuses the arguments."""
        try:
            return getattr(module, name)(**arguments)
        except Exception as error:  # MONAI's classes raise many types of errors for wrong arguments
            raise self._error(
                key, f"MONAI's {name} refuses the arguments ({type(error).__name__}: {error}); correct them"
            ) from error

    def _error(self, key: str, sentence: str) -> UserError:
        return UserError(f"{self.source}: {key}: {sentence}")


def _class_name(entry: Mapping[str, Any], package: str) -> str:
    """Return the `_target_` of an entry without the package of MONAI, such as "Resized"."""
    return str(entry.get("_target_")).removeprefix(package)


def _text(value: Any) -> Any:
    return value.text if isinstance(value, Expression) else value
