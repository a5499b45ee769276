"""The configs `train.json` and `evaluate.json` of a bundle, with which MONAI trains and evaluates without medfed.

Their targets are classes and functions of `monai` and `torch` only, and `monai.fl.client.MonaiAlgo` can use them. The
model starts from `models/model.pt`, in `initialize`: a handler would load it again before each round of a federation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medfed.tasks.bundle_entries import INTERPOLATE, Json, step

VALIDATION_SHARE = 0.2  # of the cases in the folder
MAX_ROTATION, MAX_SCALING = math.radians(15), 0.15  # as `medfed.tasks.augmentation`
LOSS = "$lambda output: output['loss']"  # `from_engine` gives a tuple, which StatsHandler ignores
BOTH = ["image", "label"]
TRAINED = "trained.pt"  # in the folder models
COPIED = ("bundle_root", "device", "load_pretrain", "network_def", "network")
LOGGING_CONF = """[loggers]
keys=root

[handlers]
keys=consoleHandler

[formatters]
keys=fullFormatter

[logger_root]
level=INFO
handlers=consoleHandler

[handler_consoleHandler]
class=StreamHandler
level=INFO
formatter=fullFormatter
args=(sys.stdout,)

[formatter_fullFormatter]
format=%(asctime)s - %(name)s - %(levelname)s - %(message)s
"""


@dataclass(frozen=True)
class TrainingParts:
    """What a task contributes to `train.json`."""

    top: Json  # entries at the top; "cases" is the list of all cases, each with an image and a label
    train: list[Json]  # transforms of a training case, which fill the keys "image" and "label"
    validate: list[Json]  # transforms of a validation case
    loss: Json
    postprocessing: list[Json]  # transforms of the network's output, before the metric
    metric: Json  # of training and validation, by its name
    batch_size: int
    inferer: Json  # how the network is applied to a validation case


def train_config(inference: Json, parts: TrainingParts, training: Mapping[str, Any]) -> Json:
    """The content of `configs/train.json`: one epoch by default."""
    return {
        "imports": inference["imports"],
        **{key: inference[key] for key in COPIED},
        "dataset_dir": inference["dataset_dir"],
        "ckpt_dir": "$@bundle_root + '/models'",
        "val_interval": 1,
        **parts.top,
        "parts": {
            "_target_": "monai.data.partition_dataset",
            "data": "@cases",
            "shuffle": True,
            "seed": 0,
            "ratios": [1 - VALIDATION_SHARE, VALIDATION_SHARE],
        },
        "loss": parts.loss,
        "optimizer": _optimizer(training),
        "load": {
            "_target_": "monai.networks.utils.copy_model_state",
            "_disabled_": "$not @load_pretrain",
            "dst": "@network",
            "src": {
                "_target_": "torch.load",
                "f": "$@bundle_root + '/models/model.pt'",
                "map_location": "@device",
                "weights_only": True,
            },
        },
        "train": _train(parts),
        "validate": _validate(parts),
        "determinism": {"_target_": "monai.utils.set_determinism", "seed": 0},
        "initialize": ["@determinism", "@load"],
        "run": ["$@train#trainer.run()"],
    }


def evaluate_config() -> Json:
    """The content of `configs/evaluate.json`, which MONAI reads after `train.json`."""
    return {"run": ["$@validate#evaluator.run()"]}


def random_transforms(flip_axis: int, modes: list[str], keys: list[str]) -> list[Json]:
    """MONAI transforms with the ranges of `draw_affine`; `modes` has the interpolation of each key."""
    affine = step(
        "RandAffined",
        keys,
        prob=1.0,
        rotate_range=MAX_ROTATION,
        scale_range=MAX_SCALING,
        mode=modes,
        padding_mode="border",
    )
    return [affine, step("RandFlipd", keys, prob=0.5, spatial_axis=flip_axis)]


def resize_label(size: int, is_2d: bool, key: str = "label") -> list[Json]:
    """MONAI transforms that resize a mask, slice by slice, to (K, size, size, D), as `Segmentation.prepare` does."""
    nearest = {"_target_": INTERPOLATE, "_mode_": "callable", "size": [size] * 2, "mode": "nearest-exact"}
    first = (
        step("EnsureChannelFirstd", key, channel_dim="no_channel")
        if is_2d
        else step("Transposed", key, indices=[3, 0, 1, 2])
    )
    return [first, step("Lambdad", key, func=nearest), step("Transposed", key, indices=[1, 2, 3, 0])]


def _optimizer(training: Mapping[str, Any]) -> Json:
    shared = {
        "params": "$@network.parameters()",
        "lr": training["learning_rate"],
        "weight_decay": training["weight_decay"],
    }
    if training["optimizer"] == "adam":
        return {"_target_": "torch.optim.Adam", **shared, "betas": list(training["betas"])}
    return {"_target_": "torch.optim.SGD", **shared, "momentum": training["momentum"]}


def _train(parts: TrainingParts) -> Json:
    """The block `train`, with the names that `MonaiAlgo` looks for."""
    stats = {"_target_": "monai.handlers.StatsHandler", "tag_name": "train_loss", "output_transform": LOSS}
    return {
        "preprocessing": {"_target_": "monai.transforms.Compose", "transforms": parts.train},
        "dataset": _dataset("train", 0),
        "dataloader": _loader("train", parts.batch_size, shuffle=True),
        "inferer": {"_target_": "monai.inferers.SimpleInferer"},
        "postprocessing": {"_target_": "monai.transforms.Compose", "transforms": parts.postprocessing},
        "key_metric": {f"train_{name}": metric for name, metric in parts.metric.items()},
        "handlers": [
            stats,
            {
                "_target_": "monai.handlers.ValidationHandler",
                "validator": "@validate#evaluator",
                "epoch_level": True,
                "interval": "@val_interval",
            },
            {
                "_target_": "monai.handlers.CheckpointSaver",
                "save_dir": "@ckpt_dir",
                "save_dict": {"model": "@network"},
                "save_final": True,
                "final_filename": TRAINED,
            },
        ],
        "trainer": {
            "_target_": "monai.engines.SupervisedTrainer",
            "max_epochs": 1,
            "device": "@device",
            "train_data_loader": "@train#dataloader",
            "network": "@network",
            "loss_function": "@loss",
            "optimizer": "@optimizer",
            "inferer": "@train#inferer",
            "postprocessing": "@train#postprocessing",
            "key_train_metric": "@train#key_metric",
            "decollate": False,
            "train_handlers": "@train#handlers",
        },
    }


def _validate(parts: TrainingParts) -> Json:
    stats = {"_target_": "monai.handlers.StatsHandler", "iteration_log": False}
    return {
        "preprocessing": {"_target_": "monai.transforms.Compose", "transforms": parts.validate},
        "dataset": _dataset("validate", 1),
        "dataloader": _loader("validate", 1, shuffle=False),
        "inferer": parts.inferer,
        "postprocessing": {"_target_": "monai.transforms.Compose", "transforms": parts.postprocessing},
        "key_metric": {f"val_{name}": metric for name, metric in parts.metric.items()},
        "handlers": [stats],
        "evaluator": {
            "_target_": "monai.engines.SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@validate#dataloader",
            "network": "@network",
            "inferer": "@validate#inferer",
            "postprocessing": "@validate#postprocessing",
            "key_val_metric": "@validate#key_metric",
            "val_handlers": "@validate#handlers",
            "decollate": False,
        },
    }


def _dataset(block: str, part: int) -> Json:
    """It keeps the images in memory as they are before the first random transform."""
    return {
        "_target_": "monai.data.CacheDataset",
        "data": f"$@parts[{part}]",
        "transform": f"@{block}#preprocessing",
        "num_workers": 0,
        "progress": False,
    }


def _loader(block: str, batch_size: int, shuffle: bool) -> Json:
    return {
        "_target_": "monai.data.DataLoader",
        "dataset": f"@{block}#dataset",
        "batch_size": batch_size,
        "shuffle": shuffle,
        "num_workers": 0,
    }
