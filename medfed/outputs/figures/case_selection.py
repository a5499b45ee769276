"""Which cases of the unseen site are shown: a run's best and worst cases, and cases chosen without regard to scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from medfed.core.seeds import stream_seed


def mean_dice_by_image(rows: Sequence[Mapping]) -> dict[str, float]:
    """Return the mean Dice of each image of the unseen site, averaged over the structures.

    Args:
        rows: the rows of the run's `cases.csv`: one dict of scores per structure of an image, with `dice` in [0, 1] or
            None.

    Returns:
        The Dice in [0, 1] by name of the image. Images without a known Dice are left out.
    """
    by_image: dict[str, list[float]] = {}
    for row in rows:
        if row["role"] == "unseen" and row["dice"] is not None:
            by_image.setdefault(row["image"], []).append(row["dice"])
    return {image: fmean(values) for image, values in by_image.items()}


def select_best_median_worst(rows: Sequence[Mapping]) -> dict[str, str]:
    """Select the images of the unseen site with the best, the median and the worst mean Dice.

    Args:
        rows: the rows of the run's `cases.csv`: one dict of scores per structure of an image.

    Returns:
        {"best": image, "median": image, "worst": image} with names of images. Images with equal scores are ranked by
        name. With an even number of images, "median" is the worse of the two in the middle. The dict is
        empty if no Dice is known.
    """
    dice = mean_dice_by_image(rows)
    ranked = sorted(dice, key=lambda image: (-dice[image], image))
    places = {"best": 0, "median": len(ranked) // 2, "worst": len(ranked) - 1}
    return {word: ranked[place] for word, place in places.items()} if ranked else {}


def select_common_cases(rows: Sequence[Mapping], n: int) -> list[dict]:
    """Select images or volumes of the unseen site that are the same for every method and seed.

    The images or volumes are ordered by a hash of their names, so the choice does not depend on the scores. For
    classification, one image of each class is selected in turn, and the result is sorted by class.

    Args:
        rows: the rows of the run's `cases.csv`: one dict of scores per image, or per structure of an image.
        n: maximum number of images or volumes.

    Returns:
        A copy of one row of `cases.csv` for each selected image or volume. For a volume with several rows (one per
        structure), this is the first of its rows.
    """
    cases = {(row["site"], row["image"]): dict(row) for row in reversed(rows) if row["role"] == "unseen"}
    ordered = [cases[names] for names in sorted(cases, key=lambda names: stream_seed(0, "shown", *names))]
    n_of_class: Counter[str] = Counter()
    turns = []
    for row in ordered:
        turns.append(n_of_class[row.get("label", "")])
        n_of_class[row.get("label", "")] += 1
    chosen = sorted(range(len(ordered)), key=lambda place: (turns[place], place))[:n]
    return [ordered[place] for place in sorted(chosen, key=lambda place: (ordered[place].get("label", ""), place))]
