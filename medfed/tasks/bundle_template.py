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
# How Pillow reads an image file, by the number of channels that the network expects: rotated as its EXIF data require,
# without alpha channel. For other files (more than 8 bits, for example) the lookup raises a KeyError with the mode: no
# prediction is better than one from saturated pixels.
_MODES = {1: {"1": "L", "L": "L", "LA": "L"}, 3: dict.fromkeys(("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"), "RGB")}
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
    """Base class that fills the template of a MONAI bundle for one task.

    A template is a folder of `bundles/` that contains the config, the metadata and the model card. Values that depend
    on the run are missing in it.

    Attributes:
        folder: name of the template folder in `bundles/`.
        name: name of the exported bundle's folder. MONAI Label recognises the task by the end of this name.
        title: first words of the model card.
        packages: Python packages that the bundle needs in addition to MONAI and PyTorch.
    """

    folder: str
    name: str
    title: str
    packages: tuple[str, ...]

    @abstractmethod
    def fill_inference(self, config: Json) -> None:
        """Set the values of a bundle's `configs/inference.json` that depend on the run, such as the transforms.

        Other code sets the definition of the network.

        Args:
            config: content of `configs/inference.json` in the bundle's template folder; it is changed in place.
        """

    @abstractmethod
    def fill_metadata(self, content: Json) -> None:
        """Set the values of a bundle's `configs/metadata.json` that depend on the task: descriptions and data format.

        Args:
            content: content of `configs/metadata.json` in the bundle's template folder; it is changed in place.
        """

    @abstractmethod
    def training_parts(self, training: Mapping[str, Any], inference: Json) -> TrainingParts:
        """Return what this task contributes to the bundle's `configs/train.json`.

        Args:
            training: the settings under `training` in the run's config.
            inference: content of `configs/inference.json`.
        """

    @property
    @abstractmethod
    def training_folders(self) -> str:
        """Sentence of the model card: which folders hold the images and labels for training."""

    def training_text(self, has_training: bool) -> str:
        """Return the section of the model card about training and evaluating the bundle on other images.

        Args:
            has_training: whether the bundle contains `configs/train.json`.
        """
        if not has_training:
            return f"## Training\n\n{NO_TRAINING}\n\n"
        return TRAINING_TEXT.replace("FOLDERS", self.training_folders)

    @abstractmethod
    def card_values(self, module: nn.Module) -> dict[str, object]:
        """Return the texts for those placeholders of the model card that only this task has.

        A placeholder is a name in braces, such as {threshold}, in the template's `docs/README.md`. The placeholders of
        all tasks, such as {title}, are filled by other code.

        Args:
            module: the exported network.

        Returns:
            Dictionary from the name of a placeholder to its text.
        """


def colour_scale(channels: int) -> Constants:
    """Return the mean and the standard deviation by which `data.standardise: imagenet` scales each image channel.

    Args:
        channels: 3 returns the values of ImageNet for red, green and blue; any other number returns the values for
            grey.

    Returns:
        The means and the standard deviations. Each is a tuple with one number per channel, for intensities in [0, 1].
    """
    return (COLOUR_MEAN, COLOUR_STD) if channels == 3 else (GREY_MEAN * channels, GREY_STD * channels)


def scale_channels(constants: Constants) -> Json:
    """Return the config entry of the MONAI transform that standardises each channel by fixed numbers.

    Args:
        constants: the means and the standard deviations, one number per channel each.
    """
    mean, std = constants
    return step("NormalizeIntensityd", subtrahend=list(mean), divisor=list(std), channel_wise=True)


def describe_constants(constants: Constants) -> str:
    """Return the words of the model card for standardising by fixed numbers, such as "minus 0.5, divided by 0.2".

    Args:
        constants: the means and the standard deviations, one number per channel each.
    """
    mean, std = (", ".join(f"{number:.7g}" for number in numbers) for numbers in constants)
    return f"minus {mean}, divided by {std} (fixed numbers)"


def read_2d(channels: int, key: str = "image") -> list[Json]:
    """Return the config entries of the MONAI transforms that read a 2-D image file as (C, H, W).

    The pixels are those that `medfed.datasets.image_files` reads in training. MONAI reads (C, W, H), so the last
    transform swaps the two axes. When MONAI inverts the transforms, the axes are swapped back.

    Args:
        channels: number of channels of the result: 1 (grey) or 3 (RGB).
        key: key of the path, and then of the image.
    """
    load = step("LoadImaged", key, converter=CONVERTERS[channels])
    return [load, step("EnsureChannelFirstd", key), step("Transposed", key, indices=[0, 2, 1])]


def channel_names(channels: int) -> dict[str, str]:
    """Return the names of the input channels by channel number, as MONAI's metadata contain them.

    Args:
        channels: number of channels. Three channels are {"0": "red", "1": "green", "2": "blue"}; with any other number,
            every channel is called "image".
    """
    return RGB if channels == 3 else {str(index): "image" for index in range(channels)}


def file_kinds(channels: int) -> str:
    """Return a phrase for the model card: the 2-D image files that the model accepts.

    An example of how the phrase begins is "8-bit grey images as PNG, JPEG or BMP".

    Args:
        channels: number of channels that the network expects; 3 means RGB, any other number means grey.
    """
    colour = "colour images (RGB, palette, CMYK, without alpha)"
    return FILE_KINDS.format(colour if channels == 3 else "grey images")


def capitalise(text: str) -> str:
    """Return the text with its first letter in upper case and all others unchanged."""
    return f"{text[:1].upper()}{text[1:]}"
