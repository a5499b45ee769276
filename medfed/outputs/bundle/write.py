"""Write trained weights as a MONAI bundle, which gives the same predictions without medfed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.federation.message import digest
from medfed.networks.parts.base import NetworkSettings
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.configs import inference_config, metadata, training_configs
from medfed.outputs.bundle.model_card import model_card, scores
from medfed.outputs.bundle.program import PROGRAM, save_program
from medfed.outputs.bundle.trained_network import NetworkWrapper, load_trained_network
from medfed.outputs.environment import installed_version
from medfed.tasks.bundle_training import LOGGING_CONF
from medfed.tasks.task import Task

PACKAGE = Path(__file__).parent.parent.parent


def write_bundle(
    out: Path,
    *,
    network: NetworkSettings,
    weights: Mapping[str, Tensor],
    task: Task,
    provenance: dict[str, Any],
    summary: dict[str, Any],
    input_is_2d: bool,
    wrap: NetworkWrapper | None = None,
) -> Path:
    """Write a MONAI bundle with trained weights, which passes `check_bundle`. If an error occurs, no folder is left.

    Args:
        out: must not exist. Its name should end in `_segmentation` or `_classification`, because MONAI Label infers
            the task from it.
        weights: of the network with the layers that `wrap` adds, by name.
        input_is_2d: True for 2-D image files such as PNG (always for classification), False for NIfTI volumes.
        wrap: adds the layers of the federated method. MONAI cannot build them; the bundle then has an exported
            program, `models/model.pt2`, for images of the task's size.
    """
    target = out.resolve()  # without steps such as `a/..`, which exist only once the folder `a` was created
    if target.exists():
        raise UserError(f"{out}: exists already; remove it, or choose another folder with --out")
    bundle = task.bundle(input_is_2d)
    template = template_folder(bundle.folder)
    definition = None if wrap else network.network_def(task.channels, task.out_channels)
    module = load_trained_network(network, weights, task, wrap)
    stored_weights = module.state_dict() if wrap else network.monai_weights(module, task.channels, task.out_channels)
    facts = {**provenance, "weights_sha256": digest(safetensors.torch.save(module.state_dict()))}
    configs = {
        "inference": inference_config(template, bundle, definition),
        "metadata": metadata(template, bundle, facts, scores(summary)),
    }
    training = training_configs(bundle, configs["inference"], provenance) if definition else {}
    with atomic_folder(target) as folder:
        for name, content in {**configs, **training}.items():
            _write(folder / "configs" / f"{name}.json", json.dumps(content, indent=4, allow_nan=False) + "\n")
        _write(folder / "configs" / "logging.conf", LOGGING_CONF)
        (folder / "models").mkdir()
        if not definition:
            save_program(folder / PROGRAM, module, task.channels, task.image_size)
        torch.save(stored_weights, folder / "models" / "model.pt")
        versions = {name: installed_version(name).partition("+")[0] for name in ("torch", "monai")}
        versions |= configs["metadata"]["required_packages_version"] | {"fire": installed_version("fire")}
        card = model_card(
            template, bundle, module, facts, summary, versions, task.image_size, can_train=bool(definition)
        )
        _write(folder / "docs" / "README.md", card)
        shutil.copyfile(template / "LICENSE", folder / "LICENSE")
        check_bundle(folder)
    return out


def template_folder(name: str) -> Path:
    """The folder with the parts of a bundle that are the same for every run, such as "prostate_segmentation"; in a
    source checkout in `bundles/`, in an installed package in `medfed/bundles/`."""
    places = [PACKAGE / "bundles" / name, PACKAGE.parent / "bundles" / name]
    for place in places:
        if (place / "configs" / "inference.json").is_file():
            return place
    raise UserError(f"the bundle template is neither in {places[0]} nor in {places[1]}; install medfed again")


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `out` if the block succeeds and is deleted if it fails."""
    unfinished = out.with_name(f".{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        os.rename(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write(path: Path, text: str) -> None:
    """Write a text file; its folder is created if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
