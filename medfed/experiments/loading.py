"""Build the sites of a federation: read the images of their patients before the training starts."""

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
from medfed.datasets.base import Case, Dataset
from medfed.datasets.case_facts import CaseFacts, measure_case
from medfed.datasets.site_facts import MAX_MEASURED, site_facts
from medfed.datasets.splits import Split
from medfed.federation.site import Site
from medfed.federation.survey import SiteSurvey
from medfed.federation.validation_site import ValidationSite
from medfed.functional.weights import batch_norm_entries
from medfed.tasks.task import MAX_CACHE_BYTES, Observe, Task


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

    None stands for all of them; then the test images of source sites are also read once, to find damaged files now.
    All sites share the network, because each loads its weights before it computes.
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

    def read(cases: Sequence[Case], observe: Observe | None = None) -> Any:
        if not cases:
            return None
        return task.load(dataset, cases, notice, bar.update, MAX_CACHE_BYTES * len(cases) // n_cases, observe)

    def build(name: str, patients: Split) -> Site:
        cases, measures = [*patients.train, *patients.validation], dict[Case, CaseFacts]()

        def observe(case: Case, image: MetaTensor, mask: MetaTensor | None) -> None:
            if len(measures) < MAX_MEASURED and case not in measures:  # it is read again during the training
                measures[case] = measure_case(case, image, mask)

        watch = observe if federation.surveys else None
        facts = partial(site_facts, cases, measures, len(dataset.classes))
        n_patients = len({case.patient for case in cases})
        return Site(
            name=name,
            training=read(patients.train, watch),
            validation=read(patients.validation, watch),
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
            survey=SiteSurvey(n_patients, config.data.min_patients, len(task.labels), facts) if watch else None,
        )

    with bar:
        sites = [build(name, patients) for name, patients in chosen_patients.items() if name != validating]
        validation = read(splits[validating].validation) if validating in chosen else None
        for patients in splits.values() if names is None else ():
            task.check_files(dataset, patients.test, notice, bar.update)
    for (site, text), n in sorted(notices.items(), key=lambda entry: entry[0][0]):
        warnings.warn(f"{site}: {n} of {len(splits[site].all())} images: {text}", stacklevel=2)
    if small := [site for site in sites if len(site.training) < config.training.batch_size]:
        n, name = min((len(site.training), "a client" if clients else site.name) for site in small)
        more = f"; {len(small)} of {len(sites)} have fewer" if len(small) > 1 else ""
        warnings.warn(
            f"{name}: has {n} training image{'s' if n > 1 else ''}, fewer than training.batch_size "
            f"{config.training.batch_size}; its batches hold {n}{more}",
            stacklevel=2,
        )
    return sites, ValidationSite(validating, validation, task, network) if validation is not None else None


def local_entries(config: Config, network: nn.Module) -> frozenset[str]:
    """Return the names of the network's entries that are never sent, such as BatchNorm in FedBN."""
    of_method = config.method.local_keys(network)
    return of_method | batch_norm_entries(network) if config.federation.batch_norm == "local" else of_method
