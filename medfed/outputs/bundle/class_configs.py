"""The two configs of a bundle that classifies pictures: how to, exactly as `Classification.probabilities` does.

Both start from the files of the template in `bundles/`; only what depends on the run is replaced.
"""

from __future__ import annotations

import json
from pathlib import Path

from medfed.outputs.bundle.check import INTERPOLATE, PREDICTIONS
from medfed.outputs.bundle.configs import RGB, TORCHSCRIPT, Json, facts_of_run, picture, step
from medfed.tasks.classification import AT_ONCE, COLOUR_MEAN, COLOUR_STD, GREY_MEAN, GREY_STD, Classification


def inference_config(template: Path, task: Classification, network_def: Json | None) -> Json:
    """`configs/inference.json`.

    Args:
        template: the folder of the template.
        network_def: the network in MONAI's words; None loads the bundle's TorchScript instead.
    """
    config = json.loads((template / "configs" / "inference.json").read_text())
    config["network_def"] = network_def or TORCHSCRIPT
    config["preprocessing"]["transforms"] = _preprocessing(task)
    config["dataloader"]["batch_size"] = AT_ONCE
    config["postprocessing"]["transforms"] = _postprocessing()
    return config


def metadata(template: Path, task: Classification, title: str, provenance: Json, scores: Json) -> Json:
    """`configs/metadata.json`; `scores` are plain numbers by name."""
    names = ", ".join(task.classes)
    content = json.loads((template / "configs" / "metadata.json").read_text())
    content |= facts_of_run(["pytorch-ignite", "pillow"], title, provenance, scores)
    content |= {
        "task": f"Classification of pictures ({names}), trained over several sites without sharing images",
        "description": f"A 2-D network that tells the class of a whole picture: {names}.",
        "data_type": "png",
        "image_classes": f"{task.channels} channel{'s' * (task.channels > 1)}, intensities from 0 to 255",
        "label_classes": f"one class a picture: {names}",
        "pred_classes": f"{PREDICTIONS}, a line a picture without a head: path, then the probabilities of {names}",
    }
    data = content["network_data_format"]
    channels = RGB if task.channels == 3 else {"0": "image"}
    shape = [task.image_size] * 2
    data["inputs"]["image"] |= {"num_channels": task.channels, "spatial_shape": shape, "channel_def": channels}
    classes = {str(index): name for index, name in enumerate(task.classes)}
    data["outputs"]["pred"] |= {
        "num_channels": task.out_channels, "spatial_shape": [1, task.out_channels], "channel_def": classes
    }  # fmt: skip
    return content


def _preprocessing(task: Classification) -> list[Json]:
    """`Pictures` from a file on, then `Classification.standardise`; equal to the bit.

    MONAI's `Resized` smooths in another way before it shrinks, so the interpolation is PyTorch's own, which wants
    (1, C, H, W): an axis more for a while.
    """
    size = [task.image_size] * 2
    resize = {"_target_": INTERPOLATE, "_mode_": "callable", "size": size, "mode": "bilinear", "align_corners": False}
    steps = [
        *picture(task.channels),
        step("EnsureChannelFirstd", channel_dim="no_channel"),
        step("Lambdad", func=resize | {"antialias": True}),
        step("SqueezeDimd", dim=0),
        step("AsDiscreted", rounding="torchrounding"),
        step("ScaleIntensityRanged", a_min=0.0, a_max=255.0, b_min=0.0, b_max=1.0, clip=True),
    ]
    mean, std = (COLOUR_MEAN, COLOUR_STD) if task.channels == 3 else (GREY_MEAN, GREY_STD)
    if task.standardised:
        steps.append(step("NormalizeIntensityd", subtrahend=list(mean), divisor=list(std), channel_wise=True))
    return steps


def _postprocessing() -> list[Json]:
    """Softmax, then a line of the CSV; MONAI's saver finds the file's name in the metadata beside the image."""
    return [
        step("Activationsd", "pred", softmax=True),
        step("FromMetaTensord"),
        step(
            "SaveClassificationd", "pred", meta_keys="image_meta_dict", output_dir="@output_dir", filename=PREDICTIONS
        ),
    ]
