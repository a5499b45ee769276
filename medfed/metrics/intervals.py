"""Intervals of means over patients, of averages over sites, and of paired differences.

An interval covers new patients of the same sites, scored by the same trained models. It covers neither new sites nor
new trainings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

LEVEL = 0.95
MIN_PATIENTS = 5  # at each site; with fewer, the standard deviation is hardly known
METHOD_OF_DIFFERENCES = "Student t over patients"
METHOD = f"{METHOD_OF_DIFFERENCES}; on the logit scale for a score with two limits, such as Dice"
NO_LIMITS = (-math.inf, math.inf)
Limits = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """An estimated mean with its standard error `se` and the degrees of freedom `df` of that error.

    `n` is the number of patients, `n_smallest` that of the site with the fewest.
    """

    mean: float
    se: float
    df: float
    n: int
    n_smallest: int


def estimate_mean(values: Sequence[float] | np.ndarray) -> Estimate | None:
    """Estimate a mean from one value per patient of a site, se = sd / sqrt(n); None for fewer than two patients."""
    n = len(values)
    if n < 2:
        return None
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    se = 0.0 if sd <= 1e-9 * abs(mean) else sd / math.sqrt(n)  # rounding errors are no spread
    return Estimate(mean, se, n - 1, n, n)


def estimate_average(sites: Sequence[Estimate | None]) -> Estimate | None:
    """Estimate the average of several sites' means with equal weights; None if a site has no estimate.

    With k sites, the standard error is sqrt(sum(se_i^2)) / k. Its degrees of freedom are those of Welch and
    Satterthwaite (Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics Bulletin
    1946, https://doi.org/10.2307/3002019): sum(se_i^2)^2 / sum(se_i^4 / df_i).
    """
    known = [site for site in sites if site is not None]
    if not known or len(known) < len(sites):
        return None
    variances = [site.se**2 for site in known]
    scale = sum(variance**2 / site.df for variance, site in zip(variances, known, strict=True))
    return Estimate(
        mean=math.fsum(site.mean for site in known) / len(known),
        se=math.sqrt(sum(variances)) / len(known),
        df=sum(variances) ** 2 / scale if scale else sum(site.df for site in known),
        n=sum(site.n for site in known),
        n_smallest=min(site.n_smallest for site in known),
    )


def interval(estimate: Estimate | None, limits: Limits = NO_LIMITS) -> tuple[float, float] | tuple[None, None]:
    """Compute the 95 % interval of an estimated mean, by Student's t distribution.

    A score with two finite limits is transformed by the logit, so that the interval lies between the limits and is
    longer on the side with more room. Otherwise the interval is mean +- t * se, cut at the limits. It is unknown,
    (None, None), if a site has fewer than 5 patients, or if all patients have the same value.
    """
    if estimate is None or estimate.n_smallest < MIN_PATIENTS or not estimate.se:
        return None, None
    half = float(stats.t.ppf((1 + LEVEL) / 2, estimate.df)) * estimate.se
    low, high = limits
    width = high - low
    if not (math.isfinite(width) and low < estimate.mean < high):
        return max(low, estimate.mean - half), min(high, estimate.mean + half)
    share = (estimate.mean - low) / width
    centre, half_logit = special.logit(share), half / width / (share * (1 - share))  # d logit(x) = dx / (x (1 - x))
    ends = special.expit([centre - half_logit, centre + half_logit])
    return low + width * float(ends[0]), low + width * float(ends[1])
