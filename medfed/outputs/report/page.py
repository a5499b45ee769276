"""The page: its parts in order, in one file that needs no network and allows itself none."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from medfed.outputs.report import (
    charts,
    configuration_section,
    cost_table,
    figures,
    ledger_section,
    published_section,
    reproduce_section,
    score_tables,
)
from medfed.outputs.report.markup import Markup, in_script_or_style, join, lines, tag
from medfed.outputs.report.run_data import Comparison, Run
from medfed.outputs.tables.comparison import PHANTOM

STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
Section = tuple[str, str, Markup]  # anchor, heading, content


def build_page(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> str:
    """The whole page as text: the same for the same folders.

    Args:
        runs: those named one by one.
        comparisons: each with its runs.
    """
    compared = [run for found in comparisons for run in found.runs]
    everything = list({run.path: run for run in (*runs, *compared)}.values())
    budget = figures.Budget()
    sections = [_comparison_section(found, place, budget) for place, found in enumerate(comparisons, start=1)]
    sections += [_run_section(run, place, budget) for place, run in enumerate(runs, start=1)]
    sections += [
        _ledger(runs, comparisons),
        ("repeat", "How to repeat it", reproduce_section.section(runs, comparisons)),
    ]
    first = ("what", "What was run", configuration_section.section(everything, comparisons, budget.left_out))
    return _document(_title(everything), _banner(everything), [first, *sections])


def _comparison_section(found: Comparison, place: int, budget: figures.Budget) -> Section:
    name, said = f"Comparison: {found.name}", []
    if found.why_no_table:
        why = tag("p", f"These runs are not compared: {found.why_no_table}.", class_="warning")
        return f"comparison-{place}", name, why
    if found.n_unfinished:
        said.append(tag("p", f"Not finished and not shown: {found.n_unfinished} of its runs.", class_="warning"))
    content = lines(
        *said, *score_tables.compared(found),
        _part("By unseen site", charts.heat_maps(found), "maps"),
        _part("Case by case", charts.boxes_of_comparison(found), "charts", charts.BOXES),
        _part("Training", charts.curves_of_comparison(found), "charts"),
        _part("Unseen cases, method beside method", figures.side_by_side(found, budget)),
        _part("Cost", cost_table.section(found)),
        _part("As published", published_section.section(found)),
    )  # fmt: skip
    return f"comparison-{place}", name, content


def _run_section(run: Run, place: int, budget: figures.Budget) -> Section:
    content = lines(
        score_tables.scores_of_run(run),
        _part("Case by case", charts.boxes_of_run(run), "charts", charts.BOXES),
        _part("Training", charts.curves_of_run(run), "charts"),
        _part("Figures", figures.of_run(run, budget)),
    )
    return f"run-{place}", f"Run: {run.title}", content


def _ledger(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> Section:
    parts = [lines(tag("h3", run.title) if len(runs) > 1 else None, ledger_section.of_run(run)) for run in runs]
    parts += [ledger_section.of_comparison(found) for found in comparisons if found.is_a_folder]
    return "ledger", "What left the hospitals", lines(*parts)


def _part(heading: str, content: Sequence[Markup], class_: str | None = None, note: str | None = None) -> Markup | None:
    if not content:
        return None
    said = note and tag("p", note, class_="note")
    return lines(tag("h3", heading), said, tag("div", "\n", lines(*content), "\n", class_=class_))


def _title(runs: Sequence[Run]) -> str:
    methods, datasets = (list(dict.fromkeys(found)) for found in (
        [run.method for run in runs], [run.summary.get("dataset", "") for run in runs]))  # fmt: skip
    shown = ", ".join(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return f"{shown} on {' and '.join(filter(None, datasets)) or 'unnamed data'}"


def _banner(runs: Sequence[Run]) -> Markup:
    kinds = {run.summary["data"] for run in runs}
    if kinds == {"phantom"}:
        return tag("p", PHANTOM, class_="banner phantom")
    said = "REAL data: the figures below show images of patients; keep this page as you keep those."
    mixed = " Some runs are of PHANTOM data: each caption says which." if "phantom" in kinds else ""
    return tag("p", said + mixed, class_="banner")


def _document(title: str, banner: Markup, sections: Sequence[Section]) -> str:
    style = in_script_or_style(STYLE.read_text(encoding="utf-8"), "style")
    script = in_script_or_style(SCRIPT.read_text(encoding="utf-8"), "script")
    allowed = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    head = lines(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=f"{allowed}; base-uri 'none'; form-action 'none'"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"medfed report: {title}"),
        tag("link", rel="icon", href="data:,"),
        tag("style", style),
    )
    contents = tag("nav", tag("ol", *(tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name, _ in sections)),
                   aria_label="Contents")
    body = lines(
        tag("a", "To the content", href="#what", class_="skip"),
        tag("header", tag("p", "medfed report", class_="kind"), tag("h1", title), banner, contents),
        tag("main", *(join("\n", _section(*found)) for found in sections), "\n"),
        tag("script", script),
    )
    page = tag("html", "\n", tag("head", "\n", head, "\n"), "\n", tag("body", "\n", body, "\n"), "\n", lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _section(anchor: str, name: str, content: Markup) -> Markup:
    heading = tag("h2", name, id=f"{anchor}-name")
    return tag("section", "\n", lines(heading, content), "\n", id=anchor, aria_labelledby=f"{anchor}-name")


def _hash(text: str) -> str:
    """As a content security policy names the one script, or style sheet, that may act."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
