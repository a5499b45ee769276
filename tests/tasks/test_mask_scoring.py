"""Means, intervals, the gap and p values, and the file of cases."""

import json
import math

import numpy as np
import pytest
from made_runs import mask_row
from scipy import stats

from medfed.core.errors import UserError
from medfed.tasks.mask_scoring import MaskScoring

SCORING = MaskScoring()
CASE_COLUMNS = SCORING.case_columns
summarise = SCORING.summarise
write_cases, read_cases = SCORING.write_cases, SCORING.read_cases


def row(site, role, image, dice, hd95=None, status="ok", patient="", **others):
    others = {"image": image, "hd95_percent_of_diagonal": hd95} | others
    return mask_row(site, patient or image, dice, status, role, **others)


NO_INTERVAL = {"low": None, "high": None}


def at_a(rows, role="seen"):
    """The scores of the disc at site A."""
    return summarise(rows)[role]["sites"]["A"]["disc"]


def cohort(site="A", role="seen", n=12, seed=0, structure="disc"):
    rng = np.random.default_rng(seed)
    return [
        row(site, role, f"p{k:02}", float(rng.uniform(0.5, 1)), float(rng.uniform(1, 9)), structure=structure)
        for k in range(n)
    ]


def test_means_spreads_and_gap_by_hand():
    """Seen: site A 0.9 and 0.7, site B 0.6. The mean over sites is (0.8 + 0.6)/2: sites have equal weights."""
    rows = [
        row("A", "seen", "1", 0.9, 2.0),
        row("A", "seen", "2", 0.7, 4.0),
        row("B", "seen", "1", 0.6, 5.0),
        row("C", "unseen", "1", 0.5, 10.0),
    ]
    summary = summarise(rows)
    site = summary["seen"]["sites"]["A"]["disc"]
    assert (site["n"], site["dice"]["n"]) == (2, 2)
    assert site["dice"]["mean"] == pytest.approx(0.8)
    assert site["dice"]["sd"] == pytest.approx(math.sqrt(0.02))
    assert summary["seen"]["mean"]["disc"]["dice"] == NO_INTERVAL | {"n_sites": 2, "mean": pytest.approx(0.7)}
    gap = {"dice": pytest.approx(0.2), "hd95_mm": None, "hd95_percent_of_diagonal": pytest.approx(4.0 - 10.0)}
    assert summary["gap"]["disc"] == gap


def test_ten_images_of_two_patients_have_no_interval_and_a_patient_counts_once():
    """Patient p has nine images of Dice 0.9, q one of 0.5: mean 0.7, with the spread of two patients."""
    rows = [row("A", "unseen", f"{k}", 0.5 if k == 9 else 0.9, patient="q" if k == 9 else "p") for k in range(10)]
    summary = summarise(rows)
    group = summary["unseen"]["sites"]["A"]["disc"]
    assert (group["n"], group["n_patients"], group["dice"]["n"], group["dice"]["n_patients"]) == (10, 2, 10, 2)
    assert group["dice"]["mean"] == pytest.approx(0.7)
    assert group["dice"]["sd"] == pytest.approx(math.sqrt(0.08))
    assert (group["dice"]["low"], group["dice"]["high"]) == (None, None)
    mean = summary["unseen"]["mean"]["disc"]
    assert (mean["n"], mean["n_patients"], mean["dice"]["low"]) == (10, 2, None)
    low_dice = summary["failures"]["unseen"]["all"]["disc"]["low_dice"]
    assert (low_dice["count"], low_dice["n"]) == (1, 2), "q fails, p does not"


def test_a_patient_without_the_structure_in_one_image_counts_with_the_others():
    rows = [
        row("A", "seen", "1", 0.8, patient="p"),
        row("A", "seen", "2", None, status="absent", patient="p"),
        row("A", "seen", "3", None, status="absent", patient="q"),
    ]
    group = at_a(rows)
    assert (group["n"], group["n_patients"], group["n_absent"], group["dice"]["mean"]) == (1, 1, 2, 0.8)


def test_relative_distances_and_millimetres_are_never_averaged():
    """Site A has one case of each: each unit has its own mean there, and neither enters the mean over sites."""
    rows = [
        row("A", "seen", "1", 0.9, 2.0),
        row("A", "seen", "2", 0.9, hd95_mm=8.0),
        row("B", "seen", "1", 0.9, 4.0),
        row("C", "unseen", "1", 0.5, 10.0),
    ]
    summary = summarise(rows)
    site = summary["seen"]["sites"]["A"]["disc"]
    relative = site["hd95_percent_of_diagonal"]
    assert (relative["n"], relative["mean"], site["hd95_mm"]["mean"]) == (1, 2.0, 8.0)
    of_seen = summary["seen"]["mean"]["disc"]["hd95_percent_of_diagonal"]
    assert of_seen == NO_INTERVAL | {"n_sites": 1, "mean": 4.0}
    assert summary["gap"]["disc"]["hd95_percent_of_diagonal"] is None


def test_pixels_of_images_without_a_voxel_size_have_no_mean_and_no_boxes():
    """The voxels of the file of A have a size in mm, so their mean (2 + 4)/2 is known; the pixels of B have none."""
    known = [row("A", "seen", str(k), 0.9, hd95_mm=1.0, hd95_pooled_vx=2.0 + 2 * k) for k in range(2)]
    rows = [*known, *[row("B", "seen", str(k), 0.9, 5.0, hd95_pooled_vx=9.0) for k in range(2)]]
    shown = MaskScoring(chosen=("hd95_pooled_vx",))
    summary = shown.summarise(rows)["seen"]
    assert summary["sites"]["A"]["disc"]["hd95_pooled_vx"]["mean"] == 3.0
    assert summary["sites"]["B"]["disc"]["hd95_pooled_vx"]["mean"] is None
    assert summary["mean"]["disc"]["hd95_pooled_vx"] == NO_INTERVAL | {"n_sites": 1, "mean": 3.0}
    titles = [[value.title for value in shown.box_plot_values(part)] for part in (known, rows[2:])]
    assert titles == [["Dice", "HD95 (mm)", "HD95 (voxels, pooled)"], ["Dice", "HD95 (% of diagonal)"]]


def test_one_patient_has_no_spread_and_equal_scores_have_no_interval_because_their_spread_is_unknown():
    score = at_a([row("A", "seen", "1", 0.9)])["dice"]
    assert score == NO_INTERVAL | {"n": 1, "mean": 0.9, "sd": None, "n_patients": 1, "se": None}
    score = at_a([row("A", "seen", str(k), 0.75) for k in range(5)])["dice"]
    assert (score["sd"], score["se"], score["low"], score["high"]) == (0, 0, None, None)


@pytest.mark.parametrize("status", ["missed", "false_alarm"])
def test_a_failure_is_counted_and_worsens_every_mean(status):
    rows = [row("A", "seen", "1", 0.8, 3.0), row("A", "seen", "2", 0.0, 500.0, status)]
    group = at_a(rows)
    assert (group["n"], group[f"n_{status}"], group["dice"]["mean"]) == (2, 1, 0.4)
    assert group["hd95_percent_of_diagonal"]["mean"] == 251.5


def test_the_interval_agrees_with_a_bootstrap_of_scipy():
    values = [r["dice"] for r in cohort(n=40)]
    score = at_a(cohort(n=40))["dice"]
    second = stats.bootstrap((values,), np.mean, method="BCa", rng=np.random.default_rng(0))
    assert (score["low"], score["high"]) == pytest.approx(tuple(second.confidence_interval), abs=0.006)
    assert score["low"] < score["mean"] < score["high"]


def test_scores_depend_neither_on_the_order_of_rows_nor_on_other_sites():
    rows = cohort("A") + cohort("B", "unseen", seed=1)
    assert summarise(rows) == summarise(rows[::-1])
    assert at_a(cohort("A") + cohort("B", seed=1)) == at_a(cohort("A"))


def test_a_summary_is_json_without_nan_even_of_nothing_and_a_structure_that_one_role_lacks_has_no_gap():
    rows = cohort("A") + [row("B", "unseen", "1", None, status="absent")]
    for case in (rows, []):
        summary = summarise(case)
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summarise(rows)["gap"]["disc"]["dice"] is None
    rows = [row("A", "seen", "1", 0.9, structure="cup"), row("B", "unseen", "1", 0.5)]
    assert {name: gap["dice"] for name, gap in summarise(rows)["gap"].items()} == {"cup": None, "disc": None}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([row("A", "seen", "1", 0.9)] * 2, "A/1/disc occurs in two rows"),
        ([row("A", "seen", "1", 0.9), row("A", "unseen", "1", 0.9)], "two rows"),
        ([row("A", "held out", "1", 0.9)], "role is 'held out'"),
        ([row("A", "seen", "1", 0.9, status="lost")], "status is 'lost'"),
        ([row("A", "seen", "1", math.nan)], "dice is nan; expected a number or None"),
        ([row("A", "seen", "1", 0.9, math.inf)], "hd95_percent_of_diagonal is inf"),
    ],
)
def test_invalid_rows_are_refused(rows, words):
    with pytest.raises(ValueError, match=words):
        summarise(rows)


def test_rows_are_the_same_after_writing_in_any_order_and_reading(tmp_path):
    rows = [
        row("B", "unseen", 'p, "1"', 0.25, 3.5),
        row("A", "seen", "Zoë", None, status="absent"),
        row("A", "seen", "0012", 0.0, 500.0, "missed"),
    ]
    write_cases(tmp_path / "cases.csv", rows)
    assert read_cases(tmp_path / "cases.csv") == [rows[2], rows[1], rows[0]]
    assert [path.name for path in tmp_path.iterdir()] == ["cases.csv"]
    rows = cohort("A") + cohort("B", "unseen", seed=1)
    write_cases(tmp_path / "one.csv", rows)
    write_cases(tmp_path / "two.csv", rows[::-1])
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


def test_the_file_of_cases_has_the_columns_and_six_decimals(tmp_path):
    write_cases(tmp_path / "cases.csv", [row("A", "seen", "1", 2 / 3, hd_percent_of_diagonal=4)])
    assert (tmp_path / "cases.csv").read_bytes().decode() == (
        ",".join(CASE_COLUMNS) + "\nA,seen,1,1,disc,0.666667,,,,4.000000,,,,,ok\n"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "first line is not site,role"),
        ("site,dice\nA,1\n", "first line is not site,role"),
        (",".join(CASE_COLUMNS) + "\nA,seen,1,1,disc,good,,,,,,,,,ok\n", "line 2: dice is 'good'"),
        (",".join(CASE_COLUMNS) + "\nA,seen,1\n", "line 2: has 3 values, expected 15"),
        (",".join(CASE_COLUMNS) + "\nA,seen,1,1,disc,nan,,,,,,,,,ok\n", "A/1/disc: dice is nan"),
    ],
)
def test_another_file_is_refused_with_its_name(tmp_path, text, words):
    path = tmp_path / "cases.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as error:
        read_cases(path)
    assert str(path) in str(error.value)
