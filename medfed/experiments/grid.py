"""The runs of a comparison: every method and varied setting, with every unseen site and every seed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from medfed.config.overrides import Override
from medfed.config.schema import Config, changed, resolved
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.experiments.cohorts import participating_sites
from medfed.experiments.matching import check_match
from medfed.experiments.method_choice import MethodChoice
from medfed.experiments.references import with_effort, without_federation
from medfed.experiments.setup import build_task, check_earlier_rounds
from medfed.federation.method import Effort
from medfed.outputs.comparison_folder import PlannedRun
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.comparison_row import BASELINE, LOCAL, SENT, ComparisonRow, is_taken_without_federation

FIXED = {  # settings that a comparison cannot vary, and why
    "method.name": "--methods names the methods to compare",
    "seed": "--seeds and the config's seed set the seeds of each row",
    "federation.unseen_site": "each site is the unseen site in turn; --sites selects some of them",
    "federation.validation_site": "if two sites are left out, each site is the validation site in turn",
    "federation.selection": "all rows of a table use the same rule",
    **dict.fromkeys(("data.name", "data.root", "data.sites"), "all rows of a table have the same sites"),
}
Varied = tuple[Override, ...]


@dataclass(frozen=True)
class Fold:
    """One run of a comparison: one row of the table, one unseen site and one seed."""

    row: ComparisonRow
    site: str
    config: Config
    folder: RunFolder

    @property
    def planned(self) -> PlannedRun:
        """The run as an entry of `comparison.json`."""
        validation_site = self.config.federation.validation_site or ""
        return PlannedRun(self.folder.path, self.row, self.site, validation_site, self.config.seed)


@dataclass(frozen=True)
class EqualEffort:
    """The rows of FedAvg with which rows of more effort are compared."""

    references: Mapping[str, str] = field(default_factory=dict)  # label of the reference, by the row's label
    added: tuple[str, ...] = ()  # methods added to those of the user, such as "fedavg@steps=ccst"
    refused: Mapping[str, str] = field(default_factory=dict)  # why a reference cannot be run, by its label

    @property
    def runnable(self) -> set[str]:
        """Labels of the rows of equal effort that can be run."""
        return {*self.references.values()} - {*self.refused}


@dataclass(frozen=True)
class Grid:
    """Plans the runs of a comparison as changes of one base config."""

    base: Config

    def compatible_methods(self, dataset: Dataset) -> tuple[list[str], dict[str, str]]:
        """Return the methods that work on a dataset with default settings, and why each other one does not."""
        refused: dict[str, str] = {}
        site = next((name for name in dataset.site_names() if name != self.base.federation.validation_site), "")
        names = [BASELINE, *(name for name in registry.known_names("methods") if name not in (BASELINE, "stack"))]
        for name in names:
            try:
                _check_fits(self.config_of(MethodChoice.parse(name), site, self.base.seed), dataset)
            except UserError as error:
                if name == BASELINE:
                    raise
                refused[name] = str(error)
        return [name for name in names if name not in refused], refused

    def plan(
        self,
        out: Path,
        methods: Sequence[MethodChoice],
        n_seeds: int,
        names: Sequence[str],
        sites: Sequence[str] | None,
        validates: Mapping[str, str] = {},
        varied: Sequence[Sequence[Override]] = (),
        equal: EqualEffort | None = None,
    ) -> list[Fold]:
        """Return all runs, sorted by seed, so that a table with all methods and sites exists as early as possible.

        Args:
            names: names of all sites of the dataset.
            sites: names of the sites that are the unseen site in turn; None takes all.
            validates: name of the validation site, by the name of the unseen site; empty if only one site is left out.
            varied: for each varied setting, a list of its values; each combination is a row for methods that have them.
            equal: from `equal_effort`; of the methods that it added, only the runnable rows are run.
        """
        for site in sites or []:
            if site not in names:
                raise UserError(f"--sites {site}: no such site in {self.base.data.root}; found {', '.join(names)}")
        if len(names) < 2:
            raise UserError(
                f"{self.base.data.root}: leaving one site out needs at least two sites, found {', '.join(names)}"
            )
        equal = equal or EqualEffort()
        rows = [
            (replace(row, equal_effort=equal.references.get(row.label, "")), method, values)
            for row, method, values in self._rows(methods, varied)
            if method.label not in equal.added or row.label in equal.runnable
        ]
        folds = []
        for seed in range(self.base.seed, self.base.seed + n_seeds):
            for site, (row, method, values) in product(sites or names, rows):
                config = self.config_of(method, site, seed, validates.get(site), values)
                federation = config.federation
                source = _source_sites(config, names)
                if method.effort_of:
                    other = self.config_of(method.effort_of, site, seed, validates.get(site)).method
                    n_clients = federation.clients or len(source)
                    config = with_effort(config, method, other.effort(n_clients), n_clients)
                for own, at in _runs_of_row(row, config, source):
                    place = out / own.folder / _folder_of_sites(site, validates.get(site)) / f"seed_{seed}"
                    folds.append(Fold(own, site, at, RunFolder(place)))
        return folds

    def equal_effort(
        self,
        methods: Sequence[MethodChoice],
        names: Sequence[str],
        site: str,
        validation: str | None = None,
        varied: Sequence[Sequence[Override]] = (),
    ) -> EqualEffort:
        """Find the rows of FedAvg that take as many steps and images as the rows that take more than FedAvg. Rows with
        the same effort share one such row. A row of `methods` that already has the effort is taken. `site` is any
        unseen site; it and `validation` decide how many sites train."""
        rows = sorted(self._rows(methods, varied), key=lambda entry: entry[1].effort_of is None)  # given ones first
        can_share = all(values[0].path[0] == "method" for values in varied)
        efforts: dict[str, Effort] = {}
        references: dict[str, str] = {}
        refused: dict[str, str] = {}
        for row, method, values in rows:
            if row.arrangement in SENT:
                continue
            own = [value.text.removeprefix("method.") for value in values if value.path[0] == "method"]
            others = [value for value in values if value.path[0] != "method"]
            taken, values = (method.effort_of, ()) if method.effort_of else (method, values)
            label = f"{taken.label}{',' if ':' in taken.label else ':'}{','.join(own)}" if own else taken.label
            config = self.config_of(taken, site, self.base.seed, validation, values)
            n_clients = config.federation.clients or len(_source_sites(config, names))
            effort = config.method.effort(n_clients)
            if max(effort) <= 1:
                continue
            same = next((other for other in efforts if can_share and efforts[other] == effort), label)
            efforts.setdefault(label, effort)
            if method.effort_of:
                continue
            reference = MethodChoice.parse(f"{BASELINE}@steps={same}")
            references[row.label] = row.baseline_label(reference.label)
            try:
                with_effort(
                    self.config_of(reference, site, self.base.seed, validation, others), reference, effort, n_clients
                )
            except UserError as error:
                refused[references[row.label]] = str(error)
        chosen = [label.partition(", ")[0] for label in references.values() if label not in refused]
        added = [name for name in dict.fromkeys(chosen) if name not in [method.label for method in methods]]
        return EqualEffort(references, tuple(added), refused)

    def config_of(
        self, method: MethodChoice, site: str, seed: int, validation: str | None = None, varied: Sequence[Override] = ()
    ) -> Config:
        """Return the base config with these changes; `validation` None keeps the validation site of the base config."""
        changes: dict[str, object] = {"federation.unseen_site": site, "seed": seed}
        changes |= {"federation.validation_site": validation} if validation else {}
        source = f"--methods {method.label}"
        chosen = [
            Override(tuple(key.split(".")), value, source, flag="") for key, value in method.changes(self.base).items()
        ]
        config = changed(self.base, changes, [*chosen, *varied])
        return config if len(method.parts) == 1 else self._with_notices_of_parts(config, method)

    def _with_notices_of_parts(self, config: Config, method: MethodChoice) -> Config:
        """Return the config of a stack with the notices that each part gives if it is the only method."""
        notices = dict.fromkeys(config.notices)
        for name, settings in method.parts:
            if name == self.base.method_name and "preset" in settings:
                source = f"--methods {method.label}"
                written = [Override(("method", key), value, source, flag="") for key, value in settings.items()]
                notices |= dict.fromkeys(changed(self.base, {}, written).notices)
        return replace(config, notices=tuple(notices))

    def _rows(
        self, methods: Sequence[MethodChoice], varied: Sequence[Sequence[Override]]
    ) -> list[tuple[ComparisonRow, MethodChoice, Varied]]:
        """Return the rows of the table with their methods and their varied values. A setting `method.x` is varied only
        for methods that have it: with `--vary method.k=1,2`, FedAvg keeps one row and CCST has two. UserError if no
        method has the setting, or if two rows are the same."""
        known = [self._settings_of(method) for method in methods]
        for first, *_ in varied:
            if not any(_takes(first, settings) for settings in known):
                settings = sorted(set().union(*known) - {"name"})
                labels = ", ".join(method.label for method in methods)
                raise UserError(
                    f"--vary {first.key}: none of the methods {labels} has this setting. "
                    f"{registry.suggestion(first.path[1], settings)}"
                )
        rows = []
        for method, settings_of_method in zip(methods, known, strict=True):
            own = [
                values
                for values in varied
                if _takes(values[0], settings_of_method)
                and (method.arrangement not in SENT or is_taken_without_federation(values[0].key))
            ]
            written = {f"method.{key}" for _, settings in method.parts for key in settings}
            if twice := [values[0].key for values in own if values[0].key in written]:
                raise UserError(f"--vary {twice[0]}: --methods {method.label} sets it too; remove it from one of them")
            for values in product(*own):
                rows.append((ComparisonRow(method.label, tuple(override.text for override in values)), method, values))
        folders = [row.folder.casefold() for row, *_ in rows]
        if twice := [row.label for row, *_ in rows if folders.count(row.folder.casefold()) > 1]:
            raise UserError(f"--methods: {' and '.join(map(repr, twice))} would share a folder; remove one of them")
        return rows

    def _settings_of(self, method: MethodChoice) -> set[str]:
        return set(resolved(self.config_of(method, "", self.base.seed))["method"])


def check_rows(folds: Sequence[Fold]) -> None:
    """Check that each row can train on its dataset; otherwise a wrong row would end the comparison hours later."""
    for fold in {fold.row: fold for fold in reversed(folds)}.values():
        try:
            _check_fits(fold.config, fold.config.data.ensure_available())
        except UserError as error:
            raise UserError(f"{fold.row.label}: {error}; or remove this row. Nothing was trained") from error


def _check_fits(config: Config, dataset: Dataset) -> None:
    """Raise UserError if the method does not work with the task, the network, or the size of the images."""
    task = build_task(config, dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # each run shows its own warnings
        config.network.check_image_size(dataset.image_size)
        config.method.check(dataset.image_size, dataset.channels, dataset.standardise != "none")
        check_match(config)
        network = config.network.build(task.channels, task.out_channels)
        wrapped = config.method.wrap_network(network, config.network)
        check_earlier_rounds(config, wrapped)


def check_varied(varied: Sequence[Sequence[Override]]) -> None:
    """Raise UserError if a setting cannot be varied, is varied twice, or has a value twice."""
    keys = [values[0].key for values in varied]
    for values, key in zip(varied, keys, strict=True):
        source = f"--vary {key}"
        if key in FIXED:
            raise UserError(f"{source}: {key} cannot be varied: {FIXED[key]}")
        if keys.count(key) > 1:
            raise UserError(f"{source}: {key} is varied twice; put all its values into one list")
        for place, override in enumerate(values):
            if override.value in [other.value for other in values[:place]]:
                raise UserError(f"{source}: {override.text} comes twice; leave one out")


def validation_sites(names: Sequence[str], pairs: Sequence[tuple[str, str]], root: str) -> dict[str, str]:
    """Return the validation site of each unseen site; without `pairs`, it is the next site in `names`, in a circle."""
    if len(names) < 3:
        raise UserError(f"{root}: leaving two sites out needs at least three sites, found {', '.join(names)}")
    if not pairs:
        return dict(zip(names, [*names[1:], names[0]], strict=True))
    validates: dict[str, str] = {}
    for unseen, validation in pairs:
        source = f"--pairs {unseen}/{validation}"
        for name in (unseen, validation):
            if name not in names:
                raise UserError(
                    f"{source}: no site '{name}'; expected UNSEEN/VALIDATION. {registry.suggestion(name, names)}"
                )
        if unseen == validation or unseen in validates:
            mistake = "the unseen site cannot validate" if unseen == validation else f"{unseen} is unseen twice"
            raise UserError(f"{source}: {mistake}; name another site")
        validates[unseen] = validation
    return validates


def _source_sites(config: Config, names: Sequence[str]) -> list[str]:
    """The sites that train: without the unseen and the validation site, and as `federation.participating` says."""
    federation = config.federation
    source = [name for name in names if name not in (federation.unseen_site, federation.validation_site)]
    return participating_sites(source, federation.participating, config.seed, config.source)


def _runs_of_row(row: ComparisonRow, config: Config, source: Sequence[str]) -> list[tuple[ComparisonRow, Config]]:
    """Return the runs of a row for one unseen site and seed: one, or for `local` one for each source site."""
    if row.arrangement == LOCAL:
        return [(replace(row, trained_at=site), without_federation(config, LOCAL, site)) for site in source]
    return [(row, without_federation(config, row.arrangement) if row.arrangement in SENT else config)]


def _takes(override: Override, settings: set[str]) -> bool:
    """Return whether this override varies a method with these settings."""
    return override.path[0] != "method" or len(override.path) == 1 or override.path[1] in settings


def _folder_of_sites(site: str, validation: str | None) -> str:
    """Name of the folder of a run, such as "unseen_BMC-validation_UCL"."""
    return f"unseen_{site}" + (f"-validation_{validation}" if validation else "")
