"""Classified images: means over sites, intervals over people, the gap, the paired test, and the file of cases."""

import json

import numpy as np
import pytest

from medfed.core.errors import UserError
from medfed.tasks.class_scoring import ClassScoring, case_row, classes_of, probabilities_and_labels

SCORING = ClassScoring()
summarise, write_cases, read_cases = SCORING.summarise, SCORING.write_cases, SCORING.read_cases

CLASSES = ("normal", "tumour")


def row(site, role, patient, label, second, subject=None, classes=CLASSES):
    return case_row(site, role, patient, subject or patient, label, (1 - second, second), classes)


def cohort(site="A", role="seen", n=40, per_person=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    return [
        row(site, role, f"i{k:03}", int(label), float(np.clip(rng.normal(0.35 + 0.3 * label, 0.2), 0, 1)),
            subject=f"s{k // per_person}")
        for k, label in enumerate(labels)
    ]  # fmt: skip


def test_means_weigh_sites_alike_and_the_gap_is_seen_minus_unseen():
    """Seen: A has 1 of 2 right, B 1 of 1: mean 0.75 with sd sqrt(1/8). Unseen: 0. AUROC: A 1/2 (a tie), B unknown."""
    rows = [
        row("A", "seen", "1", 1, 0.9),
        row("A", "seen", "2", 0, 0.9),
        row("B", "seen", "1", 0, 0.2),
        row("C", "unseen", "1", 0, 0.7),
    ]
    summary = summarise(rows, 0)
    mean = summary["seen"]["mean"]["all"]
    assert (mean["n"], mean["n_wrong"]) == (3, 1)
    assert mean["accuracy"] == {"n_sites": 2, "mean": 0.75, "sd": pytest.approx(0.125**0.5)}
    assert mean["auroc"] == {"n_sites": 1, "mean": 0.5, "sd": None}
    assert summary["gap"]["all"] == {"accuracy": 0.75, "auroc": None}
    assert summary["seen"]["sites"]["A"]["all"]["n_by_class"] == {"normal": 1, "tumour": 1}
    assert (summary["task"], summary["classes"]) == ("classification", list(CLASSES))
    json.dumps(summary, allow_nan=False)


def test_the_interval_draws_people_not_images():
    """A hundred images of one person each, or of ten people who are wholly right or wrong: ten times the variance."""
    right = [k % 10 < 7 for k in range(100)]
    apart = [row("A", "seen", f"{k:03}", 1, 0.9 if ok else 0.1) for k, ok in enumerate(right)]
    together = [found | {"subject": f"s{k % 10}"} for k, found in enumerate(apart)]
    narrow, wide = (summarise(rows, 0)["seen"]["sites"]["A"]["all"] for rows in (apart, together))
    assert (narrow["n_subjects"], wide["n_subjects"]) == (100, 10)
    assert narrow["accuracy"]["mean"] == wide["accuracy"]["mean"] == 0.7
    widths = [found["accuracy"]["high"] - found["accuracy"]["low"] for found in (narrow, wide)]
    assert widths[1] / widths[0] == pytest.approx(10**0.5, rel=0.15)


def test_intervals_hold_the_score_and_do_not_depend_on_other_sites_or_order():
    rows = cohort()
    alone, among = (summarise(found, 3) for found in (rows, [*cohort("B", seed=1), *rows[::-1]]))
    assert alone["seen"]["sites"]["A"] == among["seen"]["sites"]["A"]
    for metric in ("accuracy", "balanced_accuracy", "auroc"):
        found = alone["seen"]["sites"]["A"]["all"][metric]
        assert found["low"] < found["mean"] < found["high"]
    assert alone["seen"]["sites"]["A"]["all"]["ece"]["low"] is None


def test_one_person_has_scores_and_no_interval():
    rows = [found | {"subject": "s"} for found in cohort(n=6)]
    found = summarise(rows, 0)["seen"]["sites"]["A"]["all"]["accuracy"]
    assert found["mean"] is not None
    assert (found["low"], found["high"]) == (None, None)


def test_a_class_of_one_person_leaves_auroc_without_an_interval():
    """Of five people one has the tumour: 0.8**5 = a third of all resamples are without it."""
    rows = [row("A", "seen", str(k), int(k == 0), 0.6 if k == 0 else 0.4) for k in range(5)]
    found = summarise(rows, 0)["seen"]["sites"]["A"]["all"]["auroc"]
    assert found == {"n": 5, "mean": 1.0, "low": None, "high": None}


def test_no_rows_make_an_empty_summary():
    summary = summarise([], 0)
    assert (summary["seen"], summary["gap"]) == ({"sites": {}, "mean": {}}, {})


def test_the_paired_test_is_over_people():
    """Seven people with two images each; of each, the second method tells one wrong: seven equal shares of one half.

    Over fourteen images seven would not differ, and n would be 14.
    """
    good = [row("A", "unseen", f"{k}_{i}", 1, 0.9, subject=str(k)) for k in range(7) for i in range(2)]
    poor = [row("A", "unseen", f"{k}_{i}", 1, 0.9 - 0.8 * i, subject=str(k)) for k in range(7) for i in range(2)]
    found = SCORING.paired_test(good, poor, "accuracy")
    assert (found["n"], found["n_differ"]) == (7, 7)
    assert found["p"] < 0.02
    few = SCORING.paired_test(good[:4], poor[:4], "accuracy")
    assert (few["p"], few["reason"]) == (None, "only 2 matched people; the test needs 6")


def test_arrays_follow_the_order_of_the_classes():
    rows = [case_row("A", "seen", "1", "1", 2, (0.2, 0.5, 0.3), ("b", "a", "c"))]
    assert classes_of(rows) == ("b", "a", "c")
    assert (rows[0]["label"], rows[0]["predicted"], rows[0]["correct"]) == ("c", "a", 0)
    probabilities, labels = probabilities_and_labels(rows)
    assert (probabilities.tolist(), labels.tolist()) == ([[0.2, 0.5, 0.3]], [2])
    assert SCORING.overall_score([], "auroc") is None


def test_the_file_gives_the_rows_back_to_the_last_bit(tmp_path):
    rows = [*cohort("B"), *cohort("A", "unseen", seed=1)]
    write_cases(tmp_path / "cases.csv", rows[::-1])
    again = read_cases(tmp_path / "cases.csv")
    assert sorted(again, key=lambda found: found["site"]) == sorted(rows, key=lambda found: found["site"])
    assert summarise(again, 0) == summarise(rows, 0)
    first = (tmp_path / "cases.csv").read_bytes()
    assert first.startswith(b"site,role,patient,subject,label,predicted,p_normal,p_tumour,correct\n")
    write_cases(tmp_path / "cases.csv", rows)
    assert (tmp_path / "cases.csv").read_bytes() == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("site,role", "place,role"), "the first line is not site,role"),
        (("seen", "heard"), "role 'heard'"),
        (("0.9", "?"), "line 2: p_tumour is '?'"),
        (("0.9", ""), "unknown is no probability"),
        (("0.9", "1.9"), r"in \[0, 1\]"),
        (("0.9", "0.05"), "most probable class 'normal'"),
        (("tumour,tumour", "tumour,benign"), "predicted 'benign'"),
        ((",1\n", "\n"), "line 2: has 8 values, expected 9"),
    ],
)
def test_a_spoilt_file_is_named_in_one_sentence(tmp_path, change, words):
    path = tmp_path / "cases.csv"
    write_cases(path, [case_row("A", "seen", "1", "1", 1, (0.1, 0.9), CLASSES)])
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(UserError, match=words):
        read_cases(path)


@pytest.mark.parametrize("text", ["", "site\n"])
def test_an_empty_file_is_no_file_of_cases(tmp_path, text):
    (tmp_path / "cases.csv").write_text(text)
    with pytest.raises(UserError, match="classified images"):
        read_cases(tmp_path / "cases.csv")


def test_an_image_scored_twice_or_with_other_classes_is_refused():
    with pytest.raises(ValueError, match="scored twice"):
        summarise([row("A", "seen", "1", 1, 0.9)] * 2, 0)
    with pytest.raises(ValueError, match="the same for all images"):
        summarise([row("A", "seen", "1", 1, 0.9), row("A", "seen", "2", 1, 0.9, classes=("x", "y"))], 0)
