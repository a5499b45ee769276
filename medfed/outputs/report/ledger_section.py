"""The ledger as a part of the page that a data-protection officer can read."""

from __future__ import annotations

from collections.abc import Sequence

from medfed.outputs.report.blocks import Cell, table_block
from medfed.outputs.report.ledger_descriptions import GROUPS, UNKNOWN, words_for
from medfed.outputs.report.ledger_totals import MOST_SHAPES, NORMALISATION, WEIGHTS, Key, Ledger, Sum
from medfed.outputs.report.markup import Markup, lines, tag
from medfed.outputs.report.run_data import Comparison, Run

MOST_LISTED = 40  # sites with a line of their own
UNITS = ("bytes", "kB", "MB", "GB", "TB")


def format_size(n_bytes: int) -> str:
    """1234 as "1.23 kB": three digits, powers of 1000."""
    size, unit = float(n_bytes), 0
    while size >= 999.5 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{n_bytes} bytes" if unit == 0 else f"{size:#.3g}".rstrip(".") + f" {UNITS[unit]}"


def of_run(run: Run) -> Markup:
    """What left each site of a run, what came down, and how much by site."""
    ledger = run.ledger
    up, down = (_by_direction(ledger, direction) for direction in ("up", "down"))
    unknown = sorted({key.name for key, _ in up if words_for(key, _methods(run)) is UNKNOWN})
    return lines(
        tag("p", _in_all(run)),
        tag("p", f"No sentence is known for: {', '.join(unknown)}. Find out what it holds before you release it.",
            class_="warning") if unknown else None,
        _crossing(run, up, "What left the hospitals", "what left"),
        _revealed(run, up),
        _crossing(run, down, "What came to the hospitals", "what came"),
        _sites(run),
    )


def of_comparison(comparison: Comparison) -> Markup:
    """What left in all runs by method, then the first run of each method in full."""
    first: dict[str, Run] = {}
    for run in comparison.runs:
        first.setdefault(run.method, run)
    body = []
    for method in first:
        runs = [run for run in comparison.runs if run.method == method]
        up, down = (sum(run.ledger.total(direction) for run in runs) for direction in ("up", "down"))
        names = sorted({key.name for run in runs for key in run.ledger.sums if key.direction == "up" and _is_own(key)})
        body.append([method, ", ".join(names) or "none", len(runs), _size(up // len(runs)), _size(up), _size(down)])
    head = ("method", "left besides weights and facts", "runs", "left, a run", "left, all runs", "came, all runs")
    details = [
        tag("details", tag("summary", f"Everything that crossed in one run: {run.title}"), of_run(run))
        for run in first.values()
    ]
    caption = f"What left the hospitals by method, over {len(comparison.runs)} runs of {comparison.name}"
    return lines(table_block(caption, comparison.runs[0].data_label, head, body, texts=(0, 1)), *details)


def _in_all(run: Run) -> str:
    ledger, federation = run.ledger, run.config.get("federation") or {}
    simulated = federation.get("engine", "in_process") == "in_process"
    said = "This run simulated all sites on one machine: the ledger counts what crossed between them as bytes. "
    up, down = (format_size(ledger.total(direction)) for direction in ("up", "down"))
    return (
        f"{said if simulated else ''}In all {up} left {len(ledger.by_site)} sites and {down} came to them "
        f"({ledger.n_rows:,} entries in ledger.csv, each with its name, shape and size; sizes are of the numbers "
        "themselves). What is not listed here did not cross."
    )


def _by_direction(ledger: Ledger, direction: str) -> list[tuple[Key, Sum]]:
    """Weights first, then statistics, then facts; the largest first."""
    order = list(GROUPS)
    found = [(key, total) for key, total in ledger.sums.items() if key.direction == direction]
    return sorted(found, key=lambda entry: (order.index(entry[0].group), -entry[1].n_bytes, entry[0].name))


def _crossing(run: Run, found: Sequence[tuple[Key, Sum]], title: str, column: str) -> Markup:
    body = []
    for key, total in found:
        words = words_for(key, _methods(run))
        name = tag("code", key.name) if key.group == "fact" or _is_own(key) else None
        shape = f" ({_shapes(total)})" if key.group == "tensor" else ""
        what = Cell(tag("span", words.title, tag("br") if name else None, name, shape), words.title)
        body.append([what, _size(total.n_bytes), _when(total, run), GROUPS[key.group], len(total.sites)])
    head = (column, "in all", "when", "group", "sites")
    return table_block(f"{title}: {run.method}, unseen {run.unseen}", run.data_label, head, body, texts=(0, 2, 3))


def _shapes(total: Sum) -> str:
    shown = list(total.shapes)[:MOST_SHAPES]
    return " or ".join(shown) + (" or others" if len(total.shapes) > MOST_SHAPES else "")


def _revealed(run: Run, found: Sequence[tuple[Key, Sum]]) -> Markup:
    """What each kind of thing could tell about people, once each."""
    told = dict.fromkeys(words_for(key, _methods(run)) for key, _ in found)
    rows = (tag("div", tag("dt", words.title), tag("dd", words.reveals)) for words in told)
    return lines(tag("h4", "What it could reveal"), tag("dl", "\n", lines(*rows), "\n", class_="facts"))


def _is_own(key: Key) -> bool:
    """Whether the method sends it, beyond the weights and facts of every method."""
    return key.group == "tensor" or (key.group == "weights" and key.name not in (WEIGHTS, NORMALISATION))


def _when(total: Sum, run: Run) -> Cell:
    n, of = len(total.rounds), run.summary.get("rounds") or len(total.rounds)
    if n == 1:
        text = f"once, round {min(total.rounds)}" if of > 1 else "once"
    else:
        text = "every round" if n == of else f"{n} of {of} rounds"
    return Cell(text, n)


def _sites(run: Run) -> Markup:
    by_site = run.ledger.by_site
    groups = [("up", group) for group in GROUPS]
    head = ("site", *(GROUPS[group] for _, group in groups), "left in all", "came in all")
    body = []
    for site in sorted(by_site)[:MOST_LISTED]:
        found = by_site[site]
        sums = [sum(n for (way, _), n in found.items() if way == direction) for direction in ("up", "down")]
        body.append([site, *(_size(found.get(group, 0)) for group in groups), *map(_size, sums)])
    shown = f", the first {MOST_LISTED} of {len(by_site)}" if len(by_site) > MOST_LISTED else ""
    caption = f"Bytes that left each hospital, and that came to it{shown}: {run.method}, unseen {run.unseen}"
    return table_block(caption, run.data_label, head, body)


def _methods(run: Run) -> list[str]:
    method = run.config.get("method") or {}
    stacked = [part.get("name", "") for part in method.get("methods", []) if isinstance(part, dict)]
    return stacked or [str(run.summary["method"])]


def _size(n_bytes: int) -> Cell:
    return Cell(format_size(n_bytes), n_bytes)
