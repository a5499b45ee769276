from __future__ import annotations

import numpy as np
import pytest

from medfed.datasets.name_pairs import pair_names, split_names

RULES = {
    "suffix of the masks": lambda k: (f"im{k:04d}", f"im{k:04d}ah"),
    "suffix of the images": lambda k: (f"P{k}_T2", f"P{k}_drawn"),
    "prefixes": lambda k: (f"Test_Image_{k}", f"mask_{k}"),
    "in the middle": lambda k: (f"{k}_img_left", f"{k}_gland_left"),
    "zeros": lambda k: (f"scan {k}", f"m{k:05d}"),
    "upper case": lambda k: (f"Case{k}", f"CASE{k}_SEG"),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("numbers", [range(1, 3), range(1, 31), [7, 77, 777, 1, 10, 100]], ids=["2", "30", "sevens"])
def test_names_are_paired_by_one_rule_whatever_their_order(rule, numbers):
    pairs = [rule(k) for k in numbers]
    shuffled = [pairs[i][1] for i in np.random.default_rng(0).permutation(len(pairs))]
    assert pair_names([image for image, _ in pairs], shuffled).image_of == {mask: image for image, mask in pairs}


def test_a_missing_mask_changes_no_other_pair():
    images = [f"im{k:04d}" for k in range(30)]
    pairs = pair_names(images, [f"{image}ah" for image in images if image != "im0003"])
    assert len(pairs.image_of) == 29 and all(mask == f"{image}ah" for mask, image in pairs.image_of.items())


def test_a_rule_never_changes_a_number():
    assert pair_names(["p7"], ["p8"]).image_of == {} and pair_names(["a1", "a2"], ["a3", "a4"]).image_of == {}
    assert pair_names(["a1", "a2"], ["a12x", "a22x"]).image_of == {}


def test_equal_names_come_before_a_rule():
    pairs = pair_names(["a", "ab"], ["a", "ab"])
    assert pairs.image_of == {"a": "a", "ab": "ab"}


def test_a_mask_for_which_two_rules_name_two_images_has_rivals():
    pairs = pair_names(["1_T2", "2_T2", "1_ADC", "2_ADC"], ["1_seg", "2_seg"])
    assert pairs.image_of == {} and {rival[0] for rival in pairs.rivals} == {"1_seg", "2_seg"}


def test_an_image_that_has_a_mask_stays_an_image_whatever_its_name():
    assert split_names(["x_label", "x_label_mask"]) == (["x_label"], ["x_label_mask"])
    assert split_names(["x", "x_label"]) == (["x"], ["x_label"])
    assert split_names(["img_3", "GT_3", "b (1)", "b (1)_mask", "b (1)_mask_1"]) == (
        ["img_3", "b (1)"], ["GT_3", "b (1)_mask", "b (1)_mask_1"],
    )  # fmt: skip
