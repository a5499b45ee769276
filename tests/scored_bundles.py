"""Small bundles and labelled images for the tests of scoring."""

from __future__ import annotations

import json

import nibabel as nib
import numpy as np
import torch
from monai.networks.nets import BasicUNet
from PIL import Image

from medfed.networks.unet import UNet
from medfed.outputs.bundle.write import write_bundle

SIDE = 32
UNET = UNet(features=(4, 4, 4, 8, 8, 4))
CPU = torch.device("cpu")


def seeded(network, channels, outputs):
    """Return a network whose first output is above 0 in about half of the pixels."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return network.build(channels, outputs).eval()


def exported(out, network, module, task, more=()):
    provenance = {"data": "phantom", "sites": ["other"], "unseen_site": "here", "method": "fedavg", "rounds": 1}
    provenance["method_layers"] = False
    provenance |= dict(more)
    return write_bundle(
        out,
        network=network,
        weights=module.state_dict(),
        task=task,
        provenance=provenance,
        summary=task.scoring.summarise([]),
        input_is_2d=task.intensity_range is not None if hasattr(task, "intensity_range") else True,
    )


def write_photographs(root, n=3):
    """Write images of other sizes than the network's, and masks of a square; the last mask is empty."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (root / "here" / name).mkdir(parents=True)
    for k in range(n):
        mask = np.zeros((40 + k, 52), np.uint8)
        if k < n - 1:
            mask[10:30, 5:25] = 255
        image = rng.integers(0, 200, (*mask.shape, 3), np.uint8) + mask[..., None] // 5
        Image.fromarray(image).save(root / "here" / "images" / f"{k}.png")
        Image.fromarray(mask).save(root / "here" / "masks" / f"{k}.png")


def write_volumes(root, n=2):
    rng = np.random.default_rng(1)
    (root / "here").mkdir(parents=True)
    affine = np.array([[-0.6, 0.1, 0, 3], [0.1, -0.7, 0, -2], [0, 0, 3.3, 5], [0, 0, 0, 1]])
    for k in range(n):
        mask = np.zeros((36, 30, 4), np.uint8)
        mask[8:20, 8:20, 1:3] = 1
        nib.save(
            nib.Nifti1Image(rng.integers(0, 900, mask.shape).astype(np.int16), affine), root / "here" / f"c{k}.nii.gz"
        )
        nib.save(nib.Nifti1Image(mask, affine), root / "here" / f"c{k}_mask.nii.gz")


def write_classes(root):
    rng = np.random.default_rng(2)
    for name, low in (("a", 0), ("b", 90)):
        (root / "here" / name).mkdir(parents=True)
        for k in range(4):
            image = rng.integers(low, low + 120, (35, 41, 3), np.uint8)
            Image.fromarray(image).save(root / "here" / name / f"{name}{k}.png")


TRANSFORMS = [
    {"_target_": "LoadImaged", "keys": "@image_key", "image_only": False},
    {"_target_": "EnsureChannelFirstd", "keys": "@image_key", "channel_dim": -1},
    {"_target_": "Resized", "keys": ["@image_key"], "spatial_size": [SIDE, SIDE + 16], "mode": ["bilinear"]},
    {"_target_": "ScaleIntensityd", "keys": "@image_key"},
    {"_target_": "CastToTyped", "keys": "@image_key", "dtype": "$torch.float32"},
    {"_target_": "EnsureTyped", "keys": "@image_key", "device": "@device"},
]
INVERT = {
    "_target_": "Invertd",
    "keys": "pred",
    "transform": "@preprocessing",
    "orig_keys": "@image_key",
    "meta_key_postfix": "meta_dict",
    "nearest_interp": False,
    "to_tensor": True,
}
SAVE = {
    "_target_": "SaveImaged",
    "keys": "pred",
    "output_dir": "@output_dir",
    "output_ext": ".png",
    "output_postfix": "seg",
    "separate_folder": False,
    "output_dtype": "$np.uint8",
    "resample": False,
}
ENDINGS = {
    "argmax": [
        {"_target_": "Activationsd", "keys": "pred", "softmax": True},
        INVERT,
        {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
        SAVE,
    ],
    "one-hot without background": [
        INVERT,
        {"_target_": "AsDiscreted", "keys": ["pred"], "argmax": True, "to_onehot": 2},
        {"_target_": "Lambdad", "keys": ["pred"], "func": "$lambda x : x[1:]"},
        SAVE,
    ],
}


def foreign_bundle(path, ending="argmax", names=("background", "Tool"), **changes):
    """Write a bundle as people write them by hand: two channels with background, MONAI's own resizing, references."""
    network = {
        "_target_": "BasicUNet",
        "spatial_dims": 2,
        "in_channels": 3,
        "out_channels": 2,
        "features": [4, 4, 4, 8, 8, 4],
    }
    inference = {
        "imports": ["$import glob"],
        "bundle_root": ".",
        "image_key": "image",
        "output_dir": "$@bundle_root + '/eval'",
        "device": "$torch.device('cpu')",
        "datalist": "$sorted(glob.glob(@dataset_dir + '/*.png'))",
        "dataset_dir": ".",
        "network_def": network,
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": TRANSFORMS},
        "dataset": {"_target_": "Dataset", "data": "$[{'image': i} for i in @datalist]", "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1},
        "inferer": {"_target_": "SimpleInferer"},
        "postprocessing": {"_target_": "Compose", "transforms": ENDINGS[ending]},
        "evaluator": {
            "_target_": "SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
        },
        "loader": {
            "_target_": "CheckpointLoader",
            "load_path": "$@bundle_root + '/models/model.pt'",
            "load_dict": {"model": "@network"},
        },
        "initialize": ["$@loader(@evaluator)"],
        "run": ["$@evaluator.run()"],
    } | changes
    channels = {"num_channels": len(names), "channel_def": {str(k): name for k, name in enumerate(names)}}
    metadata = {
        "version": "1",
        "name": "Tools",
        "network_data_format": {"inputs": {"image": {"num_channels": 3}}, "outputs": {"pred": channels}},
    }
    for name in ("configs", "models"):
        (path / name).mkdir(parents=True)
    (path / "configs" / "inference.json").write_text(json.dumps(inference))
    (path / "configs" / "metadata.json").write_text(json.dumps(metadata))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        module = BasicUNet(2, 3, 2, features=(4, 4, 4, 8, 8, 4))
        module.final_conv.bias.data[1] -= 0.8  # about half of the pixels become the tool
    torch.save(module.state_dict(), path / "models" / "model.pt")
    return path
