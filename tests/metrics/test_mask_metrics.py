"""Metrics of one patient, compared with brute force, MONAI and medpy, and their values for empty masks."""

import math
import warnings

import numpy as np
import pytest
import torch
from brute_force import COLUMNS, DISTANCES, blob, brute_force, distances, empty, filled, pixels, row, score
from monai.data import MetaTensor
from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance

from medfed.metrics.mask_metric import MaskPair
from medfed.metrics.masks.dice import Dice
from medfed.metrics.trivial import constant_dice, mean_mask

SPACINGS = [None, (1.0, 1.0, 1.0), (0.6, 0.6, 0.6), (0.5, 0.75, 3.0)]


S = np.s_
BOX = (9, 8, 5)
PAIRS = {
    "random 3-D": (blob(BOX, 1), blob(BOX, 2)),
    "random sparse 3-D": (blob(BOX, 3, 0.03), blob(BOX, 4, 0.05)),
    "random 2-D": (blob((12, 11, 1), 5), blob((12, 11, 1), 6)),
    "one voxel each": (filled(BOX, S[0, 0, 0]), filled(BOX, S[8, 7, 4])),
    "one voxel against a box": (filled(BOX, S[4, 4, 2]), filled(BOX, S[2:7, 2:7, 1:4])),
    "lines": (filled(BOX, S[3, :, 2]), filled(BOX, S[:, 3, 2])),
    "touching the border": (filled(BOX, S[:6, :5, :]), filled(BOX, S[3:, 2:, 2:])),
    "whole image": (filled(BOX, S[:, :, :]), filled(BOX, S[2:4, 2:4, 2:4])),
    "disjoint": (filled(BOX, S[0:2, 0:2, 0:2]), filled(BOX, S[6:9, 5:8, 3:5])),
    "far island": (filled(BOX, S[1:4, 1:4, 1:3], S[8, 7, 4]), filled(BOX, S[1:4, 1:4, 1:3])),
    "identical": (filled(BOX, S[2:6, 2:7, 1:4]), filled(BOX, S[2:6, 2:7, 1:4])),
    "far apart": (filled((60, 50, 9), S[1:4, 2:9, 1:4]), filled((60, 50, 9), S[50:58, 40:44, 6:8])),
    "one far island": (filled((60, 50, 9), S[9:20, 9:20, 2:6], S[55, 45, 8]), filled((60, 50, 9), S[8:19, 11:22, 2:7])),
    "whole larger image": (filled((30, 40, 4), S[:, :, :]), filled((30, 40, 4), S[12:15, 3:6, 1:3])),
    "thin and long": (filled((3, 70, 2), S[1, ::9, 0]), filled((3, 70, 2), S[0, 4:30, 1])),
    "touching the border 2-D": (filled((7, 9, 1), S[:4, :5, 0]), filled((7, 9, 1), S[2:, 3:, 0])),
}


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("name", PAIRS)
def test_every_distance_equals_brute_force_over_all_pairs_of_edge_voxels(name, spacing):
    prediction, reference = PAIRS[name]
    result = score(prediction, reference, spacing)
    expected = brute_force(prediction, reference, spacing or (1.0, 1.0, 1.0))
    assert result.status == "ok"
    assert result.hd95_pooled_vx == pytest.approx(expected.pop("hd95_pooled_vx"), abs=1e-9)
    actual = distances(result, "mm") if spacing else pixels(result, prediction.shape)
    assert actual == pytest.approx(expected, abs=1e-9)
    assert set(distances(result, "percent_of_diagonal" if spacing else "mm").values()) == {None}
    both = np.sum(prediction * reference)
    assert result.dice == pytest.approx(2 * both / (prediction.sum() + reference.sum()), abs=1e-12)


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (0.5, 0.75, 3.0)])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mm_distances_and_the_pooled_hd95_equal_those_of_monai_on_the_whole_image_and_of_medpy(name, spacing):
    flat = PAIRS[name][0].shape[2] == 1
    masks, step = [m[..., 0] if flat else m for m in PAIRS[name]], spacing[:2] if flat else spacing
    first, second = (torch.from_numpy(mask)[None, None] for mask in masks)
    options = {"include_background": True, "spacing": step}
    result = score(*PAIRS[name], spacing)
    assert result.hd_mm == pytest.approx(compute_hausdorff_distance(first, second, **options).item(), abs=1e-5)
    hd95 = compute_hausdorff_distance(first, second, percentile=95, **options).item()
    assert result.hd95_mm == pytest.approx(hd95, abs=1e-5)
    assd = compute_average_surface_distance(first, second, symmetric=True, **options).item()
    assert result.assd_mm == pytest.approx(assd, abs=1e-5)
    medpy = pytest.importorskip("medpy.metric.binary")
    assert result.hd_mm == pytest.approx(medpy.hd(*masks, step), abs=1e-5)
    assert result.assd_mm == pytest.approx(medpy.assd(*masks, step), abs=1e-5)
    assert result.hd95_pooled_vx == pytest.approx(medpy.hd95(*masks), abs=1e-5)


def test_hd95_is_the_larger_directed_percentile_and_not_the_pooled_one():
    """A line of 40 pixels against its first one: its distances are 0..39, with 95th percentile 0.95 * 39 = 37.05.

    The other way round there is a single 0. Pooled, the 41 values 0, 0..39 have their 95th percentile at place 38: 37.
    """
    line, end = filled((40, 3, 1), S[:, 1, 0]), filled((40, 3, 1), S[0, 1, 0])
    result = score(line, end, None)
    actual = pixels(result, line.shape)
    assert (actual["hd"], actual["hd95"], result.hd95_pooled_vx) == pytest.approx((39, 37.05, 37), abs=1e-5)


def test_a_distance_without_a_voxel_size_does_not_depend_on_the_size_of_the_image():
    """Two pixels 30 rows and 40 columns apart in an image of 60 x 80 pixels: 50 of 100; and four times larger."""
    first, second = filled((60, 80, 1), S[0, 0, 0]), filled((60, 80, 1), S[30, 40, 0])
    large = [filled((240, 320, 1), box) for box in (S[0, 0, 0], S[120, 160, 0])]
    for masks in ((first, second), large):
        assert distances(score(*masks, None), "percent_of_diagonal") == pytest.approx(dict.fromkeys(DISTANCES, 50.0))


def test_a_single_image_is_measured_in_its_plane():
    """In 3-D every pixel of a one-slice mask would be an edge, and two discs would have distance 0."""
    missed = score(empty(30, 40, 1), filled((30, 40, 1), S[3, 3, 0]), (1.0, 1.0, 99.0))
    assert missed.hd95_mm == missed.hd95_pooled_vx == 50.0, "the diagonal in the plane"
    small, large = filled((9, 9, 1), S[3:6, 3:6, 0]), filled((9, 9, 1), S[1:8, 1:8, 0])
    assert score(small, large, (1.0, 1.0, 50.0)).assd_mm >= 2.0


def test_missed_and_false_alarm_get_the_worst_value_and_absent_gets_none():
    """10 x 20 x 2 voxels of 3 x 2 x 15 mm: sides 30, 40, 30 mm."""
    organ, nothing = filled((10, 20, 2), S[2:5, 2:5, 0]), empty(10, 20, 2)
    mm, vx = math.sqrt(30**2 + 40**2 + 30**2), math.sqrt(10**2 + 20**2 + 2**2)
    worst = row(0.0, mm, mm, mm, None, None, None, vx, None, "missed")
    assert score(nothing, organ, (3.0, 2.0, 15.0)) == worst
    false_alarm = score(organ, nothing, (3.0, 2.0, 15.0))
    assert false_alarm.status == "false_alarm"
    assert [getattr(false_alarm, name) for name in COLUMNS[:-1]] == [getattr(worst, name) for name in COLUMNS[:-1]]
    assert score(nothing, organ, None) == row(0.0, None, None, None, 100.0, 100.0, 100.0, vx, None, "missed")
    assert score(nothing, nothing, None) == row(*[None] * 9, "absent")


@pytest.mark.parametrize("kind", [bool, np.uint8, np.float32, np.int64])
def test_arrays_and_tensors_of_any_kind_score_alike_and_swapped_too(kind):
    first, second = (m.astype(kind) for m in PAIRS["random 3-D"])
    expected = score(*PAIRS["random 3-D"], None)
    assert score(first, second, None) == expected
    assert score(torch.from_numpy(first), MetaTensor(torch.from_numpy(second)), None) == expected
    assert score(first, second, (0.5, 0.75, 3.0)) == score(second, first, (0.5, 0.75, 3.0))


def test_computing_metrics_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for prediction, reference in PAIRS.values():
            score(prediction, reference, (0.5, 0.75, 3.0))
        score(empty(*BOX), PAIRS["lines"][1], None)


def test_dice_of_half_an_overlap_the_diagonal_and_the_mean_of_empty_masks():
    assert score(empty(2, 2, 1), empty(2, 2, 1), None).dice is None
    assert Dice().value(MaskPair.from_masks(filled((4, 1, 1), S[:2]), filled((4, 1, 1), S[1:3]), None)) == 0.5
    image = np.zeros((3, 4, 1), bool)
    diagonals = [MaskPair.from_masks(image, image, spacing).diagonal() for spacing in (None, (2.0, 2.0, 1.0))]
    assert diagonals == [5.0, 10.0]
    nothing = empty(4, 4, 2)
    assert mean_mask([nothing, nothing]).sum() == 0 and constant_dice(mean_mask([nothing]), nothing) == 1


@pytest.mark.parametrize(
    ("prediction", "reference", "spacing", "words"),
    [
        (empty(3, 3), empty(3, 3), None, "must be \\(H, W, D\\)"),
        (empty(3, 3, 1), empty(3, 3, 2), None, "same shape"),
        (empty(3, 3, 1), empty(3, 3, 1) + 255, None, "0 and 1 only"),
        (empty(3, 3, 1) + 0.5, empty(3, 3, 1), None, "0 and 1 only"),
        (empty(3, 3, 1), empty(3, 3, 1), (1.0, 1.0), "three positive numbers"),
        (empty(3, 3, 1), empty(3, 3, 1), (1.0, 0.0, 1.0), "three positive numbers"),
        (empty(3, 3, 1), empty(3, 3, 1), (1.0, math.nan, 1.0), "three positive numbers"),
    ],
)
def test_a_wrong_argument_is_rejected_by_name(prediction, reference, spacing, words):
    with pytest.raises(ValueError, match=words):
        score(prediction, reference, spacing)
