"""The bundle of a segmentation model: what MONAI must do to predict exactly as `Segmentation.predict` does."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from medfed.tasks.bundle_template import BundleTemplate, Json, capitalised, channel_names, file_kinds, read_2d, step

PERCENTILES = (0.5, 99.5)  # of a volume whose format fixes no range: what becomes 0 and 1
MAX_SLICES = 16  # that go through a network together
AXES = (("L", "R"), ("P", "A"), ("I", "S"))
SLICES_FIRST = [3, 1, 2, 0]  # (1, S, S, D) to (D, S, S, 1), and back
VOLUME_TEMPLATE, IMAGE_2D_TEMPLATE = "prostate_segmentation", "fundus_segmentation"
VOLUME_KINDS = "NIfTI files whose header tells the orientation truly"


@dataclass(frozen=True)
class MaskBundle(BundleTemplate):
    """A bundle that writes a mask per structure.

    Args:
        structures, channels, image_size, intensity_range, standardised: of `Segmentation`.
        threshold, largest_component: of `Evaluation`.
        input_is_2d: whether images are PNG files rather than NIfTI volumes.
    """

    structures: tuple[str, ...]
    channels: int
    image_size: int
    intensity_range: tuple[float, float] | None
    standardised: bool
    threshold: float
    largest_component: bool
    input_is_2d: bool

    @property
    def folder(self) -> str:  # type: ignore[override]
        return IMAGE_2D_TEMPLATE if self.input_is_2d else VOLUME_TEMPLATE

    @property
    def name(self) -> str:  # type: ignore[override]
        return re.sub(r"[^\w-]+", "_", f"{'_'.join(self.structures)}_segmentation")

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"{capitalised(' and '.join(self.structures))} segmentation"

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]
        """MONAI finds the largest component with scikit-image."""
        largest = ("scikit-image",) if self.largest_component else ()
        return ("pytorch-ignite", "pillow" if self.input_is_2d else "nibabel", *largest)

    def fill_inference(self, config: Json) -> None:
        config["image_pattern"] = "*.png" if self.input_is_2d else "*.nii.gz"
        config["preprocessing"]["transforms"] = self._preprocessing()
        config["inferer"] |= {"roi_size": [self.image_size] * 2, "sw_batch_size": MAX_SLICES}
        config["postprocessing"]["transforms"] = self._postprocessing()

    def fill_metadata(self, content: Json) -> None:
        names = ", ".join(self.structures)
        slices, form = ("", "size of the picture") if self.input_is_2d else (" slice by slice", "geometry of the file")
        content |= {
            "task": f"Segmentation of {names}, trained over several sites without sharing images",
            "description": f"A 2-D network that segments {names}{slices}; masks come back in the {form}.",
            "data_type": "png" if self.input_is_2d else "nifti",
            "image_classes": f"{self.channels} channel{'s' * (self.channels > 1)}, {self._unit()}",
            "label_classes": f"one binary mask a structure: {names}",
            "pred_classes": f"one binary mask a structure: {names}",
        }
        self._fill_data_format(content["network_data_format"])

    def card_values(self, module: nn.Module) -> dict[str, object]:
        each = "channel" if self.input_is_2d else "slice"
        return {
            "structures": ", ".join(self.structures),
            "intensity": self._intensity(),
            "standardised": f"; every {each} to zero mean and unit variance" if self.standardised else "",
            "threshold": f"{self.threshold:g}",
            "largest": "; only the largest connected piece of each structure" if self.largest_component else "",
            "masks": self._masks(),
            "kind": file_kinds(self.channels) if self.input_is_2d else VOLUME_KINDS,
        }

    def _unit(self) -> str:
        if self.intensity_range is None:
            return "any intensity unit"
        return "intensities from {:g} to {:g}".format(*self.intensity_range)

    def _intensity(self) -> str:
        if self.intensity_range is None:
            return "percentiles 0.5 and 99.5 of the volume become 0 and 1"
        return "stored intensities {:g} and {:g} become 0 and 1".format(*self.intensity_range)

    def _masks(self) -> str:
        ending, values = (".png", "0 and 255") if self.input_is_2d else (".nii.gz", "0 and 1")
        names = ", ".join(f"`NAME_{structure}{ending}`" for structure in self.structures)
        return f"{names}, with the values {values}"

    def _fill_data_format(self, data: Json) -> None:
        """What goes through the network: standardised slices in, logits out."""
        shape, n = [self.image_size] * 2, len(self.structures)
        output: Json = {"format": "classes", "channel_def": {str(i): name for i, name in enumerate(self.structures)}}
        if n == 1:
            output = {"format": "segmentation", "channel_def": {"0": "background", "1": self.structures[0]}}
        channels = channel_names(self.channels)
        data["inputs"]["image"] |= {"num_channels": self.channels, "spatial_shape": shape, "channel_def": channels}
        data["outputs"]["pred"] |= {"num_channels": n, "spatial_shape": shape, **output}

    def _preprocessing(self) -> list[Json]:
        """`Segmentation.preprocessing` from a file on, then `Segmentation.standardise`."""
        low, high = PERCENTILES
        ends: Json = {"b_min": 0.0, "b_max": 1.0, "clip": True}
        if self.intensity_range is None:
            scale = step("ScaleIntensityRangePercentilesd", lower=low, upper=high, **ends)
        else:
            a_min, a_max = self.intensity_range
            scale = step("ScaleIntensityRanged", a_min=a_min, a_max=a_max, **ends)
        size = [self.image_size, self.image_size, -1]
        resize = step("Resized", spatial_size=size, mode="trilinear", align_corners=False, anti_aliasing=True)
        steps = [*(read_2d(self.channels) if self.input_is_2d else _read_volume()), scale, resize]
        if not self.standardised:
            return steps
        if self.input_is_2d:  # one slice, so its channels are standardised as they stand
            return [*steps, step("NormalizeIntensityd", channel_wise=True)]
        if self.channels == 1:
            return [*steps, *_standardise_slices("image")]
        parts = [f"image_{channel}" for channel in range(self.channels)]
        apart = step("SplitDimd", output_postfixes=list(map(str, range(self.channels))), dim=0)
        together = step("ConcatItemsd", parts, name="image", dim=0)
        return [*steps, apart, *_standardise_slices(parts), together]

    def _postprocessing(self) -> list[Json]:
        """Sigmoid, then `Segmentation.postprocessing`, then a file for each structure."""
        back = {"transform": "@preprocessing", "orig_keys": "image", "nearest_interp": False, "to_tensor": True}
        steps = [
            step("Activationsd", "pred", sigmoid=True),
            step("Invertd", "pred", **back),
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
        form: Json = {"output_ext": ".png", "scale": 255} if self.input_is_2d else {"output_ext": ".nii.gz"}
        where = {"output_dir": "@output_dir", "output_postfix": structure, "separate_folder": False}
        return step("SaveImaged", key, **where, **form, output_dtype="$np.uint8", resample=False)


def _standardise_slices(keys: str | list[str]) -> list[Json]:
    """Every slice of (1, S, S, D) by itself: MONAI standardises channels, so slices are channels for a while."""
    turn = step("Transposed", keys, indices=SLICES_FIRST)
    return [turn, step("NormalizeIntensityd", keys, channel_wise=True), turn]


def _read_volume() -> list[Json]:
    turn = step("Orientationd", axcodes="RAS", labels=[list(ends) for ends in AXES])
    return [step("LoadImaged"), step("EnsureChannelFirstd"), turn]
