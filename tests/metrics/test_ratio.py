import csv

import pytest
import torch

from medfed.metrics.ratio import ratio_row, summarise_ratios, vertical_ratio, write_ratios


def box(top: int, bottom: int) -> torch.Tensor:
    mask = torch.zeros(20, 10, 1)
    mask[top:bottom, 2:8] = 1
    return mask


def test_the_ratio_is_of_heights_and_a_missed_disc_counts_as_ratio_zero_and_an_absent_one_as_unknown():
    assert vertical_ratio(box(5, 11), box(2, 14)) == 0.5
    assert vertical_ratio(box(3, 3), box(2, 14)) == 0.0
    assert vertical_ratio(box(3, 5), box(2, 2)) is None
    assert ratio_row("a", "seen", "1", "1", 0.6, None)["error"] == 0.6
    assert ratio_row("a", "seen", "1", "1", None, 0.3)["error"] is None


def test_means_are_over_images_then_over_patients_then_over_sites():
    rows = [
        ratio_row(site, "seen", str(i), str(i), 0.5, value)
        for site, values in (("a", (0.4, 0.6)), ("b", (0.9,)))
        for i, value in enumerate(values)
    ]
    result = summarise_ratios(rows)
    assert result["seen"]["sites"]["a"] == {"n": 2, "mean_error": pytest.approx(0.1)}
    assert result["seen"]["mean_error"] == pytest.approx(0.25) and result["unseen"]["mean_error"] is None
    # Patient p has errors 0.1 and 0.3, patient q has 0.6: (0.2 + 0.6) / 2.
    rows = [
        ratio_row("a", "unseen", patient, image, 0.9, 0.9 - error)
        for patient, image, error in (("p", "1", 0.1), ("p", "2", 0.3), ("q", "3", 0.6))
    ]
    assert summarise_ratios(rows)["unseen"]["sites"]["a"] == {"n": 2, "mean_error": pytest.approx(0.4)}


def test_the_file_is_sorted_with_six_decimals(tmp_path):
    errors = [ratio_row("b", "seen", "1", "1", 0.5, 0.25), ratio_row("a", "seen", "2", "2", None, None)]
    write_ratios(tmp_path / "r.csv", errors)
    with open(tmp_path / "r.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["site"] for row in rows] == ["a", "b"] and rows[1]["error"] == "0.250000" and rows[0]["error"] == ""
