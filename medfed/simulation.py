"""From a config to a federation in one process: sites with their images, the network, the engine, the first state."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from monai.data import MetaTensor
from torch import nn
from tqdm import tqdm

from medfed import discovery, site_names
from medfed.config import Config
from medfed.datasets.base import Case, Dataset, Volume
from medfed.datasets.checking import MOST_HASHED, duplicates
from medfed.datasets.splits import Split, split
from medfed.engines.in_process import InProcess
from medfed.errors import UserError
from medfed.federation.message import State
from medfed.federation.seeds import seeded_layers
from medfed.federation.site import Site
from medfed.functional.weights import batch_norm_entries
from medfed.networks.tent import Tent
from medfed.tasks.classification import Classification, Pictures
from medfed.tasks.segmentation import Segmentation, Slices


@dataclass(frozen=True)
class Simulation:
    """Everything a run needs; the unseen site is a name and files whose images nobody has read.

    splits: patients of each source site.
    unseen: cases of the unseen site, for the evaluator alone.
    """

    dataset: Dataset
    task: Segmentation | Classification
    network: nn.Module
    engine: InProcess
    start: State
    splits: dict[str, Split]
    unseen: dict[str, list[Case]]


def prepare(config: Config, sites_folder: Path | None, quiet: bool) -> Simulation:
    """Make the data ready, read the source sites, and build network and sites.

    Raises:
        UserError: for whatever is wrong with the files of the source sites, or the names and places of those of the
            unseen one, before any training.
    """
    dataset = config.data.ready(None if quiet else bar_over("making the phantom"))
    source, unseen = _sites(config, dataset)
    cases = dataset.cases_of([*source, *unseen])
    if sum(map(len, cases.values())) <= MOST_HASHED:
        _refuse_duplicates(dataset, sum(cases.values(), []))
    splits = {site: split(cases[site], config.seed, dataset.validation_ratio, dataset.test_ratio) for site in source}
    for site, parts in splits.items():
        if not parts.train:
            raise UserError(
                f"{dataset.root}: the site {site} has no training images in its published split; split by patient, or "
                "leave the site out in data.sites"
            )
    task = task_of(config, dataset)
    config.network.check_image_size(dataset.image_size)
    config.method.check(dataset.image_size, dataset.channels)
    device = pick_device(config.device)
    network = build_network(config, task).to(device)
    if config.evaluation.tent:
        Tent(network)  # it would refuse after all rounds
    with tqdm(total=sum(len(s.all()) for s in splits.values()), desc="reading the source sites", unit="case",
              disable=quiet, dynamic_ncols=True, leave=False) as bar:
        members = [_site(config, dataset, task, network, site, splits[site], bar) for site in source]
    start = State(0, {name: entry.detach().cpu().clone() for name, entry in network.state_dict().items()})
    engine = discovery.find("engines", config.federation.engine)(members, sites_folder)
    return Simulation(dataset, task, network, engine, start, splits, {site: cases[site] for site in unseen})


def task_of(config: Config, dataset: Dataset) -> Segmentation | Classification:
    """What is learned from a dataset: its structures, or its classes."""
    if dataset.classes:
        if config.network.decoder_levels:
            name = discovery.name_of("networks", type(config.network))
            raise UserError(
                f"{config.source}: network.name: '{name}' draws masks, but {dataset.root} has images to classify; "
                "choose one for classification, such as densenet"
            )
        return Classification(
            dataset.classes, dataset.channels, dataset.image_size, config.evaluation, dataset.standardise
        )
    if not config.network.decoder_levels:
        name = discovery.name_of("networks", type(config.network))
        raise UserError(
            f"{config.source}: network.name: '{name}' tells classes, but {dataset.root} has masks; choose one for "
            "segmentation, such as unet"
        )
    return Segmentation(
        dataset.structures,
        dataset.channels,
        dataset.image_size,
        dataset.intensity_range,
        config.evaluation,
        dataset.standardise,
    )


def build_network(config: Config, task: Segmentation | Classification) -> nn.Module:
    """The network with what the method adds; its initial weights depend on the seed alone."""
    with seeded_layers(config.seed, "initial weights"):
        return config.method.wrap_network(config.network.build(task.channels, task.out_channels))


def pick_device(name: str) -> torch.device:
    """ "auto" takes a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch finds no CUDA device here; use --device cpu, or auto to take what is there")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _sites(config: Config, dataset: Dataset) -> tuple[list[str], list[str]]:
    """Names of the sites that train, and of the unseen one, if there is one."""
    names = dataset.site_names()
    try:
        site_names.check(names)
    except ValueError as error:
        raise UserError(f"{dataset.root}: {error}") from error
    unseen = config.federation.unseen_site
    if unseen and unseen not in names:
        raise UserError(
            f"{config.source}: federation.unseen_site: no site '{unseen}' in {dataset.root}; found {', '.join(names)}"
        )
    source = [name for name in names if name != unseen]
    if not source:
        raise UserError(
            f"{dataset.root}: the unseen site '{unseen}' is the only site, so none is left to train on; add one, or "
            "leave federation.unseen_site out"
        )
    if len(source) == 1:
        warnings.warn(f"only one site ('{source[0]}') trains: this is local training, not a federation", stacklevel=2)
    return source, [unseen] if unseen else []


def _refuse_duplicates(dataset: Dataset, cases: list[Case]) -> None:
    """A picture in two sites, or twice in one, would be trained on and tested. Files are compared by their bytes."""
    found = duplicates(cases)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    if found and not dataset.allow_duplicates:
        raise UserError(f"{found[0]}{more}, or set data.allow_duplicates: true")
    if found:
        same = found[0].partition("; expected")[0]
        warnings.warn(f"{same}{more}, which data.allow_duplicates lets pass; scores may flatter", stacklevel=2)


def _site(
    config: Config, dataset: Dataset, task: Segmentation | Classification, network: nn.Module, name: str,
    patients: Split, bar: tqdm,
) -> Site:
    local_keys = config.method.local_keys(network)
    if config.federation.batch_norm == "local":
        local_keys |= batch_norm_entries(network)
    notices: Counter[str] = Counter()
    if isinstance(task, Classification):
        training, validation = (_pictures(dataset, task, part, notices, bar)
                                for part in (patients.train, patients.validation))  # fmt: skip
        for case in patients.test[:MOST_HASHED]:  # as for volumes below; of very many, some
            dataset.read_image(case, [])
            bar.update(1)
    else:
        training, validation = (_slices(dataset, task, part, notices, bar)
                                for part in (patients.train, patients.validation))  # fmt: skip
        for _ in _volumes(dataset, patients.test, notices, bar):
            pass  # the evaluator reads them again; what is wrong with one is better known before training
    for notice, n in notices.items():
        warnings.warn(f"{name}: {n} of {len(patients.all())} images: {notice}", stacklevel=2)
    if config.training.batch_size > len(training):
        images = f"{len(training)} training image{'s' if len(training) > 1 else ''}"
        warnings.warn(
            f"{name}: has {images}, fewer than training.batch_size {config.training.batch_size}; its batches hold "
            f"{len(training)}", stacklevel=2,
        )
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
    )


def _slices(dataset: Dataset, task: Segmentation, cases: list[Case], notices: Counter[str], bar: tqdm) -> Slices | None:
    return task.prepare(list(_volumes(dataset, cases, notices, bar))) if cases else None


def _pictures(
    dataset: Dataset, task: Classification, cases: list[Case], notices: Counter[str], bar: tqdm
) -> Pictures | None:
    """Samples that read when they must; as many as stay in memory are read now."""
    if not cases:
        return None

    def read(case: Case) -> MetaTensor:
        said: list[str] = []
        image = dataset.read_image(case, said)
        notices.update(said)
        return image

    samples = task.prepare(cases, read)
    for _ in samples.first():
        bar.update(1)
    return samples


def _volumes(dataset: Dataset, cases: list[Case], notices: Counter[str], bar: tqdm) -> Iterator[Volume]:
    """Each case, read and checked, with its notices counted."""
    for case in cases:
        volume = dataset.load(case)
        notices.update(volume.notices)
        bar.update(1)
        yield volume


def bar_over(text: str):
    """A wrapper that draws a bar over an iterable, for what takes a `progress`."""
    return lambda items: tqdm(items, desc=text, dynamic_ncols=True, leave=False)
