"""The scores of a run by role, site and structure, with values by hand."""

import json
import math

import numpy as np
import pytest
from made_comparisons import class_row
from made_runs import CLASSES, MASKS, mask_row

from medfed.results.run_scores import COLUMNS, n_absent, run_scores, run_scores_of
from medfed.results.scores import table_of


def records_of(rows):
    scoring = CLASSES if rows and "label" in rows[0] else MASKS
    return run_scores(table_of(rows, scoring.metrics), scoring)


def at(rows, site="A", metric="dice", role="seen", structure=None):
    """The only record of a metric at a site; None without one."""
    own = [
        record
        for record in records_of(rows)
        if (record["role"], record["site"], record["metric"]) == (role, site, metric)
        and structure in (None, record["structure"])
    ]
    assert len(own) <= 1
    return own[0] if own else None


def row(site, role, image, dice, hd95=None, status="ok", patient="", **others):
    others = {"image": image, "hd95_percent_of_diagonal": hd95} | others
    return mask_row(site, patient or image, dice, status, role, **others)


def cohort(site="A", role="seen", n=12, seed=0, structure="disc"):
    rng = np.random.default_rng(seed)
    return [
        row(site, role, f"p{k:02}", float(rng.uniform(0.5, 1)), float(rng.uniform(1, 9)), structure=structure)
        for k in range(n)
    ]


def test_means_by_hand():
    """Seen: site A 0.9 and 0.7, site B 0.6. The mean over sites is (0.8 + 0.6)/2: sites have equal weights."""
    rows = [
        row("A", "seen", "1", 0.9, 2.0),
        row("A", "seen", "2", 0.7, 4.0),
        row("B", "seen", "1", 0.6, 5.0),
        row("C", "unseen", "1", 0.5, 10.0),
    ]
    known = {"role": "seen", "structure": "disc", "metric": "dice", "unit": "%", "low": None, "high": None}
    n_images = {"n_patients": 2, "n_images": 2}
    assert at(rows) == known | {"site": "A", "mean": pytest.approx(80)} | n_images
    average = {"site": "average", "mean": pytest.approx(70), "n_patients": 3, "n_images": 3}
    assert at(rows, "average") == known | average
    assert (at(rows, "average", "hd95")["mean"], at(rows, "average", "hd95")["unit"]) == (4.0, "% of diagonal")
    assert at(rows, "average", "hd95", "unseen")["mean"] == 10.0 and at(rows, "C", role="seen") is None
    assert tuple(at(rows)) == COLUMNS


def test_ten_images_of_two_patients_have_no_interval_and_a_patient_counts_once():
    """Patient p has nine images of Dice 0.9, q one of 0.5: mean 0.7."""
    rows = [row("A", "unseen", f"{k}", 0.5 if k == 9 else 0.9, patient="q" if k == 9 else "p") for k in range(10)]
    for site in ("A", "average"):
        score = at(rows, site, role="unseen")
        assert (score["n_images"], score["n_patients"], score["mean"]) == (10, 2, pytest.approx(70))
        assert (score["low"], score["high"]) == (None, None)
        low_dice = at(rows, site, "low_dice", "unseen")
        assert (low_dice["mean"], low_dice["n_patients"]) == (50, 2), "q fails, p does not"


def test_a_patient_without_the_structure_in_one_image_counts_with_the_others():
    rows = [
        row("A", "seen", "1", 0.8, patient="p"),
        row("A", "seen", "2", None, status="absent", patient="p"),
        row("A", "seen", "3", None, status="absent", patient="q"),
    ]
    assert [at(rows)[key] for key in ("n_images", "n_patients", "mean")] == [1, 1, 80]
    assert n_absent(table_of(rows, MASKS.metrics)) == 2
    assert n_absent(table_of([class_row("A", "s", "i", "a", 0.5)], CLASSES.metrics)) == 0


def test_the_records_are_json_without_nan_even_of_nothing():
    rows = [*cohort("A"), row("B", "unseen", "1", None, status="absent"), row("A", "seen", "x", 0.9, structure="cup")]
    for case in (rows, rows[-2:-1], []):
        records = records_of(case)
        assert json.loads(json.dumps(records, allow_nan=False)) == records
    assert records_of([]) == [] and at(rows, "B", role="unseen") is None
    assert at(rows, structure="cup")["mean"] == pytest.approx(90)


def classified(site, role, image, label, p, patient=""):
    return class_row(site, patient or image, image, label, p, role)


def test_sites_of_classified_images_have_equal_weights_and_no_average_if_one_has_no_score():
    """Seen: 1 of 2 correct at A, 1 of 1 at B: mean 75. Unseen: 0. AUROC: 50 (tie) at A, none at B."""
    rows = [
        classified("A", "seen", "1", "b", 0.9),
        classified("A", "seen", "2", "a", 0.9),
        classified("B", "seen", "1", "a", 0.2),
        classified("C", "unseen", "1", "a", 0.7),
    ]
    accuracy, auroc = at(rows, "average", "accuracy"), at(rows, "A", "auroc")
    assert [accuracy[key] for key in ("mean", "low", "high", "n_patients", "n_images")] == [75, None, None, 3, 3]
    assert (auroc["mean"], auroc["structure"], at(rows, "B", "auroc")) == (50, "all", None)
    assert at(rows, "average", "auroc") is None
    assert at(rows, "C", "accuracy", "unseen")["mean"] == 0


def test_the_interval_is_over_patients_not_images():
    """A hundred images of as many patients, or of ten patients with all images right or all wrong: 10 x variance."""
    p = [0.9 if k % 10 < 7 else 0.1 for k in range(100)]
    one_each, ten_each = (
        [classified("A", "seen", f"{k:03}", "b", p[k], f"s{k % n}") for k in range(100)] for n in (100, 10)
    )
    narrow, wide = (at(rows, metric="accuracy") for rows in (one_each, ten_each))
    assert (narrow["n_patients"], wide["n_patients"]) == (100, 10)
    assert narrow["mean"] == pytest.approx(70) and wide["mean"] == pytest.approx(70)
    widths = [score["high"] - score["low"] for score in (narrow, wide)]
    assert widths[1] / widths[0] == pytest.approx(10**0.5, rel=0.15)


def test_sites_are_in_the_order_of_their_names_whatever_their_units():
    rows = [row("A", "seen", "1", 0.8, assd_mm=3.0), row("B", "seen", "1", 0.6, assd_percent_of_diagonal=5.0)]
    sites = [record["site"] for record in records_of(rows) if record["site"] != "average"]
    assert sites == sorted(sites) and set(sites) == {"A", "B"}


RECORD = dict(zip(COLUMNS, ("seen", "A", "disc", "dice", "%", 80.0, 70.0, None, 5, 6)))


def test_stored_records_are_a_table_with_nan_for_unknown_numbers():
    table = run_scores_of(json.loads(json.dumps({"scores": [RECORD]})))
    (line,) = table.itertuples(index=False)
    assert tuple(table.columns) == COLUMNS and line[:7] == tuple(RECORD.values())[:7] and math.isnan(line.high)
    empty = run_scores_of({"scores": []})
    assert tuple(empty.columns) == COLUMNS and empty.empty and empty["mean"].dtype == float


@pytest.mark.parametrize(
    "scores",
    [
        None,
        3,
        "text",
        RECORD,
        ["text"],
        [list(RECORD.values())],
        [RECORD, None],
        [RECORD | {"site": 3}],
        [RECORD | {"unit": None}],
        [RECORD | {"mean": "high"}],
        [RECORD | {"mean": "80"}],
        [RECORD | {"low": [70.0]}],
        [RECORD | {"n_patients": {}}],
        [RECORD | {"mean": True}],
        [RECORD | {"mean": math.inf}],
        [RECORD | {"high": math.nan}],
        [RECORD | {"n_images": 10**400}],
        [RECORD | {"role": "heard"}],
        [RECORD, RECORD | {"mean": 1.0}],
        [RECORD | {"metric": "missed", "mean": None}],
        [RECORD | {"metric": "false_alarm", "n_patients": None}],
        [{key: value for key, value in RECORD.items() if key != "mean"}],
        [{key: value for key, value in RECORD.items() if key != "metric"}],
    ],
)
def test_damaged_records_are_an_error(scores):
    with pytest.raises(ValueError, match="scores: expected ") as caught:
        run_scores_of({"scores": scores})
    assert len(str(caught.value)) < 250  # also of a number with 400 digits
