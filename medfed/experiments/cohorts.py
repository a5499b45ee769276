"""Which sites train, validate and stay unseen, how their patients are split, and which client holds them."""

from __future__ import annotations

import warnings

from medfed.core import registry, site_names
from medfed.core.errors import UserError
from medfed.core.seeds import stream_seed
from medfed.datasets.base import Case, Dataset
from medfed.datasets.checking import MAX_HASHED_CASES, find_duplicates
from medfed.datasets.partitions import partition
from medfed.datasets.splits import Split, split
from medfed.federation.settings import Federation


def assign_patients(
    dataset: Dataset, federation: Federation, seed: int, file: str
) -> tuple[dict[str, Split], dict[str, Split], dict[str, list[Case]]]:
    """Assign every patient to a site's split, to a client, or to the unseen site.

    Args:
        seed: decides the splits, the clients and which sites take part.
        file: the config, for messages.

    Returns:
        splits of the source sites and, last, of the validation site; the clients, empty where each site is one; the
        cases of the unseen site, empty where there is none.

    Raises:
        UserError: if a named site is missing, no site is left to train on, or an image is there twice.
    """
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
    return splits, clients, {site: cases[site] for site in unseen}


def _sites(
    dataset: Dataset, federation: Federation, seed: int, file: str
) -> tuple[list[str], list[str], list[str]]:
    """Names of the sites that train, of the validation site and of the unseen one, if there are such."""
    names = dataset.site_names()
    try:
        site_names.check(names)
    except ValueError as error:
        raise UserError(f"{dataset.root}: {error}") from error
    apart = {key: getattr(federation, key) for key in ("validation_site", "unseen_site")}
    if federation.selection == "validation_site" and not federation.validation_site:
        raise UserError(
            f"{file}: federation.selection: 'validation_site' needs federation.validation_site; name one"
        )
    for key, name in apart.items():
        if name and name not in names:
            raise UserError(
                f"{file}: federation.{key}: no site '{name}' in {dataset.root}. "
                f"{registry.suggestion(name, names)}"
            )
    source = [name for name in names if name not in apart.values()]
    if not source:
        which = " and ".join(f"{key.replace('_', ' ')} '{name}'" for key, name in reversed(apart.items()) if name)
        only = "is the only site" if len(names) == 1 else "are the only sites"
        keys = " or ".join(f"federation.{key}" for key, name in reversed(apart.items()) if name)
        raise UserError(
            f"{dataset.root}: the {which} {only}, so none is left to train on; add one, or leave {keys} out"
        )
    source = participating_sites(source, federation.participating, seed, file)
    if len(source) == 1 and federation.clients < 2:
        warnings.warn(f"only one site ('{source[0]}') trains: this is local training, not a federation", stacklevel=2)
    validating, unseen = ([name] if name else [] for name in apart.values())
    return source, validating, unseen


def participating_sites(source: list[str], wanted: int | None, seed: int, file: str) -> list[str]:
    """The source sites that train (`federation.participating`), in the order given.

    A site's place in the draw depends only on the seed and the site's name, so a draw of 3 holds the sites of a draw
    of 2, and leaving a site out moves no other.

    Args:
        source: the sites that are neither unseen nor the validation site.
        wanted: how many train; None is all.
        file: the config, for messages.
    """
    if wanted is None:
        return source
    if wanted > len(source):
        raise UserError(
            f"{file}: federation.participating: {wanted} sites are to train, but only {len(source)} "
            f"({', '.join(source)}) {'is' if len(source) == 1 else 'are'} neither unseen nor the validation site; "
            f"expected at most {len(source)}, or null for all"
        )
    first = sorted(source, key=lambda site: stream_seed(seed, "participating", site))[:wanted]
    return [site for site in source if site in first]


def _clients(splits: dict[str, Split], federation: Federation, seed: int, file: str) -> dict[str, Split]:
    """The source sites' patients, assigned to clients; empty where each site is a client."""
    if not federation.clients:
        return {}
    try:
        clients = partition(
            splits, federation.clients, federation.partition, seed, mixing=federation.mixing,
            concentration=federation.concentration, min_images=federation.min_images,
        )  # fmt: skip
    except ValueError as error:
        raise UserError(f"{file}: federation.clients: {error}") from error
    if taken := [name for name in [*splits, federation.validation_site] if name in clients]:
        raise UserError(
            f"{file}: federation.clients: a site is called '{taken[0]}', as a client would be; rename it"
        )
    return clients


def _refuse_duplicates(dataset: Dataset, cases: list[Case]) -> None:
    """Refuse an image that is in two sites, or twice in one: it could be trained on and tested. Compares bytes."""
    found = find_duplicates(cases)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    if found and not dataset.allow_duplicates:
        raise UserError(f"{found[0]}{more}, or set data.allow_duplicates: true")
    if found:
        same = found[0].partition("; expected")[0]
        warnings.warn(f"{same}{more}, which data.allow_duplicates lets pass; scores may flatter", stacklevel=2)
