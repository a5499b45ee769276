"""Which cases are shown: by score, and by name only."""

from medfed.outputs.figures import case_selection


def mask_rows(names="abcdefgh"):
    return [
        {"site": "A", "role": "unseen", "image": name, "structure": structure, "dice": 0.1 * k}
        for k, name in enumerate(names)
        for structure in ("cup", "disc")
    ]


def image_rows(n=40):
    labels = ["rare" if k % 10 == 0 else "often" for k in range(n)]
    return [{"site": "A", "role": "unseen", "image": f"i{k}", "label": label} for k, label in enumerate(labels)]


def test_the_same_unseen_cases_are_chosen_whatever_the_scores_and_the_order_and_few_are_all():
    chosen = [row["image"] for row in case_selection.select_common_cases(mask_rows(), 3)]
    assert len(set(chosen)) == 3
    other_scores = [row | {"dice": 0.8 - row["dice"]} for row in mask_rows()]
    assert [row["image"] for row in case_selection.select_common_cases(other_scores[::-1], 3)] == chosen
    without = [name for name in "abcdefgh" if name not in chosen][0]
    others = case_selection.select_common_cases(mask_rows("abcdefgh".replace(without, "")), 3)
    assert [row["image"] for row in others] == chosen
    seen = [row | {"role": "seen", "image": "z"} for row in mask_rows()]
    assert {row["image"] for row in case_selection.select_common_cases(seen + mask_rows("ab"), 3)} == {"a", "b"}
    assert case_selection.select_common_cases(seen, 3) == []


def test_classes_take_turns_and_come_one_after_the_other():
    labels = [row["label"] for row in case_selection.select_common_cases(image_rows(), 10)]
    assert labels == ["often"] * 6 + ["rare"] * 4  # there are four rare ones


def test_best_median_and_worst_are_by_mean_dice_and_of_equals_by_name():
    assert case_selection.select_best_median_worst(mask_rows()) == {"best": "h", "median": "d", "worst": "a"}
    flat = [row | {"dice": 0.5} for row in mask_rows()]
    assert case_selection.select_best_median_worst(flat)["best"] == "a"
    assert case_selection.select_best_median_worst([row | {"dice": None} for row in mask_rows()]) == {}
