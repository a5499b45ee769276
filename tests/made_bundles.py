"""Small bundles, the ways in which MONAI runs them, and labelled images."""

import json
import os
import subprocess
import sys

import nibabel as nib
import numpy as np
import torch
import yaml
from made_runs import scores_of
from monai.bundle import ConfigParser, ConfigWorkflow
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


def exported(out, settings, module, task, input_is_2d=True, summary=None, **provenance):
    """Write the bundle of a network with the weights of a module."""
    facts = {"data": "phantom", "sites": ["other"], "unseen_site": "here", "method": "fedavg", "rounds": 1}
    return write_bundle(
        out,
        network=settings,
        weights=module.state_dict(),
        task=task,
        provenance=facts | {"method_layers": False} | provenance,
        summary=summary or scores_of([], task.scoring),
        input_is_2d=input_is_2d,
    )


def files_of(bundle):
    return {"config_file": f"{bundle}/configs/inference.json", "meta_file": f"{bundle}/configs/metadata.json"}


def inference_of(bundle, images, out, **overrides):
    """The initialised workflow of MONAI that predicts images."""
    folders = {"bundle_root": str(bundle), "dataset_dir": str(images), "output_dir": str(out), "device": "cpu"}
    flow = ConfigWorkflow(**files_of(bundle), workflow_type="infer", logging_file=False, **folders, **overrides)
    flow.initialize()
    return flow


def training_of(bundle, images, *names, **overrides):
    """The initialised workflow of MONAI that trains the bundle."""
    files = [f"{bundle}/configs/{name}.json" for name in names or ("train",)]
    options = {"bundle_root": str(bundle), "dataset_dir": str(images), "device": "cpu"} | overrides
    meta = f"{bundle}/configs/metadata.json"
    flow = ConfigWorkflow(files, meta, workflow_type="train", logging_file=False, **options)
    flow.initialize()
    return flow


def weights_of_evaluator_alone(bundle, images, out):
    """The weights of `evaluator` after its run, built as 3D Slicer does, without `initialize` and `run`."""
    parser = ConfigParser()
    parser.read_config(files_of(bundle)["config_file"])
    parser.update({"bundle_root": str(bundle), "dataset_dir": str(images), "output_dir": str(out)})
    evaluator = parser.get_parsed_content("evaluator")
    with torch.no_grad():
        for entry in evaluator.network.parameters():
            entry.fill_(0)
    evaluator.run()
    return {name: entry.cpu() for name, entry in evaluator.network.state_dict().items()}


def run_without_medfed(bundle, images, folder, *program):
    """Run a bundle by a Python program where medfed cannot be imported; return the folder of the output."""
    (folder / "medfed.py").write_text("raise ImportError('this hospital has no medfed')")  # found first from here
    out = folder / "out"
    options = {"bundle_root": bundle, "dataset_dir": images, "output_dir": out, "device": "cpu"} | files_of(bundle)
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, *program, "run", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def write_oblique_volume(path, channels=1, seed=0):
    """Write a NIfTI volume with LPS axes, an oblique orientation and 3.3 mm slices, one of them empty."""
    rng = np.random.default_rng(seed)
    x, y, _ = np.meshgrid(*[np.linspace(-1, 1, n) for n in (45, 38, 5)], indexing="ij")
    image = 300 * ((x - 0.2) ** 2 / 0.2 + y**2 / 0.3 < 1) + 200 * rng.random((45, 38, 5))
    image[..., 0] = 0
    if channels > 1:
        image = np.stack([image, *rng.random((channels - 1, 45, 38, 5)) * image], axis=-1)
    turn, tilt = 0.3, 0.4
    about_z = [[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]]
    about_x = [[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]]
    affine = np.eye(4)
    affine[:3, :3] = np.array(about_z) @ about_x @ np.diag([-0.6, -0.7, 3.3])
    affine[:3, 3] = 10, -20, 33
    nib.save(nib.Nifti1Image(image.astype(np.int16), affine), path)


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
    affine = np.array([[-0.48, 0.42, 0, 3], [-0.36, -0.56, 0, -2], [0, 0, 3.3, 5], [0, 0, 0, 1]])  # 0.6 x 0.7 x 3.3 mm
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


def step(target, keys="pred", **settings):
    """A transform of a config."""
    return {"_target_": target, "keys": keys, **settings}


def compose(*transforms):
    return {"_target_": "Compose", "transforms": transforms}


INPUT = "@image_key"
TRANSFORMS = [
    step("LoadImaged", INPUT, image_only=False),
    step("EnsureChannelFirstd", INPUT, channel_dim=-1),
    step("Resized", [INPUT], spatial_size=[SIDE, SIDE + 16], mode=["bilinear"]),
    step("ScaleIntensityd", INPUT),
    step("CastToTyped", INPUT, dtype="$torch.float32"),
    step("EnsureTyped", INPUT, device="@device"),
]
BACK = {"orig_keys": INPUT, "meta_key_postfix": "meta_dict", "nearest_interp": False, "to_tensor": True}
INVERT = step("Invertd", transform="@preprocessing", **BACK)
FILE = {"output_dir": "@output_dir", "output_ext": ".png", "output_postfix": "seg", "separate_folder": False}
SAVE = step("SaveImaged", **FILE, output_dtype="$np.uint8", resample=False)
ENDINGS = {
    "argmax": compose(step("Activationsd", softmax=True), INVERT, step("AsDiscreted", argmax=True), SAVE),
    "one-hot without background": compose(
        INVERT,
        step("AsDiscreted", ["pred"], argmax=True, to_onehot=2),
        step("Lambdad", ["pred"], func="$lambda x : x[1:]"),
        SAVE,
    ),
}
INFERENCE = """
imports: [$import glob]
bundle_root: .
image_key: image
output_dir: $@bundle_root + '/eval'
device: $torch.device('cpu')
datalist: $sorted(glob.glob(@dataset_dir + '/*.png'))
dataset_dir: .
network_def: {_target_: BasicUNet, spatial_dims: 2, in_channels: 3, out_channels: 2, features: [4, 4, 4, 8, 8, 4]}
network: $@network_def.to(@device)
dataset: {_target_: Dataset, data: "$[{'image': i} for i in @datalist]", transform: "@preprocessing"}
dataloader: {_target_: DataLoader, dataset: "@dataset", batch_size: 1}
inferer: {_target_: SimpleInferer}
evaluator:
  _target_: SupervisedEvaluator
  device: "@device"
  val_data_loader: "@dataloader"
  network: "@network"
  inferer: "@inferer"
  postprocessing: "@postprocessing"
loader:
  _target_: CheckpointLoader
  load_path: $@bundle_root + '/models/model.pt'
  load_dict: {model: "@network"}
initialize: [$@loader(@evaluator)]
run: [$@evaluator.run()]
"""


def foreign_bundle(path, ending="argmax", names=("background", "Tool"), **changes):
    """Write a bundle as people write them by hand: two channels with background, MONAI's own resizing, references."""
    inference = yaml.safe_load(INFERENCE) | {"preprocessing": compose(*TRANSFORMS), "postprocessing": ENDINGS[ending]}
    inference |= changes
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
