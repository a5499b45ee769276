"""Plan the runs of a comparison of methods that leaves one or two sites out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medfed.config.overrides import Override
from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.experiments.grid import EqualEffort, Fold, Grid, check_rows, check_varied, validation_sites
from medfed.experiments.method_choice import MethodChoice
from medfed.experiments.resume import check_cache_folder, check_no_other_files, check_outside_data
from medfed.experiments.setup import progress_bar
from medfed.outputs.comparison_folder import write_comparison
from medfed.outputs.tables.comparison_row import BASELINE, is_federated


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs of a comparison, before any of them is trained."""

    out: Path
    folds: list[Fold]
    leaves_two_out: bool = False  # whether each run also has a validation site that never trains
    incompatible: Mapping[str, str] = field(default_factory=dict)  # why a method or a row of equal effort is left out
    baseline: str = BASELINE  # the method with which all other methods are compared
    added: tuple[str, ...] = ()  # for equal effort, such as "fedavg@steps=ccst"

    def effort_note(self) -> str:
        """Return what the rows of equal effort cost, to show before the first run; "" without such rows."""
        methods_of: dict[str, list[str]] = {}
        for row in dict.fromkeys(fold.row for fold in self.folds if fold.row.equal_effort):
            methods_of.setdefault(row.equal_effort, []).append(row.label)
        if not methods_of:
            return ""
        n_runs = sum(fold.row.method in self.added for fold in self.folds)
        if not n_runs:
            return ""
        epochs = {fold.row.label: fold.config.federation.local_epochs for fold in reversed(self.folds)}
        parts = [
            f"{label} trains with {epochs[label] / epochs[baseline]:g} times the images of {baseline}, and "
            f"{' and '.join(methods)} {'are' if len(methods) > 1 else 'is'} compared with it"
            for label, methods in methods_of.items()
            if label in epochs
            for baseline in [next(f.row for f in self.folds if f.row.label == methods[0]).baseline_label(self.baseline)]
        ]
        return (
            f"Equal effort: {'; '.join(parts)}. This adds {n_runs} to {len(self.folds) - n_runs} runs; "
            "--no-equal-effort leaves them out."
        )

    def write(self) -> None:
        """Write `comparison.json`, from which the report knows the runs of the tables."""
        write_comparison(self.out, [fold.planned for fold in self.folds], self.baseline)


def plan_comparison(
    config: Config,
    out: Path,
    methods: Sequence[MethodChoice],
    n_seeds: int = 1,
    sites: Sequence[str] | None = None,
    varied: Sequence[Sequence[Override]] = (),
    leave_two_out: bool = False,
    pairs: Sequence[tuple[str, str]] | None = None,
    resume: bool = False,
    quiet: bool = True,
    baseline: str = BASELINE,
    equal_effort: bool = True,
) -> ComparisonPlan:
    """Plan all runs of a comparison, and refuse before the first training what could not be trained.

    Args:
        methods: one with the label "all" stands for every method that works on the task.
        n_seeds: the runs have the config's seed, seed + 1, ...
        sites: names of the sites that are the unseen site in turn; None takes every site.
        varied: for each setting that is varied, a list of its values.
        pairs: (unseen site, validation site) of each run, only with `leave_two_out`. With None, the validation
            site of a run is the site that follows the unseen site in the list of sites.
        resume: whether to continue runs that exist in `out`. If false, they are refused.
        equal_effort: whether to add FedAvg with as many steps and images as each method that takes more, and to compare
            this method with it; has no effect without FedAvg, or with another baseline.
    """
    if pairs and (sites or not leave_two_out):
        raise UserError(
            "use --pairs only if two sites are left out and without --sites, because each pair names its unseen site"
        )
    if n_seeds < 1:
        raise UserError(f"--seeds {n_seeds}: at least 1 is needed")
    check_varied(varied)
    dataset = config.data.ensure_available(None if quiet else progress_bar("making the phantom"))
    names = dataset.site_names()
    grid = Grid(config)
    incompatible: dict[str, str] = {}
    if "all" in [method.label for method in methods]:
        names_of_methods, incompatible = grid.compatible_methods(dataset)
        every = [MethodChoice.parse(name) for name in names_of_methods]
        methods = [one for method in methods for one in (every if method.label == "all" else [method])]
    validates = validation_sites(names, pairs or (), config.data.root) if leave_two_out else {}
    chosen = sites or (pairs and list(validates)) or None
    equal = EqualEffort()
    if equal_effort and baseline == BASELINE and BASELINE in [method.label for method in methods] and len(names) > 1:
        site = next((name for name in chosen or () if name in names), names[0])  # `plan` refuses others
        equal = grid.equal_effort(methods, names, site, validates.get(site), varied)
        incompatible |= equal.refused
        methods = [*methods, *map(MethodChoice.parse, equal.added)]
    folds = grid.plan(out, methods, n_seeds, names, chosen, validates, varied, equal)
    if not resume and any(fold.folder.path.exists() for fold in folds):
        raise UserError(
            f"{out}: holds runs of this comparison; continue it with --resume, or choose another folder with --out"
        )
    for cache in {fold.config.cache for fold in folds}:
        check_cache_folder(cache, dataset, out, config.source)
    if not resume:
        check_outside_data(out, dataset)
        check_no_other_files(out)
    check_rows(folds)
    if not is_federated(baseline):
        raise UserError(
            f"--baseline {baseline}: this row has no federation, so no method is compared with it; name a federated "
            "method of this comparison"
        )
    labels = list(dict.fromkeys(fold.row.label for fold in folds))
    if baseline != BASELINE and not any(fold.row.baseline_label(baseline) in labels for fold in folds):
        raise UserError(
            f"--baseline {baseline}: no row of this name; found {'; '.join(labels)}; name one of --methods, without "
            "varied settings"
        )
    return ComparisonPlan(out, folds, leave_two_out, incompatible, baseline, equal.added)
