"""R17: every distance equals brute force, and a patient whose organ is missed never improves a mean."""

import math

import numpy as np
import pytest
import torch
from brute_force import DISTANCES, brute_force, empty, score
from monai.metrics import compute_hausdorff_distance

from medfed.metrics.mask_metric import compute_mask_metrics
from medfed.results.run_scores import run_scores
from medfed.results.scores import table_of
from medfed.tasks.scoring import MASK_METRICS, Scoring

pytestmark = [pytest.mark.hardening, pytest.mark.filterwarnings("ignore::FutureWarning")]
MAX_ERROR = 1e-6
LOWER_IS_BETTER = [*DISTANCES, "hd95_pooled_vx"]


def random_mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A ragged mask: a box with holes and islands, or a single voxel."""
    mask = (rng.random(shape) < 0.02).astype(np.uint8)
    if rng.random() < 0.2:
        mask[...] = 0
    else:
        low = [int(rng.integers(0, n)) for n in shape]
        high = [int(rng.integers(start + 1, n + 1)) for start, n in zip(low, shape)]
        box = tuple(slice(start, end) for start, end in zip(low, high))
        mask[box] = rng.random(mask[box].shape) < 0.8
    mask[tuple(int(rng.integers(0, n)) for n in shape)] = 1
    return mask


def random_pair(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    """Two masks of one size, and anisotropic voxels; a third of the pairs are 2-D images."""
    shape = (*rng.integers(3, 14, 2).tolist(), 1 if rng.random() < 0.33 else int(rng.integers(2, 8)))
    return random_mask(rng, shape), random_mask(rng, shape), tuple(rng.uniform(0.3, 4, 3).tolist())


def error_of(prediction: np.ndarray, reference: np.ndarray, spacing: tuple[float, ...]) -> float:
    """Return the largest difference of Dice and of all distances from brute force."""
    result, expected = score(prediction, reference, spacing), brute_force(prediction, reference, spacing)
    dice = 2 * np.sum(prediction * reference) / (prediction.sum() + reference.sum())
    ours = {name: getattr(result, f"{name}_mm") for name in DISTANCES} | {"hd95_pooled_vx": result.hd95_pooled_vx}
    return max(abs(result.dice - dice), *(abs(ours[name] - value) for name, value in expected.items()))


def test_r17_distances_against_brute_force(measurement):
    rng, n = np.random.default_rng(measurement.seed), measurement.count(200, 20)
    pairs = [random_pair(rng) for _ in range(n)]
    worst = max(error_of(*pair) for pair in pairs)
    control = max(
        abs(score(a, b, (1.0, 1.0, 1.0)).hd95_mm - brute_force(a, b, spacing)["hd95"]) for a, b, spacing in pairs
    )
    measurement.report(
        f"Dice, HD, HD95 and ASSD of {n} random pairs of masks, anisotropic, 2-D and 3-D, also single voxels",
        (f"largest error at most {MAX_ERROR:g}", f"{worst:.1e}", worst <= MAX_ERROR),
        (f"without the voxel size {control:.2g}", control > MAX_ERROR),
    )


def means(cases: list) -> dict[str, float]:
    """Return the means over the patients of one site, by metric."""
    common = {"site": "A", "role": "seen", "structure": "organ"}
    rows = [
        {**common, "patient": f"p{number}", "image": f"p{number}", **compute_mask_metrics(MASK_METRICS, *case)}
        for number, case in enumerate(cases)
    ]
    scores = run_scores(table_of(rows, MASK_METRICS), Scoring("segmentation", MASK_METRICS, failure_dice=0.7))
    result = {score["metric"]: score["mean"] for score in scores if score["site"] == "A"}
    return {name: result[name] for name in ("dice", *LOWER_IS_BETTER) if name in result}


def monai_mean(cases: list) -> float:
    """Return the mean HD95 by MONAI, as its own aggregation computes it: without cases that are not finite."""
    values = []
    for prediction, reference, spacing in cases:
        masks = [torch.from_numpy(mask)[None, None] for mask in (prediction, reference)]
        value = float(compute_hausdorff_distance(*masks, include_background=True, percentile=95, spacing=spacing))
        values += [value] if math.isfinite(value) else []
    return float(np.mean(values)) if values else math.nan


def test_r17_a_missed_organ_never_improves_a_mean(measurement):
    rng, n, n_better, n_monai = np.random.default_rng(measurement.seed), measurement.count(200, 20), 0, 0
    for _ in range(n):
        cases = [random_pair(rng) for _ in range(3)]
        missed = int(rng.integers(0, 3))
        prediction, reference, spacing = cases[missed]
        worse = [*cases[:missed], (empty(*prediction.shape), reference, spacing), *cases[missed + 1 :]]
        before, after = means(cases), means(worse)
        assert set(LOWER_IS_BETTER[:3]) <= before.keys()
        n_better += any(
            (after[name] > value) if name == "dice" else (after[name] < value - 1e-12) for name, value in before.items()
        )
        n_monai += monai_mean(worse) < monai_mean(cases)
    measurement.report(
        f"cohorts of 3 patients in which the prediction of one becomes empty, {n} times",
        (f"0 of {n} with a better mean", f"{n_better} of {n}", n_better == 0),
        (f"mean HD95 of MONAI better in {n_monai} of {n}", n_monai > 0),
    )
