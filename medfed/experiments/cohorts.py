"""Who is where: which sites train, validate and stay unseen, how their people are split, and who holds them."""

from __future__ import annotations

import warnings

from medfed.config.schema import Config
from medfed.core import registry, site_names
from medfed.core.errors import UserError
from medfed.core.seeds import number as stream_number
from medfed.datasets.base import Case, Dataset
from medfed.datasets.checking import MOST_HASHED, duplicates
from medfed.datasets.partitions import partition
from medfed.datasets.splits import Split, split


def assign_patients(
    config: Config, dataset: Dataset
) -> tuple[dict[str, Split], dict[str, Split], dict[str, list[Case]]]:
    """Who is where: splits of the source sites and, last, the validation site; the clients; the unseen site's cases."""
    source, validating, unseen = _sites(config, dataset)
    cases = dataset.cases_of([*source, *validating, *unseen])
    if sum(map(len, cases.values())) <= MOST_HASHED:
        _refuse_duplicates(dataset, sum(cases.values(), []))
    splits = {site: split(cases[site], config.seed, dataset.validation_ratio, dataset.test_ratio) for site in source}
    for site, parts in splits.items():
        if not parts.train:
            raise UserError(
                f"{dataset.root}: the site {site} has no training images in its published split; split by patient, or "
                "leave the site out in data.sites"
            )
    clients = _clients(config, splits)
    splits |= {site: Split([], cases[site], []) for site in validating}
    return splits, clients, {site: cases[site] for site in unseen}


def _sites(config: Config, dataset: Dataset) -> tuple[list[str], list[str], list[str]]:
    """Names of the sites that train, of the validation site and of the unseen one, if there are such."""
    names = dataset.site_names()
    try:
        site_names.check(names)
    except ValueError as error:
        raise UserError(f"{dataset.root}: {error}") from error
    apart = {key: getattr(config.federation, key) for key in ("validation_site", "unseen_site")}
    if config.federation.selection == "validation_site" and not config.federation.validation_site:
        raise UserError(
            f"{config.source}: federation.selection: 'validation_site' needs federation.validation_site; name one"
        )
    for key, name in apart.items():
        if name and name not in names:
            raise UserError(
                f"{config.source}: federation.{key}: no site '{name}' in {dataset.root}. "
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
    source = participating_sites(config, source)
    if len(source) == 1 and config.federation.clients < 2:
        warnings.warn(f"only one site ('{source[0]}') trains: this is local training, not a federation", stacklevel=2)
    return source, *([name] if name else [] for name in apart.values())


def participating_sites(config: Config, source: list[str]) -> list[str]:
    """Those of the source sites that train (`federation.participating`), in the order given.

    A site's place in the draw depends on the seed and its name alone: on no other site, nor on how many are wanted.
    """
    wanted = config.federation.participating
    if wanted is None:
        return source
    if wanted > len(source):
        raise UserError(
            f"{config.source}: federation.participating: {wanted} sites are to train, but only {len(source)} "
            f"({', '.join(source)}) {'is' if len(source) == 1 else 'are'} neither unseen nor the validation site; "
            f"expected at most {len(source)}, or null for all"
        )
    drawn = sorted(source, key=lambda site: stream_number(config.seed, "participating", site))[:wanted]
    return [site for site in source if site in drawn]


def _clients(config: Config, splits: dict[str, Split]) -> dict[str, Split]:
    """The source sites' people, handed out to clients; nothing where each site is a client."""
    federation = config.federation
    if not federation.clients:
        return {}
    try:
        found = partition(
            splits, federation.clients, federation.partition, config.seed, mixing=federation.mixing,
            concentration=federation.concentration, min_images=federation.min_images,
        )  # fmt: skip
    except ValueError as error:
        raise UserError(f"{config.source}: federation.clients: {error}") from error
    if taken := [name for name in [*splits, federation.validation_site] if name in found]:
        raise UserError(
            f"{config.source}: federation.clients: a site is called '{taken[0]}', as a client would be; rename it"
        )
    return found


def _refuse_duplicates(dataset: Dataset, cases: list[Case]) -> None:
    """A picture in two sites, or twice in one, would be trained on and tested. Files are compared by their bytes."""
    found = duplicates(cases)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    if found and not dataset.allow_duplicates:
        raise UserError(f"{found[0]}{more}, or set data.allow_duplicates: true")
    if found:
        same = found[0].partition("; expected")[0]
        warnings.warn(f"{same}{more}, which data.allow_duplicates lets pass; scores may flatter", stacklevel=2)
