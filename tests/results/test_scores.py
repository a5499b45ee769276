"""The table of scores and its file, `cases.csv`."""

import numpy as np
import pandas as pd
import pytest
from made_comparisons import class_row
from made_runs import mask_row

from medfed.results.scores import (
    COLUMNS,
    IDENTITY,
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
    pd.testing.assert_frame_equal(read_scores(path)[list(COLUMNS)], table, check_dtype=False, check_exact=True)
    assert read_scores(path).seed.tolist() == [0] * len(table)
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
    assert path.read_text() == ",".join([*IDENTITY, *COLUMNS]) + "\n" and read_scores(path).empty


@pytest.mark.parametrize(("rows", "metrics"), WITH_METRICS)
def test_two_values_of_one_image_are_an_error(tmp_path, rows, metrics):
    with pytest.raises(ValueError, match=r"^[AB]/.*: two values; expected one"):
        written(tmp_path, [*rows, rows[1] | {"role": "validation"}], metrics)
    assert not list(tmp_path.iterdir())


def test_arrays_and_predictions_follow_the_order_of_the_classes():
    row = {"site": "A", "role": "seen", "patient": "1", "image": "1", "label": "c", "p_b": 0.2, "p_a": 0.5, "p_c": 0.3}
    table = table_of([row, row | {"image": "2", "label": "a"}], CLASS_METRICS)
    probabilities, labels, patients = probabilities_and_labels(table)
    assert np.array_equal(probabilities, [[0.2, 0.5, 0.3]] * 2) and labels.tolist() == [2, 1]
    assert list(patients) == ["1", "1"]
    expected = [["seen", "A", "1", "1", "c", "a", 0.5, False], ["seen", "A", "1", "2", "a", "a", 0.5, True]]
    assert predictions(table).to_numpy().tolist() == expected
