"""Predictions without labels: images found by name, ranges of the sites, and the comparison with true Dice, by hand."""

import pytest
import torch
from PIL import Image

from medfed.core.errors import UserError
from medfed.functional.image_facts import NAMES
from medfed.scoring.image_distance import compare_images, n_outside
from medfed.scoring.prediction_check import area, check_predictions
from medfed.scoring.unlabelled import Images


def test_images_are_found_in_folders_and_files_called_like_masks_are_left_out(tmp_path):
    for name in ("a.png", "a_mask.png", "X/images/b.png", "X/masks/b.png", "X/visit/c.png", "notes.txt"):
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 6)).save(tmp_path / "here" / name, "PNG")
    images = Images.in_folder(tmp_path / "here", 1)
    assert [(case.site, case.name) for case in images.cases] == [("here", "a"), ("X", "b"), ("X", "visit/c")]
    assert all(case.mask is None for case in images.cases) and not images.is_phantom
    assert images.read(images.cases[0]).shape == (1, 6, 4, 1)
    assert Images.in_folder(tmp_path / "here", 3).read(images.cases[0]).shape == (3, 6, 4, 1)


@pytest.mark.parametrize("name", ["labelsTr", "Segmentations", "ground truth", "1st_manual", "mask_png", "GroundTruth"])
def test_folders_of_masks_are_left_out(name, tmp_path):
    for folder in ("imagesTr", name):
        (tmp_path / folder).mkdir()
        Image.new("L", (4, 6)).save(tmp_path / folder / "a.png")
    assert [case.image.parent.name for case in Images.in_folder(tmp_path, 1).cases] == ["imagesTr"]


def test_files_that_differ_in_their_ending_only_are_two_images(tmp_path):
    for name in ("a.png", "a.jpg"):
        Image.new("L", (4, 6)).save(tmp_path / name)
    assert len(Images.in_folder(tmp_path, 1).cases) == 2


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no image with one of the endings"):
        Images.in_folder(tmp_path, 1)
    with pytest.raises(UserError, match="is not a folder"):
        Images.in_folder(tmp_path / "missing", 1)


def facts(**columns: list[float]) -> torch.Tensor:
    n = len(next(iter(columns.values())))
    values = torch.full((n, len(NAMES)), torch.nan, dtype=torch.float64)
    for name, column in columns.items():
        values[:, NAMES.index(name)] = torch.tensor(column, dtype=torch.float64)
    return values


def test_a_fact_is_inside_if_the_mean_lies_between_the_ranges_of_the_sites():
    sites = {
        "A": {"brightness": {"n": 5, "mean": 0.4, "sd": 0.1}, "height": {"n": 5, "mean": 64.0, "sd": 0.0}},
        "B": {"brightness": {"n": 5, "mean": 0.6, "sd": 0.05}},
    }
    images = facts(brightness=[0.3, 0.5, 0.9], height=[64, 64, 64], contrast=[1, 1, 1])
    brightness, height = sorted(compare_images(images, sites), key=lambda row: row["name"])
    assert brightness["low"] == pytest.approx(0.2, abs=1e-3) and brightness["high"] == pytest.approx(0.7, abs=1e-3)
    assert brightness["inside"] and brightness["nearest"] == "B" and brightness["n_outside"] == 1
    assert height["inside"] and height["n_outside"] == 0
    assert n_outside(images, [brightness, height]) == [0, 0, 1]
    assert not compare_images(facts(height=[80, 80]), sites)[0]["inside"]
    assert compare_images(facts(slices=[1]), sites) == []


def row(predicted, true, agreement=0.5):
    return {
        "predicted_dice": predicted,
        "low": predicted and predicted - 0.1,
        "high": predicted and predicted + 0.1,
        "agreement": agreement,
        "true_dice": true,
    }


def test_predictions_are_compared_with_the_truth_and_with_the_constant():
    rows = [row(0.9, 0.8, 0.9), row(0.8, 0.5, 0.8), row(0.6, 0.9, 0.6), row(0.5, 0.45, 0.5)]
    rows += [row(None, 0.0, None), row(0.4, None, 0.4)]  # an empty mask, and a structure that is in no mask
    check = check_predictions(rows, 0.7, failure_dice=0.7)
    assert check["n"] == 4 and check["mean_true"] == pytest.approx(0.6625)
    assert check["mae"] == pytest.approx((0.1 + 0.3 + 0.3 + 0.05) / 4)
    assert check["mae_constant"] == pytest.approx((0.1 + 0.2 + 0.2 + 0.25) / 4)
    assert check["in_interval"] == 0.5
    assert (check["n_failures"], check["n_misses"], check["n_false_warnings"], check["n_empty"]) == (3, 1, 1, 1)
    assert check["spearman"] == pytest.approx(0.4)  # ranks 4 3 2 1 and 3 2 4 1


def test_an_empty_mask_is_the_least_confident_case():
    check = check_predictions([row(None, 0.0, None), row(0.9, 1.0, 0.9)], 0.7, 0.7)
    assert check["risk_coverage"] == [(0.5, 0.0), (1.0, 0.5)]
    assert check["aurc"] == check["aurc_best"] == 0.25 and check["aurc_random"] == 0.5
    assert check["pearson"] is None


def test_without_a_calibration_only_the_order_is_compared():
    check = check_predictions([row(None, 0.2, 0.3), row(None, 0.9, 0.9)], None, 0.7)
    assert check["mae"] is check["n_misses"] is None and check["n_failures"] == 1
    assert check["aurc"] == check["aurc_best"] == pytest.approx(0.5 * 0.1 + 0.5 * 0.45)


def test_the_area_is_that_of_the_steps():
    assert area([(0.25, 0.0), (1.0, 0.4)]) == pytest.approx(0.3) and area([]) is None
