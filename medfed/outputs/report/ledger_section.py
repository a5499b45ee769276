"""The section about the ledger: what left each site and came to it, for a data-protection officer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medfed.outputs.report.elements import Cell, Table, rows_of_cells
from medfed.outputs.report.ledger_descriptions import HEADINGS, UNKNOWN, describe_entry
from medfed.outputs.report.ledger_totals import ENTRY, MAX_SHAPES, Ledger, LedgerKey, LedgerTotal
from medfed.outputs.report.run_data import Comparison, Run
from medfed.results.row import LOCAL, POOLED, SENT

MAX_LISTED_SITES = 40
WITHOUT_FEDERATION = {
    POOLED: "This run is no federation: it trained on the images of all sites in one place. No update was sent, but "
    "all images would have to move to that place.",
    LOCAL: "This run is no federation: it trained with the images of one site alone, and nothing was sent.",
}
UNITS = ("bytes", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class RunLedger:
    """What was sent to and from the sites in one run, as texts and tables for the report."""

    title: str
    overview: str  # the totals in one paragraph
    unknown: list[str]  # names of tensors that this version has no description of
    sent: Table
    revealed: list[tuple[str, str]]  # (what, what it could reveal about patients)
    received: Table
    by_site: Table


@dataclass(frozen=True)
class ComparisonLedger:
    """What was sent in a comparison: the totals of each method, and all details of the first run of each method."""

    totals: Table
    runs: list[RunLedger]


@dataclass(frozen=True)
class Ledgers:
    """The content of the section "What left the sites"."""

    runs: list[RunLedger]
    comparisons: list[ComparisonLedger]


def format_size(n_bytes: int) -> str:
    """Three digits and a unit, 1 kB is 1000 bytes: 1234 gives "1.23 kB"; 999 gives "999 bytes"."""
    size, unit = float(n_bytes), 0
    while size >= 999.5 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{n_bytes} bytes" if unit == 0 else f"{size:#.3g}".rstrip(".") + f" {UNITS[unit]}"


def run_ledger(run: Run) -> RunLedger:
    """What left the sites in one run: the bytes, each kind of content with its description, and the sums by site."""
    sent, received = (_totals(run.ledger, direction) for direction in ("up", "down"))
    methods = _method_names(run)
    unknown = sorted({key.name for key, _ in sent if describe_entry(key, methods) is UNKNOWN})
    descriptions = dict.fromkeys(describe_entry(key, methods) for key, _ in sent)
    return RunLedger(
        run.title,
        _overview(run),
        unknown,
        _crossing_table(run, sent, "What left the sites", "what left"),
        [(description.title, description.reveals) for description in descriptions],
        _crossing_table(run, received, "What came to the sites", "what came"),
        _table_by_site(run),
    )


def comparison_ledger(comparison: Comparison) -> ComparisonLedger:
    """What left the sites for each federated method, summed over its runs, and details of its first run."""
    first_runs: dict[str, Run] = {}
    for run in comparison.runs:
        if run.is_federated:
            first_runs.setdefault(run.method, run)
    body: list[list[object]] = []
    for method in first_runs:
        runs = [run for run in comparison.runs if run.method == method]
        up, down = (sum(run.ledger.total_bytes(direction) for run in runs) for direction in ("up", "down"))
        keys = [key for run in runs for key in run.ledger.totals if key.direction == "up"]
        names = sorted({key.name for key in keys if key.content == "statistic"})
        sizes = (_size_cell(up // len(runs)), _size_cell(up), _size_cell(down))
        body.append([method, ", ".join(names) or "none", len(runs), *sizes])
    for label, sent in {
        run.row.label: SENT[run.row.arrangement] for run in comparison.runs if not run.is_federated
    }.items():
        n_runs = sum(run.row.label == label for run in comparison.runs)
        body.append([label, f"{sent} (not federated)", n_runs, "-", "-", "-"])
    head = ("method", "left, except weights and facts", "runs", "left, per run", "left, all runs", "came, all runs")
    caption = f"What left the sites by method, over {len(comparison.runs)} runs of {comparison.name}"
    totals = Table(caption, comparison.runs[0].data_label, head, rows_of_cells(body), text_columns=(0, 1))
    return ComparisonLedger(totals, [run_ledger(run) for run in first_runs.values()])


def _overview(run: Run) -> str:
    """Sentences about how many bytes left the sites and came to them in a run."""
    if not run.is_federated:
        return WITHOUT_FEDERATION[run.row.arrangement]
    ledger, federation = run.ledger, run.config.get("federation") or {}
    simulated = (
        "This run simulated all sites on one machine: the ledger counts what a message between them would contain. "
        if federation.get("engine", "in_process") == "in_process"
        else ""
    )
    up, down = (_size_by_content(ledger.bytes_by_content(direction)) for direction in ("up", "down"))
    return (
        f"{simulated}In total {up} left {len(ledger.by_site)} sites and {down} came to them ({ledger.n_rows:,} entries "
        "in ledger.csv, each with its name, shape and size; sizes are those of the numbers themselves). Nothing else "
        "left a site."
    )


def _size_by_content(n_bytes: dict[str, int]) -> str:
    """For example "1.20 MB (model weights 1.19 MB, statistics 10.0 kB, facts 120 bytes)"."""
    parts = ", ".join(f"{heading} {format_size(n_bytes[content])}" for content, heading in HEADINGS.items())
    return f"{format_size(sum(n_bytes.values()))} ({parts})"


def _totals(ledger: Ledger, direction: str) -> list[tuple[LedgerKey, LedgerTotal]]:
    """The totals of a direction: weights first, then statistics, then facts; of each, the largest first."""
    order = list(HEADINGS)
    totals = [(key, total) for key, total in ledger.totals.items() if key.direction == direction]
    return sorted(totals, key=lambda entry: (order.index(entry[0].content), -entry[1].n_bytes, entry[0].name))


def _crossing_table(run: Run, totals: Sequence[tuple[LedgerKey, LedgerTotal]], title: str, column: str) -> Table:
    """One row per kind of content that crossed in one direction: bytes, rounds, and number of sites."""
    body = []
    for key, total in totals:
        description = describe_entry(key, _method_names(run)).title
        name = key.name if key.content != "weight" else ""
        shape = f" ({_shapes(total)})" if key.content == "statistic" and not key.name.endswith(ENTRY) else ""
        what = Cell(description, description, code=name, note=shape)
        body.append([what, _size_cell(total.n_bytes), _when(total, run), HEADINGS[key.content], len(total.sites)])
    head = (column, "in total", "when", "content", "sites")
    caption = f"{title}: {run.method}, unseen {run.unseen}"
    return Table(caption, run.data_label, head, rows_of_cells(body), text_columns=(0, 2, 3))


def _shapes(total: LedgerTotal) -> str:
    """The shapes of a tensor as text, such as "(64,) or (128,)"."""
    shapes = list(total.shapes)
    return " or ".join(shapes[:MAX_SHAPES]) + (" or others" if len(shapes) > MAX_SHAPES else "")


def _when(total: LedgerTotal, run: Run) -> Cell:
    """In which rounds something was sent, such as "every round"; sorted by their number."""
    n, n_rounds = len(total.rounds), run.summary.get("rounds") or len(total.rounds)
    if n == 1:
        text = f"once, round {min(total.rounds)}" if n_rounds > 1 else "once"
    else:
        text = "every round" if n == n_rounds else f"{n} of {n_rounds} rounds"
    return Cell(text, n)


def _table_by_site(run: Run) -> Table:
    by_site = run.ledger.by_site
    body = []
    for site in sorted(by_site)[:MAX_LISTED_SITES]:
        sizes = by_site[site]
        sent = [sizes.get(("up", content), 0) for content in HEADINGS]
        up, down = (sum(n for (way, _), n in sizes.items() if way == direction) for direction in ("up", "down"))
        body.append([site, *map(_size_cell, (*sent, up, down))])
    listed = f", the first {MAX_LISTED_SITES} of {len(by_site)}" if len(by_site) > MAX_LISTED_SITES else ""
    caption = f"Bytes that left each site and that came to it{listed}: {run.method}, unseen {run.unseen}"
    head = ("site", *HEADINGS.values(), "left in total", "came in total")
    return Table(caption, run.data_label, head, rows_of_cells(body))


def _method_names(run: Run) -> list[str]:
    """The run's method, or the methods of a stack."""
    method = run.config.get("method") or {}
    stacked = [part.get("name", "") for part in method.get("methods", []) if isinstance(part, dict)]
    return stacked or [str(run.summary["method"])]


def _size_cell(n_bytes: int) -> Cell:
    return Cell(format_size(n_bytes), n_bytes)
