"""From a config to a federation in one process: sites with their images, the network, the engine, the first state."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from tqdm import tqdm

from medfed.config.schema import Config, to_yaml
from medfed.core import registry
from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.core.seeds import seeded_layers
from medfed.datasets.base import Case, Dataset
from medfed.datasets.splits import Split
from medfed.engines.in_process import InProcess
from medfed.experiments.cohorts import assign_patients
from medfed.experiments.loading import SiteImages
from medfed.federation import privacy_accounting
from medfed.federation.message import State
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite
from medfed.functional.weights import batch_norm_entries
from medfed.networks.tent import Tent
from medfed.tasks.known import task_of_dataset
from medfed.tasks.task import KEPT_BYTES, Task

OTHER_NETWORK = {  # whether a network draws masks: what it does, what the data have, a network for them
    True: ("draws masks", "images to classify", "densenet"),
    False: ("tells classes", "masks", "unet"),
}


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs; the unseen site is a name and files whose images nobody has read.

    splits: patients of each source site; those of the validation site, which comes last, are all for validation.
    unseen: cases of the unseen site, for the evaluator alone.
    clients: the training and validation cases of each client where the sites' people were handed out; else empty.
    """

    dataset: Dataset
    task: Task
    network: nn.Module
    engine: InProcess
    start: State
    splits: dict[str, Split]
    unseen: dict[str, list[Case]]
    clients: dict[str, Split]


def build_experiment(config: Config, sites_folder: Path | None, quiet: bool) -> Experiment:
    """Make the data ready, read the source sites, and build network and sites.

    Raises:
        UserError: for whatever is wrong with the files of the source sites, or the names and places of those of the
            unseen one, before any training.
    """
    dataset = config.data.ready(None if quiet else bar_over("making the phantom"))
    splits, clients, unseen = assign_patients(config, dataset)
    task = task_of(config, dataset)
    task.check_metrics(config.source)
    privacy_accounting.check(config.privacy)
    config.network.check_image_size(dataset.image_size)
    config.method.check(dataset.image_size, dataset.channels, dataset.standardise)
    device = pick_device(config.device)
    network = build_network(config, task).to(device)
    if config.evaluation.tent:
        Tent(network)  # it would refuse after all rounds
    check_local_entries(config, network)
    members, onlooker = _members(config, task, network, dataset, splits, clients, quiet)
    start = State.of(network)
    engine = registry.resolve("engines", config.federation.engine)(
        members, sites_folder, onlooker=onlooker, settings=config.federation, plan=to_yaml(config), source=config.source
    )
    return Experiment(dataset, task, network, engine, start, splits, unseen, clients)


def build_site(config: Config, name: str) -> Site | ValidationSite:
    """One site or client alone, the same as in a simulation; the images of no other are read.

    Raises:
        UserError: as `prepare`, and if there is no such site.
    """
    dataset = config.data.ready(None)
    splits, clients, _ = assign_patients(config, dataset)
    task = task_of(config, dataset)
    network = build_network(config, task).to(pick_device(config.device))
    with tqdm(disable=True) as bar:
        images = SiteImages(dataset, task, bar)
        if name == config.federation.validation_site:
            return ValidationSite(name, images.samples(splits[name].validation), task, network)
        held = clients or splits
        if name not in held:
            raise UserError(f"{dataset.root}: no site '{name}' trains here. {registry.suggestion(name, held)}")
        site = _site(config, task, network, name, held[name], images, KEPT_BYTES)
    images.say_notices(splits)
    _say_small_batches([site], config)
    return site


def task_of(config: Config, dataset: Dataset) -> Task:
    """What is learned from a dataset: its structures or its classes; UserError if the network is of another task."""
    task, draws_masks = task_of_dataset(dataset, config.evaluation), bool(config.network.decoder_levels)
    if task.uses_decoder != draws_masks:
        name, (does, has, other) = registry.name_of("networks", type(config.network)), OTHER_NETWORK[draws_masks]
        raise UserError(
            f"{config.source}: network.name: '{name}' {does}, but {dataset.root} has {has}; choose one for "
            f"{task.name}, such as {other}"
        )
    return task


def build_network(config: Config, task: Task) -> nn.Module:
    """The network with what the method adds; its initial weights depend on the seed and `network.weights` alone."""
    with seeded_layers(config.seed, "initial weights"):
        network = config.network.build(task.channels, task.out_channels)
        config.network.load_pretrained(network)
        return config.method.wrap_network(network, config.network)


def check_local_entries(config: Config, network: nn.Module) -> None:
    """What a method keeps at the clients belongs to no site where these are handed the people of several, and to no
    round but the last. UserError."""
    if not config.method.local_keys(network):
        return
    if config.federation.clients:
        raise UserError(
            f"{config.source}: federation.clients: {config.method_name} keeps entries of the network at each client, "
            f"and scores are by site; expected 0, got {config.federation.clients}"
        )
    if config.federation.selection != "last":
        raise UserError(
            f"{config.source}: federation.selection: {config.method_name} keeps entries of the network at each site, "
            f"and those of earlier rounds are not kept; expected last, got {config.federation.selection}"
        )


def _members(
    config: Config, task: Task, network: nn.Module, dataset: Dataset, splits: dict[str, Split],
    clients: dict[str, Split], quiet: bool,
) -> tuple[list[Site], ValidationSite | None]:
    """Who trains, and the validation site; every image of theirs, and of the source sites' tests, has been read."""
    held = clients or {site: patients for site, patients in splits.items() if patients.train}
    n_sites = sum(bool(patients.train) for patients in splits.values())
    kept_bytes = KEPT_BYTES * n_sites // max(len(held), n_sites)  # in all as much as the sites would keep
    with tqdm(total=sum(len(s.all()) for s in splits.values()), desc="reading the source sites", unit="case",
              disable=quiet, dynamic_ncols=True, leave=False) as bar:
        images = SiteImages(dataset, task, bar, kept_bytes)
        members = [_site(config, task, network, name, patients, images, kept_bytes) for name, patients in held.items()]
        onlooker = None
        if name := config.federation.validation_site:
            onlooker = ValidationSite(name, images.samples(splits[name].validation), task, network)
        for patients in splits.values():
            images.look_at(patients.test)
    images.say_notices(splits)
    _say_small_batches(members, config)
    return members, onlooker


def _site(
    config: Config, task: Task, network: nn.Module, name: str, patients: Split,
    images: SiteImages, kept_bytes: int,
) -> Site:
    local_keys = config.method.local_keys(network)
    if config.federation.batch_norm == "local":
        local_keys |= batch_norm_entries(network)
    training, validation = (images.samples(part) for part in (patients.train, patients.validation))
    return Site(
        name=name,
        training=training,
        validation=validation,
        task=task,
        method=config.method,
        network=network,
        architecture=config.network,
        settings=config.training,
        local_keys=local_keys,
        local_epochs=config.federation.local_epochs,
        seed=config.seed,
        rounds=config.federation.rounds,
        kept_bytes=kept_bytes,
        privacy=config.privacy,
    )


def _say_small_batches(members: list[Site], config: Config) -> None:
    size = config.training.batch_size
    small = [site for site in members if len(site.training) < size]
    if small and config.federation.clients:
        fewest = min(len(site.training) for site in small)
        warnings.warn(
            f"{len(small)} of {len(members)} clients have fewer training images than training.batch_size {size}, the "
            f"smallest {fewest}; their batches hold what they have", stacklevel=2,
        )  # fmt: skip
        return
    for site in small:
        n = len(site.training)
        warnings.warn(
            f"{site.name}: has {n} training image{'s' if n > 1 else ''}, fewer than training.batch_size {size}; its "
            f"batches hold {n}", stacklevel=2,
        )  # fmt: skip


def bar_over(text: str):
    """A wrapper that draws a bar over an iterable, for what takes a `progress`."""
    return lambda items: tqdm(items, desc=text, dynamic_ncols=True, leave=False)
