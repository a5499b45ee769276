import re

import numpy as np
import pytest

from medfed.datasets.name_pairs import MASK_WORDS, pair_names, split_names
from medfed.datasets.name_statements import contradict, says_more_than_kind
from medfed.datasets.pairing import MASK_NAMES
from medfed.datasets.site_search import IMAGE_FOLDERS, MASK_FOLDERS

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


def test_a_rule_changes_no_number_comes_after_equal_names_and_has_rivals():
    assert pair_names(["p7"], ["p8"]).image_of == {} and pair_names(["a1", "a2"], ["a3", "a4"]).image_of == {}
    assert pair_names(["a1", "a2"], ["a12x", "a22x"]).image_of == {}
    pairs = pair_names(["a", "ab"], ["a", "ab"])
    assert pairs.image_of == {"a": "a", "ab": "ab"}
    pairs = pair_names(["1_T2", "2_T2", "1_ADC", "2_ADC"], ["1_seg", "2_seg"])
    assert pairs.image_of == {} and {rival[0] for rival in pairs.rivals} == {"1_seg", "2_seg"}


def test_an_image_that_has_a_mask_stays_an_image_whatever_its_name():
    assert split_names(["x_label", "x_label_mask"]) == (["x_label"], ["x_label_mask"])
    assert split_names(["x", "x_label"]) == (["x"], ["x_label"])
    assert split_names(["img_3", "GT_3", "b (1)", "b (1)_mask", "b (1)_mask_1"]) == (
        ["img_3", "b (1)"],
        ["GT_3", "b (1)_mask", "b (1)_mask_1"],
    )


OPPOSITES = """\
arterial venous, portal delayed_seg, baseline follow-up, baseline followup_mask, CC MLO_mask, AP PA, ap lat, insp
exp_mask, before after, native contrast, native enhanced, contrast non-contrast, upper lower, dex sin_gt, rechts
links, droite gauche, benign malignant, old new, first second_mask, rest stress, superior inferior, medial
lateral, proximal distal, anterior posterior_mask, ct mri, early late"""
CONTRADICTING = {  # images, masks
    "one pair, two patients": ("anna_t1", "bert_t1"),
    "visits": ("p0_visit1 p1_visit1 p2_visit1 p3_visit1", "p0_visit2 p1_visit2 p2_visit2 p3_visit2"),
    "patients with frames": ("pat1_frame0 pat1_frame1 pat1_frame2", "pat2_frame0 pat2_frame1 pat2_frame2"),
    "patients and visits": ("p1_v1 p2_v1", "p3_v1 p3_v2"),
    "numbers of other words": ("p1_v1 p2_v1", "x3_y1 x3_y2"),
    "words in another order": ("p1_s1 p1_s2 p2_s1 p2_s2", "s1_p1 s1_p2 s2_p1 s2_p2"),
    "eyes": ("0_left 1_left 2_left", "0_right 1_right 2_right"),
    "eyes, capitals": ("0_eyeLeft 1_eyeLeft", "0_eyeRight 1_eyeRight"),
    "phases": ("patient001_ed patient002_ed", "patient001_es_gt patient002_es_gt"),
    "one patient with each sequence of another": ("anna_t1 anna_t2", "bert_t1 bert_t2"),
    "one patient with both eyes of another": ("left_anna right_anna", "left_bert right_bert"),
    "sequences": ("anna_t1 bert_t1 carl_t1", "anna_t2 bert_t2 carl_t2"),
    "sequences, words": ("anna_adc bert_adc", "anna_dwi bert_dwi"),
    **{
        f"{image} and {mask}": (f"p0_{image} p1_{image} p2_{image}", f"p0_{mask} p1_{mask} p2_{mask}")
        for image, mask in (pair.split() for pair in re.split(",\\s+", OPPOSITES))
    },
    "planes": ("0_ax 1_ax 2_ax", "0_sag_seg 1_sag_seg 2_sag_seg"),
}
AGREEING = {
    "a dot": ("im0001", "im0001.ah"),
    "a number that only the masks have": ("21_training 22_training", "21_manual1 22_manual1"),
    "words for both": ("001_img", "001_masks"),
    "sequences of one patient": ("img_t1 img_t2", "mask_t1 mask_t2"),
    "a contrast agent": ("x_t1ce y_t1ce", "x_t1gd_seg y_t1gd_seg"),
    "phases that mean the same": ("p1_venous p2_venous", "p1_portal_venous_seg p2_portal_venous_seg"),
    "a side in two languages": ("p1_links p2_links", "p1_left_mask p2_left_mask"),
    "a phase that only the images have": ("p1_arterial p2_arterial", "p1_mask p2_mask"),
    "readers of one view": ("p1_CC p2_CC", "p1_CC_expert p2_CC_expert"),
    "words that mean the same": ("1_ax 2_ax", "1_axial_gt 2_axial_gt"),
}


@pytest.mark.parametrize(("images", "masks"), CONTRADICTING.values(), ids=CONTRADICTING.keys())
def test_names_of_other_patients_visits_or_sides_are_no_pairs(images, masks):
    assert pair_names(images.split(), masks.split()).image_of == {}


@pytest.mark.parametrize(("images", "masks"), AGREEING.values(), ids=AGREEING.keys())
def test_names_that_agree_are_pairs(images, masks):
    assert pair_names(images.split(), masks.split()).image_of == dict(zip(masks.split(), images.split()))


def test_names_contradict_each_other_by_numbers_and_by_opposite_words():
    assert contradict("left", "right_mask") and contradict("7", "8_mask") and contradict("eye_OD", "eye_os_gt")
    assert not contradict("left", "LEFT_mask") and not contradict("scan", "gland_label") and not contradict("7", "m07")


def test_no_word_for_a_mask_or_an_image_is_one_of_the_opposite_words():
    words = {*MASK_WORDS, *MASK_NAMES, *MASK_FOLDERS, *IMAGE_FOLDERS, *"anno lesion manual ho tumor gland".split()}
    assert [word for word in sorted(words) if not says_more_than_kind(word)] == []
