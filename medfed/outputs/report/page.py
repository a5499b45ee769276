"""The page of runs and comparisons: its sections in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medfed.outputs.report import charts
from medfed.outputs.report.configuration_section import describe_configuration
from medfed.outputs.report.cost_table import cost_table
from medfed.outputs.report.elements import Chart, EmbeddedImage, Section, Table
from medfed.outputs.report.embedded_figures import FigureBudget, MethodStack, figures_by_method, run_figures
from medfed.outputs.report.html import SCRIPT, STYLE, render_page
from medfed.outputs.report.ledger_section import Ledgers, comparison_ledger, run_ledger
from medfed.outputs.report.published_section import Published, published_tables
from medfed.outputs.report.reproduce_section import recipes_for
from medfed.outputs.report.run_data import Comparison, Run
from medfed.outputs.report.score_tables import (
    comparison_tables_of,
    run_failure_table,
    run_score_table,
)
from medfed.results.notes import PHANTOM
from medfed.results.render import notes_and_conclusions

REAL = "REAL data: the figures below show images of patients. Protect this page as you protect these images."
MIXED = " Some runs are of PHANTOM data: each caption says which."


@dataclass(frozen=True)
class RunResults:
    """The content of the section about one run; `failures` is None without any."""

    scores: Table
    failures: Table | None
    boxes: list[Chart]
    curves: list[Chart]
    figures: list[EmbeddedImage]
    box_note: str = charts.BOX_NOTE


@dataclass(frozen=True)
class ComparisonResults:
    """The content of the section about one comparison; a part is None or empty if the runs do not have it."""

    warnings: list[str]
    conclusions: Sequence[str] = ()
    tables: Sequence[Table] = ()
    boxes: Sequence[Chart] = ()
    curves: Sequence[Chart] = ()
    figures: dict[str, list[MethodStack]] | None = None  # of predictions, by unseen site
    cost: Table | None = None
    published: Published | None = None
    box_note: str = charts.BOX_NOTE


def build_page(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> str:
    """The report as one HTML page; the same runs and comparisons give the same text."""
    compared = [run for comparison in comparisons for run in comparison.runs]
    all_runs = list({run.path: run for run in (*runs, *compared)}.values())
    budget = FigureBudget()
    results = [_comparison_section(comparison, place, budget) for place, comparison in enumerate(comparisons, start=1)]
    results += [_run_section(run, place, budget) for place, run in enumerate(runs, start=1)]
    ledgers = Ledgers(
        [run_ledger(run) for run in runs],
        [comparison_ledger(comparison) for comparison in comparisons if comparison.is_a_folder],
    )
    sections = [
        *results,
        Section(
            "configuration",
            "What was run",
            "configuration.html.jinja",
            describe_configuration(all_runs, budget.left_out),
        ),
        Section("ledger", "What left the sites", "ledger.html.jinja", ledgers),
        Section("reproduce", "How to repeat it", "reproduce.html.jinja", recipes_for(runs, comparisons)),
    ]
    kinds = {run.summary["data"] for run in all_runs}
    banner = PHANTOM if kinds == {"phantom"} else REAL + (MIXED if "phantom" in kinds else "")
    return render_page(
        "frame.html.jinja",
        STYLE.read_text(encoding="utf-8"),
        SCRIPT.read_text(encoding="utf-8"),
        kind="medfed report",
        title=_title(all_runs),
        banner=banner,
        is_phantom=kinds == {"phantom"},
        sections=sections,
    )


def _comparison_section(comparison: Comparison, place: int, budget: FigureBudget) -> Section:
    """The section of the page with the tables and figures of a comparison; `place` counts the sections."""
    anchor, heading = f"comparison-{place}", f"Comparison: {comparison.name}"
    if comparison.table is None:
        content = ComparisonResults([f"These runs are not compared: {comparison.why_no_table}."])
    else:
        n = comparison.n_unfinished
        content = ComparisonResults(
            [f"Not finished and not shown: {n} of its runs."] * bool(n),
            notes_and_conclusions(comparison.table),
            comparison_tables_of(comparison),
            charts.comparison_boxes(comparison, anchor),
            charts.comparison_curves(comparison, anchor),
            figures_by_method(comparison, budget),
            cost_table(comparison),
            published_tables(comparison.runs[0].config.get("data"), comparison.table),
        )
    return Section(anchor, heading, "comparison.html.jinja", content)


def _run_section(run: Run, place: int, budget: FigureBudget) -> Section:
    """The section of the page with the scores and figures of a run; `place` counts the sections."""
    anchor = f"run-{place}"
    boxes, curves = charts.run_boxes(run, anchor), charts.run_curves(run, anchor)
    content = RunResults(run_score_table(run), run_failure_table(run), boxes, curves, run_figures(run, budget))
    return Section(anchor, f"Run: {run.title}", "run.html.jinja", content)


def _title(runs: Sequence[Run]) -> str:
    methods = list(dict.fromkeys(run.row_label for run in runs))
    datasets = list(filter(None, dict.fromkeys(run.summary.get("dataset", "") for run in runs)))
    named = ", ".join(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return f"{named} on {' and '.join(datasets) or 'unnamed data'}"
