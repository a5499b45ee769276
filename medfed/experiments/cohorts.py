"""Decide which sites train, validate and stay unseen, and how their patients are split or given to clients."""

from __future__ import annotations

import warnings

from medfed.core import registry, site_names
from medfed.core.errors import UserError
from medfed.core.seeds import stream_seed
from medfed.datasets.base import Case, Dataset
from medfed.datasets.check_groups import join_problems
from medfed.datasets.duplicates import MAX_HASHED_CASES, find_duplicates
from medfed.datasets.partitions import partition
from medfed.datasets.splits import Split, sample_cases, split
from medfed.federation.settings import Federation

ONE_SITE = "this is local training, not a federation"  # end of the warning; expected in the row `local`


def assign_patients(
    dataset: Dataset, federation: Federation, seed: int, file: str
) -> tuple[dict[str, Split], dict[str, Split], dict[str, list[Case]]]:
    """Return the split of each site that trains, then that of the validation site, which has validation patients only;
    the split of each simulated client (empty if each site is one client); the cases of the unseen site, by its name."""
    source, validating, unseen = _sites(dataset, federation, seed, file)
    cases = dataset.cases_by_site([*source, *validating, *unseen])
    if sum(map(len, cases.values())) <= MAX_HASHED_CASES:
        _refuse_duplicates(dataset, sum(cases.values(), []))
    splits = {site: split(cases[site], seed, dataset.validation_ratio, dataset.test_ratio) for site in source}
    for site, parts in splits.items():
        if not parts.train:
            raise UserError(
                f"{dataset.root}: the site {site} has no training images in its published split; split by patient, or "
                "leave the site out in data.sites"
            )
    clients = _clients(splits, federation, seed, file)
    splits |= {site: Split([], cases[site], []) for site in validating}
    return splits, clients, {site: sample_cases(cases[site], seed, federation.unseen_ratio) for site in unseen}


def _sites(dataset: Dataset, federation: Federation, seed: int, file: str) -> tuple[list[str], list[str], list[str]]:
    """The names of the sites that train, of the validation site and of the unseen site (or empty lists)."""
    names = dataset.site_names()
    try:
        site_names.check(names)
    except ValueError as error:
        raise UserError(f"{dataset.root}: {error}") from error
    special_sites = {key: getattr(federation, key) for key in ("validation_site", "unseen_site")}
    if federation.selection == "validation_site" and not federation.validation_site:
        raise UserError(f"{file}: federation.selection: 'validation_site' needs federation.validation_site; name one")
    for key, name in special_sites.items():
        if name and name not in names:
            raise UserError(
                f"{file}: federation.{key}: no site '{name}' in {dataset.root}. {registry.suggestion(name, names)}"
            )
    if federation.unseen_ratio < 1 and not federation.unseen_site:
        raise UserError(
            f"{file}: federation.unseen_ratio: is {federation.unseen_ratio}, which has no effect without "
            "federation.unseen_site; name a site, or leave federation.unseen_ratio out"
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
    """Choose `wanted` sites at random (None takes all), in the order of `source`. With the same seed, the sites that
    are chosen for 2 are also chosen for 3."""
    if wanted is None:
        return source
    if wanted > len(source):
        raise UserError(
            f"{file}: federation.participating: {wanted} sites are to train, but only {len(source)} "
            f"({', '.join(source)}) {'is' if len(source) == 1 else 'are'} neither unseen nor the validation site; "
            f"expected at most {len(source)}, or null for all"
        )
    participating = sorted(source, key=lambda site: stream_seed(seed, "participating", site))[:wanted]
    return [site for site in source if site in participating]


def _clients(splits: dict[str, Split], federation: Federation, seed: int, file: str) -> dict[str, Split]:
    """Return the split of each simulated client, by its name; empty if each site is one client."""
    if not federation.clients:
        return {}
    try:
        clients = partition(
            splits,
            federation.clients,
            federation.partition,
            seed,
            mixing=federation.mixing,
            concentration=federation.concentration,
            min_images=federation.min_images,
        )
    except ValueError as error:
        raise UserError(f"{file}: federation.clients: {error}") from error
    if taken := [name for name in [*splits, federation.validation_site] if name in clients]:
        raise UserError(f"{file}: federation.clients: a site is called '{taken[0]}', as a client would be; rename it")
    return clients


def _refuse_duplicates(dataset: Dataset, cases: list[Case]) -> None:
    """Refuse images whose files have equal bytes, because one copy could be in training and the other in the test."""
    duplicates = find_duplicates(cases)
    if duplicates and not dataset.allow_duplicates:
        raise join_problems(duplicates)
    if duplicates:
        more = f" (and {len(duplicates) - 1} more)" if len(duplicates) > 1 else ""
        same = f"{duplicates[0].place}: {duplicates[0].found}"
        warnings.warn(f"{same}{more}; data.allow_duplicates accepts this, but scores may be too good", stacklevel=2)
