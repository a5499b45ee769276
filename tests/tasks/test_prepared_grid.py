"""`evaluation.also_on: prepared`: scores on the network's grid, beside those on the grid of the file."""

from types import SimpleNamespace

import pytest
import torch
from made_runs import scores_of, write_rows
from monai.data import MetaTensor
from torch import nn

from medfed.datasets.base import Volume
from medfed.datasets.case import Case
from medfed.metrics.mask_metric import compute_mask_metrics
from medfed.metrics.masks.hd95_pooled import PooledHausdorffDistance95
from medfed.results.scores import read_scores
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.factory import scoring_of
from medfed.tasks.prepared_grid import PREPARED_METRICS
from medfed.tasks.scoring import COMPARISON
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.task import UNOBSERVED

NAMES = [metric.name for metric in PREPARED_METRICS]
PREPARED = Evaluation(also_on="prepared")


class Thresholded(nn.Module):
    """A network whose logits are the image minus 0.5, so that it predicts what is bright."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, image):
        return image - 0.5


def rows_of(image, mask, evaluation=PREPARED, side=32):
    task = Segmentation(("disc",), 1, side, (0.0, 1.0), evaluation, standardised="none")
    volume = Volume(MetaTensor(image), MetaTensor(mask), None, [])
    data = SimpleNamespace(ratio_structures=None, load=lambda case: volume)
    cases = [Case("A", "x", None)]
    return task.evaluate(Thresholded(), data, cases, "unseen", UNOBSERVED).rows


def square(first, last, side=64):
    image = torch.zeros(1, side, side, 1)
    image[:, first:last, first:last] = 1
    return image


def test_a_distance_on_a_grid_of_half_the_size_is_half():
    """The prediction is the square from 16 to 48, the reference from 8 to 56: a margin of 8 pixels, and of 4.

    In the file, the interpolation of the probabilities rounds the corners of the prediction off.
    """
    (row,) = rows_of(square(16, 48), square(8, 56))
    assert row["hd_prepared"] == pytest.approx(4 * 2**0.5)
    assert row["hd_percent_of_diagonal"] == pytest.approx(100 * 8 / 64, rel=0.07), "of 64 * 2**0.5 pixels"
    assert row["dice_prepared"] == 2 * 16**2 / (16**2 + 24**2) == pytest.approx(row["dice"], rel=0.01)
    prediction, reference = square(8, 24, 32), square(4, 28, 32)
    by_hand = compute_mask_metrics([PooledHausdorffDistance95()], prediction[0], reference[0], None)
    assert row["hd95_pooled_prepared"] == by_hand["hd95_pooled_vx"]


def test_a_missed_structure_has_the_diagonal_of_the_prepared_image():
    (row,) = rows_of(torch.zeros(1, 64, 64, 1), square(8, 56))
    assert row["status"] == "missed" and row["dice_prepared"] == 0
    assert {row[name] for name in NAMES[1:]} == {32 * 2**0.5}


def test_without_the_setting_nothing_is_added():
    (row,) = rows_of(square(16, 48), square(8, 56), Evaluation())
    assert not set(NAMES) & set(row)
    assert Segmentation(("disc",), 1, 32).scoring.chosen == ()


def test_files_and_tables_show_the_columns(tmp_path):
    rows, scoring = rows_of(square(16, 48), square(8, 56)), Segmentation(("disc",), 1, 32, evaluation=PREPARED).scoring
    write_rows(tmp_path / "cases.csv", rows, scoring)
    values = read_scores(tmp_path / "cases.csv").set_index("metric").value
    assert values["hd_prepared"] == rows[0]["hd_prepared"] == pytest.approx(4 * 2**0.5)
    summary = scores_of(rows, scoring)
    means = {score["metric"]: score["mean"] for score in summary["scores"] if score["site"] == "average"}
    assert means["dice_prepared"] == pytest.approx(100 * rows[0]["dice_prepared"])
    assert set(NAMES) <= {metric.name for metric in scoring_of(summary).metrics_in(COMPARISON)}
