"""A site describes its images by numbers over groups of patients, and the coordinator names what does not fit."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from medfed.datasets.case import Case
from medfed.datasets.case_measures import measure_case
from medfed.datasets.site_facts import site_facts
from medfed.federation.message import Message
from medfed.federation.survey import SiteSurvey, check_survey, large_groups, survey_request
from medfed.federation.survey_mismatches import find_mismatches


def case(number: int, patient: str = "", label: int | None = None, suffix: str = "nii.gz") -> Case:
    return Case("HK", f"c{number}", Path(f"{number}.{suffix}"), patient=patient, label=label)


def volume(value: float = 1.0, spacing=(0.5, 0.5, 3.0), orientation=(-1, -1, 1), mask_at=(0, 0, 0)):
    affine = torch.diag(torch.tensor([*np.multiply(spacing, orientation), 1.0], dtype=torch.float64))
    mask = torch.zeros(1, 4, 6, 2, dtype=torch.uint8)
    if mask_at:
        mask[(0, *mask_at)] = 1
    return MetaTensor(torch.full((1, 4, 6, 2), value), affine=affine), MetaTensor(mask, affine=affine)


def test_a_volume_is_measured_in_the_directions_of_the_patient():
    """Voxel (0, 0, 0) of axes to the left, to the back and upwards lies far right, in front, and at the feet."""
    facts = measure_case(case(0), *volume(7.0))
    assert (facts.orientation, facts.shape, facts.spacing_mm) == ("LPS", (4, 6, 2), (0.5, 0.5, 3.0))
    assert (facts.lowest, facts.percentiles, facts.highest) == (7, (7, 7, 7), 7)
    (structure,) = facts.structures
    assert structure.centre == pytest.approx((1 - 0.5 / 4, 1 - 0.5 / 6, 0.5 / 2)) and structure.cover == pytest.approx(
        1 / 48
    )
    assert measure_case(case(0), *volume(mask_at=None)).structures[0].centre == ()


def test_a_photograph_has_no_voxel_size_and_its_centre_is_in_rows_and_columns():
    image, mask = (MetaTensor(part.as_tensor()[..., :1]) for part in volume())
    facts = measure_case(case(0, suffix="png"), image, mask)
    assert (facts.spacing_mm, facts.orientation) == (None, "")
    assert facts.structures[0].centre == pytest.approx((0.5 / 4, 0.5 / 6))


def test_the_facts_are_counts_and_quantiles_over_the_images():
    cases = [case(number) for number in range(8)]
    masks = {number: volume(float(number), mask_at=(0, 0, 0) if number < 5 else None) for number in range(8)}
    facts = site_facts(cases, {one: measure_case(one, *masks[n]) for n, one in enumerate(cases)}, 0, min_patients=3)
    assert (facts["patients"], facts["images"], facts["measured_images"], facts["0.images"]) == (8, 8, 8, 5)
    assert (facts["high.p10"], facts["high.p50"], facts["high.p90"]) == (0.7, 3.5, 6.3)  # of 0, 1, ..., 7
    assert (facts["depth_mm.p50"], facts["0.position_1"]) == (3.0, 0.875)
    assert facts["0.cover"] == 0.02083, "1 of 48 voxels"
    check_survey(Message("survey", facts=facts), 1)


def test_numbers_of_too_few_patients_stay_at_the_site():
    """Three images are of one patient; two images have an empty mask."""
    cases = [case(0, "a"), case(1, "a"), case(2, "a"), *(case(number) for number in range(3, 8))]
    volumes = [volume(mask_at=mask) for mask in [(0, 0, 0)] * 6 + [None] * 2]
    facts = site_facts(cases, {one: measure_case(one, *volumes[n]) for n, one in enumerate(cases)}, 0, min_patients=4)
    assert (facts["patients"], facts["images"]) == (6, 8)
    assert "0.images" not in facts  # two empty masks of two patients would be the difference from all images
    classes = [case(number, label=int(number > 5)) for number in range(8)]
    facts = site_facts(classes, {}, 3, min_patients=4)
    assert "1.images" not in facts and "0.images" not in facts and facts["2.images"] == 0


def test_small_groups_hide_the_smallest_large_ones_until_they_have_enough_patients_together():
    patients = {"many": "abcdefgh", "some": "abcd", "few": "ab", "none": ""}
    assert large_groups(patients, 3) == ["many", "none"]
    assert large_groups({**patients, "fewer": "x"}, 3) == ["many", "some", "none"]  # a, b and x are three
    assert large_groups(patients, 2) == ["many", "some", "few", "none"]
    # of 22 images, 20 of one class would reveal that the other two classes have two images, of two patients
    groups = {"a": ["1"], "b": ["2"], "c": [f"{number}" for number in range(3, 23)]}
    assert large_groups(groups, 5) == [] and large_groups({**groups, "d": "vwxyz"}, 5) == ["c"]
    assert large_groups({"few": "ab", "fewer": "a", "some": "abc", "many": "abcdefgh"}, 3) == ["many"]


def test_quantiles_need_five_patients_whatever_the_minimum_because_those_of_three_are_their_three_values():
    cases = [case(number) for number in range(5)]
    measured = {one: measure_case(one, *volume(float(n))) for n, one in enumerate(cases)}
    of_four = [*cases[:3], case(5, "a"), case(6, "a")]
    counts = {"patients": 4, "images": 5, "measured_images": 5}
    for min_patients, shown in ((3, {"0.images": 5}), (5, {})):
        assert site_facts(of_four, dict.fromkeys(of_four, measured[cases[0]]), 0, min_patients) == counts | shown
    facts = site_facts(cases, measured, 0, min_patients=3)
    assert (facts["high.p50"], facts["0.position_1"], facts["0.spread_1"]) == (2.0, 0.875, 0.0)
    assert site_facts(cases, measured, 0, min_patients=6) == {"patients": 5, "images": 5, "measured_images": 5}


def test_a_site_with_fewer_patients_than_its_minimum_says_only_that():
    survey = SiteSurvey(4, 5, 1, lambda least: {"patients": 4})
    assert survey.reply(survey_request()).facts == {"too_few_patients": 1}
    survey.min_patients = 4
    assert survey.reply(survey_request()).facts == {"patients": 4}
    check_survey(Message("survey", facts={"too_few_patients": 1}), 1)


COUNTS = {"patients": 5, "images": 9, "measured_images": 9}


def quantiles(**numbers):
    return {f"{name}.{word}": number for name, number in numbers.items() for word in ("p10", "p50", "p90")}


def fact(text):
    name, number = text.split("=")
    return {name: json.loads(number)}


IMPOSSIBLE = (
    "patients=10 patients=0 images=9.5 measured_images=10 1.images=3 0.images=10 patient_7=1 too_few_patients=1 "
    "0.position_1=1.5 name=1 high.p10=1.0"
)
WITHOUT_RATIO = "high=5e-324 high=1e13 low=-1e300 height=5e-324 width=1e7 height_mm=5e-324 depth_mm=1e300"


@pytest.mark.parametrize(
    "wrong",
    [
        *map(fact, IMPOSSIBLE.split()),
        *(quantiles(**fact(text)) for text in WITHOUT_RATIO.split()),
        {"high.p10": 2.0, "high.p50": 1.0, "high.p90": 3.0},
        {"height_mm.p10": 0.0, "height_mm.p50": 0.5, "height_mm.p90": 0.6},
        quantiles(low=2.0, high=1.0),
        {"patients": 10**17, "images": 10**17},
    ],
)
def test_an_impossible_reply_is_refused(wrong):
    check_survey(Message("survey", facts=COUNTS), 1)
    check_survey(Message("survey", facts=COUNTS | quantiles(low=-1024.0, high=0.0, height=64.5, height_mm=0.001)), 1)
    name = re.escape(next(iter(wrong)))
    with pytest.raises(ValueError, match=f"'{name}', which no site can have|do not increase"):
        check_survey(Message("survey", facts=COUNTS | wrong), 1)


def test_rounding_errors_of_an_image_file_are_reported_as_0():
    cases = [case(number) for number in range(6)]
    facts = site_facts(cases, dict.fromkeys(cases, measure_case(case(0), *volume(3e-17))), 0, min_patients=3)
    assert facts["high.p50"] == 0
    check_survey(Message("survey", facts=facts), 1)


def described(
    n=20,
    shown=20,
    size=(384, 384),
    spacing=(0.6, 0.6, 3.6),
    low=0.0,
    high=900.0,
    position=0.35,
    classes=(12, 8),
    spread=0.02,
    cover=0.1,
):
    """Facts of a site with volumes."""
    facts = dict.fromkeys(("patients", "images", "measured_images"), n)
    facts |= {"0.position_2": position, "0.spread_2": spread, "0.cover": cover}
    facts |= {f"{k}.images": shown if k == 0 else count for k, count in enumerate(classes)}
    names = ("height", "width", "height_mm", "width_mm", "depth_mm", "low", "high")
    return facts | {f"{name}.p50": number for name, number in zip(names, (*size, *spacing, low, high), strict=True)}


def found(other, labels=("gland",), are_classes=False, has_fixed_range=False, **sites):
    facts = {"A": described(), "B": described(high=1100.0, spacing=(0.5, 0.5, 3.0), position=0.4), "C": other, **sites}
    return find_mismatches(facts, labels, are_classes, has_fixed_range)


METRES, CENTIMETRES = (6e-4, 6e-4, 3.6e-3), (0.06, 0.06, 0.36)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            described(spacing=METRES),
            "C: spacing: .* 0.0006 x 0.0006 x 0.0036 mm, but 0.5 x 0.5 x 3 is usual; 833 times ",
        ),
        (described(spacing=CENTIMETRES), "8.33 times smaller .* in another unit; write mm"),
        (described(spacing=(0.6, 0.6, 1.25)), "C: spacing: the median voxel has 0.6 x 0.6 x 1.25 mm, .* check whether"),
        (described(high=1e6), "C: intensities: typical .* 0 to 1e.06, but 0 to 1100 is usual; 909 times larger"),
        (described(low=-1024.0, high=100.0), "C: intensities: typical .* -1024 to 100, .* an offset of -1024"),
        (described(position=0.62), "C: orientation: .* 'gland' is at 0.62 .* 0.40 is usual; front and back may be"),
        (described(size=(96, 96)), "C: size: the median image has 96 x 96 pixels, but 384 x 384 is usual"),
        (described(shown=0), "C: labels: no mask shows the structure 'gland', but masks of A, B show it"),
        (described(shown=8), "C: empty masks: 60% of the masks do not show 'gland', but 0% at the other sites"),
        (described(cover=0.85), "C: covered share: 'gland' covers 85% .* 10% is usual; the masks may be inverted"),
        (described(cover=0.02), "'gland' covers 2% of a typical image, but 10% is usual; the masks may show another"),
    ],
)
def test_a_site_that_does_not_fit_is_named_and_no_other_site_is(other, sentence):
    mismatches = found(other)
    assert [mismatch.site for mismatch in mismatches] == ["C"]
    assert re.search(sentence, str(mismatches[0])), str(mismatches[0])
    assert mismatches[0].is_severe == (mismatches[0].what == "labels")


def test_usual_differences_between_hospitals_are_not_named():
    assert not found(described(spacing=(0.4, 0.4, 3.0), high=3000.0, position=0.45, shown=15, cover=0.3))


@pytest.mark.parametrize(("cover", "is_inverted"), [(0.66, True), (0.69, True), (0.58, False), (0.95, False)])
def test_an_inverted_mask_covers_about_what_others_leave_uncovered(cover, is_inverted):
    of_a, of_b = described(cover=0.31), described(cover=0.35)
    mismatches = find_mismatches({"A": of_a, "B": of_b, "C": described(cover=cover)}, ("gland",), False, False)
    assert ["may be inverted" in str(mismatch) for mismatch in mismatches] == [True] * is_inverted


def test_a_missing_class_is_named_and_one_of_too_few_patients_is_not():
    (mismatch,) = found(described(classes=(20, 0)), ("benign", "malignant"), are_classes=True)
    assert str(mismatch).startswith("C: labels: no image belongs to the class 'malignant', but A, B have such images")
    few = described(classes=(20, 0))
    del few["1.images"]
    assert not found(few, ("benign", "malignant"), are_classes=True)


def test_intensities_of_photographs_must_be_similar_because_no_percentiles_are_scaled():
    (mismatch,) = found(described(high=200.0), has_fixed_range=True)
    assert "4.5 times smaller" in str(mismatch)  # than the median of 200, 900 and 1100
    assert not found(described(high=200.0))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (described(high=9e5), "intensities: .* 0 to 900 at A, but 0 to 900000 at H; .* 1e.03 times smaller points to"),
        (
            described(spacing=METRES),
            "0.6 x 0.6 x 3.6 mm at A, but 0.0006 .* at H; one .* 1e.03 times larger in all axes",
        ),
        (
            described(spacing=(6, 6, 36)),
            "10 times smaller in all axes points to a file header in another unit; write mm",
        ),
        (described(size=(96, 96)), "the median image has 384 x 384 pixels at A, but 96 x 96 at H; one of them"),
        (described(position=0.65), "is at 0.35 of the image at A, but 0.65 at H; .* front and back may be exchanged"),
        (described(low=-1024.0), "A and H: intensities: .* 0 to 900 at A, but -1024 to 900 at H"),
    ],
)
@pytest.mark.parametrize("names", ["AH", "HA"])
def test_of_two_sites_one_sentence_names_both_because_either_may_be_right(other, words, names):
    facts = {"A": described(), "H": other}
    (mismatch,) = find_mismatches({name: facts[name] for name in names}, ("gland",), False, False)
    assert {mismatch.site, mismatch.other_site} == {"A", "H"} and not mismatch.is_severe
    if names == "AH":
        assert re.search(words, str(mismatch)), str(mismatch)


def test_of_two_sites_the_one_without_a_structure_is_named_and_of_a_single_site_nothing():
    assert not find_mismatches({"A": described(shown=0)}, ("gland",), False, False)
    (mismatch,) = find_mismatches({"A": described(), "H": described(shown=0)}, ("gland",), False, False)
    assert str(mismatch).startswith("H: labels: no mask shows") and mismatch.is_severe


def test_the_position_of_a_few_lesions_is_no_sign_of_a_flip():
    """0.62 is 0.22 from the usual 0.40: more than three times 1.25 * 0.16 / sqrt(n) for 9 images, but not for 7."""
    assert [one.what for one in found(described(n=9, shown=9, position=0.62, spread=0.16))] == ["orientation"]
    assert not found(described(n=7, shown=7, position=0.62, spread=0.16))
    assert found(described(n=7, shown=7, position=0.62, spread=0.04))  # an organ lies at the same place in everybody
    two = {"A": described(position=0.35), "B": described(n=5, shown=5, position=0.65, spread=0.2)}
    assert not find_mismatches(two, ("gland",), False, False)
