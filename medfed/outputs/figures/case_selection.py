"""Which cases of the unseen site are shown: a run's best and worst cases, and cases chosen without regard to scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from medfed.core.seeds import stream_seed


def mean_dice_by_image(rows: Sequence[Mapping]) -> dict[str, float]:
    """Dice in [0, 1] of each image of the unseen site, averaged over structures, if it is known."""
    by_image: dict[str, list[float]] = {}
    for row in rows:
        if row["role"] == "unseen" and row["dice"] is not None:
            by_image.setdefault(row["image"], []).append(row["dice"])
    return {image: fmean(values) for image, values in by_image.items()}


def select_best_median_worst(rows: Sequence[Mapping]) -> dict[str, str]:
    """Images of the unseen site by "best", "median" and "worst" mean Dice; empty if no Dice is known. Equal scores are
    ranked by name; of two images in the middle, the worse is the median."""
    dice = mean_dice_by_image(rows)
    ranked = sorted(dice, key=lambda image: (-dice[image], image))
    places = {"best": 0, "median": len(ranked) // 2, "worst": len(ranked) - 1}
    return {word: ranked[place] for word, place in places.items()} if ranked else {}


def select_common_cases(rows: Sequence[Mapping], n: int) -> list[dict]:
    """At most `n` rows of the unseen site, one per image or volume, that are the same for every method and seed,
    because a hash of the names orders them. For classification, each class gives one in turn."""
    cases = {(row["site"], row["image"]): dict(row) for row in reversed(rows) if row["role"] == "unseen"}
    ordered = [cases[names] for names in sorted(cases, key=lambda names: stream_seed(0, "shown", *names))]
    n_of_class: Counter[str] = Counter()
    turns = []
    for row in ordered:
        turns.append(n_of_class[row.get("label", "")])
        n_of_class[row.get("label", "")] += 1
    chosen = sorted(range(len(ordered)), key=lambda place: (turns[place], place))[:n]
    return [ordered[place] for place in sorted(chosen, key=lambda place: (ordered[place].get("label", ""), place))]
