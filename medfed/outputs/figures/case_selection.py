"""Which unseen cases the figures show: a run's best and worst, and some that no score chose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from medfed.core.seeds import stream_seed


def mean_dice_by_patient(rows: Sequence[Mapping]) -> dict[str, float]:
    """Of each unseen patient over the structures that it has; those without any are left out."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["role"] == "unseen" and row["dice"] is not None:
            found.setdefault(row["patient"], []).append(row["dice"])
    return {patient: fmean(values) for patient, values in found.items()}


def select_best_median_worst(rows: Sequence[Mapping]) -> dict[str, str]:
    """The patients by mean Dice; of equals the first by name."""
    dice = mean_dice_by_patient(rows)
    ranked = sorted(dice, key=lambda patient: (-dice[patient], patient))
    places = {"best": 0, "median": len(ranked) // 2, "worst": len(ranked) - 1}
    return {word: ranked[place] for word, place in places.items()} if ranked else {}


def select_common_cases(rows: Sequence[Mapping], n: int) -> list[dict]:
    """A row of each of up to `n` unseen cases, the same whatever the method, its scores and the seed.

    A hash of the names of site and case says which. Of images with classes, each class in turn; they come by class.
    """
    cases = {(row["site"], row["patient"]): dict(row) for row in reversed(rows) if row["role"] == "unseen"}
    ordered = [cases[names] for names in sorted(cases, key=lambda names: stream_seed(0, "shown", *names))]
    so_far: Counter[str] = Counter()
    turns = []
    for row in ordered:
        turns.append(so_far[row.get("label", "")])
        so_far[row.get("label", "")] += 1
    chosen = sorted(range(len(ordered)), key=lambda place: (turns[place], place))[:n]
    return [ordered[place] for place in sorted(chosen, key=lambda place: (ordered[place].get("label", ""), place))]
