"""Export a finished run, or trained weights, as a MONAI bundle, which gives the same predictions without medfed.

A template folder in `bundles/` has the parts that are the same for every run; `medfed.tasks.bundle_template` fills in
what depends on the run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from medfed.config import search
from medfed.config.schema import Config, load, to_plain
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.federation.image_moments import constants_of
from medfed.federation.ledger import FACT, WEIGHT
from medfed.federation.message import Kind, digest
from medfed.federation.method import Method
from medfed.federation.sent import UNKNOWN, describe
from medfed.federation.settings import Training
from medfed.functional.weights import first_non_finite
from medfed.networks.parts.base import NetworkSettings
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.model_card import model_card, scores
from medfed.outputs.bundle.program import PROGRAM, PROGRAM_DEF, save_program
from medfed.outputs.run_files import damaged_file
from medfed.outputs.run_folder import RunFolder
from medfed.results.notes import did_not_learn
from medfed.tasks.bundle_entries import Json
from medfed.tasks.bundle_template import READ_SUFFIXES, BundleTemplate
from medfed.tasks.bundle_training import LOGGING_CONF, evaluate_config, train_config
from medfed.tasks.factory import task_of_images
from medfed.tasks.task import Task

PACKAGE = Path(__file__).parent.parent.parent
NetworkWrapper = Callable[[nn.Module], nn.Module]
COPIED_KEYS = (
    "unseen_site validation_site clients rounds selected_round selection seed data dataset patients versions "
    "config_sha256 method_summary transductive transductive_by start_weights precision deterministic learning"
).split()  # keys of summary.json whose values are copied to the bundle's metadata


def export_run(run: Path, out: Path | None = None, force: bool = False) -> Path:
    """Write the trained model of a finished run as a MONAI bundle; see `medfed.export`."""
    folder = RunFolder(run)
    folder.check_finished()
    config, summary = load(run / "config.yaml"), folder.read_summary()
    if (why := did_not_learn(summary)) and not force:
        raise UserError(f"{run}: {why}; export this model in spite of that with --force")
    images, weights = summary["images"], folder.load_model()
    task, input_is_2d = task_of_images(images, config.data, config.evaluation), images["pictures"]
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
        provenance={
            **provenance(config, summary),
            "sent": sent_by_sites(folder, config.method),
            "method_layers": wrap is not None,
        },
        summary=summary,
        input_is_2d=input_is_2d,
        suffix=images.get("suffix"),
    )


def provenance(config: Config, summary: dict[str, Any]) -> dict[str, Any]:
    """How a model was trained, for `metadata.json`; `medfed.score` builds the network from it."""
    name = config.method_name
    return {
        "method": name,
        "method_about": registry.known_names("methods").get(name, ""),
        "method_references": _references(name),
        "method_preset": config.preset,
        "method_settings": to_plain(config.method),
        "network": to_plain(config.network.without_weights()),
        "training_settings": asdict(config.training),
        "federation_settings": to_plain(config.federation),
        "privacy_settings": to_plain(config.privacy),
        "sites": summary.get("source_sites"),
        **{key: summary.get(key) for key in COPIED_KEYS},
    }


def sent_by_sites(folder: RunFolder, method: Method) -> list[str]:
    """What left the sites: the weights, then each kind of statistic; nothing for a run of one site or in one place."""
    left = [row for row in folder.ledger() if row["direction"] == "up"]
    if len({row["site"] for row in left}) < 2:
        return []
    rows = {(row["content"], row["kind"], row["name"]): row for row in left}
    titles: dict[str, None] = {}
    for (content, kind, name), row in sorted(rows.items(), key=lambda row: row[0][0] != WEIGHT):
        if content != FACT or kind == Kind.SURVEY:
            (one,) = describe(row, method.sent)
            titles[f"{name} ({one.title})" if one is UNKNOWN else one.title] = None
    return list(titles)


def _references(method: str) -> list[str]:
    """The publications of a method, or of the methods that it combines; without FedAvg's, which all have."""
    names = method.split("+")
    known = registry.known_names("methods")
    sources = [search.find(f"method.{name}")[0].source for name in names if name in known and name != "fedavg"]
    return list(filter(None, sources))


def select_inference_weights(
    method: Method, network: NetworkSettings, task: Task, weights: dict[str, Tensor]
) -> tuple[dict[str, Tensor], NetworkWrapper | None]:
    """The weights that prediction needs, and what adds the method's layers; None if outputs are equal without."""
    if type(method).wrap_network is Method.wrap_network:
        return weights, None
    wrap = partial(method.wrap_network, architecture=network)
    wrapped = load_trained_network(network, weights, task, wrap)
    plain = network.build(task.channels, task.out_channels).eval()
    plain_weights = {name: entry for name, entry in weights.items() if name in plain.state_dict()}
    plain.load_state_dict(plain_weights)
    rng = torch.Generator().manual_seed(0)
    image = torch.rand(2, task.channels, *task.input_size, generator=rng)
    with torch.no_grad():
        return (plain_weights, None) if torch.equal(plain(image), wrapped(image)) else (weights, wrap)


def write_bundle(
    out: Path,
    *,
    network: NetworkSettings,
    weights: Mapping[str, Tensor],
    task: Task,
    provenance: Json,
    summary: Json,
    input_is_2d: bool,
    suffix: str | None = None,
    wrap: NetworkWrapper | None = None,
) -> Path:
    """Write a MONAI bundle with trained weights, which passes `check_bundle`. If an error occurs, no folder is left.

    MONAI Label infers the task from the end of the folder's name, `_segmentation` or `_classification`. `wrap` adds
    the method's layers, which MONAI cannot build: the bundle then has an exported program for the task's image size.
    """
    target = out.resolve()  # without steps such as `a/..`, which exist only once the folder `a` was created
    if target.exists():
        raise UserError(f"{out}: exists already; remove it, or choose another folder with --out")
    bundle = task.bundle(input_is_2d)
    template = template_folder(bundle.folder)
    definition = None if wrap else network.network_def(task.channels, task.out_channels)
    module = load_trained_network(network, weights, task, wrap)
    stored_weights = module.state_dict() if wrap else network.monai_weights(module, task.channels, task.out_channels)
    provenance = {**provenance, "weights_sha256": digest(safetensors.torch.save(module.state_dict()))}
    inference = inference_config(template, bundle, definition)
    if suffix in READ_SUFFIXES:
        inference["image_pattern"] = f"*{suffix}"
    configs = {"inference": inference, "metadata": metadata(template, bundle, provenance, scores(summary))}
    if definition:
        training = {**asdict(Training()), **provenance.get("training_settings", {})}
        configs["train"] = train_config(inference, bundle.training_parts(training, inference), training)
        configs["evaluate"] = evaluate_config()
    versions = {name: version(name).partition("+")[0] for name in ("torch", "monai")}
    versions |= configs["metadata"]["required_packages_version"] | {"fire": version("fire")}
    with atomic_folder(target) as folder:
        for name in ("configs", "docs", "models"):
            (folder / name).mkdir()
        for name, content in configs.items():
            (folder / "configs" / f"{name}.json").write_text(json.dumps(content, indent=4, allow_nan=False) + "\n")
        (folder / "configs" / "logging.conf").write_text(LOGGING_CONF)
        torch.save(stored_weights, folder / "models" / "model.pt")
        if not definition:
            save_program(folder / PROGRAM, module, task.channels, task.image_size)
        pattern, can_train = inference["image_pattern"], bool(definition)
        card = model_card(template, bundle, module, provenance, summary, versions, task.image_size, can_train, pattern)
        (folder / "docs" / "README.md").write_text(card, encoding="utf-8")
        shutil.copyfile(template / "LICENSE", folder / "LICENSE")
        check_bundle(folder, own_program=not definition)
    return out


def load_trained_network(
    network: NetworkSettings, weights: Mapping[str, Tensor], task: Task, wrap: NetworkWrapper | None = None
) -> nn.Module:
    """Build the network on the CPU in evaluation mode; `wrap` adds the method's layers."""
    module = network.build(task.channels, task.out_channels)
    module = (wrap(module) if wrap else module).eval()
    with damaged_file(Path("model.safetensors")):  # of another network
        module.load_state_dict(dict(weights))
    if name := first_non_finite(weights):
        raise UserError(
            f"the weights are not finite (first in '{name}'): training diverged, so there is no model to export"
        )
    return module


def inference_config(template: Path, bundle: BundleTemplate, network_def: Json | None) -> Json:
    """The content of `inference.json`; without a `network_def` that MONAI can build, it loads the program."""
    config = json.loads((template / "configs" / "inference.json").read_text())
    config["network_def"] = network_def or PROGRAM_DEF
    bundle.fill_inference(config)
    return config


def metadata(template: Path, bundle: BundleTemplate, provenance: Json, scores: Json) -> Json:
    content = json.loads((template / "configs" / "metadata.json").read_text())
    content |= {
        "monai_version": version("monai"),
        "pytorch_version": version("torch").partition("+")[0],
        "numpy_version": version("numpy"),
        "required_packages_version": {name: version(name) for name in bundle.packages},
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
    installed = PACKAGE / "bundles" / name
    return installed if installed.is_dir() else PACKAGE.parent / "bundles" / name


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
