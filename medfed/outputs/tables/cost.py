"""What a method costs: seconds at a client and at the coordinator, and bytes on the wire, once and in every round.

StableFDG's Table 6 and FISC's Table 8 in one. Seconds are of the machine that ran, with whatever else it did; ratios
between methods of one comparison say more than they do.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean, median
from typing import Any

from medfed.outputs.run_folder import RunFolder


@dataclass(frozen=True)
class Cost:
    """A client's and the coordinator's cost under one method; None where it was not measured.

    train_s: of a client in a round after its first; share_s: of what it shares in every round.
    once_s: what a client does once: what it shares before the first round, and what its first round takes beyond the
        others.
    aggregate_s: of the coordinator in a round.
    up, down: bytes of a client in a round, apart from validation; up_once, down_once: in what goes before the first.
    """

    train_s: float | None
    share_s: float | None
    once_s: float | None
    aggregate_s: float | None
    up: float
    down: float
    up_once: float
    down_once: float


HEAD = {"train_s": "train s", "share_s": "share s", "once_s": "once s", "aggregate_s": "aggregate s", "up": "up MB",
        "down": "down MB", "up_once": "up once kB", "down_once": "down once kB"}  # fmt: skip
SCALE = {"up": 1e-6, "down": 1e-6, "up_once": 1e-3, "down_once": 1e-3}
NOTE = ("a client's seconds and bytes in a round, beside validation; once: before the first round, and what that takes "
        "beyond the others; measured in this comparison, on a machine that may have been busy")  # fmt: skip


def read_cost(folder: RunFolder) -> Cost:
    """From a run's `timings.csv` and `ledger.csv`."""
    timings = folder.timings()
    shares_every_round = sum(row["share"] is not None for row in timings) > 1
    volume, n_once = _bytes(folder, shares_every_round)
    n_sharing = {row["round"]: row["n_clients"] if shares_every_round else n_once for row in timings}  # once: all sites
    shared = [row["share"] / max(1, n_sharing[row["round"]]) for row in timings if row["share"] is not None]
    trained = [row["train"] / row["n_clients"] for row in timings if row["n_clients"]]
    train = median(trained[1:] or trained) if trained else None
    share = median(shared) if shared else 0.0
    first = trained[0] - train if train is not None else 0.0
    return Cost(
        train_s=train,
        share_s=None if train is None else share * shares_every_round,
        once_s=None if train is None else max(0.0, first) + share * (not shares_every_round),
        aggregate_s=median(row["aggregate"] for row in timings) if timings else None,
        **volume,
    )


def _bytes(folder: RunFolder, shares_every_round: bool) -> tuple[dict[str, float], int]:
    """Of a client, by direction; and how many shared before the first round."""
    total = dict.fromkeys(("up", "down", "up_once", "down_once"), 0)
    letters: set[tuple[str, str]] = set()
    once_sites: set[str] = set()
    for row in folder.ledger():
        if row["kind"] == "validate":
            continue
        once = row["kind"] == "share" and not shares_every_round
        total[row["direction"] + "_once" * once] += int(row["bytes"])
        if once:
            once_sites.add(row["site"])
        else:
            letters.add((row["round"], row["site"]))
    counts = {name: max(1, len(once_sites) if name.endswith("once") else len(letters)) for name in total}
    return {name: found / counts[name] for name, found in total.items()}, len(once_sites)


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Over the runs of one method."""
    columns = {f.name: [getattr(cost, f.name) for cost in costs] for f in fields(Cost)}
    means: dict[str, Any] = {name: None if None in found else fmean(found) for name, found in columns.items()}
    return Cost(**means)


def cost_rows(costs: Mapping[str, Cost]) -> list[list[str]]:
    """Head and a line a method, as text."""
    lines = [["method", *HEAD.values()]]
    for method, cost in costs.items():
        lines.append([method, *(_told(name, value) for name, value in asdict(cost).items())])
    return lines


def cost_csv(costs: Mapping[str, Cost]) -> str:
    """A line a method; seconds and bytes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", *HEAD])
    writer.writerows([method, *asdict(cost).values()] for method, cost in costs.items())
    return text.getvalue()


def _told(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("_s"):
        return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.3f}"
    return f"{value * SCALE[name]:.3f}"
