"""Decide which sites train, validate and stay unseen and which patients they have, and read the images of those that
train and validate."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from monai.data import MetaTensor
from torch import nn

from medfed.cli.progress import ProgressBar
from medfed.config.schema import Config
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.seeds import stream_seed
from medfed.datasets.base import Case, Dataset
from medfed.datasets.case_measures import CaseMeasures, measure_case
from medfed.datasets.check_groups import join_problems
from medfed.datasets.check_patients import patient_warnings
from medfed.datasets.duplicates import MAX_HASHED_CASES, find_duplicates
from medfed.datasets.partitions import partition
from medfed.datasets.site_facts import MAX_MEASURED, site_facts
from medfed.datasets.splits import Split, sample_cases, split
from medfed.federation.settings import Federation
from medfed.federation.site import Site
from medfed.federation.survey import SiteSurvey
from medfed.federation.validation_site import ValidationSite
from medfed.functional.weights import batch_norm_entries
from medfed.tasks.task import MAX_CACHE_BYTES, Reading, Task

ONE_SITE = "this is local training, not a federation"  # end of the warning; expected in the row `local`


def assign_patients(
    dataset: Dataset, federation: Federation, seed: int, file: str
) -> tuple[dict[str, Split], dict[str, Split], dict[str, list[Case]]]:
    """Return the splits of the sites that train and of the validation site, the clients, and the unseen cases."""
    source, validating, unseen = _sites(dataset, federation, seed, file)
    cases = dataset.cases_by_site([*source, *validating, *unseen])
    for warning in patient_warnings(dataset, cases):
        warnings.warn(str(warning), stacklevel=2)
    if sum(map(len, cases.values())) <= MAX_HASHED_CASES:
        _refuse_duplicates(dataset, sum(cases.values(), []))
    elif not dataset.allow_duplicates:
        warnings.warn(
            f"more than {MAX_HASHED_CASES:,} images, so they are not searched for copies; python -m medfed.data check "
            "does that, and data.allow_duplicates: true hides this sentence",
            stacklevel=2,
        )
    splits = {site: split(cases[site], seed, dataset.validation_ratio, dataset.test_ratio) for site in source}
    for site, parts in splits.items():
        if not parts.train:
            raise UserError(
                f"{dataset.root}: the site {site} has no training images in its published split; split by patient, or "
                "leave the site out in data.sites"
            )
    clients: dict[str, Split] = {}
    if federation.clients:
        options = {name: getattr(federation, name) for name in ("mixing", "concentration", "min_images")}
        try:
            clients = partition(splits, federation.clients, federation.partition, seed, **options)
        except ValueError as error:
            raise UserError(f"{file}: federation.clients: {error}") from error
    splits |= {site: Split([], cases[site], []) for site in validating}
    return splits, clients, {site: sample_cases(cases[site], seed, federation.unseen_ratio) for site in unseen}


def _sites(dataset: Dataset, federation: Federation, seed: int, file: str) -> tuple[list[str], list[str], list[str]]:
    """The names of the sites that train, of the validation site and of the unseen site (or empty lists)."""
    names = dataset.site_names()
    special_sites = {"validation_site": federation.validation_site, "unseen_site": federation.unseen_site}
    if federation.unseen_ratio < 1 and not federation.unseen_site:
        raise UserError(
            f"{file}: federation.unseen_ratio: is {federation.unseen_ratio}, which has no effect without "
            "federation.unseen_site; name a site, or leave federation.unseen_ratio out"
        )
    if federation.selection == "validation_site" and not federation.validation_site:
        raise UserError(f"{file}: federation.selection: 'validation_site' needs federation.validation_site; name one")
    for key, name in special_sites.items():
        if name and name not in names:
            raise UserError(
                f"{file}: federation.{key}: no site '{name}' in {dataset.root}. {registry.suggestion(name, names)}"
            )
    source = [name for name in names if name not in special_sites.values()]
    if not source:
        keys = " or ".join(f"federation.{key} ('{name}')" for key, name in special_sites.items() if name)
        raise UserError(f"{dataset.root}: no other site is left to train on; add a site, or remove {keys}")
    source = participating_sites(source, federation.participating, seed, file)
    if len(source) == 1 and federation.clients < 2:
        warnings.warn(f"only one site ('{source[0]}') trains: {ONE_SITE}", stacklevel=2)
    validating, unseen = ([name] if name else [] for name in special_sites.values())
    return source, validating, unseen


def participating_sites(source: list[str], wanted: int | None, seed: int, file: str) -> list[str]:
    """Choose `wanted` sites at random (None: all); those that are chosen for 2 are also chosen for 3."""
    if wanted is None:
        return source
    if wanted > len(source):
        raise UserError(
            f"{file}: federation.participating: {wanted} sites are to train, but only {len(source)} "
            f"({', '.join(source)}) are neither unseen nor validate; expected at most {len(source)}, or null for all"
        )
    participating = sorted(source, key=lambda site: stream_seed(seed, "participating", site))[:wanted]
    return [site for site in source if site in participating]


def _refuse_duplicates(dataset: Dataset, cases: list[Case]) -> None:
    """Refuse images whose files have equal bytes, because one copy could be in training and the other in the test."""
    duplicates = find_duplicates(cases)
    if duplicates and not dataset.allow_duplicates:
        raise join_problems(duplicates)
    if duplicates:
        more = f" (and {len(duplicates) - 1} more)" if len(duplicates) > 1 else ""
        same = f"{duplicates[0].place}: {duplicates[0].found}"
        warnings.warn(f"{same}{more}; data.allow_duplicates accepts this, but scores may be too good", stacklevel=2)


def read_sites(
    config: Config,
    dataset: Dataset,
    task: Task,
    network: nn.Module,
    splits: Mapping[str, Split],
    clients: Mapping[str, Split],
    names: Sequence[str] | None = None,
    quiet: bool = True,
) -> tuple[list[Site], ValidationSite | None]:
    """Build the named sites or clients, and the validation site if it is among the names.

    None stands for all of them; then test images of source sites are also read, to find damaged files now.
    """
    federation, training = config.federation, {site: patients for site, patients in splits.items() if patients.train}
    patients_of, validating = clients or training, federation.validation_site
    chosen = [*patients_of, *filter(None, [validating])] if names is None else names
    for name in chosen:
        if name not in patients_of and name != validating:
            known = registry.suggestion(name, patients_of)
            raise UserError(f"{dataset.root}: no site '{name}' trains here. {known}")
    chosen_patients = {name: patients_of.get(name) or splits[name] for name in chosen}
    n_cases = sum(len(patients.train) + len(patients.validation) for patients in chosen_patients.values())
    # All clients together store no more on the disk than the sites would.
    max_gb = config.cache.max_gb * len(training) / max(len(patients_of), len(training))
    notices: Counter[tuple[str, str]] = Counter()  # numbers of images, by (site, notice)
    n_read = sum(len(patients.all()) for patients in splits.values())
    bar = ProgressBar(total=n_read, desc="reading the source sites", unit="case", disable=quiet, leave=False)

    def notice(case: Case, texts: Sequence[str]) -> None:
        notices.update((case.site, text) for text in texts)

    reading = Reading(notice, bar.update)

    def read(cases: Sequence[Case], reading: Reading) -> Any:
        return task.load(dataset, cases, reading, MAX_CACHE_BYTES * len(cases) // n_cases) if cases else None

    def build(name: str, patients: Split) -> Site:
        cases, measures = [*patients.train, *patients.validation], dict[Case, CaseMeasures]()

        def observe(case: Case, image: MetaTensor, mask: MetaTensor | None) -> None:
            if len(measures) < MAX_MEASURED and case not in measures:  # it is read again during the training
                measures[case] = measure_case(case, image, mask)

        own_reading = reading._replace(observe=observe) if federation.surveys else reading
        facts = partial(site_facts, cases, measures, len(dataset.classes))
        n_patients = len({case.patient for case in cases})
        survey = SiteSurvey(n_patients, config.data.min_patients, len(task.labels), facts)
        return Site(
            name=name,
            training=read(patients.train, own_reading),
            validation=read(patients.validation, own_reading),
            task=task,
            method=config.method,
            network=network,
            architecture=config.network,
            settings=config.training,
            local_keys=local_entries(config, network),
            local_epochs=federation.local_epochs,
            seed=config.seed,
            rounds=federation.rounds,
            cache=replace(config.cache, max_gb=max_gb),
            privacy=config.privacy,
            min_patients=config.data.min_patients,
            survey=survey if federation.surveys else None,
        )

    with bar:
        sites = [build(name, patients) for name, patients in chosen_patients.items() if name != validating]
        validation = read(splits[validating].validation, reading) if validating in chosen else None
        for patients in splits.values() if names is None else ():
            task.check_files(dataset, patients.test, reading)
    for (site, text), n in sorted(notices.items(), key=lambda entry: entry[0][0]):
        warnings.warn(f"{site}: {n} of {len(splits[site].all())} images: {text}", stacklevel=2)
    _warn_of_small_sites(sites, config.training.batch_size, bool(clients))
    return sites, ValidationSite(validating, validation, task, network) if validation is not None else None


def _warn_of_small_sites(sites: Sequence[Site], batch_size: int, are_clients: bool) -> None:
    """Warn if sites have fewer training images than a batch."""
    if small := [site for site in sites if len(site.training) < batch_size]:
        n, name = min((len(site.training), "a client" if are_clients else site.name) for site in small)
        more = f"; {len(small)} of {len(sites)} have fewer" if len(small) > 1 else ""
        warnings.warn(
            f"{name}: has {n} training image{'s' if n > 1 else ''}, fewer than training.batch_size "
            f"{batch_size}; its batches hold {n}{more}",
            stacklevel=2,
        )


def local_entries(config: Config, network: nn.Module) -> frozenset[str]:
    """Return the names of the network's entries that are never sent, such as BatchNorm in FedBN."""
    of_method = config.method.local_keys(network)
    return of_method | batch_norm_entries(network) if config.federation.batch_norm == "local" else of_method
