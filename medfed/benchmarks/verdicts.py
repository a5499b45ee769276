"""How often a comparison of two methods decides, by simulation of paired Dice differences with failures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from medfed.metrics.intervals import LEVEL, estimate_average, estimate_mean, interval

SITES = ((12, 12, 12), (30, 30, 19, 13, 12, 12))  # patients of each site
FAILURES = (0.0, 0.025)  # fraction of patients that only one of the two methods misses, for each method
SD, LOSS = 0.03, 0.8  # of the paired difference without failures; Dice that a failure costs
EFFECTS = ("equal", "opposite at sites", "gain of 3 points")
N_SAMPLES = 1000


def measure_verdicts(n_samples: int = N_SAMPLES) -> list[dict]:
    """Simulate comparisons of two methods and count how often each rule decides.

    A paired difference has the normal distribution with sd 0.03; a failure of one of the methods changes it by 0.8. The
    means are 0 ("equal"), 0.03 at the first site and below 0 at the others with the average 0 ("opposite at sites"), or
    0.03 at each site ("gain of 3 points").

    Args:
        n_samples: number of simulated comparisons for each row.

    Returns:
        One row per effect, failure fraction and sites: "effect", "failures", "patients", and "decided", the fraction of
        the comparisons that are decided, by the Wilcoxon test of all patients alone ("Wilcoxon"), by the interval of
        the average difference alone ("interval"), and by both ("verdict").
    """
    rng = np.random.default_rng(0)
    return [
        {
            "effect": effect,
            "failures": failures,
            "patients": list(sizes),
            "decided": _decided(rng, sizes, _means(effect, len(sizes)), failures, n_samples),
        }
        for effect in EFFECTS
        for failures in FAILURES
        for sizes in SITES
    ]


def _means(effect: str, n_sites: int) -> list[float]:
    """Return the mean difference at each site."""
    if effect == "opposite at sites":
        return [SD, *[-SD / (n_sites - 1)] * (n_sites - 1)]
    return [0.0 if effect == "equal" else SD] * n_sites


def _decided(
    rng: np.random.Generator, sizes: Sequence[int], means: Sequence[float], failures: float, n_samples: int
) -> dict[str, float]:
    by_test, by_interval = np.zeros(n_samples, bool), np.zeros(n_samples, bool)
    for sample in range(n_samples):
        sites = [_differences(rng, n, mean, failures) for n, mean in zip(sizes, means, strict=True)]
        by_test[sample] = stats.wilcoxon(np.concatenate(sites)).pvalue < 1 - LEVEL
        low, high = interval(estimate_average([estimate_mean(values) for values in sites]))
        by_interval[sample] = low is not None and high is not None and not low <= 0 <= high
    rules = {"Wilcoxon": by_test, "interval": by_interval, "verdict": by_test & by_interval}
    return {name: float(decided.mean()) for name, decided in rules.items()}


def _differences(rng: np.random.Generator, n: int, mean: float, failures: float) -> np.ndarray:
    """Return the paired differences of the patients of one site."""
    one, other = rng.random((2, n)) < failures
    return rng.normal(mean, SD, n) + LOSS * (other.astype(float) - one)


def verdicts_table(rows: Sequence[dict]) -> str:
    """Format the result of `measure_verdicts` as text, in percent.

    Args:
        rows: the result of `measure_verdicts`.
    """
    rules = list(rows[0]["decided"])
    head = f"{'effect':18}{'failures':>9}  {'patients':24}" + "".join(f"{rule:>10}" for rule in rules)
    lines = ["comparisons of two methods that are decided, in %", head]
    for row in rows:
        cells = "".join(f"{100 * row['decided'][rule]:10.1f}" for rule in rules)
        patients = ", ".join(map(str, row["patients"]))
        lines.append(f"{row['effect']:18}{100 * row['failures']:7.1f} %  {patients:24}{cells}")
    return "\n".join(lines)
