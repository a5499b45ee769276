"""Base class of the MONAI bundle templates of the tasks, and the MONAI transforms that they share.

`medfed.outputs.bundle` writes the files. A template is a folder in `bundles/`; only what depends on the run is
replaced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

Json = dict[str, Any]

RGB = {"0": "red", "1": "green", "2": "blue"}
INTERPOLATE = "torch.nn.functional.interpolate"
PREDICTIONS = "predictions.csv"
# How Pillow reads an image file, by the number of channels that the network expects: rotated as its EXIF data require,
# without alpha channel. For other files (more than 8 bits, for example) the lookup raises a KeyError with the mode: no
# prediction is better than one from saturated pixels.
_MODES = {1: {"1": "L", "L": "L", "LA": "L"}, 3: dict.fromkeys(("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"), "RGB")}
CONVERTERS = {
    n: f"$lambda picture: ImageOps.exif_transpose(picture).convert({modes}[picture.mode])"
    for n, modes in _MODES.items()
}
FILE_KINDS = (
    "8-bit {} as PNG, JPEG or BMP, rotated as the EXIF data of the file require; for other files, such as grey images "
    "with more than 8 bits, the bundle stops with a KeyError that names the colour mode"
)


class BundleTemplate(ABC):
    """Base class of the bundle of one task.

    Attributes:
        folder: name of the template folder in `bundles/`.
        name: name of the exported bundle's folder; MONAI Label recognises the task by its ending.
        title: first words of the model card.
        packages: Python packages that the bundle needs in addition to MONAI and PyTorch.
    """

    folder: str
    name: str
    title: str
    packages: tuple[str, ...]

    @abstractmethod
    def fill_inference(self, config: Json) -> None:
        """Set the entries of `configs/inference.json` that depend on the run, except the network.

        Args:
            config: content of the template's file; it is changed in place.
        """

    @abstractmethod
    def fill_metadata(self, content: Json) -> None:
        """Set the entries of `configs/metadata.json` that depend on the task.

        Args:
            content: content of the template's file; it is changed in place.
        """

    @abstractmethod
    def card_values(self, module: nn.Module) -> dict[str, object]:
        """Return the values for the {placeholders} of `docs/README.md` that only this template has.

        Args:
            module: the exported network.
        """


def step(class_: str, keys: str | list[str] = "image", **arguments: Any) -> Json:
    """Return the entry of a MONAI dictionary transform in a bundle's config.

    Args:
        class_: name of the class in `monai.transforms`.
        keys: key or keys of the dictionary that are transformed.
        arguments: further arguments of the class.
    """
    return {"_target_": f"monai.transforms.{class_}", "keys": keys, **arguments}


def read_2d(channels: int) -> list[Json]:
    """Return the transforms that read a 2-D image file as `medfed.datasets.image_files` does.

    MONAI reads (C, W, H), so the axes are swapped. When MONAI inverts the transforms, they are swapped back; `Resized`
    adds and removes the axis of length D = 1.

    Args:
        channels: number of channels, 1 or 3.
    """
    load = step("LoadImaged", converter=CONVERTERS[channels])
    return [load, step("EnsureChannelFirstd"), step("Transposed", indices=[0, 2, 1])]


def channel_names(channels: int) -> dict[str, str]:
    """Return the names of the input channels for MONAI's metadata, such as {"0": "red", "1": "green", "2": "blue"}.

    Args:
        channels: number of channels; 3 means RGB, all others are called "image".
    """
    return RGB if channels == 3 else {str(index): "image" for index in range(channels)}


def file_kinds(channels: int) -> str:
    """Return the phrase of the model card that names the supported 2-D image files.

    Args:
        channels: number of channels that the network expects; 3 means RGB, otherwise grey.
    """
    colour = "colour images (RGB, palette, CMYK, without alpha)"
    return FILE_KINDS.format(colour if channels == 3 else "grey images")


def capitalise(text: str) -> str:
    """Return the text with its first letter in upper case and all others unchanged."""
    return f"{text[:1].upper()}{text[1:]}"
