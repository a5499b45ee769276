"""The table of scores and its file, `cases.csv`."""

import math

import numpy as np
import pandas as pd
import pytest
from made_comparisons import class_row, mask_row

from medfed.core.errors import UserError
from medfed.results.scores import (
    COLUMNS,
    IDENTITY,
    check_scores,
    predictions,
    probabilities_and_labels,
    read_scores,
    table_of,
    write_scores,
)
from medfed.tasks.scoring import CLASS_METRICS, MASK_METRICS

RUN = dict(zip(IDENTITY, ("elcfs", "paper", 0, "B", "")))
MASK_ROWS = [
    mask_row("B", 'p, "1"', 0.25, hd95_percent_of_diagonal=3.5),
    mask_row("A", "Zoë", None, "absent", role="seen"),
    mask_row("A", "0012", 0.0, "missed", role="seen", hd95_mm=500.0, ece=2 / 3),
]
CLASS_ROWS = [class_row(site, "s", f"i{k}", "ab"[k % 2], k / 7) for site in "BA" for k in range(7)]
WITH_METRICS = ((MASK_ROWS, MASK_METRICS), (CLASS_ROWS, CLASS_METRICS))


def written(path, rows, metrics, run=RUN):
    write_scores(path / "cases.csv", table_of(rows, metrics), run)
    return path / "cases.csv"


@pytest.mark.parametrize(("rows", "metrics"), WITH_METRICS)
def test_a_table_has_the_same_bits_after_writing_in_any_order_and_reading(tmp_path, rows, metrics):
    path = written(tmp_path, rows, metrics)
    table = table_of(rows, metrics)
    pd.testing.assert_frame_equal(read_scores(path, metrics)[list(COLUMNS)], table, check_dtype=False, check_exact=True)
    assert read_scores(path, metrics).seed.tolist() == [0] * len(table)
    assert [file.name for file in tmp_path.iterdir()] == ["cases.csv"]
    first = path.read_bytes()
    assert written(tmp_path, rows[::-1], metrics).read_bytes() == first
    assert table.site.is_monotonic_increasing


def test_a_file_has_the_columns_of_the_run_then_one_line_for_each_value_with_all_digits(tmp_path):
    path = written(tmp_path, MASK_ROWS, MASK_METRICS, RUN | {"method.k": "2"})
    lines = path.read_text().splitlines()
    assert lines[0] == ",".join([*IDENTITY, "method.k", *COLUMNS])
    assert "elcfs,paper,0,B,,2,seen,A,0012,0012,disc,ece,66.66666666666666,%,missed" in lines
    assert "elcfs,paper,0,B,,2,seen,A,0012,0012,disc,hd95,500.0,mm,missed" in lines
    assert "elcfs,paper,0,B,,2,seen,A,Zoë,Zoë,disc,dice,,%,absent" in lines
    assert 'elcfs,paper,0,B,,2,unseen,B,"p, ""1""","p, ""1""",disc,hd95,3.5,% of diagonal,ok' in lines
    assert len(lines) == 1 + len(MASK_ROWS) * len(MASK_METRICS)


def test_a_classified_image_has_a_line_for_each_class_with_the_true_class_as_status(tmp_path):
    lines = written(tmp_path, [class_row("A", "s", "i", "b", 1 / 3)], CLASS_METRICS).read_text().splitlines()
    assert lines[1:] == [
        "elcfs,paper,0,B,,unseen,A,s,i,all,p_a,0.6666666666666667,,b",
        "elcfs,paper,0,B,,unseen,A,s,i,all,p_b,0.3333333333333333,,b",
    ]


@pytest.mark.parametrize("metrics", [MASK_METRICS, CLASS_METRICS])
def test_a_run_without_test_images_has_a_file_with_a_header_only(tmp_path, metrics):
    path = written(tmp_path, [], metrics)
    assert path.read_text() == ",".join([*IDENTITY, *COLUMNS]) + "\n" and read_scores(path, metrics).empty


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([mask_row("A", "1", 0.9)] * 2, "A/1, disc, dice.*in two rows"),
        ([mask_row("A", "1", 0.9), mask_row("A", "1", 0.9, role="seen")], "two rows"),
        ([mask_row("A", "1", 0.9, role="held out")], "the role is not one of seen, unseen, validation"),
        ([mask_row("A", "1", 0.9, "lost")], "the status is not one of absent, false_alarm, missed, ok"),
        ([mask_row("A", "1", 0.9, hd95_mm=math.inf)], "A/1, disc, hd95, inf: the value is not finite"),
        ([class_row("A", "1", "1", "b", 0.9)] * 2, "A/1, all, p_a.*in two rows"),
        ([class_row("A", "1", "1", "b", math.nan)], "not a number in"),
        ([class_row("A", "1", "1", "c", 0.9)], "the status is not one of"),
        ([class_row("A", "1", "1", "a", 0.9), class_row("A", "2", "2", "a", 0.9) | {"p_c": 0.0}], "number in"),
    ],
)
def test_invalid_rows_are_neither_written_nor_hidden(tmp_path, rows, words):
    metrics = CLASS_METRICS if "label" in rows[0] else MASK_METRICS
    with pytest.raises(ValueError, match=words):
        check_scores(table_of(rows, metrics))
    with pytest.raises(ValueError, match=words):
        written(tmp_path, rows, metrics)
    assert not list(tmp_path.iterdir())


def of_metric(name):
    """The line of one value of the image 1."""
    return f"unseen,A,1,1,disc,{name},"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (None, "", "No columns"),
        (None, "site,dice\nA,1\n", "the columns are site,dice, expected"),
        ("role,site", "role,place", "the columns are method"),
        (",status\n", "\n", "the columns are method"),
        ("dice,90.0", "dice,good", "line 2: the value is 'good'; expected a finite number"),
        ("dice,90.0", "dice,nan", "line 2: the value is 'nan'; expected a finite number"),
        ("dice,90.0", "dice,inf", "line 2: the value is 'inf'; expected a finite number"),
        ("dice,90.0,%,ok", "dice,90.0", "the status is not one of"),
        ("dice,90.0", "dice,190.0", "dice: expected values from 0 to 100 %"),
        ("dice,90.0,%,ok", "dice,90.0,%,ok,more", "line 2: the value is '%'"),
        ("ece,,%,ok", "ece,,%,ok,more", "Expected 14 fields in line 7, saw 15"),
        (of_metric("hd"), of_metric("dice"), "A/1, disc, dice.*in two rows"),
        (",hd95_pooled_vx,", ",unheard_of,", "the metric 'unheard_of' is not one of dice, hd, "),
        (",unseen,", ",heard,", "the role is not one of"),
        (",ok\n", ",okay\n", "the status is not one of"),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(tmp_path, old, new, words):
    path = written(tmp_path, [mask_row("A", "1", 0.9)], MASK_METRICS)
    _damage(path, old, new)
    with pytest.raises(UserError, match=words) as error:
        read_scores(path, MASK_METRICS)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (None, "", "No columns"),
        ("p_b,0.9", "p_b,?", r"line 3: the value is '\?'"),
        ("p_b,0.9", "p_b,", "not a number in"),
        ("p_b,0.9", "p_b,1.9", r"not a number in \[0, 1\]"),
        ("p_b,0.9", "p_b,-0.1", r"not a number in \[0, 1\]"),
        ("unseen", "heard", "the role is not one of"),
        (",b\n", ",ok\n", "the status is not one of a, b"),
        ("p_b,0.9,,b\n", "p_b,0.9\n", "the status is not one of"),
        ("s,i,all,p_b", "s,i,disc,p_b", "a probability is missing"),
        ("s,j,all,p_b", "s,k,all,p_b", "a probability is missing"),
        ("s,j,all,p_b", "s,j,all,dice", "the status is not one of absent|a probability is missing"),
        ("elcfs,paper,0,B,,unseen,A,s,j,all,p_b,0.2,,a\n", "", "a probability is missing"),
    ],
)
def test_a_damaged_file_of_probabilities_is_named_in_one_sentence(tmp_path, old, new, words):
    path = written(tmp_path, [class_row("A", "s", "i", "b", 0.9), class_row("A", "s", "j", "a", 0.2)], CLASS_METRICS)
    _damage(path, old, new)
    with pytest.raises(UserError, match=words) as error:
        read_scores(path, CLASS_METRICS)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def _damage(path, old, new):
    text = path.read_text()
    assert old is None or old in text
    path.write_text(new if old is None else text.replace(old, new))


def test_a_file_that_is_no_text_is_named_in_one_sentence(tmp_path):
    (tmp_path / "cases.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cases.csv: "):
        read_scores(tmp_path / "cases.csv", MASK_METRICS)


def test_arrays_and_predictions_follow_the_order_of_the_classes():
    row = {"site": "A", "role": "seen", "patient": "1", "image": "1", "label": "c", "p_b": 0.2, "p_a": 0.5, "p_c": 0.3}
    table = table_of([row, row | {"image": "2", "label": "a"}], CLASS_METRICS)
    probabilities, labels, patients = probabilities_and_labels(table)
    assert np.array_equal(probabilities, [[0.2, 0.5, 0.3]] * 2) and labels.tolist() == [2, 1]
    assert list(patients) == ["1", "1"]
    expected = [["seen", "A", "1", "1", "c", "a", 0.5, False], ["seen", "A", "1", "2", "a", "a", 0.5, True]]
    assert predictions(table).to_numpy().tolist() == expected
