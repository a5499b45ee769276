"""How often the 95 % interval of a mean contains the true mean, by simulation of Dice scores with failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from medfed.metrics.intervals import LEVEL, NO_LIMITS, estimate_average, estimate_mean, interval

FAILURES = (0.0, 0.05, 0.15)  # fraction of patients whose structure is nearly missed
N_PATIENTS = (5, 10, 13, 30, 100)  # of a single site
SITES = ((5, 5, 5), (12, 12, 12), (5, 30, 30), (30, 30, 19, 13, 12, 12))  # patients of each site of an average
N_SAMPLES, N_RESAMPLES = 2000, 999
GOOD, FAILED = (30, 4), (1, 30)  # parameters of the beta distributions: mean Dice 0.88 and 0.03
UNIT = (0.0, 1.0)
Ends = tuple[np.ndarray, np.ndarray]


def measure_coverage(n_samples: int = N_SAMPLES, n_resamples: int = N_RESAMPLES) -> dict[str, list[dict]]:
    """Draw samples of patients many times and count how often each interval contains the true mean.

    A patient's Dice has the distribution Beta(30, 4); the given fraction of failures has Beta(1, 30). The sites of an
    average differ: the first parameter goes from 24 at the first site to 36 at the last one.

    Args:
        n_samples: number of simulated samples for each row.
        n_resamples: number of bootstrap samples of each sample.

    Returns:
        "mean": one row per failure fraction and number of patients; "average": one row per failure fraction and sites.
        A row has "failures", "patients", and "coverage" and "width" (mean, in Dice points) by the name of the method.
    """
    rng = np.random.default_rng(0)
    means, averages = [], []
    for failures in FAILURES:
        for n in N_PATIENTS:
            values, truth = _draw(rng, (n_samples, n), failures)
            ends = {name: method(values, rng, n_resamples) for name, method in METHODS.items()}
            means.append({"failures": failures, "patients": [n], **_scores(ends, truth)})
        for sizes in SITES:
            scores = _average(rng, sizes, failures, n_samples)
            averages.append({"failures": failures, "patients": list(sizes), **scores})
    return {"mean": means, "average": averages}


def _draw(
    rng: np.random.Generator, shape: tuple[int, int], failures: float, first: float = GOOD[0]
) -> tuple[np.ndarray, float]:
    """Return simulated Dice scores and their true mean."""
    good, failed = rng.beta(first, GOOD[1], shape), rng.beta(*FAILED, shape)
    truth = (1 - failures) * first / (first + GOOD[1]) + failures * FAILED[0] / sum(FAILED)
    return np.where(rng.random(shape) < failures, failed, good), truth


def _average(rng: np.random.Generator, sizes: Sequence[int], failures: float, n_samples: int) -> dict:
    """Return the coverage of the interval of an average over sites."""
    firsts = np.linspace(GOOD[0] - 6, GOOD[0] + 6, len(sizes))
    sites = [_draw(rng, (n_samples, n), failures, first) for n, first in zip(sizes, firsts, strict=True)]
    estimates = [
        estimate_average([estimate_mean(values[sample]) for values, _ in sites]) for sample in range(n_samples)
    ]
    truth = float(np.mean([mean for _, mean in sites]))
    ends = {
        "Student t": _both_ends([interval(estimate) for estimate in estimates]),
        "logit t": _both_ends([interval(estimate, UNIT) for estimate in estimates]),
    }
    return _scores(ends, truth)


def _scores(ends: dict[str, Ends], truth: float) -> dict:
    return {
        "coverage": {name: float(np.mean((low <= truth) & (truth <= high))) for name, (low, high) in ends.items()},
        "width": {name: float(100 * np.mean(high - low)) for name, (low, high) in ends.items()},
    }


def _both_ends(pairs: Sequence[tuple]) -> Ends:
    low, high = np.array(pairs, dtype=np.float64).T
    return low, high


def _t(values: np.ndarray, rng: np.random.Generator, n_resamples: int) -> Ends:
    """Student t: mean +- t * sd / sqrt(n)."""
    return _both_ends([interval(estimate_mean(sample), NO_LIMITS) for sample in values])


def _logit_t(values: np.ndarray, rng: np.random.Generator, n_resamples: int) -> Ends:
    """Student t of logit(mean), with the standard error of the delta method: what medfed reports."""
    return _both_ends([interval(estimate_mean(sample), UNIT) for sample in values])


def _means_of_resamples(values: np.ndarray, rng: np.random.Generator, n_resamples: int) -> tuple:
    """Return the mean, and the studentised mean, of each bootstrap sample of each sample."""
    n_samples, n = values.shape
    drawn = np.take_along_axis(values[:, None], rng.integers(0, n, (n_samples, n_resamples, n)), axis=2)
    means, errors = drawn.mean(axis=2), drawn.std(axis=2, ddof=1) / np.sqrt(n)
    with np.errstate(invalid="ignore", divide="ignore"):
        studentised = (means - values.mean(axis=1, keepdims=True)) / errors
    return means, np.nan_to_num(studentised, posinf=0.0, neginf=0.0)  # samples of one patient only


def _in_blocks(method: Callable) -> Callable:
    """Return the method applied to blocks of 20 samples, which limits the memory."""

    def apply(values: np.ndarray, rng: np.random.Generator, n_resamples: int) -> Ends:
        parts = [method(block, rng, n_resamples) for block in np.array_split(values, max(1, len(values) // 20))]
        low, high = (np.concatenate(ends) for ends in zip(*parts, strict=True))
        return low, high

    return apply


def _percentile(values: np.ndarray, rng: np.random.Generator, n_resamples: int) -> Ends:
    means, _ = _means_of_resamples(values, rng, n_resamples)
    low, high = np.percentile(means, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=1)
    return low, high


def _bca(values: np.ndarray, rng: np.random.Generator, n_resamples: int) -> Ends:
    """Bias-corrected and accelerated bootstrap."""
    ends = stats.bootstrap((values,), np.mean, axis=-1, n_resamples=n_resamples, method="BCa", random_state=rng)
    return ends.confidence_interval.low, ends.confidence_interval.high


def _bootstrap_t(values: np.ndarray, rng: np.random.Generator, n_resamples: int) -> Ends:
    """Studentised bootstrap."""
    _, studentised = _means_of_resamples(values, rng, n_resamples)
    low, high = np.percentile(studentised, [50 * (1 - LEVEL), 50 * (1 + LEVEL)], axis=1)
    mean, error = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
    return mean - high * error, mean - low * error


METHODS: dict[str, Callable[[np.ndarray, np.random.Generator, int], Ends]] = {
    "percentile": _in_blocks(_percentile),
    "BCa": _in_blocks(_bca),
    "bootstrap-t": _in_blocks(_bootstrap_t),
    "Student t": _t,
    "logit t": _logit_t,
}


def coverage_table(result: dict[str, list[dict]]) -> str:
    """Format the result of `measure_coverage` as text: coverage in percent and mean width in Dice points.

    Args:
        result: the result of `measure_coverage`.
    """
    titles = {"mean": "a mean of one site", "average": "an average over sites"}
    parts = []
    for name, rows in result.items():
        methods = list(rows[0]["coverage"])
        head = f"{'failures':>8}  {'patients':24}" + "".join(f"{method:>16}" for method in methods)
        lines = [f"coverage of the 95 % interval of {titles[name]}, in % (mean width in Dice points)", head]
        for row in rows:
            cells = (f"{100 * row['coverage'][m]:.1f} ({row['width'][m]:.1f})" for m in methods)
            patients = ", ".join(map(str, row["patients"]))
            lines.append(f"{100 * row['failures']:6.0f} %  {patients:24}" + "".join(f"{cell:>16}" for cell in cells))
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
