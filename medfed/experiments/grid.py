"""The grid of a comparison: rows (a method with one value of each varied setting) by unseen sites and seeds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from medfed.config.overrides import Override
from medfed.config.schema import Config, changed, resolved
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.experiments.cohorts import participating_sites
from medfed.experiments.setup import build_task, check_local_entries
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.comparison_row import BASELINE, ComparisonRow

FIXED = {  # what no --vary may change, and why
    "method.name": "--methods says which methods are compared",
    "seed": "--seed and --seeds say which seeds each row has",
    "federation.unseen_site": "each site is the unseen one in turn; --sites narrows them",
    "federation.validation_site": "--leave-two-sites-out has each site validate in turn",
    "federation.selection": "all rows of a table have one rule",
    **dict.fromkeys(("data.name", "data.root", "data.sites"), "all rows of a table have the same sites"),
}
Varied = tuple[Override, ...]


@dataclass(frozen=True)
class Fold:
    """One cell of the grid: one row, one unseen site, one seed."""

    row: ComparisonRow
    site: str
    config: Config
    folder: RunFolder


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison: changes of one base config."""

    base: Config

    def compatible_methods(self, dataset: Dataset) -> tuple[list[str], dict[str, str]]:
        """FedAvg and all others that work on this task with their defaults; and why each of the rest does not."""
        build_task(self.base, dataset)  # refuses a network that suits no method here
        refused: dict[str, str] = {}
        names = [BASELINE, *(name for name in registry.known_names("methods") if name not in (BASELINE, "stack"))]
        for name in names:
            try:
                _check_fits(self.config_of(name, "", self.base.seed), dataset)
            except UserError as error:
                refused[name] = str(error)
        return [name for name in names if name not in refused], refused

    def plan(
        self, out: Path, methods: Sequence[str], n_seeds: int, names: Sequence[str], sites: Sequence[str] | None,
        validates: Mapping[str, str] = {}, varied: Sequence[Sequence[Override]] = (),
    ) -> list[Fold]:
        """All runs of the comparison, seed by seed, so that a table is complete as early as possible.

        Args:
            names: the sites of the dataset.
            sites: those of them that are left out in turn; None is all.
            validates: the validation site of each unseen one (`validation_sites`); empty where one site is left out.
            varied: values of each varied setting; every method is a row with each combination of them.
        """
        for site in sites or []:
            if site not in names:
                raise UserError(f"--sites {site}: no such site in {self.base.data.root}; found {', '.join(names)}")
        if len(names) < 2:
            found = ", ".join(names)
            raise UserError(f"{self.base.data.root}: leaving one site out needs at least two sites, found {found}")
        rows = self._rows(methods, varied)
        folds = [
            Fold(row, site, self.config_of(row.method, site, seed, validates.get(site), values),
                 RunFolder(out / row.folder / _apart(site, validates.get(site)) / f"seed_{seed}"))
            for seed in range(self.base.seed, self.base.seed + n_seeds)
            for site in sites or names
            for row, values in rows
        ]
        for fold in folds:  # before the first of them trains
            federation = fold.config.federation
            source = [name for name in names if name not in (fold.site, federation.validation_site)]
            participating_sites(source, federation.participating, fold.config.seed, fold.config.source)
        return folds

    def config_of(
        self, method: str, site: str, seed: int, validation: str | None = None, varied: Sequence[Override] = ()
    ) -> Config:
        """The base config with another method, other sites left out, and other values.

        Args:
            validation: the validation site; None leaves the config's.
            method: a name (its settings as in the config where it is the same, else its defaults),
                `name:key=value,...` to set some, or several of these joined by + to stack them.
        """
        changes: dict[str, object] = {"federation.unseen_site": site, "seed": seed}
        changes |= {"federation.validation_site": validation} if validation else {}
        blocks = [_parsed(part, method) for part in method.split("+")]
        if len(blocks) > 1:
            own = {key: value for key, value in resolved(self.base)["method"].items() if key != "preset"}
            written = [(name, {one.key: one.value for one in settings}) for name, settings in blocks]
            changes["method.name"] = "stack"
            changes["method.methods"] = [
                {**(own if name == self.base.method_name else {}), "name": name, **values} for name, values in written
            ]
        else:
            (name, settings), = blocks
            changes |= {} if name == self.base.method_name else {"method.name": name}
            changes |= {f"method.{one.key}": one.value for one in settings}
        return changed(self.base, changes, varied)

    def _rows(self, methods: Sequence[str], varied: Sequence[Sequence[Override]]) -> list[tuple[ComparisonRow, Varied]]:
        """Rows with their varied values.

        A method is not varied in a setting of methods that it lacks and another has: FedAvg beside CCST has one row,
        whatever `method.k` is. UserError if none has it, or two rows are one.
        """
        known = {method: self._settings_of(method) for method in methods}
        for first, *_ in varied:
            if not any(_takes(first, settings) for settings in known.values()):
                settings = sorted(set().union(*known.values()) - {"name"})
                raise UserError(f"--vary {first.key}: none of the methods {', '.join(methods)} has this setting. "
                                f"{registry.suggestion(first.path[1], settings)}")
        rows = []
        for method in methods:
            own = [values for values in varied if _takes(values[0], known[method])]
            if twice := [values[0].key for values in own if values[0].key in ComparisonRow(method).changes]:
                raise UserError(f"--vary {twice[0]}: --methods {method} sets it too; say it in one of them")
            rows += [(ComparisonRow(method, tuple(one.text for one in values)), values) for values in product(*own)]
        folders = [row.folder.casefold() for row, _ in rows]
        if twice := [row.label for row, _ in rows if folders.count(row.folder.casefold()) > 1]:
            raise UserError(f"--methods: {' and '.join(map(repr, twice))} would share a folder; leave one out")
        return rows

    def _settings_of(self, method: str) -> set[str]:
        return set(resolved(self.config_of(method, "", self.base.seed))["method"])


def check_rows(folds: Sequence[Fold]) -> None:
    """UserError for a row that would end the comparison at its first run, hours after the others began."""
    for fold in {fold.row: fold for fold in reversed(folds)}.values():
        try:
            _check_fits(fold.config, fold.config.data.ensure_available())
        except UserError as error:
            raise UserError(f"{fold.row.label}: {error}; or leave it out. Nothing was trained") from error


def _check_fits(config: Config, dataset: Dataset) -> None:
    """UserError where the method does not work with the task, the images' size and channels, or the network."""
    task = build_task(config, dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # each run says its own
        config.network.check_image_size(dataset.image_size)
        config.method.check(dataset.image_size, dataset.channels, dataset.standardise)
        network = config.network.build(task.channels, task.out_channels)
        wrapped = config.method.wrap_network(network, config.network)
        check_local_entries(config.method, config.federation, config.source, wrapped)


def parse_varied(texts: Sequence[str]) -> list[list[Override]]:
    """The values of each `--vary KEY=V1,V2`; UserError for what is none, or must not be varied."""
    varied = [Override.parse_each(text, "--vary") for text in texts]
    keys = [values[0].key for values in varied]
    for text, key in zip(texts, keys, strict=True):
        if key in FIXED:
            raise UserError(f"--vary {text}: {key} cannot be varied: {FIXED[key]}")
        if keys.count(key) > 1:
            raise UserError(f"--vary {text}: {key} is varied twice; give all its values to one --vary")
    return varied


def validation_sites(names: Sequence[str], pairs: Sequence[str], root: str) -> dict[str, str]:
    """The validation site beside each unseen one.

    Args:
        names: the sites, sorted.
        pairs: UNSEEN/VALIDATION; without any, each site is unseen once and the next one validates, after the last the
            first.
        root: of the data, for messages.
    """
    if len(names) < 3:
        raise UserError(f"{root}: leaving two sites out needs at least three, found {', '.join(names)}")
    if not pairs:
        return dict(zip(names, [*names[1:], names[0]], strict=True))
    found: dict[str, str] = {}
    for pair in pairs:
        unseen, _, validation = pair.partition("/")
        for name in (unseen, validation):
            if name not in names:
                raise UserError(f"--pairs {pair}: expected UNSEEN/VALIDATION. {registry.suggestion(name, names)}")
        if unseen == validation or unseen in found:
            what = "the unseen site cannot validate" if unseen == validation else f"{unseen} is unseen twice"
            raise UserError(f"--pairs {pair}: {what}; name another")
        found[unseen] = validation
    return found


def _takes(override: Override, settings: set[str]) -> bool:
    return override.path[0] != "method" or len(override.path) == 1 or override.path[1] in settings


def _apart(site: str, validation: str | None) -> str:
    """The folder of the runs that leave these sites out."""
    return f"unseen_{site}" + (f"-validation_{validation}" if validation else "")


def _parsed(part: str, method: str) -> tuple[str, list[Override]]:
    """`ccst:k=1,style=single` as a name and its settings; values hold no comma and no plus."""
    name, _, settings = part.partition(":")
    try:
        found = [Override.parse(one) for one in settings.split(",") if one]
    except UserError as error:
        raise UserError(f"--methods {method}: {str(error).removeprefix('--set ')}") from error
    if any(one.path == ("name",) for one in found):
        raise UserError(f"--methods {method}: a name among the settings; expected it before the colon")
    return name, found
