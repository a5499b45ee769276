"""The two configs of a bundle that segments: how to, exactly as `Segmentation.predict` does, and what the model is.

Both start from the files of the template in `bundles/`; only what depends on the run is replaced.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from medfed.outputs.bundle.check import CONVERTERS
from medfed.tasks.segmentation import AXES, PERCENTILES, SLICES_AT_ONCE, Segmentation

Json = dict[str, Any]

TORCHSCRIPT = {
    "_target_": "torch.jit.load",
    "f": "$@bundle_root + '/models/model.ts'",
    "map_location": "@device",
}
SLICES_FIRST = [3, 1, 2, 0]  # (1, S, S, D) to (D, S, S, 1), and back
RGB = {"0": "red", "1": "green", "2": "blue"}


def inference_config(template: Path, task: Segmentation, network_def: Json | None, input_is_2d: bool) -> Json:
    """`configs/inference.json`.

    Args:
        template: the folder of the template.
        network_def: the network in MONAI's words; None loads the bundle's TorchScript instead.
        input_is_2d: PNG pictures rather than NIfTI volumes.
    """
    config = json.loads((template / "configs" / "inference.json").read_text())
    config["network_def"] = network_def or TORCHSCRIPT
    config["image_pattern"] = "*.png" if input_is_2d else "*.nii.gz"
    config["preprocessing"]["transforms"] = _preprocessing(task, input_is_2d)
    config["inferer"] |= {"roi_size": [task.image_size] * 2, "sw_batch_size": SLICES_AT_ONCE}
    config["postprocessing"]["transforms"] = _postprocessing(task, input_is_2d)
    return config


def metadata(template: Path, task: Segmentation, title: str, provenance: Json, scores: Json, input_is_2d: bool) -> Json:
    """`configs/metadata.json`; `scores` are plain numbers by name."""
    names = ", ".join(task.structures)
    content = json.loads((template / "configs" / "metadata.json").read_text())
    content |= facts_of_run(_packages(task, input_is_2d), title, provenance, scores)
    slices, form = ("", "size of the picture") if input_is_2d else (" slice by slice", "geometry of the file")
    content |= {
        "task": f"Segmentation of {names}, trained over several sites without sharing images",
        "description": f"A 2-D network that segments {names}{slices}; masks come back in the {form}.",
        "data_type": "png" if input_is_2d else "nifti",
        "image_classes": f"{task.channels} channel{'s' * (task.channels > 1)}, {_unit(task)}",
        "label_classes": f"one binary mask a structure: {names}",
        "pred_classes": f"one binary mask a structure: {names}",
        "network_data_format": _data_format(content["network_data_format"], task),
    }
    return content


def facts_of_run(packages: list[str], title: str, provenance: Json, scores: Json) -> Json:
    """What `configs/metadata.json` says of a run of any task; `packages` are needed beside MONAI and PyTorch."""
    return {
        "monai_version": version("monai"),
        "pytorch_version": version("torch").partition("+")[0],
        "numpy_version": version("numpy"),
        "required_packages_version": {name: version(name) for name in packages},
        "name": title,
        "data_source": provenance.get("dataset") or "not stated",
        "eval_metrics": scores,
        "medfed_provenance": {**provenance, "not_for_clinical_use": True},
    }


def _packages(task: Segmentation, input_is_2d: bool) -> list[str]:
    """What the bundle needs beside MONAI and PyTorch; MONAI finds the largest component with scikit-image."""
    largest = ["scikit-image"] if task.evaluation.largest_component else []
    return ["pytorch-ignite", "pillow" if input_is_2d else "nibabel", *largest]


def _unit(task: Segmentation) -> str:
    if task.intensity_range is None:
        return "any intensity unit"
    return "intensities from {:g} to {:g}".format(*task.intensity_range)


def _data_format(template: Json, task: Segmentation) -> Json:
    """What goes through the network: standardised slices in, logits out."""
    shape = [task.image_size] * 2
    image, pred = template["inputs"]["image"], template["outputs"]["pred"]
    channels = RGB if task.channels == 3 else {str(index): "image" for index in range(task.channels)}
    if task.out_channels == 1:
        output = {"format": "segmentation", "channel_def": {"0": "background", "1": task.structures[0]}}
    else:
        output = {"format": "classes", "channel_def": {str(i): name for i, name in enumerate(task.structures)}}
    image |= {"num_channels": task.channels, "spatial_shape": shape, "channel_def": channels}
    pred |= {"num_channels": task.out_channels, "spatial_shape": shape, **output}
    return {"inputs": {"image": image}, "outputs": {"pred": pred}}


def _preprocessing(task: Segmentation, input_is_2d: bool) -> list[Json]:
    """`Segmentation.preprocessing` from a file on, then `Segmentation.standardise`."""
    low, high = PERCENTILES
    ends = {"b_min": 0.0, "b_max": 1.0, "clip": True}
    if task.intensity_range is None:
        scale = step("ScaleIntensityRangePercentilesd", lower=low, upper=high, **ends)
    else:
        a_min, a_max = task.intensity_range
        scale = step("ScaleIntensityRanged", a_min=a_min, a_max=a_max, **ends)
    size = [task.image_size, task.image_size, -1]
    resize = step("Resized", spatial_size=size, mode="trilinear", align_corners=False, anti_aliasing=True)
    steps = [*(picture(task.channels) if input_is_2d else _volume()), scale, resize]
    if not task.standardised:
        return steps
    if input_is_2d:  # one slice, so its channels are standardised as they stand
        return [*steps, step("NormalizeIntensityd", channel_wise=True)]
    if task.channels == 1:
        return [*steps, *_standardised("image")]
    parts = [f"image_{channel}" for channel in range(task.channels)]
    apart = step("SplitDimd", output_postfixes=list(map(str, range(task.channels))), dim=0)
    together = step("ConcatItemsd", parts, name="image", dim=0)
    return [*steps, apart, *_standardised(parts), together]


def _standardised(keys: str | list[str]) -> list[Json]:
    """Every slice of (1, S, S, D) by itself: MONAI standardises channels, so slices are channels for a while."""
    turn = step("Transposed", keys, indices=SLICES_FIRST)
    return [turn, step("NormalizeIntensityd", keys, channel_wise=True), turn]


def _volume() -> list[Json]:
    turn = step("Orientationd", axcodes="RAS", labels=[list(ends) for ends in AXES])
    return [step("LoadImaged"), step("EnsureChannelFirstd"), turn]


def picture(channels: int) -> list[Json]:
    """MONAI loads a picture as (C, W, H), as `medfed.datasets.pictures` reads it but for the order of its axes.

    It is turned back when MONAI inverts; `Resized` adds, and removes, its D = 1.
    """
    load = step("LoadImaged", converter=CONVERTERS[channels])
    return [load, step("EnsureChannelFirstd"), step("Transposed", indices=[0, 2, 1])]


def _postprocessing(task: Segmentation, input_is_2d: bool) -> list[Json]:
    """Sigmoid, then `Segmentation.postprocessing`, then a file for each structure."""
    steps = [
        step("Activationsd", "pred", sigmoid=True),
        step("Invertd", "pred", transform="@preprocessing", orig_keys="image", nearest_interp=False, to_tensor=True),
        step("AsDiscreted", "pred", threshold=task.evaluation.threshold),
    ]
    if task.evaluation.largest_component:
        channels = list(range(task.out_channels))
        steps.append(
            step("KeepLargestConnectedComponentd", "pred", applied_labels=channels, is_onehot=True, independent=True)
        )
    keys = ["pred"]
    if input_is_2d or task.out_channels > 1:
        keys = [f"pred_{name}" for name in task.structures]
        steps.append(step("SplitDimd", "pred", output_postfixes=list(task.structures), dim=0))
    return steps + [_save(key, name, input_is_2d) for key, name in zip(keys, task.structures, strict=True)]


def _save(key: str, structure: str, input_is_2d: bool) -> Json:
    form = {"output_ext": ".png", "scale": 255} if input_is_2d else {"output_ext": ".nii.gz"}
    where = {"output_dir": "@output_dir", "output_postfix": structure, "separate_folder": False}
    return step("SaveImaged", key, **where, **form, output_dtype="$np.uint8", resample=False)


def step(class_: str, keys: str | list[str] = "image", **arguments: Any) -> Json:
    """A MONAI transform of these keys."""
    return {"_target_": f"monai.transforms.{class_}", "keys": keys, **arguments}
