"""What left the sites of a run and came to them, from its ledger, for a data-protection officer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from medfed.core.errors import UserError
from medfed.core.registry import resolve
from medfed.federation.ledger import COLUMNS, CONTENTS
from medfed.federation.sent import UNKNOWN, Sent, describe, sent_in_stack
from medfed.outputs.report.read import ReportRun
from medfed.outputs.report.tables import PageTable
from medfed.results.notes import NOT_STATED
from medfed.results.row import LOCAL, POOLED
from medfed.results.text_tables import text_table

MAX_SITES = 40  # rows of the table of sites
MAX_SHAPES = 3
HEADINGS = {"weight": "model weights", "statistic": "statistics", "fact": "facts"}
WITHOUT_FEDERATION = {
    POOLED: "This run is no federation: it trained on the images of all sites in one place. No update was sent, but "
    "all images would have to move to that place.",
    LOCAL: "This run is no federation: it trained with the images of one site alone, and nothing was sent.",
}
KEPT_ENTRIES = (
    "The ledger does not count the entries of the network that stay at the sites, but the model of this run has "
    "averages of them: in a federation of hospitals, each site must agree to send its entries once, at the end."
)


def sent_of_run(run: ReportRun) -> dict[str, Any]:
    """The texts and tables about one run: totals, what left and what it could reveal, what came, and bytes by site."""
    table, declared = pd.DataFrame(run.folder.ledger(), columns=COLUMNS), _declared(run)
    table = table.astype({"round": int, "bytes": int})
    rows = []
    for (direction, kind, content, name), own in table.groupby(["direction", "kind", "content", "name"], sort=False):
        sent = describe({"direction": direction, "kind": kind, "content": content, "name": name}, declared)
        rows.append((direction, kind, content, name, sent, own))
    rows.sort(key=lambda row: (CONTENTS.index(row[2]), -row[5].bytes.sum()))
    left = [row for row in rows if row[0] == "up"]
    return {
        "overview": _overview(run, table),
        "unknown": sorted({name for _, _, _, name, sent, _ in left if UNKNOWN in sent}),
        "revealed": list(dict.fromkeys((one.title, one.reveals) for *_, sent, _ in left for one in sent)),
        "left": _crossing_table(run, left, "What left the sites"),
        "came": _crossing_table(run, [row for row in rows if row[0] == "down"], "What came to the sites"),
        "by_site": _table_by_site(table),
    }


def kilobytes(n_bytes: float) -> str:
    """1 kB is 1000 bytes: 1234 gives "1.23"."""
    return f"{n_bytes / 1000:,.2f}"


def _declared(run: ReportRun) -> Mapping[str, Sent]:
    """What the run's method declares; nothing of a method whose code may not be imported here."""
    settings: Mapping[str, Any] = run.config.get("method") or {}
    if methods := settings.get("methods"):
        return sent_in_stack([_sent_of(str(one.get("name"))) for one in methods])
    return _sent_of(str(settings.get("name", run.summary["method"])))


def _sent_of(method: str) -> Mapping[str, Sent]:
    try:
        sent: Mapping[str, Sent] = resolve("methods", method).sent
        return sent
    except UserError:
        return {}


def _overview(run: ReportRun, table: pd.DataFrame) -> str:
    """Sentences about how many bytes left the sites and came to them."""
    if not run.is_federated:
        return WITHOUT_FEDERATION[run.row.arrangement]
    engine = (run.config.get("federation") or {}).get("engine", "in_process")
    is_simulated = engine == "in_process" and run.summary["data"] != NOT_STATED
    start = "This run simulated all sites on one machine: the ledger counts what a message between them would contain. "
    sums = table.groupby(["direction", "content"]).bytes.sum()
    texts = []
    for direction in ("up", "down"):
        own = {heading: sums.get((direction, content), 0) for content, heading in HEADINGS.items()}
        parts = ", ".join(f"{heading} {kilobytes(n)} kB" for heading, n in own.items())
        texts.append(f"{kilobytes(sum(own.values()))} kB ({parts})")
    end = KEPT_ENTRIES if run.summary.get("sites_kept_entries") else "Nothing else left a site."
    return (
        f"{start * is_simulated}In total {texts[0]} left {table.site.nunique()} sites, and {texts[1]} came to them "
        f"({len(table):,} rows in ledger.csv; sizes are those of the numbers themselves). {end}"
    )


def _crossing_table(
    run: ReportRun, rows: Sequence[tuple[str, str, str, str, list[Sent], pd.DataFrame]], title: str
) -> PageTable:
    """One row for each kind of message and content that crossed in one direction."""
    body = []
    for direction, kind, content, name, sent, own in rows:
        received = [one.received if direction == "down" else "" for one in sent]
        what = "; ".join(", ".join(filter(None, (one.title, more))) for one, more in zip(sent, received, strict=True))
        if content == "statistic":
            shapes = [shape or "several shapes" for shape in own["shape"].unique()]
            more = " or others" * (len(shapes) > MAX_SHAPES)
            what += f": {name} ({' or '.join(shapes[:MAX_SHAPES])}{more})"
        n, n_rounds = own["round"].nunique(), run.summary.get("rounds")
        when = (
            "every round" if n == n_rounds else f"{n} of {n_rounds} rounds" if n > 1 else f"round {own['round'].min()}"
        )
        body.append([what, HEADINGS[content], kind, when, kilobytes(own.bytes.sum()), str(own.site.nunique())])
    head = ("what", "content", "message", "when", "in total (kB)", "sites")
    return PageTable(text_table(title, head, body, n_words=4))


def _table_by_site(table: pd.DataFrame) -> PageTable:
    columns = pd.MultiIndex.from_product([("up", "down"), CONTENTS])
    sums = table.groupby(["site", "direction", "content"]).bytes.sum().unstack(["direction", "content"])
    sums = sums.reindex(columns=columns).fillna(0)
    body = [
        [site, *map(kilobytes, sizes["up"]), kilobytes(sizes["down"].sum())]
        for site, sizes in sums.head(MAX_SITES).iterrows()
    ]
    listed = f", the first {MAX_SITES} of {len(sums)}" * (len(sums) > MAX_SITES)
    head = ("site", *(f"{heading} left (kB)" for heading in HEADINGS.values()), "came (kB)")
    return PageTable(text_table(f"Bytes by site{listed}", head, body))
