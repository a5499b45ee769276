"""Comparisons of methods that leave one or two sites out: plan the runs, run them, and build the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medfed.config.overrides import Override
from medfed.config.schema import Config, resolved
from medfed.core.errors import UserError, argument
from medfed.core.files import write_atomically
from medfed.experiments.grid import Fold, Grid, check_rows, check_varied, validation_sites
from medfed.experiments.method_choice import MethodChoice
from medfed.experiments.resume import check_no_other_files
from medfed.experiments.setup import progress_bar
from medfed.outputs.published.section import CompletedRun, to_published_markdown
from medfed.outputs.tables.comparison import Table, build_table
from medfed.outputs.tables.cost import NOTE, Cost, cost_csv, cost_rows, mean_cost, read_cost
from medfed.outputs.tables.latex import to_latex
from medfed.outputs.tables.table import align_columns, to_csv, to_json, to_markdown, to_text
from medfed.tasks.factory import scoring_of


@dataclass(frozen=True)
class ComparisonPlan:
    """The runs of a comparison, before any of them is trained.

    Args:
        out: folder of the tables and of all runs.
        folds: the runs, one per method (and combination of varied settings), unseen site and seed.
        leaves_two_out: whether each run also has a validation site that never trains.
        incompatible: for `methods="all"`, each method that does not work on the task, with the reason.
    """

    out: Path
    folds: list[Fold]
    leaves_two_out: bool = False
    incompatible: Mapping[str, str] = field(default_factory=dict)


def plan_comparison(
    config: Config, out: Path, methods: Sequence[MethodChoice], n_seeds: int = 1, sites: Sequence[str] | None = None,
    varied: Sequence[Sequence[Override]] = (), leave_two_out: bool = False,
    pairs: Sequence[tuple[str, str]] | None = None, resume: bool = False, quiet: bool = True,
) -> ComparisonPlan:
    """Plan all runs of a comparison of methods, in which each site in turn is the unseen site.

    The unseen site of a run does not train and is tested at the end. Nothing is trained by this function. Anything that
    could not be trained is refused here, before the first run starts.

    Args:
        config: the base config; each run changes its method, its unseen site and its seed.
        out: folder of the tables and of all runs.
        methods: the methods. A single one with the label "all" stands for every method that works on the task.
        n_seeds: number of runs for each method and unseen site, at least 1. They have the config's seed, seed + 1, ...
        sites: names of the sites that are the unseen site in turn; None takes every site.
        varied: for each setting that is varied, a list of its values. Every method that has the setting is run with
            each of the values.
        leave_two_out: whether each run also has a validation site, a second site that does not train.
        pairs: (unseen site, validation site) of each run, by name, only with `leave_two_out`. With None, the validation
            site of a run is the site that follows the unseen site in the list of sites.
        resume: whether to continue runs that exist in `out`. If false, they are refused.
        quiet: True draws no progress bar while a synthetic dataset is generated.

    Returns:
        The runs, and the methods that were left out for "all", with the reasons.

    Raises:
        UserError: if a method, site, pair or varied setting is unknown or cannot be used, or if `out` contains files
            and `resume` is false.
    """
    if pairs and (sites or not leave_two_out):
        raise UserError(
            f"use {argument('pairs')} only if two sites are left out and without {argument('sites')}, because each "
            "pair names its unseen site"
        )
    if n_seeds < 1:
        raise UserError(f"{argument('seeds', n_seeds)}: at least 1 is needed")
    check_varied(varied)
    dataset = config.data.ensure_available(None if quiet else progress_bar("making the phantom"))
    names = dataset.site_names()
    grid = Grid(config)
    incompatible: dict[str, str] = {}
    if [method.label for method in methods] == ["all"]:
        names_of_methods, incompatible = grid.compatible_methods(dataset)
        methods = [MethodChoice.parse(name) for name in names_of_methods]
    validates = validation_sites(names, pairs or (), config.data.root) if leave_two_out else {}
    chosen = sites or (pairs and list(validates)) or None
    folds = grid.plan(out, methods, n_seeds, names, chosen, validates, varied)
    if not resume and any(fold.folder.path.exists() for fold in folds):
        raise UserError(
            f"{out}: holds runs of this comparison; continue it with {argument('resume', True)}, or choose another "
            f"folder with {argument('out')}"
        )
    if not resume:
        check_no_other_files(out)
    check_rows(folds)
    return ComparisonPlan(out, folds, leave_two_out, incompatible)


@dataclass(frozen=True)
class ComparisonTables:
    """The tables of a comparison of methods.

    Args:
        unseen: scores at the unseen sites.
        validation: scores at the validation sites; None where one site is left out.
        costs: the mean cost (time and bytes) of each row's runs, by the row's label.
        published: Markdown with the numbers that papers published on the same data; "" without any.
    """

    unseen: Table
    validation: Table | None
    costs: Mapping[str, Cost]
    published: str

    def to_text(self, bold: bool = False) -> str:
        """Return the tables as text with aligned columns: the scores at the unseen sites, and the cost of each method.

        If each run has a validation site, the table of its scores follows that of the unseen sites.

        Args:
            bold: whether to mark the best values with the control characters of a terminal.
        """
        text = to_text(self.unseen, isatty=bold)
        if self.validation:
            text = f"UNSEEN SITES\n{text}\n\nVALIDATION SITES\n{to_text(self.validation, isatty=bold)}"
        costs = align_columns([[(cell, "") for cell in line] for line in cost_rows(self.costs)], False)
        return f"{text}\n\ncost\n{costs}\nnote: {NOTE}"

    def write(self, out: Path) -> None:
        """Write the tables to files: `table.md`, `table.csv`, `table.json`, `table.tex` and `cost.csv`.

        If each run has a validation site, the scores there are also written to `validation.csv` and `validation.json`.
        Existing files are replaced.

        Args:
            out: the folder, which must exist.
        """
        markdown = to_markdown(self.unseen)
        write_atomically(out / "table.csv", to_csv(self.unseen))
        write_atomically(out / "table.json", to_json(self.unseen))
        write_atomically(out / "table.tex", to_latex(self.unseen))
        if self.validation:
            markdown = f"## Unseen sites\n\n{markdown}\n## Validation sites\n\n{to_markdown(self.validation)}"
            write_atomically(out / "validation.csv", to_csv(self.validation, "validation"))
            write_atomically(out / "validation.json", to_json(self.validation))
        write_atomically(out / "cost.csv", cost_csv(self.costs))
        head, *lines = cost_rows(self.costs)
        ruled = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
        costs = "\n".join(f"| {' | '.join(line)} |" for line in ruled)
        write_atomically(out / "table.md", f"{markdown}\n### Cost\n\n{costs}\n\n- {NOTE}\n{self.published}")


def build_tables(plan: ComparisonPlan) -> ComparisonTables:
    """Build the tables of a comparison from those of its runs that are finished.

    Args:
        plan: the runs of the comparison; at least one must be finished.

    Returns:
        The tables of scores and costs, and published numbers on the same data.
    """
    finished = [fold for fold in plan.folds if fold.folder.is_finished()]
    unseen = _table(finished, "unseen")
    validation = _table(finished, "validation") if plan.leaves_two_out else None
    data = (validation or unseen).data
    published = to_published_markdown(resolved(finished[0].config)["data"], data, list(map(_published_key, finished)))
    return ComparisonTables(unseen, validation, _costs(finished), published)


def _published_key(fold: Fold) -> CompletedRun:
    """Return the method and settings of a finished fold, with which published rows are compared, and its scores."""
    unseen = fold.folder.read_json("summary.json")["unseen"]
    return CompletedRun(fold.config.method_name, fold.row.changes, resolved(fold.config)["method"], unseen)


def _costs(finished: list[Fold]) -> dict[str, Cost]:
    """Return the mean cost of the runs of each row, by the row's label."""
    costs: dict[str, list[Cost]] = {}
    for fold in finished:
        costs.setdefault(fold.row.label, []).append(read_cost(fold.folder))
    return {label: mean_cost(of_row) for label, of_row in costs.items()}


def _table(finished: list[Fold], role: str) -> Table:
    """Return the table over the sites of a role ("unseen" or "validation"), from the cases of finished folds."""
    results: list[dict] = []
    structures: dict[str, None] = {}
    for fold in finished:
        path, summary = fold.folder.path, fold.folder.read_json("summary.json")
        scoring = scoring_of(summary, path / "summary.json")
        rows = [row for row in scoring.read_cases(path / "cases.csv") if row["role"] == role]
        structures |= dict.fromkeys(map(scoring.structure_of, rows))
        results.append({
            "method": fold.row.label,
            "baseline": fold.row.baseline,
            f"{role}_site": getattr(fold.config.federation, f"{role}_site"),
            "seed": fold.config.seed,
            "rows": rows,
            "selection": summary["selection"],
            "data": summary["data"],
            "summary": summary,
            "transductive_by": summary.get("transductive_by") or ["tent"] * bool(summary.get("transductive")),
        })
    return build_table(results, list(structures), role=role)
