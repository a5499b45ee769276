"""Which unseen cases are shown: best and worst ones, the same ones for all methods, and one of each patient."""

from __future__ import annotations

from typing import Any

import pandas as pd

from medfed.core.seeds import stream_seed
from medfed.metrics.metric import PROBABILITY
from medfed.results.scores import predictions

MAX_PATIENTS = 200  # of which one image is stored


def mean_dice_by_image(scores: pd.DataFrame) -> dict[str, float]:
    """Dice in percent of each image of the unseen site, averaged over structures, if it is known."""
    own = scores[(scores.role == "unseen") & (scores.metric == "dice")].dropna(subset="value")
    return own.groupby("image", sort=False).value.mean().to_dict()


def select_best_median_worst(scores: pd.DataFrame) -> dict[str, str]:
    """Images of the unseen site by "best", "median" and "worst" mean Dice; empty if no Dice is known."""
    dice = mean_dice_by_image(scores)
    ranked = sorted(dice, key=lambda image: (-dice[image], image))
    places = {"best": 0, "median": len(ranked) // 2, "worst": len(ranked) - 1}
    return {word: ranked[place] for word, place in places.items()} if ranked else {}


def select_common_cases(images: pd.DataFrame, n: int) -> list[Any]:
    """At most `n` unseen images by a hash of their names, so that they are the same for every method and seed."""
    unseen = images[images.role == "unseen"].drop_duplicates(["site", "image"])
    label = unseen.label if "label" in unseen else ""
    order = [stream_seed(0, "shown", site, image) for site, image in zip(unseen.site, unseen.image)]
    ordered = unseen.assign(order=order, class_=label).sort_values("order")
    ordered["turn"] = ordered.groupby("class_").cumcount()
    chosen = ordered.sort_values(["turn", "order"]).head(n).sort_values(["class_", "turn", "order"])
    return list(chosen.drop(columns=["order", "turn", "class_"]).itertuples())


def select_confident(scores: pd.DataFrame, n: int = 5) -> list[Any]:
    """The unseen site's rows of `predictions` with the most confident ones: up to `n` right, then `n` wrong ones."""
    images = predictions(scores[scores.role == "unseen"])
    ranked = images.sort_values(["confidence", "site", "image"], ascending=[False, True, True])
    return [row for correct in (True, False) for row in ranked[ranked.correct == correct].head(n).itertuples()]


def select_of_each_patient(scores: pd.DataFrame, metric: str) -> dict[tuple[str, str], str]:
    """The image with the lowest score of each unseen patient, as {(site, image): number of the patient}."""
    unseen = scores[scores.role == "unseen"]
    is_score = (unseen.metric == metric) | (unseen.metric == PROBABILITY + unseen.status)
    keys = ["site", "patient", "image"]
    images = unseen.value.where(is_score).groupby([unseen[key] for key in keys]).mean().reset_index()
    patients = images.groupby(["site", "patient"])
    images = images.assign(number=patients.ngroup(), mean=patients.value.transform("mean"))
    worst = images.sort_values(["value", "image"], kind="stable").drop_duplicates("number")
    shown = worst.sort_values(["mean", "number"]).head(MAX_PATIENTS)
    return {(row.site, row.image): f"{row.number:03}" for row in shown.itertuples()}
