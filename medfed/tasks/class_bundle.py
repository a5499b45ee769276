"""The bundle of a classification model: what MONAI must do to predict as `Classification.probabilities` does."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from medfed.tasks.bundle_template import (
    INTERPOLATE,
    PREDICTIONS,
    RGB,
    BundleTemplate,
    Json,
    capitalised,
    file_kinds,
    read_2d,
    step,
)

MAX_BATCH = 64  # images that go through a network together
COLOUR_MEAN, COLOUR_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as all four papers normalise
GREY_MEAN, GREY_STD = (0.449,), (0.226,)
CLASSIFICATION_TEMPLATE = "camelyon17_classification"
MAX_NAMED = 3  # so many classes are named in the name of the bundle's folder
TOGETHER = (
    "\n- Its batch normalisation takes the statistics of the batch: what it says of a picture depends on the others of "
    f"its {MAX_BATCH}, in the order of their names."
)


def colour_scale(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, standard deviation) that `Classification.standardise` takes off and divides by."""
    return (COLOUR_MEAN, COLOUR_STD) if channels == 3 else (GREY_MEAN, GREY_STD)


@dataclass(frozen=True)
class ClassBundle(BundleTemplate):
    """A bundle that writes a table of probabilities; arguments are those of `Classification`."""

    classes: tuple[str, ...]
    channels: int
    image_size: int
    standardised: bool

    folder = CLASSIFICATION_TEMPLATE
    packages = ("pytorch-ignite", "pillow")

    @property
    def name(self) -> str:  # type: ignore[override]
        names = self.classes if len(self.classes) <= MAX_NAMED else (str(len(self.classes)), "classes")
        return re.sub(r"[^\w-]+", "_", f"{'_'.join(names)}_classification")

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"{capitalised(', '.join(self.classes[:-1]))} or {self.classes[-1]} classification"

    def fill_inference(self, config: Json) -> None:
        config["preprocessing"]["transforms"] = self._preprocessing()
        config["dataloader"]["batch_size"] = MAX_BATCH
        config["postprocessing"]["transforms"] = _postprocessing()

    def fill_metadata(self, content: Json) -> None:
        names, n = ", ".join(self.classes), len(self.classes)
        content |= {
            "task": f"Classification of pictures ({names}), trained over several sites without sharing images",
            "description": f"A 2-D network that tells the class of a whole picture: {names}.",
            "data_type": "png",
            "image_classes": f"{self.channels} channel{'s' * (self.channels > 1)}, intensities from 0 to 255",
            "label_classes": f"one class a picture: {names}",
            "pred_classes": f"{PREDICTIONS}, a line a picture without a head: path, then the probabilities of {names}",
        }
        data = content["network_data_format"]
        channels = RGB if self.channels == 3 else {"0": "image"}
        shape = [self.image_size] * 2
        data["inputs"]["image"] |= {"num_channels": self.channels, "spatial_shape": shape, "channel_def": channels}
        classes = {str(index): name for index, name in enumerate(self.classes)}
        data["outputs"]["pred"] |= {"num_channels": n, "spatial_shape": [1, n], "channel_def": classes}

    def card_values(self, module: nn.Module) -> dict[str, object]:
        mean, std = colour_scale(self.channels)
        numbers = f"less {', '.join(map(str, mean))} and divided by {', '.join(map(str, std))} (fixed numbers)"
        by_batch = [part for part in module.modules() if isinstance(part, _BatchNorm) and not part.track_running_stats]
        return {
            "classes": ", ".join(self.classes),
            "columns": ", ".join(f"`{name}`" for name in self.classes),
            "predictions": PREDICTIONS,
            "standardised": f"; {numbers}" if self.standardised else "",
            "kind": file_kinds(self.channels),
            "together": TOGETHER if by_batch else "",
        }

    def _preprocessing(self) -> list[Json]:
        """`ImageSamples` from a file on, then `Classification.standardise`; equal to the bit.

        MONAI's `Resized` smooths in another way before it shrinks, so the interpolation is PyTorch's own, which wants
        (1, C, H, W): an axis more for a while.
        """
        size = [self.image_size] * 2
        resize = {"_target_": INTERPOLATE, "_mode_": "callable", "size": size, "mode": "bilinear"}
        steps = [
            *read_2d(self.channels),
            step("EnsureChannelFirstd", channel_dim="no_channel"),
            step("Lambdad", func=resize | {"align_corners": False, "antialias": True}),
            step("SqueezeDimd", dim=0),
            step("AsDiscreted", rounding="torchrounding"),
            step("ScaleIntensityRanged", a_min=0.0, a_max=255.0, b_min=0.0, b_max=1.0, clip=True),
        ]
        if self.standardised:
            mean, std = colour_scale(self.channels)
            steps.append(step("NormalizeIntensityd", subtrahend=list(mean), divisor=list(std), channel_wise=True))
        return steps


def _postprocessing() -> list[Json]:
    """Softmax, then a line of the CSV; MONAI's saver finds the file's name in the metadata beside the image."""
    save = {"meta_keys": "image_meta_dict", "output_dir": "@output_dir", "filename": PREDICTIONS}
    return [
        step("Activationsd", "pred", softmax=True),
        step("FromMetaTensord"),
        step("SaveClassificationd", "pred", **save),
    ]
