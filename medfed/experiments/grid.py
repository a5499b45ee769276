"""The runs of a comparison: every method and varied setting, with every unseen site and every seed.

A method is written as after `--methods`, such as `ccst:k=1`, `ccst+elcfs`, `pooled` or `fedavg@steps=ccst`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from medfed.config.overrides import Override, split
from medfed.config.schema import Config, changed, resolved
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.experiments.sites import participating_sites
from medfed.federation.method import Effort
from medfed.federation.settings import Federation
from medfed.outputs.comparison_folder import Key
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import (
    BASELINE,
    LOCAL,
    ONLY_FEDERATED,
    POOLED,
    SENT,
    ComparisonRow,
    is_federated,
    is_taken_without_federation,
)

# Settings that are equal in all rows of a table.
FIXED = (
    "method.name seed federation.unseen_site federation.validation_site federation.selection data.name data.root "
    "data.sites"
).split()


@dataclass(frozen=True)
class Fold:
    """One run of a comparison."""

    row: ComparisonRow
    config: Config
    folder: RunFolder

    @property
    def site(self) -> str:
        """The unseen site."""
        return self.config.federation.unseen_site or ""

    @property
    def key(self) -> Key:
        return self.row.label, self.site, self.config.seed

    @property
    def was_started(self) -> bool:
        return (self.folder.path / "config.yaml").is_file()

    @property
    def name(self) -> str:
        """For messages, such as "elcfs, unseen UCL, seed 3"."""
        return f"{self.row.run_label}, unseen {self.site}, seed {self.config.seed}"


def effort_of(text: str) -> str:
    """Return the method that follows `@steps=`, whose number of steps and images a row has; "" for other rows."""
    name, at, setting = text.partition("@")
    if not at or name not in (BASELINE, *SENT):
        return ""
    method = setting.removeprefix("steps=").strip()
    if method in ("", setting) or "@" in method or not is_federated(method):
        raise UserError(
            f"--methods {text}: expected {BASELINE}@steps=METHOD, {POOLED}@steps=METHOD or {LOCAL}@steps=METHOD with a "
            f"federated method, such as {BASELINE}@steps=ccst"
        )
    return method


def parts_of(text: str) -> list[tuple[str, dict[str, object]]]:
    """Return name and settings (YAML) of the methods that are applied together."""
    methods = text.partition("@")[0] if effort_of(text) else text
    if methods in SENT:
        return [(BASELINE, {})]
    parts = []
    for name, _, written in (part.partition(":") for part in split(methods, "+")):
        if name in SENT:
            raise UserError(
                f"--methods {text}: '{name}' is FedAvg without a federation; it has no settings and cannot be combined "
                f"with a method; expected {name}, or {name}@steps=METHOD"
            )
        if "." not in name and (near := registry.nearest(name, [*registry.known_names("methods"), *SENT])) in SENT:
            raise UserError(f"--methods {text}: no method or row '{name}'. Did you mean '{near}'?")
        try:
            overrides = [Override.parse(setting) for setting in split(written, ",") if setting]
        except UserError as error:
            raise UserError(f"--methods {text}: {str(error).removeprefix('--set ')}") from error
        settings = {override.key: override.value for override in overrides}
        if "name" in settings:
            raise UserError(f"--methods {text}: a name among the settings; expected it before the colon")
        parts.append((name, settings))
    return parts


def method_changes(parts: Sequence[tuple[str, Mapping[str, object]]], base: Config) -> dict[str, object]:
    """Return the new values, by dotted key, that make a config use these methods.

    Settings that the user did not give are those of `base` for the same method, else of the preset or the method.
    """
    if len(parts) > 1:
        own = resolved(base)["method"]
        preset = own.pop("preset")
        blocks = []
        for name, new in parts:
            starts_from_own = name == base.method_name and new.get("preset", preset) == preset
            blocks.append({**(own if starts_from_own else {}), "name": name, **new})
        return {"method.name": "stack", "method.methods": blocks}
    ((name, settings),) = parts
    chosen = {} if name == base.method_name else {"method.name": name}
    return chosen | {f"method.{key}": value for key, value in settings.items()}


def rows_of(base: Config, methods: Sequence[str], varied: Mapping[str, Sequence[str]] = {}) -> list[ComparisonRow]:
    """Return every method with every combination of the settings that it has; `varied` are texts by key."""
    settings = {name: {*resolved(config_of(base, ComparisonRow(name), "", base.seed))["method"]} for name in methods}
    known = set().union(*settings.values())
    for key in varied:
        if key in FIXED:
            raise UserError(
                f"--vary {key}: cannot be varied, because all rows of a table have the same; --methods, --seeds, "
                "--sites and --set choose other values"
            )
        if not _has(known, key):
            raise UserError(
                f"--vary {key}: none of the methods {', '.join(methods)} has this setting. "
                f"{registry.suggestion(key.split('.')[1], sorted(known - {'name'}))}"
            )
    rows = []
    for method in methods:
        own = {
            key: values
            for key, values in varied.items()
            if _has(settings[method], key) and (is_federated(method) or is_taken_without_federation(key))
        }
        written = {f"method.{key}" for _, given in parts_of(method) for key in given}
        if twice := sorted(written & own.keys()):
            raise UserError(f"--vary {twice[0]}: --methods {method} sets it too; remove it from one of them")
        rows += [ComparisonRow(method, texts) for texts in product(*own.values())]
    folders = [row.folder.casefold() for row in rows]
    if same := [row.label for row in rows if folders.count(row.folder.casefold()) > 1]:
        raise UserError(f"{' and '.join(map(repr, same))} would share a folder; remove one of them")
    return rows


def with_equal_effort(
    base: Config, rows: Sequence[ComparisonRow], names: Sequence[str], site: str, validation: str | None = None
) -> tuple[list[ComparisonRow], dict[str, str]]:
    """Name, in each row that takes more steps or images than FedAvg, the row of FedAvg with which it is compared.

    Returns the rows, followed by the added ones, and why others cannot be run, by label.
    """
    can_share = all(setting.startswith("method.") for row in rows for setting in row.varied)
    efforts: dict[str, Effort] = {}  # by the method that has the effort
    references: dict[ComparisonRow, ComparisonRow] = {}
    refused: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: not effort_of(row.method)):  # given ones first
        if row.arrangement in SENT:
            continue
        method = effort_of(row.method)
        config = config_of(base, ComparisonRow(method) if method else row, site, base.seed, validation)
        n_clients = config.federation.clients or len(_source_sites(config, names))
        effort = config.method.effort(n_clients)
        if method:
            efforts.setdefault(method, effort)
        if method or max(effort) <= 1:
            continue
        own = ",".join(setting.removeprefix("method.") for setting in row.varied if setting.startswith("method."))
        method = f"{row.method}{',' if ':' in row.method else ':'}{own}" if own else row.method
        same = next((other for other in efforts if can_share and efforts[other] == effort), method)
        efforts.setdefault(method, effort)
        others = tuple(setting for setting in row.varied if not setting.startswith("method."))
        references[row] = reference = ComparisonRow(f"{BASELINE}@steps={same}", others)
        try:
            with_effort(config_of(base, reference, site, base.seed, validation), reference, effort, n_clients)
        except UserError as error:
            refused[reference.label] = str(error)
    added = [row for row in dict.fromkeys(references.values()) if row not in rows and row.label not in refused]
    methods = [row.method for row in added]
    added.sort(key=lambda row: methods.index(row.method))
    compared = [replace(row, equal_effort=references[row].label) if row in references else row for row in rows]
    return [*compared, *added], refused


def folds_of(
    base: Config,
    out: Path,
    rows: Sequence[ComparisonRow],
    n_seeds: int,
    names: Sequence[str],
    unseen_sites: Sequence[str],
    validates: Mapping[str, str] = {},
) -> list[Fold]:
    """Return all runs, sorted by seed, so that a table with all methods and sites exists as early as possible."""
    folds = []
    for seed, site, row in product(range(base.seed, base.seed + n_seeds), unseen_sites, rows):
        validation = validates.get(site)
        config = config_of(base, row, site, seed, validation)
        source = _source_sites(config, names)
        if method := effort_of(row.method):
            n_clients = config.federation.clients or len(source)
            other = config_of(base, ComparisonRow(method), site, seed, validation).method
            config = with_effort(config, row, other.effort(n_clients), n_clients)
        runs = {row: config}
        if row.arrangement == LOCAL:
            runs = {replace(row, trained_at=name): without_federation(config, LOCAL, name) for name in source}
        elif row.arrangement in SENT:
            runs = {row: without_federation(config, row.arrangement)}
        left_out = f"unseen_{site}" + (f"-validation_{validation}" if validation else "")
        folds += [
            Fold(own, config, RunFolder(out / own.folder / left_out / f"seed_{seed}")) for own, config in runs.items()
        ]
    return folds


def with_effort(config: Config, row: ComparisonRow, effort: Effort, n_clients: int) -> Config:
    """Return a config of FedAvg with the images of another method, and larger batches if it adds copies to them.

    `pooled` takes the steps of one client and sees the images of all.
    """
    epochs = config.federation.local_epochs * effort.images
    images_per_step = config.training.batch_size * effort.images / effort.steps
    if epochs != int(epochs) or images_per_step != int(images_per_step):
        raise UserError(
            f"--methods {row.method}: the method takes {effort.steps:g} times the steps and {effort.images:g} times "
            f"the images of FedAvg, which needs {epochs:g} local epochs with batches of {images_per_step:g} images; "
            "expected whole numbers; choose another federation.local_epochs or training.batch_size"
        )
    if row.arrangement == POOLED:
        images_per_step *= n_clients
    return changed(config, {"federation.local_epochs": int(epochs), "training.batch_size": int(images_per_step)})


def without_federation(config: Config, arrangement: str, site: str = "") -> Config:
    """Return a config of FedAvg with one participant; settings about messages have their defaults."""
    federation = config.federation
    changes: dict[str, object] = {f"federation.{name}": getattr(Federation(), name) for name in ONLY_FEDERATED}
    changes |= {"federation.largest_change": None, "privacy": {}, "data.min_patients": 1}
    if arrangement == POOLED:
        changes["federation.clients"] = 1
    if arrangement == LOCAL:
        sites = [site, *filter(None, (federation.unseen_site, federation.validation_site))]
        changes |= {"data.sites": sorted(sites), "federation.participating": None}
    return changed(config, changes)


def config_of(base: Config, row: ComparisonRow, site: str, seed: int, validation: str | None = None) -> Config:
    """Return the base config with the method and the varied settings of a row, without its effort and arrangement."""
    changes: dict[str, object] = {"federation.unseen_site": site, "seed": seed}
    changes |= {"federation.validation_site": validation} if validation else {}
    of_method = method_changes(parts_of(row.method), base).items()
    overrides = [Override(tuple(key.split(".")), value, f"--methods {row.method}", "") for key, value in of_method]
    return changed(base, changes, [*overrides, *(Override.parse(text, "--vary") for text in row.varied)])


def _source_sites(config: Config, names: Sequence[str]) -> list[str]:
    federation = config.federation
    source = [name for name in names if name not in (federation.unseen_site, federation.validation_site)]
    return participating_sites(source, federation.participating, config.seed, config.source)


def _has(settings: set[str], key: str) -> bool:
    block, _, name = key.partition(".")
    return block != "method" or not name or name.split(".")[0] in settings
