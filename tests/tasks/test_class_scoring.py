"""Classified images: means over sites, intervals over patients, the gap, the paired test, and the file of cases."""

import json

import numpy as np
import pytest

from medfed.core.errors import UserError
from medfed.tasks.class_scoring import ClassScoring, case_row, classes_of, probabilities_and_labels

SCORING = ClassScoring()
summarise, write_cases, read_cases = SCORING.summarise, SCORING.write_cases, SCORING.read_cases

CLASSES = ("normal", "tumour")


def row(site, role, image, label, second, patient=None, classes=CLASSES):
    return case_row(site, role, patient or image, image, label, (1 - second, second), classes)


def cohort(site="A", role="seen", n=40, images_per_patient=4, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    second = [float(np.clip(rng.normal(0.35 + 0.3 * label, 0.2), 0, 1)) for label in labels]
    return [
        row(site, role, f"i{k:03}", int(label), p, patient=f"s{k // images_per_patient}")
        for k, (label, p) in enumerate(zip(labels, second))
    ]


def at_a(rows):
    """The scores at the seen site A."""
    return summarise(rows)["seen"]["sites"]["A"]["all"]


def test_sites_have_equal_weights_in_means_and_the_gap_is_seen_minus_unseen():
    """Seen: 1 of 2 correct at A, 1 of 1 at B: mean 0.75, sd sqrt(1/8). Unseen: 0. AUROC: 1/2 (tie) at A, none at B."""
    rows = [
        row("A", "seen", "1", 1, 0.9),
        row("A", "seen", "2", 0, 0.9),
        row("B", "seen", "1", 0, 0.2),
        row("C", "unseen", "1", 0, 0.7),
    ]
    summary = summarise(rows)
    mean = summary["seen"]["mean"]["all"]
    assert (mean["n"], mean["n_wrong"]) == (3, 1)
    unknown = dict.fromkeys(("low", "high", "sd"))
    assert mean["accuracy"] == unknown | {"n_sites": 2, "mean": 0.75, "sd": pytest.approx(0.125**0.5)}
    assert mean["auroc"] == unknown | {"n_sites": 1, "mean": 0.5}
    assert summary["gap"]["all"] == {"accuracy": 0.75, "auroc": None}
    assert summary["seen"]["sites"]["A"]["all"]["n_by_class"] == {"normal": 1, "tumour": 1}
    assert (summary["task"], summary["classes"]) == ("classification", list(CLASSES))
    json.dumps(summary, allow_nan=False)
    nothing = summarise([])
    assert (nothing["seen"], nothing["gap"]) == ({"sites": {}, "mean": {}}, {})


def test_the_interval_is_over_patients_not_images():
    """A hundred images of as many patients, or of ten patients with all images right or all wrong: 10 x variance."""
    is_correct = [k % 10 < 7 for k in range(100)]
    one_each = [row("A", "seen", f"{k:03}", 1, 0.9 if ok else 0.1) for k, ok in enumerate(is_correct)]
    ten_each = [image | {"patient": f"s{k % 10}"} for k, image in enumerate(one_each)]
    narrow, wide = map(at_a, (one_each, ten_each))
    assert (narrow["n_patients"], wide["n_patients"]) == (100, 10)
    assert narrow["accuracy"]["mean"] == wide["accuracy"]["mean"] == 0.7
    widths = [group["accuracy"]["high"] - group["accuracy"]["low"] for group in (narrow, wide)]
    assert widths[1] / widths[0] == pytest.approx(10**0.5, rel=0.15)


def test_intervals_contain_the_score_and_do_not_depend_on_other_sites_or_order():
    rows = cohort()
    one_site, two_sites = (summarise(cases) for cases in (rows, [*cohort("B", seed=1), *rows[::-1]]))
    assert one_site["seen"]["sites"]["A"] == two_sites["seen"]["sites"]["A"]
    for metric in ("accuracy", "balanced_accuracy", "auroc"):
        score = one_site["seen"]["sites"]["A"]["all"][metric]
        assert score["low"] < score["mean"] < score["high"]
    assert one_site["seen"]["sites"]["A"]["all"]["ece"]["low"] is None


def test_a_single_patient_has_no_interval_and_a_single_patient_of_a_class_none_of_auroc():
    """One of five patients has the tumour: without this patient, AUROC is undefined."""
    score = at_a([image | {"patient": "s"} for image in cohort(n=6)])["accuracy"]
    assert score["mean"] is not None and (score["low"], score["high"]) == (None, None)
    rows = [row("A", "seen", str(k), int(k == 0), 0.6 if k == 0 else 0.4) for k in range(5)]
    score = at_a(rows)["auroc"]
    assert score == {"n": 5, "mean": 1.0, "n_patients": 0, "se": None, "low": None, "high": None}


def test_arrays_follow_the_order_of_the_classes():
    rows = [case_row("A", "seen", "1", "1", 2, (0.2, 0.5, 0.3), ("b", "a", "c"))]
    assert classes_of(rows) == ("b", "a", "c")
    assert (rows[0]["label"], rows[0]["predicted"], rows[0]["correct"]) == ("c", "a", 0)
    probabilities, labels = probabilities_and_labels(rows)
    assert (probabilities.tolist(), labels.tolist()) == ([[0.2, 0.5, 0.3]], [2])


def test_rows_are_bit_identical_after_writing_and_reading(tmp_path):
    rows = [*cohort("B"), *cohort("A", "unseen", seed=1)]
    write_cases(tmp_path / "cases.csv", rows[::-1])
    rows_read = read_cases(tmp_path / "cases.csv")
    assert sorted(rows_read, key=lambda image: image["site"]) == sorted(rows, key=lambda image: image["site"])
    assert summarise(rows_read) == summarise(rows)
    first = (tmp_path / "cases.csv").read_bytes()
    assert first.startswith(b"site,role,patient,image,label,predicted,p_normal,p_tumour,correct\n")
    write_cases(tmp_path / "cases.csv", rows)
    assert (tmp_path / "cases.csv").read_bytes() == first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("site,role", "place,role"), "the first line is not site,role"),
        (("seen", "heard"), "role is 'heard'"),
        (("0.9", "?"), "line 2: p_tumour is '?'"),
        (("0.9", ""), "expected numbers in"),
        (("0.9", "1.9"), r"in \[0, 1\]"),
        (("0.9", "0.05"), "must have predicted='normal'"),
        (("tumour,tumour", "tumour,benign"), "predicted 'benign'"),
        ((",1\n", "\n"), "line 2: has 8 values, expected 9"),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(tmp_path, change, words):
    path = tmp_path / "cases.csv"
    write_cases(path, [case_row("A", "seen", "1", "1", 1, (0.1, 0.9), CLASSES)])
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(UserError, match=words):
        read_cases(path)
    for text in ("", "site\n"):
        path.write_text(text)
        with pytest.raises(UserError, match="expected the cases.csv of a classification run"):
            read_cases(path)


def test_an_image_with_two_rows_or_with_other_classes_is_refused():
    with pytest.raises(ValueError, match="two rows"):
        summarise([row("A", "seen", "1", 1, 0.9)] * 2)
    with pytest.raises(ValueError, match="the same for all images"):
        summarise([row("A", "seen", "1", 1, 0.9), row("A", "seen", "2", 1, 0.9, classes=("x", "y"))])
