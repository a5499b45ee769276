"""Export a finished run as a MONAI bundle."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medfed.config import search
from medfed.config.schema import Config, load, to_plain
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.federation.image_moments import constants_of
from medfed.federation.method import Method
from medfed.networks.parts.base import NetworkSettings
from medfed.outputs.bundle.model_card import card_notes, scores, scores_table
from medfed.outputs.bundle.write import NetworkWrapper, load_trained_network, write_bundle
from medfed.outputs.damaged_file import damaged_file
from medfed.outputs.run_folder import RunFolder
from medfed.results.notes import did_not_learn
from medfed.tasks.factory import task_of_images
from medfed.tasks.task import Task

COPIED_KEYS = (
    "unseen_site validation_site clients rounds selected_round selection seed data dataset patients versions "
    "config_sha256 method_facts transductive transductive_by start_weights precision deterministic learning"
).split()  # keys of summary.json whose values are copied to the bundle's metadata


def export(run: Path, out: Path | None = None, force: bool = False) -> Path:
    """Write the trained model of a finished run as a MONAI bundle; see `medfed.export`. UserError also if the method
    predicts with several sets of weights that cannot be combined into one, such as COPA with a head that is not linear.
    """
    folder = RunFolder(run)
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run}: has no config.yaml; name the folder of a run, which medfed.train wrote")
    if not folder.is_finished():
        resume = f"python -m medfed.train {run / 'config.yaml'} --out {run} --resume"
        raise UserError(f"{run}: the run is not finished; continue it with {resume}")
    folder.check()
    config, summary = load(run / "config.yaml"), folder.read_summary()
    with damaged_file(run / "summary.json"):  # what the bundle takes from it
        scores(summary), scores_table(summary), card_notes(summary), summary["data"]
        why, images = did_not_learn(summary), summary["images"]
        task, input_is_2d = task_of_images(images, config.data.image_size, config.evaluation), images["pictures"]
    if why and not force:
        raise UserError(f"{run}: {why}; export this model in spite of that with --force")
    weights = folder.load_model()
    if constants := constants_of(weights):  # of `data.standardise: dataset`; the bundle's transforms apply them
        mean, std = (tuple(entry.tolist()) for entry in constants.values())
        task = replace(task, constants=(mean, std))  # type: ignore[type-var]
        weights = {name: entry for name, entry in weights.items() if name not in constants}
    weights, wrap = select_inference_weights(config.method, config.network, task, weights)
    return write_bundle(
        out or run / "bundle" / task.bundle(input_is_2d).name,
        network=config.network,
        weights=weights,
        wrap=wrap,
        task=task,
        provenance={**provenance(config, summary), "method_layers": wrap is not None},
        summary=summary,
        input_is_2d=input_is_2d,
    )


def provenance(config: Config, summary: dict[str, Any]) -> dict[str, Any]:
    """How a model was trained, for `metadata.json`. `medfed.score` builds the network from its entries `network` and
    `method_settings`, not from the bundle's program."""
    name = config.method_name
    return {
        "method": name,
        "method_about": registry.known_names("methods").get(name, ""),
        "method_references": _references(name),
        "method_preset": config.preset,
        "method_settings": to_plain(config.method),
        "network": to_plain(config.network.without_weights()),
        "training_settings": asdict(config.training),
        "sites": summary.get("source_sites"),
        **{key: summary.get(key) for key in COPIED_KEYS},
    }


def _references(method: str) -> list[str]:
    """The publications of a method, or of the methods that it combines; without FedAvg's, which all have."""
    names = method.split("+")
    known = registry.known_names("methods")
    sources = [search.find(f"method.{name}")[0].source for name in names if name in known and name != "fedavg"]
    return list(filter(None, sources))


def select_inference_weights(
    method: Method, network: NetworkSettings, task: Task, weights: dict[str, Tensor]
) -> tuple[dict[str, Tensor], NetworkWrapper | None]:
    """The weights that prediction needs, and the function that adds the method's layers; None if it needs no added
    layer. A layer is for training only if outputs for two random images are equal without it."""
    if type(method).wrap_network is Method.wrap_network:
        return weights, None
    wrap = partial(method.wrap_network, architecture=network)
    wrapped = load_trained_network(network, weights, task, wrap)
    plain = network.build(task.channels, task.out_channels).eval()
    plain_weights = {name: entry for name, entry in weights.items() if name in plain.state_dict()}
    plain.load_state_dict(plain_weights)
    rng = torch.Generator().manual_seed(0)
    image = torch.rand(2, task.channels, task.image_size, task.image_size, generator=rng)
    with torch.no_grad():
        return (plain_weights, None) if torch.equal(plain(image), wrapped(image)) else (weights, wrap)
