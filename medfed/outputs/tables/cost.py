"""Cost of a method: computing time of a client and of the coordinator, and transferred bytes, once and in every round.

The table combines Table 6 of StableFDG and Table 8 of FISC. Times depend on the machine and on its other load, so
ratios between methods of one comparison are more meaningful than the times themselves.
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
    """Cost of one method: seconds and bytes of one client, and seconds of the coordinator.

    A time is None if it was not measured. Bytes do not include validation.

    Args:
        train_s: training time of a client in one round, in seconds; the median over all rounds after the first.
        share_s: time for statistics that a client shares in every round, in seconds for each round.
        once_s: time that a client needs only once, in seconds: for statistics that it shares before the first round,
            and for the additional time of its first round.
        aggregate_s: time of the coordinator in one round, in seconds.
        up: bytes that a client sends in one round.
        down: bytes that a client receives in one round.
        up_once: bytes that a client sends before the first round.
        down_once: bytes that a client receives before the first round.
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
NOTE = ("seconds and bytes of one client in one round, without validation; once: needed only once, before or in the "
        "first round; measured during this comparison, on a machine that may have had other load")  # fmt: skip



def read_cost(folder: RunFolder) -> Cost:
    """Compute the cost of a run (times and transferred bytes) from the files `timings.csv` and `ledger.csv` of the run.

    Args:
        folder: folder of a finished run.
    """
    timings = folder.timings()
    shares_every_round = sum(row["share"] is not None for row in timings) > 1
    volume, n_once = _bytes(folder, shares_every_round)
    n_sharing = {row["round"]: row["n_clients"] if shares_every_round else n_once for row in timings}
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
    """Return the mean bytes of a client by direction, and the number of clients that share before the first round."""
    total = dict.fromkeys(("up", "down", "up_once", "down_once"), 0)
    client_rounds: set[tuple[str, str]] = set()
    once_sites: set[str] = set()
    for row in folder.ledger():
        if row["kind"] == "validate":
            continue
        once = row["kind"] == "share" and not shares_every_round
        total[row["direction"] + "_once" * once] += int(row["bytes"])
        if once:
            once_sites.add(row["site"])
        else:
            client_rounds.add((row["round"], row["site"]))
    counts = {name: max(1, len(once_sites) if name.endswith("once") else len(client_rounds)) for name in total}
    return {name: n_bytes / counts[name] for name, n_bytes in total.items()}, len(once_sites)


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Return the mean cost over several runs of one method: the mean of each time and of each number of bytes.

    Args:
        costs: cost of each run, at least one. A time that is None in any run is None in the result.
    """
    columns = {f.name: [getattr(cost, f.name) for cost in costs] for f in fields(Cost)}
    means: dict[str, Any] = {
        name: None if None in values else fmean(values) for name, values in columns.items()
    }
    return Cost(**means)


def cost_rows(costs: Mapping[str, Cost]) -> list[list[str]]:
    """Return the costs of methods as rows of text: a header row, then one row for each method.

    The first column is the name of the method. The other columns are the fields of `Cost` in their order:

    * times, in seconds; an unknown time is "-",
    * bytes of one round (`up`, `down`), in MB,
    * bytes before the first round (`up_once`, `down_once`), in kB.

    Args:
        costs: dictionary from the name of a method in the table to its cost.
    """
    lines = [["method", *HEAD.values()]]
    for method, cost in costs.items():
        lines.append([method, *(_format_value(name, value) for name, value in asdict(cost).items())])
    return lines


def cost_csv(costs: Mapping[str, Cost]) -> str:
    """Format the costs of methods as CSV text: a header line, then one line for each method.

    The columns are the name of the method and the fields of `Cost` in their order. Times are in seconds and sizes in
    bytes. An unknown time is an empty field.

    Args:
        costs: dictionary from the name of a method in the table to its cost.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", *HEAD])
    writer.writerows([method, *asdict(cost).values()] for method, cost in costs.items())
    return text.getvalue()


def _format_value(name: str, value: float | None) -> str:
    """Format one value in the unit of its column; "-" if it is unknown."""
    if value is None:
        return "-"
    if name.endswith("_s"):
        return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.3f}"
    return f"{value * SCALE[name]:.3f}"
