"""Build a federation from a config: the sites with their images, the network, the engine and the first state."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from medfed.cli.progress import case_bar
from medfed.config.schema import ONLY_FOR_GPUS, Config
from medfed.core import registry
from medfed.core.determinism import allow_faster_algorithms
from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.core.machine import available_memory_bytes
from medfed.core.seeds import seeded_layers
from medfed.datasets.base import Case, Dataset
from medfed.datasets.splits import Split
from medfed.experiments.sites import assign_patients, local_entries, read_sites
from medfed.federation import privacy_accounting
from medfed.federation.engine import Engine
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite
from medfed.images import reading
from medfed.networks.parts.base import NetworkSettings
from medfed.networks.parts.input_scale import prepend_input_scale
from medfed.networks.parts.memory import MemoryNeeds, estimate_memory
from medfed.networks.parts.tent import Tent
from medfed.tasks.factory import task_of_dataset
from medfed.tasks.task import Task

SHARED = {"window": "low-frequency windows of its images", "style": "styles of its images"}  # by evaluation.match


@dataclass(frozen=True)
class Experiment:
    """What a run needs. Images of the unseen site are not read yet."""

    dataset: Dataset
    task: Task
    network: nn.Module  # shared by all sites of this process
    engine: Engine
    sites: list[Site]  # the sites, or simulated clients, that train
    validation_site: ValidationSite | None
    start: State  # before the first round
    splits: dict[str, Split]  # of the source sites, then of the validation site, which has validation patients only
    unseen: dict[str, list[Case]]  # of the unseen site, by its name; only the evaluation reads them
    clients: dict[str, Split]  # empty if each site is one client


def build_experiment(config: Config, sites_folder: Path | None, quiet: bool, jobs: int | None = 1) -> Experiment:
    """Read the images of the sites that train, and build the network, the sites and the engine of a simulated run."""
    dataset = config.data.ensure_available(case_bar("making the phantom", quiet))
    splits, clients, unseen = assign_patients(dataset, config.federation, config.seed, config.source)
    task = check_config(config, dataset)
    task.check_metrics(config.source)
    privacy_accounting.require_accountant(config.privacy)
    device = prepare_device(config)
    if not config.deterministic and device.type == "cpu":
        raise UserError(f"{config.source}: deterministic: {ONLY_FOR_GPUS}")
    if not config.deterministic:
        warnings.warn(
            "deterministic is false, so each run gives different weights; set it to true for repeatable runs",
            stacklevel=2,
        )
    needs = estimate_needs(config, task) if device.type == "cpu" else None
    check_memory(config, needs, 1)
    network = build_network(config.network, config.method, task, config.seed).to(device)
    if config.evaluation.tent:
        Tent(network)  # raises now, not after the last round, if the network has no BatchNorm
    check_earlier_rounds(config, network)
    began = time.perf_counter()
    sites, validation_site = read_sites(config, dataset, task, network, splits, clients, quiet=quiet)
    reading_s = time.perf_counter() - began
    check_memory(config, needs, min(config.training.batch_size, max(len(site.training) for site in sites)))
    start = State.of(network, local_entries(config, network))
    engine = registry.resolve("engines", config.federation.engine)(
        sites,
        sites_folder,
        validation_site=validation_site,
        settings=config.federation,
        config_yaml=config.yaml,
        source=config.source,
        jobs=jobs,
        reading_s=reading_s,
    )
    return Experiment(dataset, task, network, engine, sites, validation_site, start, splits, unseen, clients)


def build_sites(config: Config, names: Sequence[str]) -> tuple[list[Site], ValidationSite | None]:
    """Build some of a config's sites, which share a network, as a simulation does, reading no other site's images."""
    dataset = config.data.ensure_available(None)
    splits, clients, _ = assign_patients(dataset, config.federation, config.seed, config.source)
    task = build_task(config, dataset)
    network = build_network(config.network, config.method, task, config.seed).to(prepare_device(config))
    return read_sites(config, dataset, task, network, splits, clients, names)


def prepare_device(config: Config) -> torch.device:
    """Return the device of a run, and let a GPU use non-deterministic algorithms if `deterministic` is false."""
    device = pick_device(config.device)
    if not config.deterministic and device.type != "cpu":
        allow_faster_algorithms()
    return device


def build_task(config: Config, dataset: Dataset) -> Task:
    """Return the task of a dataset; UserError if the config's network is made for the other task."""
    task = task_of_dataset(dataset, config.evaluation)
    if task.has_masks != bool(config.network.decoder_levels):
        name, other = registry.name_of("networks", type(config.network)), "unet" if task.has_masks else "densenet"
        raise UserError(
            f"{config.source}: network.name: '{name}' is not made for {task.name}, which the data in {dataset.root} "
            f"need; choose another network, such as {other}"
        )
    return task


def check_config(config: Config, dataset: Dataset) -> Task:
    """Return the task of a dataset; UserError if the method or the network does not work with it."""
    task = build_task(config, dataset)
    if dataset.patch_size:
        config.network.check_patch_size(dataset.patch_size)
        if 3 not in config.method.dimensions:
            raise UserError(
                f"{config.source}: data.patch_size: {config.method_name} works on images and slices only; choose "
                "another method, such as fedavg, or remove data.patch_size"
            )
    else:
        config.network.check_image_size(dataset.image_size)
    config.method.check(dataset.image_size, dataset.channels, dataset.standardise != "none")
    check_match(config)
    return task


def build_network(settings: NetworkSettings, method: Method, task: Task, seed: int) -> nn.Module:
    """Build the network on the CPU with its first weights, and with the layers that the method and the task add."""
    with seeded_layers(seed, "initial weights"):
        network = settings.build(task.channels, task.out_channels)
        settings.load_pretrained(network)
        network = method.wrap_network(network, settings)
        if task.standardised == "dataset":
            prepend_input_scale(network, task.channels)
        return network


def check_earlier_rounds(config: Config, network: nn.Module) -> None:
    """UserError if a rule needs entries that stay at the sites, which are saved for the last round only."""
    selection, every = config.federation.selection, config.evaluation.unseen_every
    if every and (every > config.federation.rounds or not config.federation.unseen_site):
        raise UserError(
            f"{config.source}: evaluation.unseen_every: is {every}, which has no effect with "
            f"{config.federation.rounds} rounds and federation.unseen_site '{config.federation.unseen_site}'; set it "
            "to 0, or name a site and choose at most the number of rounds"
        )
    for key, value, expected in (("federation.selection", selection, "last"), ("evaluation.unseen_every", every, 0)):
        if value != expected and local_entries(config, network):
            raise UserError(
                f"{config.source}: {key}: is {value}, but entries of the network stay at the sites (BatchNorm), and "
                f"those of earlier rounds are not saved; expected {expected}"
            )


def check_match(config: Config) -> None:
    """Raise UserError if the sites of the method do not share what `evaluation.match` needs."""
    kind = config.evaluation.match
    if kind != "none" and not config.federation.unseen_site:
        raise UserError(
            f"{config.source}: evaluation.match: is '{kind}', which has no effect without federation.unseen_site; name "
            "a site, or set evaluation.match to none"
        )
    if kind != "none" and kind not in config.method.match_kinds:
        name, other = registry.name_of("methods", type(config.method)), "elcfs" if kind == "window" else "ccst"
        choices = " or ".join(["none", *sorted(config.method.match_kinds)])
        raise UserError(
            f"{config.source}: evaluation.match: is '{kind}', but {name} with these settings shares no {SHARED[kind]}; "
            f"choose another method, such as {other}, or set evaluation.match to {choices}"
        )


def estimate_needs(config: Config, task: Task) -> MemoryNeeds | None:
    """Return the memory that the network and a step need at least; None if unknown."""

    def build() -> nn.Module:
        return config.method.wrap_network(config.network.build(task.channels, task.out_channels), config.network)

    return estimate_memory(build, task.channels, task.input_size)


def check_memory(config: Config, needs: MemoryNeeds | None, n_images: int) -> None:
    """Raise UserError if the network and a training step with `n_images` images do not fit into the free memory."""
    free = available_memory_bytes()
    if needs is not None and free is not None and (needed := needs.parameters + n_images * needs.per_image) > free:
        most = int((free - needs.parameters) / needs.per_image) if needs.parameters < free else 0
        remedy = f"at most {most}" if most > 0 else "a smaller network or data.image_size"
        raise UserError(
            f"{config.source}: training.batch_size: is {config.training.batch_size}; training on "
            f"{config.data.image_size} px with {n_images} images in a batch needs at least {needed / 1e9:,.1f} GB, but "
            f"{free / 1e9:,.1f} GB of memory are free; choose {remedy}"
        )


def describe_images(task: Task, dataset: Dataset, first: Case) -> dict[str, object]:
    """Return what the export must know about the images; of `first`, any case, only the file name is used."""
    intensity_range = dataset.intensity_range  # what becomes 0 and 1; None: percentiles of each volume, as for MRI
    return {
        "channels": task.channels,
        "structures": list(dataset.structures),
        "classes": list(dataset.classes),
        "intensity_range": intensity_range and list(intensity_range),
        "standardised": task.standardised,
        "pictures": reading.is_2d_image_file(first.image),
        "suffix": reading.suffix(first.image),
    }
