"""MONAI bundle of a segmentation model; it predicts exactly the same masks as `Segmentation.predict`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from medfed.datasets.base import Standardise
from medfed.losses.dice import SMOOTHING
from medfed.tasks.bundle_entries import INTERPOLATE, NARROW, Json, step
from medfed.tasks.bundle_template import (
    BundleTemplate,
    Constants,
    capitalise,
    channel_names,
    describe_constants,
    file_kinds,
    read_2d,
    scale_channels,
)
from medfed.tasks.bundle_training import BOTH, TrainingParts, random_transforms, resize_label

PERCENTILES = (0.5, 99.5)  # of a volume's intensities; they are mapped to 0 and 1 if the format fixes no range
MAX_SLICES = 16  # largest number of slices in a batch for prediction
AXES = (("L", "R"), ("P", "A"), ("I", "S"))
SLICES_FIRST = [3, 1, 2, 0]  # axes that turn (1, S, S, D) into (D, S, S, 1), and back
VOLUME_TEMPLATE, IMAGE_2D_TEMPLATE = "prostate_segmentation", "fundus_segmentation"
VOLUME_KINDS = "NIfTI files or DICOM series with the correct orientation in the header"


@dataclass(frozen=True)
class MaskBundle(BundleTemplate):
    """Fills the MONAI bundle of a segmentation model, which writes one mask file per structure of each image."""

    structures: tuple[str, ...]  # this and the next six as in `Segmentation` and `Evaluation`
    channels: int
    image_size: int
    intensity_range: tuple[float, float] | None
    standardised: Standardise
    constants: Constants | None  # `Task.fixed_constants`
    threshold: float
    largest_component: bool
    input_is_2d: bool  # the images are 2-D image files (PNG) instead of NIfTI volumes

    @property
    def folder(self) -> str:  # type: ignore[override]
        return IMAGE_2D_TEMPLATE if self.input_is_2d else VOLUME_TEMPLATE

    @property
    def name(self) -> str:  # type: ignore[override]
        """The structures and "segmentation", such as "cup_disc_segmentation"."""
        return re.sub(r"[^\w-]+", "_", f"{'_'.join(self.structures)}_segmentation")

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"{capitalise(' and '.join(self.structures))} segmentation"

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]
        largest = ("scikit-image",) if self.largest_component else ()
        readers = ("pillow",) if self.input_is_2d else ("nibabel", "pydicom")
        return ("pytorch-ignite", *readers, *largest)

    def fill_inference(self, config: Json) -> None:
        config["image_pattern"] = "*.png" if self.input_is_2d else "*.nii*"
        config["preprocessing"]["transforms"] = self._preprocessing()
        config["inferer"] |= {"roi_size": [self.image_size] * 2, "sw_batch_size": MAX_SLICES}
        config["postprocessing"]["transforms"] = self._postprocessing()

    def fill_metadata(self, content: Json) -> None:
        names = ", ".join(self.structures)
        unit = "any intensity unit"
        if self.intensity_range is not None:
            unit = "intensities from {:g} to {:g}".format(*self.intensity_range)
        slices, grid = ("", "size of the image") if self.input_is_2d else (" slice by slice", "geometry of the file")
        content |= {
            "task": f"Segmentation of {names}, trained over several sites",
            "description": f"A 2-D network that segments {names}{slices}; the masks have the {grid}.",
            "data_type": "png" if self.input_is_2d else "nifti",
            "image_classes": f"{self.channels} channel{'s' * (self.channels > 1)}, {unit}",
            "label_classes": f"one binary mask per structure: {names}",
            "pred_classes": f"one binary mask per structure: {names}",
        }
        shape, n = [self.image_size] * 2, len(self.structures)
        output: Json = {"format": "classes", "channel_def": {str(i): name for i, name in enumerate(self.structures)}}
        if n == 1:
            output["format"] = "segmentation"
        channels, data = channel_names(self.channels), content["network_data_format"]
        data["inputs"]["image"] |= {"num_channels": self.channels, "spatial_shape": shape, "channel_def": channels}
        data["outputs"]["pred"] |= {"num_channels": n, "spatial_shape": shape, **output}

    def card_values(self, module: nn.Module) -> dict[str, object]:
        size = f"{self.image_size} x {self.image_size}"
        intensity = "percentiles 0.5 and 99.5 of the volume are mapped to 0 and 1"
        if self.intensity_range is not None:
            intensity = "stored intensities {:g} and {:g} are mapped to 0 and 1".format(*self.intensity_range)
        ending, values = (".png", "0 and 255") if self.input_is_2d else (".nii.gz", "0 and 1")
        names = ", ".join(f"`NAME_{structure}{ending}`" for structure in self.structures)
        return {
            "structures": ", ".join(self.structures),
            "intensity": intensity,
            "standardised": self._standardised(),
            "threshold": f"{self.threshold:g}",
            "largest": "; only the largest connected component of each structure" if self.largest_component else "",
            "masks": f"{names}, with the values {values}",
            "kind_of_network": "2-D",
            "by_slice": ", slice by slice",
            "resizing": f"slices resized to {size} pixels (bilinear, with anti-aliasing)",
            "kind": file_kinds(self.channels) if self.input_is_2d else VOLUME_KINDS,
        }

    def _standardised(self) -> str:
        """Clause of the model card: how intensities are standardised; "" if they are not."""
        if self.constants:
            return f"; {describe_constants(self.constants)}"
        if self.standardised == "none":
            return ""
        volume_unit = "slice" if self.standardised == "slice" else "channel of the volume"
        return f"; every {'channel' if self.input_is_2d else volume_unit} is scaled to zero mean and unit variance"

    def training_parts(self, training: Mapping[str, Any], inference: Json) -> TrainingParts:
        """The training batches of volumes consist of random slices of one volume."""
        n_slices = 1 if self.input_is_2d else training["batch_size"]
        is_late = self.standardised == "slice" and not self.constants  # the augmented slice is standardised
        early, plain = self._standardisation(), self._unstandardised()
        labels = [part for key in self._label_keys() for part in self._label(key)]
        if len(self.structures) > 1:
            labels.append(step("ConcatItemsd", self._label_keys(), name="label", dim=0))
        prepared = [*plain, *([] if is_late else early), *labels, step("EnsureTyped", BOTH, track_meta=False)]
        crop = step(
            "RandSpatialCropSamplesd",
            BOTH,
            roi_size=[self.image_size, self.image_size, 1],
            num_samples=n_slices,
            random_size=False,
        )
        train = [*prepared, crop, step("SqueezeDimd", BOTH, dim=-1)]
        if training["augment"]:
            train += random_transforms(0, ["bilinear", "nearest"], BOTH)
        train += [step("NormalizeIntensityd", channel_wise=True)] if is_late else []
        loss = {
            "_target_": "monai.losses.DiceLoss",
            "sigmoid": True,
            "batch": True,
            "smooth_nr": SMOOTHING,
            "smooth_dr": SMOOTHING,
        }
        metric = {
            "_target_": "monai.handlers.MeanDice",
            "output_transform": "$monai.handlers.from_engine(['pred', 'label'])",
        }
        return TrainingParts(
            top={
                "image_pattern": inference["image_pattern"],
                "names": "$sorted(glob.glob(@image_pattern, root_dir=@dataset_dir + '/images'))",
                "cases": f"$[{self._case()} for name in @names]",
            },
            train=train,
            validate=[*plain, *early, *labels, step("EnsureTyped", BOTH, track_meta=False)],
            loss=loss,
            postprocessing=[
                step("Activationsd", "pred", sigmoid=True),
                step("AsDiscreted", "pred", threshold=self.threshold),
            ],
            metric={"mean_dice": metric},
            batch_size=training["batch_size"] if self.input_is_2d else 1,
            inferer=inference["inferer"],
        )

    @property
    def training_folders(self) -> str:
        folders = " and ".join(f"`DATA/{key.replace('label', 'labels', 1)}`" for key in self._label_keys())
        return (
            f"Put the images into `DATA/images`, and the masks, with the same file names, into {folders}. In a "
            "mask, every value above 0 is the structure."
        )

    def _label_keys(self) -> list[str]:
        """Keys of the masks in the transforms, such as "label_disc"; "label" for a single structure."""
        return ["label"] if len(self.structures) == 1 else [f"label_{name}" for name in self.structures]

    def _case(self) -> str:
        """The expression of one case; each mask has the name of its image, in a folder of its structure."""
        folders = {"image": "images", **{key: key.replace("label", "labels", 1) for key in self._label_keys()}}
        return "{" + ", ".join(f"{key!r}: @dataset_dir + {f'/{name}/'!r} + name" for key, name in folders.items()) + "}"

    def _label(self, key: str) -> list[Json]:
        """Read a mask, every value above 0 as the structure, on the grid of prepared slices."""
        read = read_2d(1, key) if self.input_is_2d else read_volume(key)
        return [*read, step("AsDiscreted", key, threshold=0.5), *resize_label(self.image_size, self.input_is_2d, key)]

    def _preprocessing(self) -> list[Json]:
        """MONAI transforms equal to reading, `Segmentation.preprocessing` and `Task.standardise`."""
        return [*self._unstandardised(), *self._standardisation()]

    def _unstandardised(self) -> list[Json]:
        """MONAI transforms equal to reading and `Segmentation.preprocessing`."""
        low, high = PERCENTILES
        output_range: Json = {"b_min": 0.0, "b_max": 1.0, "clip": True}
        if self.intensity_range is None:
            scale = step("ScaleIntensityRangePercentilesd", lower=low, upper=high, **output_range)
        else:
            a_min, a_max = self.intensity_range
            scale = step("ScaleIntensityRanged", a_min=a_min, a_max=a_max, **output_range)
        read = read_2d(self.channels) if self.input_is_2d else read_volume()
        return [*read, scale, *self._resize()]

    def _standardisation(self) -> list[Json]:
        """MONAI transforms equal to `Task.standardise`."""
        if self.constants:
            return [scale_channels(self.constants)]
        if self.standardised == "none":
            return []
        if self.input_is_2d or self.standardised == "volume":  # an image is a volume of one slice
            return [step("NormalizeIntensityd", channel_wise=True)]
        if self.channels == 1:
            return _standardise_slices("image")
        channel_keys = [f"image_{channel}" for channel in range(self.channels)]
        split = step("SplitDimd", output_postfixes=list(map(str, range(self.channels))), dim=0)
        concatenate = step("ConcatItemsd", channel_keys, name="image", dim=0)
        return [split, *_standardise_slices(channel_keys), concatenate]

    def _resize(self) -> list[Json]:
        """MONAI transforms equal to `ResizeSlicesd`: 2-D interpolation with anti-aliasing, and its inverse.

        MONAI has no such transform. PyTorch's interpolation computes the values from a copy of the image. `Resized` of
        the image itself computes values without anti-aliasing and records how MONAI inverts it. Concatenation puts the
        values of the copy behind those of the image and keeps the record; `torch.narrow` removes the image's own.
        """
        size = [self.image_size] * 2
        interpolate = {"_target_": INTERPOLATE, "_mode_": "callable", "size": size, "mode": "bilinear"}
        narrow = {"_target_": NARROW, "_mode_": "callable", "dim": 0, "start": self.channels, "length": self.channels}
        if self.input_is_2d:  # (C, H, W) to (1, C, H, W)
            slices_first = step("EnsureChannelFirstd", "resized", channel_dim="no_channel")
        else:  # (C, H, W, D) to (D, C, H, W)
            slices_first = step("Transposed", "resized", indices=[3, 0, 1, 2])
        return [
            step("CopyItemsd", names="resized"),
            slices_first,
            step("Lambdad", "resized", func=interpolate | {"align_corners": False, "antialias": True}),
            step("Transposed", "resized", indices=[1, 2, 3, 0]),
            step("Resized", spatial_size=[*size, -1], mode="trilinear", align_corners=False),
            step("ConcatItemsd", ["image", "resized"], name="image", dim=0),
            step("Lambdad", func=narrow),
        ]

    def _postprocessing(self) -> list[Json]:
        """The sigmoid, `Segmentation.postprocessing`, and one file per structure, as MONAI transforms."""
        inversion = {"transform": "@preprocessing", "orig_keys": "image", "nearest_interp": False, "to_tensor": True}
        steps = [
            step("Activationsd", "pred", sigmoid=True),
            step("Invertd", "pred", **inversion),
            step("AsDiscreted", "pred", threshold=self.threshold),
        ]
        n = len(self.structures)
        if self.largest_component:
            largest = {"applied_labels": list(range(n)), "is_onehot": True, "independent": True}
            steps.append(step("KeepLargestConnectedComponentd", "pred", **largest))
        keys = ["pred"]
        if self.input_is_2d or n > 1:
            keys = [f"pred_{name}" for name in self.structures]
            steps.append(step("SplitDimd", "pred", output_postfixes=list(self.structures), dim=0))
        return steps + [self._save(key, name) for key, name in zip(keys, self.structures, strict=True)]

    def _save(self, key: str, structure: str) -> Json:
        """The bundle's transform that writes the mask of one structure."""
        file_format: Json = {"output_ext": ".png", "scale": 255} if self.input_is_2d else {"output_ext": ".nii.gz"}
        location = {"output_dir": "@output_dir", "output_postfix": structure, "separate_folder": False}
        return step("SaveImaged", key, **location, **file_format, output_dtype="$np.uint8", resample=False)


def _standardise_slices(keys: str | list[str]) -> list[Json]:
    """Standardise every slice of (1, S, S, D) separately, as a channel."""
    transpose = step("Transposed", keys, indices=SLICES_FIRST)
    return [transpose, step("NormalizeIntensityd", keys, channel_wise=True), transpose]


def read_volume(key: str = "image") -> list[Json]:
    """MONAI transforms that read a volume and orient its axes."""
    orient = step("Orientationd", key, axcodes="RAS", labels=[list(ends) for ends in AXES])
    return [step("LoadImaged", key), step("EnsureChannelFirstd", key), orient]
