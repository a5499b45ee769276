"""MONAI bundle of a 3-D segmentation model; it predicts exactly the same masks as `PatchSegmentation.predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from medfed.tasks.bundle_entries import Json, step
from medfed.tasks.bundle_training import BOTH, MAX_ROTATION, MAX_SCALING, TrainingParts, random_transforms
from medfed.tasks.mask_bundle import MaskBundle, read_volume

OVERLAP = 0.5  # of neighbouring windows in each axis
MAX_WINDOWS = 4  # that the network receives together


@dataclass(frozen=True)
class PatchBundle(MaskBundle):
    """Fills the bundle of a model that predicts overlapping windows of volumes with one voxel size."""

    patch_size: tuple[int, int, int]
    spacing_mm: tuple[float, float, float] | None

    def fill_inference(self, config: Json) -> None:
        super().fill_inference(config)
        config["inferer"] = {
            "_target_": "monai.inferers.SlidingWindowInferer",
            "roi_size": list(self.patch_size),
            "sw_batch_size": MAX_WINDOWS,
            "overlap": OVERLAP,
            "mode": "gaussian",
        }

    def fill_metadata(self, content: Json) -> None:
        super().fill_metadata(content)
        names = ", ".join(self.structures)
        content["description"] = f"A 3-D network that segments {names}; the masks have the geometry of the file."
        data = content["network_data_format"]
        for part in (data["inputs"]["image"], data["outputs"]["pred"]):
            part |= {"spatial_shape": list(self.patch_size), "is_patch_data": True}

    def card_values(self, module: nn.Module) -> dict[str, object]:
        size = " x ".join(map(str, self.patch_size))
        spacing = " x ".join(f"{one:g}" for one in self.spacing_mm or ())
        voxels = f"volumes resampled to voxels of {spacing} mm (linear)" if spacing else "the voxel size of the file"
        windows = f"{voxels}; windows of {size} voxels that overlap by half, with Gaussian weights"
        return super().card_values(module) | {"kind_of_network": "3-D", "by_slice": "", "resizing": windows}

    def training_parts(self, training: Mapping[str, Any], inference: Json) -> TrainingParts:
        """A training batch has patches of one volume, a third of them around the structures."""
        parts = super().training_parts(training, inference)
        crop = step(
            "RandCropByPosNegLabeld",
            BOTH,
            label_key="label",
            spatial_size=list(self.patch_size),
            pos=1,
            neg=2,
            num_samples=training["batch_size"],
        )
        train = [*parts.validate, crop]
        if training["augment"]:
            train += random_transforms(0, ["bilinear", "nearest"], BOTH)
            train[-2] |= {"rotate_range": [0.0, 0.0, MAX_ROTATION], "scale_range": [MAX_SCALING, MAX_SCALING, 0.0]}
        return replace(parts, train=train)

    def _label(self, key: str) -> list[Json]:
        """Read a mask, every value above 0 as the structure, and resample it linearly."""
        discrete = step("AsDiscreted", key, threshold=0.5)
        return [*read_volume(key), discrete, *self._resampled(key), discrete]

    def _resize(self) -> list[Json]:
        return self._resampled("image")

    def _resampled(self, key: str) -> list[Json]:
        """MONAI transforms equal to those of `PatchSegmentation`."""
        pad = step("SpatialPadd", key, spatial_size=list(self.patch_size))
        if self.spacing_mm is None:
            return [pad]
        return [step("Spacingd", key, pixdim=list(self.spacing_mm), mode="bilinear", padding_mode="border"), pad]
