"""Turn the folder of a finished run into a MONAI bundle."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from medfed.config.schema import Config, load
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.federation.method import Method
from medfed.networks.base import NetworkSettings
from medfed.outputs.bundle.write import NetworkWrapper, write_bundle
from medfed.outputs.run_folder import RunFolder
from medfed.tasks.factory import task_of_images
from medfed.tasks.task import Task

FACTS = (  # of summary.json, put into the bundle as they stand
    "unseen_site", "validation_site", "clients", "rounds", "selected_round", "selection", "seed", "data", "dataset",
    "patients", "versions", "config_sha256", "method_facts", "transductive", "transductive_by", "start_weights",
)  # fmt: skip


def export(run: Path, out: Path | None = None) -> Path:
    """Write the bundle of a finished run and return its folder; the run's images need not be there.

    Raises:
        UserError: if the run is not finished, is damaged, or has no single model to give.
    """
    folder = RunFolder(run)
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run}: is no run, for it has no config.yaml; name the folder that medfed.train wrote")
    if not folder.is_finished():
        resume = f"python -m medfed.train {run / 'config.yaml'} --out {run} --resume"
        raise UserError(f"{run}: the run is not finished; go on with {resume}")
    config, summary = load(run / "config.yaml"), folder.read_json("summary.json")
    images = summary["images"]
    task = task_of_images(images, config.data.image_size, config.evaluation)
    input_is_2d = images["pictures"]
    weights, wrap = select_inference_weights(
        config.method, config.network, task, _read_model(run / "model.safetensors")
    )
    return write_bundle(
        out or run / "bundle" / task.bundle(input_is_2d).name,
        network=config.network,
        weights=weights,
        wrap=wrap,
        task=task,
        provenance=provenance(config, summary),
        summary=summary,
        input_is_2d=input_is_2d,
    )


def provenance(config: Config, summary: dict[str, Any]) -> dict[str, Any]:
    """Where the model comes from: method and settings, sites, rounds, the rule that chose the round, versions."""
    name = config.method_name
    return {
        "method": name,
        "method_about": registry.known_names("methods").get(name, ""),
        "method_preset": config.preset,
        "method_settings": asdict(config.method),
        "training_settings": asdict(config.training),
        "sites": summary.get("source_sites"),
        **{key: summary.get(key) for key in FACTS},
    }


def select_inference_weights(
    method: Method, network: NetworkSettings, task: Task, weights: dict[str, Tensor]
) -> tuple[dict[str, Tensor], NetworkWrapper | None]:
    """The weights without what the method added to the network, if that is for training only.

    Otherwise (StableFDG's attention) all of them, and what adds it: the plain network would not show the results.
    """
    if type(method).wrap_network is Method.wrap_network:
        return weights, None
    wrap = partial(method.wrap_network, architecture=network)
    plain = network.build(task.channels, task.out_channels).eval()
    wrapped = wrap(network.build(task.channels, task.out_channels)).eval()
    kept = {name: entry for name, entry in weights.items() if name in plain.state_dict()}
    try:
        wrapped.load_state_dict(weights)
        plain.load_state_dict(kept)
    except RuntimeError as error:
        raise UserError(f"the model does not fit its config ({str(error).splitlines()[-1].strip()})") from error
    rng = torch.Generator().manual_seed(0)
    image = torch.rand(2, task.channels, task.image_size, task.image_size, generator=rng)
    with torch.no_grad():
        return (kept, None) if torch.equal(plain(image), wrapped(image)) else (weights, wrap)


def _read_model(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; train again, or copy the whole folder of the run") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: is damaged ({error}); copy it again from where the run was made") from error
