"""Which cases are shown: by score, and by name only."""

import pandas as pd
from made_runs import CLASSES

from medfed.outputs.figures import case_selection
from medfed.results.scores import table_of


def mask_rows(names="abcdefgh"):
    """The Dice in percent of two structures of each image, 0, 10, 20, ..."""
    names_of = {"site": "A", "role": "unseen", "metric": "dice", "status": "ok"}
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


def test_each_unseen_patient_has_its_place_and_its_worst_image_and_of_many_patients_the_worst_stay(monkeypatch):
    scores = mask_rows("abcdef").assign(patient=["q", "q", "p", "p", "p", "p", "q", "q", "r", "r", "r", "r"])
    scores.loc[scores.image == "e", "value"] = float("nan")
    seen = scores.assign(role="seen", site="S")
    both = pd.concat([seen, scores])
    chosen = case_selection.select_of_each_patient(both, "dice")
    assert chosen == {("A", "a"): "001", ("A", "b"): "000", ("A", "f"): "002"}
    monkeypatch.setattr(case_selection, "MAX_PATIENTS", 2)
    assert list(case_selection.select_of_each_patient(both, "dice").values()) == ["000", "001"]


def test_of_a_classified_patient_the_image_is_the_one_whose_true_class_has_the_lowest_probability():
    names = {"site": "A", "role": "unseen", "patient": "p", "label": "x"}
    rows = [names | {"image": f"i{k}", "p_x": p, "p_y": 1 - p} for k, p in enumerate((0.9, 0.2, 0.6))]
    chosen = case_selection.select_of_each_patient(table_of(rows, CLASSES.metrics), "accuracy")
    assert chosen == {("A", "i1"): "000"}
