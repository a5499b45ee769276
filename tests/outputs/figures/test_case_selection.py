"""Which cases are shown: by score, and by name only."""

import pandas as pd

from medfed.outputs.figures import case_selection


def mask_rows(names="abcdefgh"):
    """The Dice in percent of two structures of each image, 0, 10, 20, ..."""
    names_of = {"site": "A", "role": "unseen", "metric": "dice"}
    return pd.DataFrame(
        names_of | {"image": name, "structure": structure, "value": 10.0 * k}
        for k, name in enumerate(names)
        for structure in ("cup", "disc")
    )


def image_rows(n=40):
    labels = ["rare" if k % 10 == 0 else "often" for k in range(n)]
    return pd.DataFrame(
        {"site": "A", "role": "unseen", "image": f"i{k}", "label": label} for k, label in enumerate(labels)
    )


def images_of(scores, n=3):
    return [row.image for row in case_selection.select_common_cases(scores, n)]


def test_the_same_unseen_cases_are_chosen_whatever_the_scores_and_the_order_and_few_are_all():
    chosen = images_of(mask_rows())
    assert len(set(chosen)) == 3
    other_scores = mask_rows().assign(value=80 - mask_rows().value)
    assert images_of(other_scores[::-1]) == chosen
    without = [name for name in "abcdefgh" if name not in chosen][0]
    assert images_of(mask_rows("abcdefgh".replace(without, ""))) == chosen
    seen = mask_rows().assign(role="seen", image="z")
    assert set(images_of(pd.concat([seen, mask_rows("ab")]))) == {"a", "b"}
    assert images_of(seen) == []


def test_classes_take_turns_and_come_one_after_the_other():
    labels = [row.label for row in case_selection.select_common_cases(image_rows(), 10)]
    assert labels == ["often"] * 6 + ["rare"] * 4  # there are four rare ones


def test_best_median_and_worst_are_by_mean_dice_and_of_equals_by_name():
    assert case_selection.select_best_median_worst(mask_rows()) == {"best": "h", "median": "d", "worst": "a"}
    assert case_selection.select_best_median_worst(mask_rows().assign(value=50.0))["best"] == "a"
    assert case_selection.select_best_median_worst(mask_rows().assign(value=float("nan"))) == {}
