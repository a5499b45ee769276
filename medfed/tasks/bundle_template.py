"""What a task declares of its MONAI bundle: the template, and what fills it; and the steps that bundles share.

`medfed.outputs.bundle` writes the files. A template is a folder of `bundles/`; only what depends on the run is
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
# How an image file is read by Pillow, by the channels that are wanted: turned as its EXIF note says, without alpha. A
# file of another kind (more than 8 bits, say) is a KeyError with its mode: better no answer than one of saturated
# pixels.
_MODES = {1: {"1": "L", "L": "L", "LA": "L"}, 3: dict.fromkeys(("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"), "RGB")}
CONVERTERS = {
    n: f"$lambda picture: ImageOps.exif_transpose(picture).convert({modes}[picture.mode])"
    for n, modes in _MODES.items()
}
FILE_KINDS = (
    "8-bit {} as PNG, JPEG or BMP, turned as a note in the file says (EXIF); another kind, such as grey of more than 8 "
    "bits, stops with its mode as a KeyError"
)


class BundleTemplate(ABC):
    """The bundle of one task.

    folder: the template in `bundles/`.
    name: of the bundle's folder; its end tells MONAI Label the task.
    title: the first words of the model card.
    packages: what the bundle needs beside MONAI and PyTorch.
    """

    folder: str
    name: str
    title: str
    packages: tuple[str, ...]

    @abstractmethod
    def fill_inference(self, config: Json) -> None:
        """Replace in `configs/inference.json` what depends on the run, but for the network."""

    @abstractmethod
    def fill_metadata(self, content: Json) -> None:
        """Replace in `configs/metadata.json` what depends on the task."""

    @abstractmethod
    def card_values(self, module: nn.Module) -> dict[str, object]:
        """The {placeholders} of `docs/README.md` that only this template has."""


def step(class_: str, keys: str | list[str] = "image", **arguments: Any) -> Json:
    """A MONAI transform of these keys."""
    return {"_target_": f"monai.transforms.{class_}", "keys": keys, **arguments}


def read_2d(channels: int) -> list[Json]:
    """Read an image file as `medfed.datasets.image_files` does, but for the order of axes: MONAI has (C, W, H).

    It is turned back when MONAI inverts; `Resized` adds, and removes, its D = 1.
    """
    load = step("LoadImaged", converter=CONVERTERS[channels])
    return [load, step("EnsureChannelFirstd"), step("Transposed", indices=[0, 2, 1])]


def channel_names(channels: int) -> dict[str, str]:
    """The input channels as MONAI's metadata name them."""
    return RGB if channels == 3 else {str(index): "image" for index in range(channels)}


def file_kinds(channels: int) -> str:
    """Which 2-D image files a bundle understands, as the card says it."""
    colour = "pictures in colour (RGB, palette, CMYK, without alpha)"
    return FILE_KINDS.format(colour if channels == 3 else "grey pictures")


def capitalised(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
