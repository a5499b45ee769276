"""Build a federation from a config: the sites with their images, the network, the engine and the first state."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from medfed.cli.progress import ProgressBar
from medfed.config.schema import ONLY_FOR_GPUS, Config
from medfed.core import registry
from medfed.core.determinism import allow_faster_algorithms
from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.core.seeds import seeded_layers
from medfed.datasets.base import Case, Dataset, Progress
from medfed.datasets.splits import Split
from medfed.experiments.cohorts import assign_patients
from medfed.experiments.loading import SiteImages
from medfed.experiments.matching import check_match
from medfed.experiments.memory import check_network_memory, check_step_memory
from medfed.federation import privacy_accounting
from medfed.federation.engine import Engine
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.site import Site
from medfed.federation.validation_site import ValidationSite
from medfed.functional.weights import batch_norm_entries
from medfed.networks.parts.base import NetworkSettings
from medfed.networks.parts.input_scale import prepend_input_scale
from medfed.networks.parts.tent import Tent
from medfed.tasks.factory import task_of_dataset
from medfed.tasks.task import Task

OTHER_NETWORK = {  # by whether the network segments: what it does, what the data hold, a network for such data
    True: ("segments images", "images to classify", "densenet"),
    False: ("classifies images", "masks", "unet"),
}


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
    """Read the images of the sites that train, and build the network, the sites and the engine of a simulated run.

    Args:
        sites_folder: where sites store their replies and the tensors that they keep between rounds; None stores none.
        jobs: how many sites work at the same time. None leaves the choice to the engine: `InProcess` starts worker
            processes if they are expected to save time, and `Processes` uses all CPU cores.
    """
    dataset = config.data.ensure_available(None if quiet else progress_bar("making the phantom"))
    splits, clients, unseen = assign_patients(dataset, config.federation, config.seed, config.source)
    task = build_task(config, dataset)
    task.check_metrics(config.source)
    privacy_accounting.require_accountant(config.privacy)
    config.network.check_image_size(dataset.image_size)
    config.method.check(dataset.image_size, dataset.channels, dataset.standardise != "none")
    check_match(config)
    device = prepare_device(config)
    if not config.deterministic and device.type == "cpu":
        raise UserError(f"{config.source}: deterministic: {ONLY_FOR_GPUS}")
    if not config.deterministic:
        warnings.warn(
            "deterministic is false, so each run gives different weights; set it to true for repeatable runs",
            stacklevel=2,
        )
    needs = check_network_memory(config, task, dataset.image_size) if device.type == "cpu" else None
    network = build_network(config.network, config.method, task, config.seed).to(device)
    if config.evaluation.tent:
        Tent(network)  # raises now, not after the last round, if the network has no BatchNorm
    check_earlier_rounds(config, network)
    began = time.perf_counter()
    sites, validation_site = _read_sites(SiteBuilder(config, task, network), dataset, splits, clients, quiet)
    reading_s = time.perf_counter() - began
    check_step_memory(config, needs, [len(site.training) for site in sites])
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
    """Build some of a config's sites or clients exactly as a simulation does, without reading images of other sites.
    They share one network, so only one can work at a time. The validation site is None if `names` does not contain it.
    """
    dataset = config.data.ensure_available(None)
    splits, clients, _ = assign_patients(dataset, config.federation, config.seed, config.source)
    task = build_task(config, dataset)
    network = build_network(config.network, config.method, task, config.seed).to(prepare_device(config))
    build = SiteBuilder(config, task, network)
    patients_of, share = _patients_of(splits, clients)
    validation_site: ValidationSite | None = None
    sites: list[Site] = []
    with ProgressBar(disable=True) as bar:
        images = SiteImages(
            dataset,
            task,
            bar,
            _n_cases(patients_of.get(name, splits.get(name)) for name in names),
            measures={} if config.federation.surveys else None,
        )
        for name in names:
            if name == config.federation.validation_site:
                validation_site = build.validation_site(name, splits[name], images)
                continue
            if name not in patients_of:
                known = registry.suggestion(name, patients_of)
                raise UserError(f"{dataset.root}: no site '{name}' trains here. {known}")
            sites.append(build.site(name, patients_of[name], images, share))
    if sites:
        images.warn_of_notices(splits)
        build.warn_of_small_batches(sites)
    return sites, validation_site


def _patients_of(splits: Mapping[str, Split], clients: Mapping[str, Split]) -> tuple[Mapping[str, Split], float]:
    """Return the patients of each site or client that trains, and its share of what one site may store on the disk. All
    clients together store no more than the sites would, so the share of a client is at most 1."""
    training = {site: patients for site, patients in splits.items() if patients.train}
    patients_of = clients or training
    n_sites = len(training)
    return patients_of, n_sites / max(len(patients_of), n_sites)


def _n_cases(patients: Iterable[Split | None]) -> int:
    """Return the number of training and validation cases of some sites or clients."""
    return sum(len(split.train) + len(split.validation) for split in patients if split)


def prepare_device(config: Config) -> torch.device:
    """Return the device of a run, and let a GPU use non-deterministic algorithms if `deterministic` is false."""
    device = pick_device(config.device)
    if not config.deterministic and device.type != "cpu":
        allow_faster_algorithms()
    return device


def build_task(config: Config, dataset: Dataset) -> Task:
    """Return the task of a dataset; UserError if the config's network is made for the other task."""
    task, draws_masks = task_of_dataset(dataset, config.evaluation), bool(config.network.decoder_levels)
    if task.uses_decoder != draws_masks:
        name, (does, has, other) = registry.name_of("networks", type(config.network)), OTHER_NETWORK[draws_masks]
        raise UserError(
            f"{config.source}: network.name: '{name}' {does}, but {dataset.root} has {has}; choose one for "
            f"{task.name}, such as {other}"
        )
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


def local_entries(config: Config, network: nn.Module) -> frozenset[str]:
    """Return the names of the network's entries that are never sent, such as BatchNorm in FedBN."""
    of_method = config.method.local_keys(network)
    return of_method | batch_norm_entries(network) if config.federation.batch_norm == "local" else of_method


def check_earlier_rounds(config: Config, network: nn.Module) -> None:
    """Check `federation.selection` and `evaluation.unseen_every`: both cannot use an earlier round if entries of the
    network stay at the sites, because these entries are saved for the last round only."""
    federation, source, every = config.federation, config.source, config.evaluation.unseen_every
    if config.method.local_keys(network) and federation.selection != "last":
        name = registry.name_of("methods", type(config.method))
        raise UserError(
            f"{source}: federation.selection: {name} keeps entries of the network at each site, and those of earlier "
            f"rounds are not saved; expected last, got {federation.selection}"
        )
    if every and not federation.unseen_site:
        raise UserError(
            f"{source}: evaluation.unseen_every: is {every}, but federation.unseen_site is empty; name a site, or set "
            "evaluation.unseen_every to 0"
        )
    if every > federation.rounds:
        raise UserError(
            f"{source}: evaluation.unseen_every: is {every}, but the run has {federation.rounds} rounds, so no round "
            "would be scored; choose at most that number"
        )
    if every and local_entries(config, network):
        raise UserError(
            f"{source}: evaluation.unseen_every: is {every}, but entries of the network stay at the sites (BatchNorm), "
            "and those of earlier rounds are not saved; set evaluation.unseen_every to 0"
        )


@dataclass(frozen=True)
class SiteBuilder:
    """Builds the sites of one federation; all share one network, because each loads its weights before it computes."""

    config: Config
    task: Task
    network: nn.Module

    def site(self, name: str, patients: Split, images: SiteImages, share: float) -> Site:
        """Read the images of a site or client that trains; `share` is its fraction of `cache.max_gb`, at most 1."""
        config, federation = self.config, self.config.federation
        training, validation = images.samples(patients.train), images.samples(patients.validation)
        return Site(
            name=name,
            training=training,
            validation=validation,
            task=self.task,
            method=config.method,
            network=self.network,
            architecture=config.network,
            settings=config.training,
            local_keys=local_entries(config, self.network),
            local_epochs=federation.local_epochs,
            seed=config.seed,
            rounds=federation.rounds,
            cache=replace(config.cache, max_gb=share * config.cache.max_gb),
            privacy=config.privacy,
            min_patients=config.data.min_patients,
            survey=images.take_survey([*patients.train, *patients.validation], config.data.min_patients),
        )

    def validation_site(self, name: str, patients: Split, images: SiteImages) -> ValidationSite:
        return ValidationSite(name, images.samples(patients.validation), self.task, self.network)

    def warn_of_small_batches(self, sites: list[Site]) -> None:
        """Warn of each site with fewer images than `training.batch_size`; of simulated clients once for all."""
        size = self.config.training.batch_size
        small = [site for site in sites if len(site.training) < size]
        if small and self.config.federation.clients:
            fewest = min(len(site.training) for site in small)
            warnings.warn(
                f"{len(small)} of {len(sites)} clients have fewer training images than training.batch_size {size}, "
                f"the smallest has {fewest}; its batches hold all its images",
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
    """Build the sites that train and the validation site; read their images and the test images of source sites."""
    patients_of, share = _patients_of(splits, clients)
    with ProgressBar(
        total=sum(len(s.all()) for s in splits.values()),
        desc="reading the source sites",
        unit="case",
        disable=quiet,
        leave=False,
    ) as bar:
        name = build.config.federation.validation_site
        images = SiteImages(
            dataset,
            build.task,
            bar,
            _n_cases([*patients_of.values(), splits.get(name)]),
            measures={} if build.config.federation.surveys else None,
        )
        sites = [build.site(name, patients, images, share) for name, patients in patients_of.items()]
        validation_site = build.validation_site(name, splits[name], images) if name else None
        for patients in splits.values():
            images.check_files(patients.test)
    images.warn_of_notices(splits)
    build.warn_of_small_batches(sites)
    return sites, validation_site


def progress_bar(text: str) -> Progress:
    """Return a function that iterates over items and shows a progress bar after `text`."""
    return lambda items: ProgressBar(items, desc=text, leave=False)
