"""The tables of a comparison of methods, computed from the folders of its finished runs, and their files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from medfed.config.schema import resolved
from medfed.core.files import write_atomically
from medfed.experiments.grid import Fold
from medfed.experiments.leave_one_out import ComparisonPlan
from medfed.outputs.published.beside import to_published_markdown
from medfed.outputs.run_folder import read_unadapted
from medfed.outputs.tables.cost import NOTE, PARTS, Cost, cost_csv, cost_json, cost_rows, costs_by_row, effort_notes
from medfed.results.comparison import Comparison, ScoredRun, compare_runs
from medfed.results.render import to_csv_file, to_json_file, to_latex_file, to_markdown_file
from medfed.results.scores import read_scores
from medfed.results.text_tables import text_table
from medfed.tasks.factory import scoring_of


def read_comparison(plan: ComparisonPlan) -> Comparison:
    """Compare the finished runs of a plan; at least one must be finished."""
    runs = []
    for fold in _complete_folds(plan):
        path, summary = fold.folder.path, fold.folder.read_json("summary.json")
        scoring = scoring_of(summary, path / "summary.json")
        unadapted = read_unadapted(path, summary, scoring)
        runs.append(ScoredRun.of(fold.row, summary, read_scores(path / "cases.csv", scoring.metrics), unadapted))
    planned = {fold.key for fold in plan.folds}
    notes = [plan.folder.note(), *(note for note in _effort(plan, read_costs(plan)) if "NOT RUN" in note)]
    return compare_runs(runs, plan.baseline, planned, list(filter(None, notes)))


def read_costs(plan: ComparisonPlan) -> dict[str, Cost]:
    """The mean cost of the finished runs of each row, by its label."""
    return costs_by_row([(fold.row, fold.site, fold.config.seed, fold.folder) for fold in _complete_folds(plan)])


def write_tables(comparison: Comparison, costs: Mapping[str, Cost], plan: ComparisonPlan, out: Path) -> None:
    """Write the tables as Markdown, CSV, JSON and LaTeX into an existing folder; existing files are replaced."""
    tables = []
    for title, columns in (("Cost", []), ("What the bytes of a round are", [PARTS])):
        head, *rows = cost_rows(costs, *columns)
        tables.append(text_table(title, head, rows))
    published = to_published_markdown(resolved(plan.folds[0].config)["data"], comparison)
    markdown = to_markdown_file(comparison, tables, [NOTE, *_effort(plan, costs)])
    contents = {
        "table.md": f"{markdown}\n{published}",
        "table.tex": to_latex_file(comparison),
        "table.json": to_json_file(comparison),
        "table.csv": to_csv_file(comparison.scores, comparison.data),
        "differences.csv": to_csv_file(comparison.differences, comparison.data),
        "cost.csv": cost_csv(costs),
        "cost.json": cost_json(costs),
    }
    for name, content in contents.items():
        write_atomically(out / name, content)


def _effort(plan: ComparisonPlan, costs: Mapping[str, Cost]) -> list[str]:
    """Sentences that compare the steps and images of each row with those of its baseline."""
    rows = {fold.row for fold in _complete_folds(plan)}
    baselines = {row.label: row.baseline_label(plan.baseline) for row in rows}
    return effort_notes(costs, baselines, {row.label: row.equal_effort for row in rows if row.equal_effort})


def _complete_folds(plan: ComparisonPlan) -> list[Fold]:
    """The finished runs, those of `local` only if all of the same unseen site and seed are finished."""
    complete = plan.folder.finished()
    return [fold for fold in plan.folds if fold.folder.path in complete]
