"""Cost of a method: computing time of a client and of the coordinator, and transferred bytes, once and in every round.

The table combines Table 6 of StableFDG and Table 8 of FISC. Times depend on the machine and on its load, so compare
methods of one comparison by ratios of times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from medfed.federation.message import Kind
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import SENT, ComparisonRow, is_compared, is_federated

Cost = dict[str, Any]  # by the keys of HEAD, in seconds and bytes; None was not measured
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
SCALE = {"MB": 1e-6, "kB": 1e-3}
BYTES = ["up", "down", "up_once", "down_once"]
NOTE = (
    "seconds and bytes of one client in one round, without those of validation except for the weights that it receives "
    "for it, from which the next round starts; once: needed only once, before or in the first round; steps of one "
    "client, and images and total s of all clients, in the whole run; measured during this comparison, on a machine "
    "that may have had other load"
)
MAX_EXTRA_EFFORT = 1.02  # times the steps or images of the baseline, above which a note says so


def read_cost(folder: RunFolder) -> Cost:
    """The cost of a finished run from its `timings.csv` and `ledger.csv`, without `sent`.

    Times are medians of the rounds; what the first training takes more counts as `once_s`.
    """
    names = ["round", "n_clients", "share", "train", "aggregate", "n_steps", "n_images"]
    timings = pd.DataFrame(folder.timings(), columns=names, dtype=float).set_index("round")
    shares_every_round = timings.share.count() > 1
    volume, n_once = _bytes(folder, shares_every_round)
    n_clients = timings.n_clients.where(timings.n_clients > 0)
    share = (timings["share"] / (timings.n_clients.clip(lower=1) if shares_every_round else max(1, n_once))).median()
    trained = (timings.train / n_clients).dropna()
    train = trained.iloc[int(len(trained) > 1) :].median()
    extra = max(0.0, trained.iloc[0] - train) if len(trained) else train
    share = 0.0 if pd.isna(share) else share
    cost = {
        "train_s": train,
        "share_s": share * shares_every_round + 0 * train,  # unknown without times of training
        "once_s": share * (not shares_every_round) + extra,
        "aggregate_s": timings["aggregate"].median(),
        **volume,
        "steps": _total(timings.n_steps.where(timings.n_steps > 0) / n_clients),
        "images": _total(timings.n_images),
        "total_s": _total(timings.train + timings.share.fillna(0)),
    }
    return {name: None if pd.isna(value) else float(value) for name, value in cost.items()}


def _total(values: pd.Series) -> float:
    """The sum; NaN without values, or if one of them is unknown."""
    return values.sum(skipna=False, min_count=1)


def _mean(values: pd.Series) -> float:
    """The mean; NaN if a value is unknown."""
    return values.mean(skipna=False)


def _bytes(folder: RunFolder, shares_every_round: bool) -> tuple[dict[str, float], int]:
    """Mean bytes of a client by direction, and the number of clients that share before the first round.

    Of validation, only weights that come down count, because a client does not receive them again for the next round.
    """
    names = ["round", "site", "direction", "kind", "content", "bytes"]
    ledger = pd.DataFrame(folder.ledger(), columns=names).astype({"bytes": float})
    is_validated = ledger.kind == Kind.VALIDATE
    is_kept = ~is_validated | ((ledger.direction == "down") & (ledger.content == "weight"))
    is_training = ledger.site.isin(ledger.site[ledger.kind == Kind.TRAIN]) & (ledger.kind != Kind.SURVEY)
    is_once = is_training & (ledger.kind == Kind.SHARE) & (not shares_every_round)
    every, once = ledger[is_training & is_kept & ~is_once], ledger[is_once]
    n_rounds = len(every.loc[~is_validated, ["round", "site"]].drop_duplicates())
    n_once = once.site.nunique()
    volume = {}
    for end, own, n in (("", every, n_rounds), ("_once", once, n_once)):
        for way in ("up", "down"):
            volume[way + end] = own.bytes[own.direction == way].sum() / max(1, n)
    return volume, n_once


def costs_by_row(runs: Sequence[tuple[ComparisonRow, str, int, RunFolder]]) -> dict[str, Cost]:
    """Mean cost of the runs of each row (row, unseen site, seed, folder), those without a federation last.

    Images and total seconds of the row `local` are summed over the models of all sites.
    """
    if not runs:
        return {}
    names = [(row.label, row.arrangement, site, seed) for row, site, seed, _ in runs]
    table = pd.DataFrame([read_cost(folder) for *_, folder in runs], pd.MultiIndex.from_tuples(names), dtype=float)
    models = table.groupby(level=[0, 1, 2, 3], sort=False)
    folds = models.agg(_mean).assign(**models[["images", "total_s"]].agg(_total))
    costs: dict[str, Cost] = {}
    for (label, arrangement), own in folds.groupby(level=[0, 1], sort=False).agg(_mean).iterrows():
        sent = SENT.get(arrangement, "updates")
        cost = {name: None if pd.isna(value) else value for name, value in own.items()}
        costs[label] = cost | dict.fromkeys([*BYTES, "aggregate_s"] * (arrangement in SENT)) | {"sent": sent}
    return {label: costs[label] for label in sorted(costs, key=lambda label: not is_federated(label))}


def effort_notes(
    costs: Mapping[str, Cost], baselines: Mapping[str, str], references: Mapping[str, str] = {}
) -> list[str]:
    """Rows with more steps or images than their baseline, and whether their reference of equal effort was run."""
    groups: dict[tuple[str, str], list[str]] = {}
    for label, cost in costs.items():
        base = costs.get(baselines[label], {})
        if "@" in label or None in (cost["steps"], cost["images"], base.get("steps"), base.get("images")):
            continue
        steps, images = (cost[name] / base[name] for name in ("steps", "images"))
        if max(steps, images) > MAX_EXTRA_EFFORT:
            effort = f"{steps:.2f} times the steps of a client and {images:.2f} times the images of all"
            was_run = not is_compared(label) or {references.get(label), f"fedavg@steps={label}"} & {*costs}
            end = "" if was_run else "; FedAvg of equal effort (fedavg@steps=METHOD) was NOT RUN"
            what = f"MORE EFFORT than {baselines[label]} ({effort}), from which a gain may come"
            groups.setdefault((what, end), []).append(label)
    return [f"{what}: {', '.join(rows)}{end}" for (what, end), rows in groups.items()]


def cost_rows(costs: Mapping[str, Cost]) -> list[list[str]]:
    """Rows of text with a header: seconds, MB of one round, other bytes in kB."""
    rows = [
        [label, *(_text(cost[name], words.split()[-1]) for name, words in HEAD.items())]
        for label, cost in costs.items()
    ]
    return [["method", *HEAD.values()], *rows]


def cost_csv(costs: Mapping[str, Cost]) -> str:
    """One line for each method, in seconds and bytes; an unknown value is an empty field."""
    table = pd.DataFrame.from_dict(costs, orient="index", columns=list(HEAD))
    return table.to_csv(index_label="method", lineterminator="\n")


def _text(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.3f}"
    return str(value) if unit == "sent" else f"{value * SCALE[unit]:.3f}" if unit in SCALE else f"{value:.0f}"
