"""Write trained weights as a MONAI bundle, which gives the same predictions without medfed.

A template folder in `bundles/` has the parts that are the same for every run; `medfed.tasks.bundle_template` fills in
what depends on the run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.federation.message import digest
from medfed.federation.settings import Training
from medfed.functional.weights import first_non_finite
from medfed.networks.parts.base import NetworkSettings
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.model_card import model_card, scores
from medfed.outputs.bundle.program import PROGRAM, PROGRAM_DEF, save_program
from medfed.outputs.environment import installed_version
from medfed.tasks.bundle_entries import Json
from medfed.tasks.bundle_template import BundleTemplate
from medfed.tasks.bundle_training import LOGGING_CONF, evaluate_config, train_config
from medfed.tasks.task import Task

PACKAGE = Path(__file__).parent.parent.parent
NetworkWrapper = Callable[[nn.Module], nn.Module]


def write_bundle(
    out: Path,
    *,
    network: NetworkSettings,
    weights: Mapping[str, Tensor],
    task: Task,
    provenance: Json,
    summary: Json,
    input_is_2d: bool,
    wrap: NetworkWrapper | None = None,
) -> Path:
    """Write a MONAI bundle with trained weights, which passes `check_bundle`. If an error occurs, no folder is left.

    MONAI Label infers the task from the end of the folder's name, `_segmentation` or `_classification`. `input_is_2d`
    is true for 2-D image files such as PNG. `wrap` adds the layers of the federated method; MONAI cannot build them, so
    the bundle then has an exported program, `models/model.pt2`, for images of the task's size.
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
    inference = inference_config(template, bundle, definition)
    configs = {"inference": inference, "metadata": metadata(template, bundle, facts, scores(summary))}
    if definition:
        training = {**asdict(Training()), **provenance.get("training_settings", {})}
        configs["train"] = train_config(inference, bundle.training_parts(training, inference), training)
        configs["evaluate"] = evaluate_config()
    versions = {name: installed_version(name).partition("+")[0] for name in ("torch", "monai")}
    versions |= configs["metadata"]["required_packages_version"] | {"fire": installed_version("fire")}
    with atomic_folder(target) as folder:
        for name in ("configs", "docs", "models"):
            (folder / name).mkdir()
        for name, content in configs.items():
            (folder / "configs" / f"{name}.json").write_text(json.dumps(content, indent=4, allow_nan=False) + "\n")
        (folder / "configs" / "logging.conf").write_text(LOGGING_CONF)
        torch.save(stored_weights, folder / "models" / "model.pt")
        if not definition:
            save_program(folder / PROGRAM, module, task.channels, task.image_size)
        card = model_card(template, bundle, module, facts, summary, versions, task.image_size, bool(definition))
        (folder / "docs" / "README.md").write_text(card, encoding="utf-8")
        shutil.copyfile(template / "LICENSE", folder / "LICENSE")
        check_bundle(folder)
    return out


def load_trained_network(
    network: NetworkSettings, weights: Mapping[str, Tensor], task: Task, wrap: NetworkWrapper | None = None
) -> nn.Module:
    """Build the network on the CPU in evaluation mode; `wrap` adds the method's layers. UserError if weights do not
    fit."""
    module = network.build(task.channels, task.out_channels)
    module = (wrap(module) if wrap else module).eval()
    try:
        module.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise UserError(
            f"model.safetensors: the weights do not fit {network} with {task.channels} channels in and "
            f"{task.out_channels} out ({' '.join(str(error).split())[:500]}); check that both files belong to "
            "one run"
        ) from error
    if name := first_non_finite(weights):
        raise UserError(
            f"the weights are not finite (first in '{name}'): training diverged, so there is no model to export"
        )
    return module


def inference_config(template: Path, bundle: BundleTemplate, network_def: Json | None) -> Json:
    """The content of `inference.json`. It loads the exported program if MONAI cannot build the network, so that
    `network_def` is None."""
    config = json.loads((template / "configs" / "inference.json").read_text())
    config["network_def"] = network_def or PROGRAM_DEF
    bundle.fill_inference(config)
    return config


def metadata(template: Path, bundle: BundleTemplate, provenance: Json, scores: Json) -> Json:
    content = json.loads((template / "configs" / "metadata.json").read_text())
    content |= {
        "monai_version": installed_version("monai"),
        "pytorch_version": installed_version("torch").partition("+")[0],
        "numpy_version": installed_version("numpy"),
        "required_packages_version": {name: installed_version(name) for name in bundle.packages},
        "name": bundle.title,
        "data_source": provenance.get("dataset") or "not stated",
        "eval_metrics": scores,
        "references": [*content["references"], *provenance.get("method_references", ())],
        "medfed_provenance": {**provenance, "not_for_clinical_use": True},
    }
    bundle.fill_metadata(content)
    return content


def template_folder(name: str) -> Path:
    """The template "prostate_segmentation", for example; a source checkout has it in `bundles/`, beside the package."""
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
