"""The tables of a comparison of methods, computed from the folders of its finished runs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from medfed.config.schema import resolved
from medfed.core.files import write_atomically
from medfed.experiments.grid import Fold
from medfed.experiments.leave_one_out import ComparisonPlan
from medfed.outputs.comparison_folder import ComparisonFolder, incomplete_local_runs
from medfed.outputs.published.section import CompletedRun, to_published_markdown
from medfed.outputs.tables.adaptation import read_unadapted
from medfed.outputs.tables.comparison import build_table
from medfed.outputs.tables.comparison_data import CONCLUSIONS, Table
from medfed.outputs.tables.comparison_row import SENT
from medfed.outputs.tables.conclusions import with_all_conclusions
from medfed.outputs.tables.cost import NOTE, PARTS, Cost, cost_csv, cost_json, cost_rows, costs_by_row, effort_notes
from medfed.outputs.tables.joining import Joining, ScoredRun, build_joining
from medfed.outputs.tables.joining_text import joining_csv, joining_json, joining_markdown, joining_text
from medfed.outputs.tables.latex import to_latex
from medfed.outputs.tables.table import align_columns, to_csv, to_json, to_markdown, to_text
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import Scoring

TEXT_WIDTH = 110  # of the conclusions in a terminal


@dataclass(frozen=True)
class ComparisonTables:
    unseen: Table
    validation: Table | None  # None where one site is left out
    costs: Mapping[str, Cost]  # mean over the runs of a row, by its label
    published: str  # Markdown with the numbers that papers published on the same data; "" without any
    joining: Joining | None = None  # differences between the federated rows and `local` and `pooled`

    def to_text(self, bold: bool = False) -> str:
        """Return aligned text; the conclusions come last, because a terminal shows the end of a long text."""
        text = to_text(self.unseen, isatty=bold)
        if self.validation:
            text = f"UNSEEN SITES\n{text}\n\nVALIDATION SITES\n{to_text(self.validation, isatty=bold)}"
        joining = [joining_text(self.joining)] if self.joining else []
        costs, parts = (
            align_columns([[(cell, "") for cell in line] for line in lines], False)
            for lines in (cost_rows(self.costs), cost_rows(self.costs, PARTS))
        )
        costs = f"cost\n{costs}\n\nwhat the bytes of a round are\n{parts}\nnote: {NOTE}"
        bullets = [
            textwrap.fill(sentence, TEXT_WIDTH, initial_indent="- ", subsequent_indent="  ")
            for sentence in self.unseen.conclusions
        ]
        conclusions = ["\n".join([CONCLUSIONS, *bullets])] if bullets else []
        return "\n\n".join([text, *joining, costs, *conclusions])

    def write(self, out: Path) -> None:
        """Write the tables as Markdown, CSV, JSON and LaTeX into an existing folder; existing files are replaced."""
        markdown = to_markdown(self.unseen)
        write_atomically(out / "table.csv", to_csv(self.unseen))
        write_atomically(out / "table.json", to_json(self.unseen))
        write_atomically(out / "table.tex", to_latex(self.unseen))
        if self.validation:
            markdown = f"## Unseen sites\n\n{markdown}\n## Validation sites\n\n{to_markdown(self.validation)}"
            write_atomically(out / "validation.csv", to_csv(self.validation, "validation"))
            write_atomically(out / "validation.json", to_json(self.validation))
        if self.joining:
            markdown += f"\n{joining_markdown(self.joining)}"
            write_atomically(out / "joining.csv", joining_csv(self.joining))
            write_atomically(out / "joining.json", joining_json(self.joining))
        write_atomically(out / "cost.csv", cost_csv(self.costs))
        write_atomically(out / "cost.json", cost_json(self.costs))
        costs, parts = map(_as_markdown, (cost_rows(self.costs), cost_rows(self.costs, PARTS)))
        write_atomically(out / "table.md", f"{markdown}\n### Cost\n\n{costs}\n\n{parts}\n\n- {NOTE}\n{self.published}")


class _FinishedRun(NamedTuple):
    """The files of a finished fold from which the tables are computed."""

    fold: Fold
    summary: dict[str, Any]
    scoring: Scoring
    cases: list[dict]


def _as_markdown(rows: list[list[str]]) -> str:
    head, *lines = rows
    ruled = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def build_tables(plan: ComparisonPlan) -> ComparisonTables:
    """Build the tables of the finished runs; at least one run must be finished."""
    finished = _complete_folds(plan.folds)
    runs = [_read(fold) for fold in finished]
    unseen = _table(runs, "unseen", plan)
    validation = _table(runs, "validation", plan) if plan.leaves_two_out else None
    data = (validation or unseen).data
    keys = [_published_key(run) for run in runs if run.fold.row.arrangement not in SENT]
    published = to_published_markdown(resolved(finished[0].config)["data"], data, keys)
    costs = costs_by_row([(fold.row, fold.site, fold.config.seed, fold.folder) for fold in finished])
    baselines = {fold.row.label: fold.row.baseline_label(plan.baseline) for fold in finished}
    references = {fold.row.label: fold.row.equal_effort for fold in finished if fold.row.equal_effort}
    effort, joining = effort_notes(costs, baselines, references), _joining(runs, unseen)
    unseen = with_all_conclusions(unseen, effort, joining, tuple(baselines.values()))
    return ComparisonTables(unseen, validation, costs, published, joining)


def _complete_folds(folds: Sequence[Fold]) -> list[Fold]:
    """Return the finished runs, those of `local` only if all of the same unseen site and seed are finished."""
    incomplete = incomplete_local_runs(fold.planned for fold in folds)
    return [fold for fold in folds if fold.folder.is_finished() and fold.planned.key("unseen") not in incomplete]


def _read(fold: Fold) -> _FinishedRun:
    path, summary = fold.folder.path, fold.folder.read_json("summary.json")
    scoring = scoring_of(summary, path / "summary.json")
    return _FinishedRun(fold, summary, scoring, scoring.read_cases(path / "cases.csv"))


def _joining(runs: Sequence[_FinishedRun], table: Table) -> Joining | None:
    """Return the differences between the federated rows and `local` and `pooled`; None without such rows."""
    if all(run.fold.row.arrangement not in SENT for run in runs):
        return None
    scored = [ScoredRun(run.fold.row, run.fold.site, run.fold.config.seed, run.cases) for run in runs]
    structures = list(dict.fromkeys(block.structure for block in table.blocks))
    return build_joining(scored, runs[-1].scoring, structures, table.data)


def _published_key(run: _FinishedRun) -> CompletedRun:
    """Return what decides which published numbers are comparable (method and settings), with the run's scores."""
    config = run.fold.config
    return CompletedRun(config.method_name, run.fold.row.changes, resolved(config)["method"], run.summary["unseen"])


def _table(runs: Sequence[_FinishedRun], role: str, plan: ComparisonPlan) -> Table:
    """Return the table over the sites of a role ("unseen" or "validation")."""
    results: list[dict] = []
    structures: dict[str, None] = {}
    for fold, summary, scoring, cases in runs:
        rows = [row for row in cases if row["role"] == role]
        structures |= dict.fromkeys(map(scoring.structure_of, rows))
        results.append(
            {
                "method": fold.row.label,
                "row": fold.row,
                "baseline": fold.row.baseline_label(plan.baseline),
                f"{role}_site": getattr(fold.config.federation, f"{role}_site"),
                "seed": fold.config.seed,
                "rows": rows,
                "selection": summary["selection"],
                "data": summary["data"],
                "summary": summary,
                "transductive_by": summary.get("transductive_by", []),
                "unadapted": read_unadapted(fold.folder.path, summary, scoring) if role == "unseen" else (),
            }
        )
    planned = {fold.planned.key(role) for fold in plan.folds}
    table = build_table(results, list(structures), plan.baseline, role, planned)
    left_out = ComparisonFolder.read(plan.out).note()
    return replace(table, notes=(*table.notes, left_out)) if left_out else table
