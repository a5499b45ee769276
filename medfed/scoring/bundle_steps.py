"""The transforms and the inferer of a bundle's `configs/inference.json`, built from plain values. No code of it runs.

`read_config` resolves the references of the config. This module builds only the classes listed below, with plain
values, and refuses everything else. medfed's own reading replaces the first transforms, so that any format that medfed
trains with can be scored. Transforms that save files are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
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
    f"${name}.{dtype}": getattr(module, dtype)
    for name, module in (("torch", torch), ("np", np), ("numpy", np))
    for dtype in ("float32", "uint8")
}
OF_LOADER: dict[str, Any] = {  # the arguments of `LoadImaged` that medfed's own reading replaces, and their values
    "keys": ("image", ["image"]),
    "reader": (None, "PILReader", "NibabelReader", "ITKReader"),  # they give the same axes as medfed's own reading
    "converter": (None, *map(Expression, CONVERTERS.values())),
    **dict.fromkeys(("image_only", "ensure_channel_first", "dtype")),  # with any value
}
DROP_BACKGROUND = "$lambda x: x[1:]"  # the only function that a config may write: recognised by its text, not run
INFERERS = {"SimpleInferer": (), "SliceInferer": ("spatial_dim",), "SlidingWindowInferer": ()}
OF_SLIDING = ("roi_size", "sw_batch_size", "overlap", "mode", "sigma_scale", "padding_mode", "cval", "progress")


class BundleSteps:
    """Builds the steps of one bundle's inference config, and names the key of whatever it refuses."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source  # as `read_config` returns it; the file, for errors

    def preprocessing(self) -> Compose:
        """Return the transforms between reading and the network, among `BEFORE`; the input is {"image": (C, ...)}."""
        steps = self._steps("preprocessing")
        names = [name for _, name, _ in steps]
        if names[:1] != [LOADER]:
            found = f"its first transform is {names[0] if names else 'missing'}"
            raise self._error("preprocessing", f"{found}, expected {LOADER}, which medfed's own reading replaces")
        n_read = 1
        if self._check_loader(*steps[0]).get("ensure_channel_first") is not True:
            n_read += next((place for place, name in enumerate(names[1:]) if name == CHANNEL_FIRST), 0)
            if set(names[1:n_read]) - {"EnsureTyped"} or names[n_read : n_read + 1] != [CHANNEL_FIRST]:
                sentence = f"{LOADER} is not followed by {CHANNEL_FIRST}, so that the axes of the image are not known"
                raise self._error("preprocessing", f"{sentence}; expected both, which medfed's own reading replaces")
            n_read += 1
        return Compose([self._transform(*step, BEFORE) for step in steps[n_read:]])

    def postprocessing(self, preprocessing: Compose) -> Compose:
        """Return the transforms, among `AFTER`, that turn the network's output "pred" into masks on the image's grid;
        `Invertd` inverts `preprocessing`."""
        transforms: list[MapTransform] = []
        for key, name, entry in self._steps("postprocessing"):
            if name in SAVING:
                continue
            if name != "Invertd":
                transforms.append(self._transform(key, name, entry, AFTER))
                continue
            if entry.get("transform") != self.config.get("preprocessing"):
                raise self._error(f"{key}.transform", "is something else; expected '@preprocessing'")
            known = {k: entry[k] for k in ("keys", "orig_keys", "nearest_interp", "to_tensor") if k in entry}
            known = {k: self.plain(value, f"{key}.{k}") for k, value in known.items()}
            transforms.append(monai.transforms.Invertd(transform=preprocessing, **known))
        return Compose(transforms)

    def output_form(self) -> tuple[bool, int]:
        """Return whether "pred" becomes one channel with the numbers of structures instead of one mask for each; and
        the network's channel that its first channel shows, which is 1 if the background is dropped."""
        steps = [(name, entry) for _, name, entry in self._steps("postprocessing")]
        makers = [entry for name, entry in steps if name == "AsDiscreted"]
        makers = [entry for entry in makers if entry.get("argmax") or entry.get("threshold") is not None]
        if not makers:
            sentence = "has no AsDiscreted with argmax or a threshold, so that it makes no masks; add one"
            raise self._error("postprocessing", sentence)
        is_label_map = bool(makers[-1].get("argmax")) and not makers[-1].get("to_onehot")
        return is_label_map, sum(self._dropped_channels(entry["func"]) for _, entry in steps if "func" in entry)

    def _dropped_channels(self, func: Any) -> int:
        """The number of channels that the function of a `Lambdad` removes before the first one that it keeps."""
        if not (isinstance(func, Mapping) and func.get("_target_") == NARROW):
            return int(_drops_background(func))
        dim, start = func.get("dim"), func.get("start")
        if type(dim) is not int or type(start) is not int or min(dim, start) < 0:
            sentence = f"{NARROW} has dim {_text(dim)!r} and start {_text(start)!r}; expected whole numbers from 0"
            raise self._error("postprocessing", sentence)
        return start if dim == 0 else 0

    def inferer(self) -> monai.inferers.Inferer:
        """Return the object that applies the network to a whole image: at once, slice by slice, or in windows."""
        entry = self.config.get("inferer", {"_target_": "SimpleInferer"})
        name = _class_name(entry, "monai.inferers.") if isinstance(entry, Mapping) else None
        if name not in INFERERS or not isinstance(entry, Mapping):
            raise self._error("inferer", f"found '{name or _text(entry)}', expected one of {', '.join(INFERERS)}")
        allowed = (*OF_SLIDING, *INFERERS[name]) if name != "SimpleInferer" else ()
        arguments = {key: self.plain(value, f"inferer.{key}") for key, value in entry.items() if key in allowed}
        if unknown := [key for key in entry if key not in (*allowed, "_target_", "device", "sw_device")]:
            known = ", ".join(allowed) or "none"
            raise self._error("inferer", f"{name} has the unknown argument '{unknown[0]}'; allowed are {known}")
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
            sentence = f"'{_text(value)}' is an expression or an object, and medfed runs no code of a bundle"
            raise self._error(key, f"{sentence}; write a plain value")
        return value

    def _steps(self, part: str) -> list[tuple[str, str, Json]]:
        """Return (key, class name, entry) of the transforms in one part of the config."""
        compose = self.config.get(part)
        is_compose = isinstance(compose, Mapping) and _class_name(compose, "monai.transforms.") == "Compose"
        entries = compose.get("transforms") if isinstance(compose, Mapping) and is_compose else None
        if not isinstance(entries, list):
            sentence = "is not a monai.transforms.Compose with a list of transforms, which medfed needs"
            raise self._error(part, f"{sentence} to prepare images as the bundle does")
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

    def _check_loader(self, key: str, name: str, entry: Json) -> Json:
        """Check that medfed's own reading gives what the bundle's `LoadImaged` would give; return its arguments."""
        for argument, value in ({"keys": None} | entry).items():
            if argument not in OF_LOADER:
                known = ", ".join(OF_LOADER)
                raise self._error(
                    f"{key}.{argument}", f"medfed's own reading has no such argument; expected only {known}"
                )
            if (allowed := OF_LOADER[argument]) and value not in allowed:
                known = ", ".join(str(_text(each)) for each in allowed)
                sentence = f"found '{_text(value)}', and medfed runs no code of a bundle; expected one of {known}"
                raise self._error(f"{key}.{argument}", sentence)
        return entry

    def _transform(self, key: str, name: str, entry: Json, allowed: frozenset[str]) -> MapTransform:
        """Build one transform from the plain values of its entry."""
        if name not in allowed:
            sentence = f"the transform {name} is not among those that medfed builds, as it could run code or is random"
            raise self._error(key, f"{sentence}; expected one of {', '.join(sorted(allowed))}")
        arguments = {k: v for k, v in entry.items() if k not in ("device", "func")}  # medfed chooses the device
        values = {k: self.plain(v, f"{key}.{k}") for k, v in arguments.items()}
        if name == "Lambdad":
            values["func"] = self._function(entry.get("func"), f"{key}.func")
        return self._create(monai.transforms, name, values, key)

    def _function(self, func: Any, key: str) -> Callable[..., Tensor]:
        """Return the function of a `Lambdad`: one of `FUNCTIONS` with plain arguments, or `DROP_BACKGROUND`."""
        if _drops_background(func):
            return itemgetter(slice(1, None))
        if isinstance(func, Mapping) and func.get("_target_") in FUNCTIONS and func.get("_mode_") == "callable":
            arguments = {k: self.plain(v, f"{key}.{k}") for k, v in func.items() if not k.startswith("_")}
            return partial(FUNCTIONS[func["_target_"]], **arguments)
        expected = " or ".join((*FUNCTIONS, f"'{DROP_BACKGROUND}'"))
        raise self._error(key, f"found '{_text(func)}', and medfed runs no code of a bundle; expected {expected}")

    def _create(self, module: Any, name: str, arguments: Mapping[str, Any], key: str) -> Any:
        """Create an object of MONAI's class `name`; UserError, which names `key`, if it refuses the arguments."""
        try:
            return getattr(module, name)(**arguments)
        except Exception as error:  # MONAI's classes raise many types of errors for wrong arguments
            reason = f"{type(error).__name__}: {error}"
            raise self._error(key, f"MONAI's {name} refuses the arguments ({reason}); correct them") from error

    def _error(self, key: str, sentence: str) -> UserError:
        return UserError(f"{self.source}: {key}: {sentence}")


def _drops_background(func: Any) -> bool:
    return isinstance(func, Expression) and "".join(func.text.split()) == "".join(DROP_BACKGROUND.split())


def _class_name(entry: Mapping[str, Any], package: str) -> str:
    """Return the `_target_` of an entry without the package of MONAI, such as "Resized"."""
    return str(entry.get("_target_")).removeprefix(package)


def _text(value: Any) -> Any:
    return value.text if isinstance(value, Expression) else value
