"""MONAI bundle of a classification model; it predicts the same probabilities as `Classification.probabilities`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from medfed.datasets.base import Standardise
from medfed.tasks.bundle_entries import INTERPOLATE, Json, step
from medfed.tasks.bundle_template import (
    PREDICTIONS,
    RGB,
    BundleTemplate,
    Constants,
    capitalise,
    describe_constants,
    file_kinds,
    read_2d,
    scale_channels,
)
from medfed.tasks.bundle_training import TrainingParts, random_transforms

MAX_BATCH = 64  # largest number of images in a batch for prediction
CLASSIFICATION_TEMPLATE = "camelyon17_classification"
MAX_NAMED_CLASSES = 3  # if there are more, the name of the bundle's folder contains only their number
BATCH_NOTE = (
    "\n- Its batch normalisation uses the statistics of the batch: the prediction for an image depends on the other "
    f"images of its batch of {MAX_BATCH}, which are taken in the order of their names."
)


@dataclass(frozen=True)
class ClassBundle(BundleTemplate):
    """Fills the MONAI bundle of a classification model, which writes the class probabilities of each image to a table.

    `classes` are in the order of the logits. `constants` are the means and the standard deviations of the channels by
    which every image is standardised; None if the image's own are used, or none.
    """

    classes: tuple[str, ...]
    channels: int
    image_size: int
    standardised: Standardise
    constants: Constants | None

    folder = CLASSIFICATION_TEMPLATE
    packages = ("pytorch-ignite", "pillow")

    @property
    def name(self) -> str:  # type: ignore[override]
        """Such as "normal_tumour_classification", or "5_classes_classification" for more than three classes."""
        names = self.classes if len(self.classes) <= MAX_NAMED_CLASSES else (str(len(self.classes)), "classes")
        return re.sub(r"[^\w-]+", "_", f"{'_'.join(names)}_classification")

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"{capitalise(', '.join(self.classes[:-1]))} or {self.classes[-1]} classification"

    def fill_inference(self, config: Json) -> None:
        config["preprocessing"]["transforms"] = self._preprocessing()
        config["dataloader"]["batch_size"] = MAX_BATCH
        config["postprocessing"]["transforms"] = _postprocessing()

    def fill_metadata(self, content: Json) -> None:
        names, n = ", ".join(self.classes), len(self.classes)
        content |= {
            "task": f"Classification of images ({names}), trained over several sites",
            "description": f"A 2-D network that predicts the class of a whole image: {names}.",
            "data_type": "png",
            "image_classes": f"{self.channels} channel{'s' * (self.channels > 1)}, intensities from 0 to 255",
            "label_classes": f"one class per image: {names}",
            "pred_classes": f"{PREDICTIONS}, one line per image, no header: path, then the probabilities of {names}",
        }
        data = content["network_data_format"]
        channels = RGB if self.channels == 3 else {"0": "image"}
        shape = [self.image_size] * 2
        data["inputs"]["image"] |= {"num_channels": self.channels, "spatial_shape": shape, "channel_def": channels}
        classes = {str(index): name for index, name in enumerate(self.classes)}
        data["outputs"]["pred"] |= {"num_channels": n, "spatial_shape": [1, n], "channel_def": classes}

    def card_values(self, module: nn.Module) -> dict[str, object]:
        own = "" if self.standardised == "none" else "; every channel is scaled to zero mean and unit variance"
        norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
        uses_batch_statistics = any(not norm.track_running_stats for norm in norms)
        return {
            "classes": ", ".join(self.classes),
            "columns": ", ".join(f"`{name}`" for name in self.classes),
            "predictions": PREDICTIONS,
            "standardised": f"; {describe_constants(self.constants)}" if self.constants else own,
            "kind": file_kinds(self.channels),
            "together": BATCH_NOTE if uses_batch_statistics else "",
        }

    def training_parts(self, training: Mapping[str, Any], inference: Json) -> TrainingParts:
        """A class is a folder of images; the label of an image is a vector with 1 at its class."""
        n, cases = len(self.classes), []
        for index, name in enumerate(self.classes):
            label = [float(number == index) for number in range(n)]
            folder = f"@dataset_dir + {f'/{name}/'!r}"
            files = f"sorted(glob.glob(@image_pattern, root_dir={folder}))"
            cases.append(f"[{{'image': {folder} + name, 'label': {label}}} for name in {files}]")
        prepared = [*self._preprocessing(), step("EnsureTyped", ["image", "label"], track_meta=False)]
        augmented = random_transforms(1, ["bilinear"], ["image"]) if training["augment"] else []
        metric = {
            "_target_": "monai.handlers.ConfusionMatrix",
            "metric_name": "sensitivity",
            "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
        }
        return TrainingParts(
            top={"image_pattern": inference["image_pattern"], "cases": "$" + " + ".join(cases)},
            train=[*prepared, *augmented],
            validate=prepared,
            loss={"_target_": "torch.nn.CrossEntropyLoss"},
            postprocessing=[step("AsDiscreted", "pred", argmax=True, to_onehot=n, dim=1)],
            metric={"balanced_accuracy": metric},
            batch_size=training["batch_size"],
            inferer={"_target_": "monai.inferers.SimpleInferer"},
        )

    @property
    def training_folders(self) -> str:
        return f"Put the images of each class into its folder: {', '.join(f'`DATA/{name}`' for name in self.classes)}."

    def _preprocessing(self) -> list[Json]:
        """MONAI transforms that are bit-identical to `ImageSamples` and `Classification.standardise`.

        MONAI's `Resized` smooths differently before shrinking, so PyTorch's interpolation is used. It needs (1, C, H,
        W), so an axis is added before and removed after it.
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
        if self.constants:
            return [*steps, scale_channels(self.constants)]
        # The volume of a 2-D image is the image, so "slice" and "volume" are the same for an image without changes.
        return steps if self.standardised == "none" else [*steps, step("NormalizeIntensityd", channel_wise=True)]


def _postprocessing() -> list[Json]:
    """The softmax, and one line of the CSV file, with the name of the image file from the image's metadata."""
    save = {"meta_keys": "image_meta_dict", "output_dir": "@output_dir", "filename": PREDICTIONS}
    return [
        step("Activationsd", "pred", softmax=True),
        step("FromMetaTensord"),
        step("SaveClassificationd", "pred", **save),
    ]
