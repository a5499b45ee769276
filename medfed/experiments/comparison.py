"""Compare methods: plan the runs, which leave one or two sites out, and write the tables of the finished ones."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medfed.cli.progress import case_bar
from medfed.config.schema import Config, resolved
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.datasets.base import Dataset
from medfed.experiments.grid import Fold, config_of, folds_of, rows_of, with_equal_effort
from medfed.experiments.resume import check_cache_folder, check_no_other_files, check_outside_data
from medfed.experiments.setup import check_config, check_earlier_rounds
from medfed.outputs.callback import Callbacks
from medfed.outputs.comparison_folder import ComparisonFolder
from medfed.outputs.published.beside import to_published_markdown
from medfed.outputs.tables.cost import NOTE, Cost, cost_csv, cost_rows, costs_by_row, effort_notes
from medfed.results.comparison import Comparison, ScoredRun, compare_runs
from medfed.results.render import to_csv_file, to_json_file, to_latex_file, to_markdown_file
from medfed.results.row import BASELINE, ComparisonRow
from medfed.results.scores import read_scores
from medfed.results.text_tables import text_table


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs of a comparison."""

    folder: ComparisonFolder
    folds: list[Fold]
    incompatible: Mapping[str, str]  # why a method or a row of equal effort is left out


def plan_comparison(
    config: Config,
    out: Path,
    methods: Sequence[str],
    n_seeds: int = 1,
    sites: Sequence[str] | None = None,
    varied: Mapping[str, Sequence[str]] = {},
    leave_two_out: bool = False,
    pairs: Sequence[tuple[str, str]] | None = None,
    resume: bool = False,
    quiet: bool = True,
    baseline: str = BASELINE,
    equal_effort: bool = True,
) -> ComparisonPlan:
    """Plan all runs as `medfed.leave_two_sites_out` does, and refuse before the first training what cannot train."""
    if pairs and (sites or not leave_two_out):
        raise UserError(
            "use --pairs only if two sites are left out and without --sites, because each pair names its unseen site"
        )
    Callbacks(config.tracking, config.source)  # each run creates its own; here a wrong name is refused once
    dataset = config.data.ensure_available(case_bar("making the phantom", quiet))
    names, root = dataset.site_names(), config.data.root
    every, incompatible = compatible_methods(config, dataset) if "all" in methods else ([], {})
    methods = [name for method in methods for name in (every if method == "all" else [method])]
    validates = validation_sites(names, pairs or (), root) if leave_two_out else {}
    unseen_sites = sites or (list(validates) if pairs else names)
    if unknown := [site for site in unseen_sites if site not in names]:
        raise UserError(f"--sites {unknown[0]}: no such site in {root}; found {', '.join(names)}")
    if len(names) < 2:
        raise UserError(f"{root}: leaving one site out needs at least two sites, found {', '.join(names)}")
    rows = rows_of(config, methods, varied)
    federated = [row for row in rows if row.arrangement == "federated"]
    if baseline != BASELINE and not any(row.baseline_label(baseline) == row.label for row in federated):
        raise UserError(
            f"--baseline {baseline}: no federated method of this name; found "
            f"{'; '.join(row.label for row in federated) or 'none'}; name one of --methods, without varied settings"
        )
    added: list[str] = []
    if equal_effort and baseline == BASELINE and BASELINE in methods:
        site, given = unseen_sites[0], [row.label for row in rows]
        rows, refused = with_equal_effort(config, rows, names, site, validates.get(site))
        incompatible |= refused
        added = [row.label for row in rows if row.label not in given]
    folds = folds_of(config, out, rows, n_seeds, names, unseen_sites, validates)
    if not resume:
        if any(fold.was_started for fold in folds):
            raise UserError(f"{out}: holds runs of this comparison; --resume continues it, --out names another folder")
        check_outside_data(out, dataset)
        check_no_other_files(out)
    for fold in folds:
        check_cache_folder(fold.config.cache, dataset, out, config.source)
    check_rows(folds)
    if added and not quiet:
        n_added = sum(fold.row.label in added for fold in folds)
        print(
            f"Equal effort: FedAvg with as many steps and images as other methods ({'; '.join(added)}) adds {n_added} "
            f"to {len(folds) - n_added} runs; --no-equal-effort leaves them out.",
            file=sys.stderr,
        )
    folder = ComparisonFolder(out, {fold.folder.path: fold.key for fold in folds}, baseline)
    return ComparisonPlan(folder, folds, incompatible)


def compatible_methods(base: Config, dataset: Dataset) -> tuple[list[str], dict[str, str]]:
    """Return the methods that work on a dataset with default settings, and why each other one does not."""
    refused: dict[str, str] = {}
    site = next((name for name in dataset.site_names() if name != base.federation.validation_site), "")
    names = [BASELINE, *(name for name in registry.known_names("methods") if name not in (BASELINE, "stack"))]
    for name in names:
        try:
            _check_fits(config_of(base, ComparisonRow(name), site, base.seed), dataset)
        except UserError as error:
            if name == BASELINE:
                raise
            refused[name] = str(error)
    return [name for name in names if name not in refused], refused


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


def check_rows(folds: Sequence[Fold]) -> None:
    """Check that each row can train on its dataset; otherwise a wrong row would end the comparison hours later."""
    for fold in {fold.row: fold for fold in reversed(folds)}.values():
        try:
            _check_fits(fold.config, fold.config.data.ensure_available())
        except UserError as error:
            raise UserError(f"{fold.row.label}: {error}; or remove this row. Nothing was trained") from error


def _check_fits(config: Config, dataset: Dataset) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # each run shows its own warnings
        task = check_config(config, dataset)
        network = config.network.build(task.channels, task.out_channels)
        check_earlier_rounds(config, config.method.wrap_network(network, config.network))


def write_tables(plan: ComparisonPlan) -> tuple[Comparison, dict[str, Cost]]:
    """Compare the finished runs of a plan, write the tables, and return the comparison and the mean costs."""
    finished = plan.folder.finished()
    folds = [fold for fold in plan.folds if fold.folder.path in finished]
    runs = [
        ScoredRun.of(fold.row, fold.folder.read_summary(), read_scores(fold.folder.path / "cases.csv"))
        for fold in folds
    ]
    costs = costs_by_row([(fold.row, fold.site, fold.config.seed, fold.folder) for fold in folds])
    rows = {fold.row for fold in folds}
    baselines = {row.label: row.baseline_label(plan.folder.baseline) for row in rows}
    efforts = effort_notes(costs, baselines, {row.label: row.equal_effort for row in rows if row.equal_effort})
    notes = [plan.folder.note(), *(note for note in efforts if "NOT RUN" in note)]
    planned = {fold.key for fold in plan.folds}
    comparison = compare_runs(runs, plan.folder.baseline, planned, list(filter(None, notes)))
    head, *cells = cost_rows(costs)
    published = to_published_markdown(resolved(plan.folds[0].config)["data"], comparison)
    markdown = to_markdown_file(comparison, [text_table("Cost", head, cells)], [NOTE, *efforts])
    contents = {
        "table.md": f"{markdown}\n{published}",
        "table.tex": to_latex_file(comparison),
        "table.json": to_json_file(comparison),
        "table.csv": to_csv_file(comparison.scores, comparison.data),
        "differences.csv": to_csv_file(comparison.differences, comparison.data),
        "cost.csv": cost_csv(costs),
    }
    for name, content in contents.items():
        write_atomically(plan.folder.path / name, content)
    return comparison, costs
