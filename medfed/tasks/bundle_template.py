"""Base class of the MONAI bundle templates of the tasks, and the MONAI transforms that they share.

`medfed.outputs.bundle` writes the files. A template is a folder in `bundles/`; only what depends on the run is
replaced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import nn

from medfed.tasks.bundle_entries import Json, step
from medfed.tasks.bundle_training import TrainingParts

Constants = tuple[tuple[float, ...], tuple[float, ...]]  # means and standard deviations, one number per channel each

COLOUR_MEAN, COLOUR_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, for values in [0, 1]
GREY_MEAN, GREY_STD = (0.449,), (0.226,)

RGB = {"0": "red", "1": "green", "2": "blue"}
PREDICTIONS = "predictions.csv"
READ_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")  # of 2-D image files that a bundle's transforms can read
# How Pillow reads an image file, by the number of channels that the network expects: rotated as its EXIF data require,
# without alpha channel, and grey repeated as RGB, as medfed reads it. For other files (more than 8 bits, for example)
# the lookup raises a KeyError with the mode: no prediction is better than one from saturated pixels.
_COLOUR_MODES = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "1", "L", "LA")
_MODES = {1: {"1": "L", "L": "L", "LA": "L"}, 3: dict.fromkeys(_COLOUR_MODES, "RGB")}
CONVERTERS = {
    n: f"$lambda picture: ImageOps.exif_transpose(picture).convert({modes}[picture.mode])"
    for n, modes in _MODES.items()
}
NO_TRAINING = "The bundle has no `configs/train.json`, because MONAI cannot build this network. It can only predict."
TRAINING_TEXT = """## Training and evaluation

FOLDERS

One file in five, chosen at random, is for validation; a patient with several files can be on both sides.

```
python -m monai.bundle run --bundle_root BUNDLE --config_file BUNDLE/configs/train.json --dataset_dir DATA \\
    --logging_file BUNDLE/configs/logging.conf --train#trainer#max_epochs 10
python -m monai.bundle run --bundle_root BUNDLE --dataset_dir DATA \\
    --config_file "['BUNDLE/configs/train.json','BUNDLE/configs/evaluate.json']"
```

Training starts from `models/model.pt` and writes `models/trained.pt`. `MonaiAlgo` of `monai.fl` can train the bundle
in a federation. Loss, optimiser, image size and standardisation are those of the run. What the federated method
added, such as episodes, styles of other sites or a proximal term, is not in these configs: they train as FedAvg does at
a site. The random rotation, scaling and flip have the ranges of the run, but the random numbers are others.

"""
FILE_KINDS = (
    "8-bit {} as PNG, JPEG or BMP, rotated as the EXIF data of the file require; for other files, such as grey images "
    "with more than 8 bits, the bundle stops with a KeyError that names the colour mode"
)


class BundleTemplate(ABC):
    """Fills the template of a MONAI bundle, a folder of `bundles/`, with values that depend on the task and the run."""

    folder: str  # name of the template folder in `bundles/`
    name: str  # of the exported bundle's folder; MONAI Label recognises the task by its end
    title: str  # first words of the model card
    packages: tuple[str, ...]  # that the bundle needs in addition to MONAI and PyTorch

    @abstractmethod
    def fill_inference(self, config: Json) -> None:
        """Set the values of `configs/inference.json` that depend on the run, except for the network, in place."""

    @abstractmethod
    def fill_metadata(self, content: Json) -> None:
        """Set the descriptions and the data format in `configs/metadata.json`, in place."""

    @abstractmethod
    def training_parts(self, training: Mapping[str, Any], inference: Json) -> TrainingParts:
        """What this task contributes to `configs/train.json`. `training` is that block of the run's config."""

    @property
    @abstractmethod
    def training_folders(self) -> str:
        """Sentence of the model card: which folders hold the images and labels for training."""

    def training_text(self, has_training: bool) -> str:
        """The section of the model card about training and evaluating the bundle on other images."""
        if not has_training:
            return f"## Training\n\n{NO_TRAINING}\n\n"
        return TRAINING_TEXT.replace("FOLDERS", self.training_folders)

    @abstractmethod
    def card_values(self, module: nn.Module) -> dict[str, object]:
        """Text for each placeholder of the model card, such as {threshold}, that only this task has."""


def colour_scale(channels: int) -> Constants:
    """Mean and standard deviation per channel for `data.standardise: imagenet`."""
    return (COLOUR_MEAN, COLOUR_STD) if channels == 3 else (GREY_MEAN * channels, GREY_STD * channels)


def scale_channels(constants: Constants) -> Json:
    """The MONAI transform that standardises each channel by fixed numbers."""
    mean, std = constants
    return step("NormalizeIntensityd", subtrahend=list(mean), divisor=list(std), channel_wise=True)


def describe_constants(constants: Constants) -> str:
    """For the model card, such as "minus 0.5, divided by 0.2"."""
    mean, std = (", ".join(f"{number:.7g}" for number in numbers) for numbers in constants)
    return f"minus {mean}, divided by {std} (fixed numbers)"


def read_2d(channels: int, key: str = "image") -> list[Json]:
    """MONAI transforms that read a 2-D image file as (C, H, W), with the pixels of `medfed.images.two_dimensional`.

    MONAI reads (C, W, H), so the last transform swaps the two axes. When MONAI inverts the transforms, they are swapped
    back.
    """
    load = step("LoadImaged", key, converter=CONVERTERS[channels])
    return [load, step("EnsureChannelFirstd", key), step("Transposed", key, indices=[0, 2, 1])]


def channel_names(channels: int) -> dict[str, str]:
    """Names by channel number, as MONAI's metadata contain them: red, green and blue, or "image" for each channel."""
    return RGB if channels == 3 else {str(index): "image" for index in range(channels)}


def file_kinds(channels: int) -> str:
    """For the model card: the image files that the model accepts, such as "8-bit grey images as PNG, JPEG or BMP"."""
    colour = "colour (RGB, palette or CMYK, without alpha) or grey images"
    return FILE_KINDS.format(colour if channels == 3 else "grey images")


def capitalise(text: str) -> str:
    """Change only the first letter, unlike `str.capitalize`."""
    return f"{text[:1].upper()}{text[1:]}"
