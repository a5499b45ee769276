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
from medfed.datasets.base import Case, Dataset, Progress
from medfed.datasets.splits import Split
from medfed.experiments.cohorts import assign_patients
from medfed.experiments.loading import SiteImages
from medfed.federation import privacy_accounting
from medfed.federation.engine import Engine
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.settings import Federation
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite
from medfed.functional.weights import batch_norm_entries
from medfed.networks.base import NetworkSettings
from medfed.networks.tent import Tent
from medfed.tasks.factory import task_of_dataset
from medfed.tasks.task import KEPT_BYTES, Task

OTHER_NETWORK = {  # whether a network draws masks: what it does, what the data have, a network for them
    True: ("draws masks", "images to classify", "densenet"),
    False: ("tells classes", "masks", "unet"),
}


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs; the unseen site is a name and files whose images nobody has read.

    sites: those that train, in this process; a hospital's own process has one.
    validation_site: the site that only scores, if there is one.
    splits: patients of each source site; those of the validation site, which comes last, are all for validation.
    unseen: cases of the unseen site, for the evaluator alone.
    clients: the training and validation cases of each client where the sites' people were handed out; else empty.
    """

    dataset: Dataset
    task: Task
    network: nn.Module
    engine: Engine
    sites: list[Site]
    validation_site: ValidationSite | None
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
    dataset = config.data.ensure_available(None if quiet else progress_bar("making the phantom"))
    splits, clients, unseen = assign_patients(dataset, config.federation, config.seed, config.source)
    task = build_task(config, dataset)
    task.check_metrics(config.source)
    privacy_accounting.require_accountant(config.privacy)
    config.network.check_image_size(dataset.image_size)
    config.method.check(dataset.image_size, dataset.channels, dataset.standardise)
    device = pick_device(config.device)
    network = build_network(config.network, config.method, task, config.seed).to(device)
    if config.evaluation.tent:
        Tent(network)  # it would refuse after all rounds
    check_local_entries(config.method, config.federation, config.source, network)
    members, validation_site = _read_sites(SiteBuilder(config, task, network), dataset, splits, clients, quiet)
    start = State.of(network)
    engine = registry.resolve("engines", config.federation.engine)(
        members,
        sites_folder,
        validation_site=validation_site,
        settings=config.federation,
        config_yaml=to_yaml(config),
        source=config.source,
    )
    return Experiment(dataset, task, network, engine, members, validation_site, start, splits, unseen, clients)


def build_site(config: Config, name: str) -> Site | ValidationSite:
    """One site or client alone, the same as in a simulation; the images of no other are read.

    Raises:
        UserError: as `build_experiment`, and if there is no such site.
    """
    dataset = config.data.ensure_available(None)
    splits, clients, _ = assign_patients(dataset, config.federation, config.seed, config.source)
    task = build_task(config, dataset)
    network = build_network(config.network, config.method, task, config.seed).to(pick_device(config.device))
    build = SiteBuilder(config, task, network)
    with tqdm(disable=True) as bar:
        images = SiteImages(dataset, task, bar)
        if name == config.federation.validation_site:
            return build.validation_site(name, splits[name], images)
        held = clients or splits
        if name not in held:
            raise UserError(f"{dataset.root}: no site '{name}' trains here. {registry.suggestion(name, held)}")
        site = build.site(name, held[name], images, KEPT_BYTES)
    images.warn_of_notices(splits)
    build.warn_of_small_batches([site])
    return site


def build_task(config: Config, dataset: Dataset) -> Task:
    """What is learned from a dataset: its structures or its classes; UserError if the network is of another task."""
    task, draws_masks = task_of_dataset(dataset, config.evaluation), bool(config.network.decoder_levels)
    if task.uses_decoder != draws_masks:
        name, (does, has, other) = registry.name_of("networks", type(config.network)), OTHER_NETWORK[draws_masks]
        raise UserError(
            f"{config.source}: network.name: '{name}' {does}, but {dataset.root} has {has}; choose one for "
            f"{task.name}, such as {other}"
        )
    return task


def build_network(
    settings: NetworkSettings, method: Method, task: Task, seed: int
) -> nn.Module:
    """The network with what the method adds; its initial weights depend on the seed and `network.weights` alone."""
    with seeded_layers(seed, "initial weights"):
        network = settings.build(task.channels, task.out_channels)
        settings.load_pretrained(network)
        return method.wrap_network(network, settings)


def check_local_entries(method: Method, settings: Federation, source: str, network: nn.Module) -> None:
    """Refuse settings that do not work for a method that keeps entries of the network at each site (UserError).

    Such entries belong to no site where clients are handed the patients of several sites, and to no round but the last.
    """
    if not method.local_keys(network):
        return
    name = registry.name_of("methods", type(method))
    if settings.clients:
        raise UserError(
            f"{source}: federation.clients: {name} keeps entries of the network at each client, and scores are by "
            f"site; expected 0, got {settings.clients}"
        )
    if settings.selection != "last":
        raise UserError(
            f"{source}: federation.selection: {name} keeps entries of the network at each site, and those of earlier "
            f"rounds are not kept; expected last, got {settings.selection}"
        )


@dataclass(frozen=True)
class SiteBuilder:
    """Builds the sites of one federation; they share the network, as each reply loads its weights afresh."""

    config: Config
    task: Task
    network: nn.Module

    def site(self, name: str, patients: Split, images: SiteImages, kept_bytes: int) -> Site:
        """A site that trains with these patients.

        Args:
            kept_bytes: how much of what the method makes of the images may stay in memory.
        """
        config, federation = self.config, self.config.federation
        local_keys = config.method.local_keys(self.network)
        if federation.batch_norm == "local":
            local_keys |= batch_norm_entries(self.network)
        return Site(
            name=name,
            training=images.samples(patients.train),
            validation=images.samples(patients.validation),
            task=self.task,
            method=config.method,
            network=self.network,
            architecture=config.network,
            settings=config.training,
            local_keys=local_keys,
            local_epochs=federation.local_epochs,
            seed=config.seed,
            rounds=federation.rounds,
            max_cache_bytes=kept_bytes,
            privacy=config.privacy,
        )

    def validation_site(self, name: str, patients: Split, images: SiteImages) -> ValidationSite:
        """A site that only scores, on all its patients."""
        return ValidationSite(name, images.samples(patients.validation), self.task, self.network)

    def warn_of_small_batches(self, sites: list[Site]) -> None:
        """Warn of sites with fewer training images than a batch has."""
        size = self.config.training.batch_size
        small = [site for site in sites if len(site.training) < size]
        if small and self.config.federation.clients:
            fewest = min(len(site.training) for site in small)
            warnings.warn(
                f"{len(small)} of {len(sites)} clients have fewer training images than training.batch_size {size}, "
                f"the smallest {fewest}; their batches hold what they have",
                stacklevel=2,
            )
            return
        for site in small:
            n = len(site.training)
            warnings.warn(
                f"{site.name}: has {n} training image{'s' if n > 1 else ''}, fewer than training.batch_size {size}; "
                f"its batches hold {n}",
                stacklevel=2,
            )


def _read_sites(
    build: SiteBuilder, dataset: Dataset, splits: dict[str, Split], clients: dict[str, Split], quiet: bool
) -> tuple[list[Site], ValidationSite | None]:
    """The sites that train and the validation site; every image of theirs and of the source sites' tests is read."""
    held = clients or {site: patients for site, patients in splits.items() if patients.train}
    n_sites = sum(bool(patients.train) for patients in splits.values())
    kept_bytes = KEPT_BYTES * n_sites // max(len(held), n_sites)  # in all as much as the sites would keep
    with tqdm(total=sum(len(s.all()) for s in splits.values()), desc="reading the source sites", unit="case",
              disable=quiet, dynamic_ncols=True, leave=False) as bar:
        images = SiteImages(dataset, build.task, bar, kept_bytes)
        sites = [build.site(name, patients, images, kept_bytes) for name, patients in held.items()]
        name = build.config.federation.validation_site
        validation_site = build.validation_site(name, splits[name], images) if name else None
        for patients in splits.values():
            images.check_files(patients.test)
    images.warn_of_notices(splits)
    build.warn_of_small_batches(sites)
    return sites, validation_site


def progress_bar(text: str) -> Progress:
    """A wrapper that draws a bar over an iterable, for what takes a `progress`."""
    return lambda items: tqdm(items, desc=text, dynamic_ncols=True, leave=False)
