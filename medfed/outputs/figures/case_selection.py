"""Which cases of the unseen site are shown: a run's best and worst cases, and cases chosen without regard to scores."""

from __future__ import annotations

from typing import Any

import pandas as pd

from medfed.core.seeds import stream_seed


def mean_dice_by_image(scores: pd.DataFrame) -> dict[str, float]:
    """Dice in percent of each image of the unseen site, averaged over structures, if it is known."""
    own = scores[(scores.role == "unseen") & (scores.metric == "dice")].dropna(subset="value")
    return own.groupby("image", sort=False).value.mean().to_dict()


def select_best_median_worst(scores: pd.DataFrame) -> dict[str, str]:
    """Images of the unseen site by "best", "median" and "worst" mean Dice; empty if no Dice is known. Equal scores are
    ranked by name; of two images in the middle, the worse is the median."""
    dice = mean_dice_by_image(scores)
    ranked = sorted(dice, key=lambda image: (-dice[image], image))
    places = {"best": 0, "median": len(ranked) // 2, "worst": len(ranked) - 1}
    return {word: ranked[place] for word, place in places.items()} if ranked else {}


def select_common_cases(images: pd.DataFrame, n: int) -> list[Any]:
    """At most `n` rows, one per image of the unseen site, that are the same for every method and seed, because a hash
    of the names orders them; of images with a `label`, each class gives one in turn.

    `images` has the columns `role`, `site` and `image`: scores, or `predictions` of classes.
    """
    unseen = images[images.role == "unseen"].drop_duplicates(["site", "image"])
    label = unseen.label if "label" in unseen else ""
    order = [stream_seed(0, "shown", site, image) for site, image in zip(unseen.site, unseen.image)]
    ordered = unseen.assign(order=order, class_=label).sort_values("order")
    ordered["turn"] = ordered.groupby("class_").cumcount()
    chosen = ordered.sort_values(["turn", "order"]).head(n).sort_values(["class_", "turn", "order"])
    return list(chosen.drop(columns=["order", "turn", "class_"]).itertuples())
