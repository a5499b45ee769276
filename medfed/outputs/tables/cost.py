"""Cost of a method: computing time of a client and of the coordinator, and transferred bytes, once and in every round.

The table combines Table 6 of StableFDG and Table 8 of FISC. Times depend on the machine and on its load, so compare
methods of one comparison by ratios of times.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean, median
from typing import Any

from medfed.federation.ledger import CONTENTS
from medfed.federation.message import Kind
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import POOLED, SENT, ComparisonRow, is_federated


@dataclass(frozen=True)
class Cost:
    """Cost of one method; None was not measured. Names of seconds end with `_s`; bytes are without validation."""

    train_s: float | None  # of a client in one round, the median over all rounds after the first
    share_s: float | None  # per round, for statistics that a client shares in every round
    once_s: float | None  # of a client, for statistics before the first round and additional time of the first round
    aggregate_s: float | None  # of the coordinator in one round
    up: float | None  # bytes that a client sends in one round; None if nothing is exchanged
    down: float | None  # bytes that a client receives in one round
    up_once: float | None  # bytes that a client sends before the first round
    down_once: float | None
    steps: float | None = None  # optimiser steps of a client in the whole run
    images: float | None = None  # with which all clients trained in the whole run, each as often as it was used
    total_s: float | None = None  # in which all clients shared statistics and trained in the whole run
    sent: str = "updates"  # or "images moved" or "nothing sent"
    up_weights: float | None = 0.0
    up_statistics: float | None = 0.0
    up_facts: float | None = 0.0
    down_weights: float | None = 0.0
    down_statistics: float | None = 0.0
    down_facts: float | None = 0.0


HEAD = {
    "train_s": "train s",
    "share_s": "share s",
    "once_s": "once s",
    "aggregate_s": "aggregate s",
    "up": "up MB",
    "down": "down MB",
    "up_once": "up once kB",
    "down_once": "down once kB",
    "steps": "steps",
    "images": "images",
    "total_s": "total s",
    "sent": "sent",
}
PARTS = {f"{way}_{content}s": f"{way} {content}s kB" for way in ("up", "down") for content in CONTENTS}
SCALE = {"up": 1e-6, "down": 1e-6, "up_once": 1e-3, "down_once": 1e-3, **dict.fromkeys(PARTS, 1e-3)}
BYTES = tuple(SCALE)
NOTE = (
    "seconds and bytes of one client in one round, without those of validation except for the weights that it receives "
    "for it, from which the next round starts; once: needed only once, before or in the first round; steps of one "
    "client, and images and total s of all clients, in the whole run; measured during this comparison, on a machine "
    "that may have had other load"
)
MAX_EXTRA_EFFORT = 1.02  # times the steps or images of the baseline, above which a note says so


def read_cost(folder: RunFolder) -> Cost:
    """Compute the cost of a finished run from its `timings.csv` and `ledger.csv`."""
    timings = folder.timings()
    shares_every_round = sum(row["share"] is not None for row in timings) > 1
    volume, n_once = _bytes(folder, shares_every_round)
    n_sharing = {row["round"]: row["n_clients"] if shares_every_round else n_once for row in timings}
    shared = [row["share"] / max(1, n_sharing[row["round"]]) for row in timings if row["share"] is not None]
    trained = [row["train"] / row["n_clients"] for row in timings if row["n_clients"]]
    train = median(trained[1:] or trained) if trained else None
    steps = [row["n_steps"] / row["n_clients"] if row.get("n_steps") else None for row in timings]
    share = median(shared) if shared else 0.0
    first = trained[0] - train if train is not None else 0.0
    return Cost(
        train_s=train,
        share_s=None if train is None else share * shares_every_round,
        once_s=None if train is None else max(0.0, first) + share * (not shares_every_round),
        aggregate_s=median(row["aggregate"] for row in timings) if timings else None,
        **volume,
        steps=_total(steps),
        images=_total([row.get("n_images") for row in timings]),
        total_s=_total([row["train"] + (row["share"] or 0.0) for row in timings]),
    )


def _total(values: Sequence[float | None]) -> float | None:
    """The sum; None without values, or if one of them is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def costs_by_row(runs: Sequence[tuple[ComparisonRow, str, int, RunFolder]]) -> dict[str, Cost]:
    """Mean cost of the runs of each row (row, unseen site, seed, folder), by the row's label; images and total seconds
    of the row `local` are summed over the models of all sites."""
    folds: dict[tuple[str, str, int], list[Cost]] = {}
    for row, site, seed, folder in runs:
        cost = read_cost(folder)
        if row.arrangement in SENT:
            cost = replace(cost, **dict.fromkeys(BYTES), aggregate_s=None, sent=SENT[row.arrangement])
        folds.setdefault((row.label, site, seed), []).append(cost)
    costs: dict[str, list[Cost]] = {}
    for (label, _, _), of_fold in folds.items():
        images, total_s = (_total([getattr(cost, name) for cost in of_fold]) for name in ("images", "total_s"))
        costs.setdefault(label, []).append(replace(mean_cost(of_fold), images=images, total_s=total_s))
    return {label: mean_cost(costs[label]) for label in sorted(costs, key=lambda label: not is_federated(label))}


def effort_notes(
    costs: Mapping[str, Cost], baselines: Mapping[str, str], references: Mapping[str, str] = {}
) -> list[str]:
    """Notes that compare the optimiser steps and images of each row with those of its baseline; `references` maps the
    label of a row to that of FedAvg of equal effort, which has no note."""
    pooled = []
    groups: dict[tuple[str, str], list[str]] = {}  # the federated rows, by their baseline and effort
    for label, cost in costs.items():
        base = costs.get(baselines[label])
        if base is None or "@" in label or label == baselines[label]:
            continue
        if None in (cost.steps, cost.images, base.steps, base.images):
            continue
        steps, images = cost.steps / base.steps, cost.images / base.images  # type: ignore[operator]
        effort = f"{steps:.2f} times the steps and {images:.2f} times the images"
        if not is_federated(label):
            if cost.sent == SENT[POOLED] and max(steps, images) > MAX_EXTRA_EFFORT:
                pooled.append(
                    f"{label} made {steps:.2f} times the steps of a client of {baselines[label]}, with "
                    f"{images:.2f} times the images of all clients together"
                )
        elif max(steps, images) > MAX_EXTRA_EFFORT:
            what = f"MORE EFFORT than {baselines[label]} ({effort}), from which a gain may come"
            groups.setdefault((baselines[label], what), []).append(label)
        elif min(steps, images) * MAX_EXTRA_EFFORT < 1:
            groups.setdefault((baselines[label], f"LESS EFFORT than {baselines[label]} ({effort})"), []).append(label)
        else:
            groups.setdefault((baselines[label], f"as many steps and images as {baselines[label]}"), []).append(label)
    return [
        *(
            f"{what}: {', '.join(rows)}{_equal_rows(what, rows, costs, references)}"
            for (_, what), rows in groups.items()
        ),
        *pooled,
    ]


def _equal_rows(what: str, rows: Sequence[str], costs: Mapping[str, Cost], references: Mapping[str, str]) -> str:
    """Which rows are FedAvg with as much effort, or how to run them; "" for rows without more effort."""
    if not what.startswith("MORE"):
        return ""
    against = dict.fromkeys(references[row] for row in rows if references.get(row) in costs)
    others = [row for row in rows if references.get(row) not in costs]
    run = [name for row in others if (name := f"fedavg@steps={row}") in costs]
    parts = [f"; the verdict is against {', '.join(against)}"] * bool(against)
    parts += [f"; compare with {', '.join(run)}"] * bool(run)
    parts += ["; FedAvg of equal effort (fedavg@steps=METHOD) was NOT RUN for all of them"] * (len(run) < len(others))
    return "".join(parts)


def _bytes(folder: RunFolder, shares_every_round: bool) -> tuple[dict[str, Any], int]:
    """Mean bytes of a client by direction, and the number of clients that share before the first round. Of the bytes of
    validation, only weights that come down count, because a client does not receive them again for the next round."""
    total = dict.fromkeys(("up", "down", "up_once", "down_once", *PARTS), 0)
    client_rounds: set[tuple[str, str]] = set()
    once_sites: set[str] = set()
    clients = {row["site"] for row in folder.ledger() if row["kind"] == Kind.TRAIN}
    for row in folder.ledger():
        if row["kind"] == Kind.SURVEY or row["site"] not in clients:  # no part of the training
            continue
        if row["kind"] == Kind.VALIDATE:
            if (row["direction"], row["content"]) == ("down", "weight"):
                total["down"] += int(row["bytes"])
                total["down_weights"] += int(row["bytes"])
            continue
        once = row["kind"] == Kind.SHARE and not shares_every_round
        total[row["direction"] + "_once" * once] += int(row["bytes"])
        if once:
            once_sites.add(row["site"])
        else:
            total[f"{row['direction']}_{row['content']}s"] += int(row["bytes"])
            client_rounds.add((row["round"], row["site"]))
    counts = {name: max(1, len(once_sites) if name.endswith("once") else len(client_rounds)) for name in total}
    return {name: n_bytes / counts[name] for name, n_bytes in total.items()}, len(once_sites)


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Mean cost over several runs of one method; a number that is None in any run is None in the result."""
    columns = {f.name: [getattr(cost, f.name) for cost in costs] for f in fields(Cost) if f.name != "sent"}
    means: dict[str, Any] = {name: None if None in values else fmean(values) for name, values in columns.items()}
    return Cost(**means, sent=costs[0].sent)


def cost_rows(costs: Mapping[str, Cost], head: Mapping[str, str] = HEAD) -> list[list[str]]:
    """Rows of text with a header, of the fields in `head`: seconds, MB of one round, other bytes in kB."""
    lines = [["method", *head.values()]]
    for method, cost in costs.items():
        lines.append([method, *(_format_value(name, getattr(cost, name)) for name in head)])
    return lines


def cost_csv(costs: Mapping[str, Cost]) -> str:
    """One line for each method with the fields of `Cost`, in seconds and bytes; an unknown value is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", *HEAD, *PARTS])
    writer.writerows([method, *asdict(cost).values()] for method, cost in costs.items())
    return text.getvalue()


def cost_json(costs: Mapping[str, Cost]) -> str:
    """A list with one dict for each method, with the columns of `cost_csv`."""
    return json.dumps([{"method": method, **asdict(cost)} for method, cost in costs.items()], indent=2) + "\n"


def _format_value(name: str, value: Any) -> str:
    """A field of `Cost` as text in its displayed unit; "-" for None."""
    if value is None:
        return "-"
    if name == "sent":
        return str(value)
    if name in ("steps", "images"):
        return f"{value:.0f}"
    if name.endswith("_s"):
        return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.3f}"
    return f"{value * SCALE[name]:.3f}"
