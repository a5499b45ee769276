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

LEVEL, POWER = 0.95, 0.8
MIN_PATIENTS = 5  # at each site; with fewer, the standard deviation is hardly known
METHOD_OF_DIFFERENCES = "Student t over patients"
METHOD = f"{METHOD_OF_DIFFERENCES}; on the logit scale for a score with two limits, such as Dice"
NO_LIMITS = (-math.inf, math.inf)
Limits = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """An estimated mean with its standard error.

    Args:
        mean: the estimate.
        se: standard error of the mean, at least 0.
        df: degrees of freedom of the standard error.
        n: number of patients.
        n_smallest: number of patients of the site with the fewest patients.
    """

    mean: float
    se: float
    df: float
    n: int
    n_smallest: int


def estimate_mean(values: Sequence[float] | np.ndarray) -> Estimate | None:
    """Estimate a mean from the values of independent patients of one site.

    Args:
        values: (n,), one value per patient.

    Returns:
        The mean with the standard error sd / sqrt(n) and n - 1 degrees of freedom; None for fewer than two patients.
    """
    n = len(values)
    if n < 2:
        return None
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    se = 0.0 if sd <= 1e-9 * abs(mean) else sd / math.sqrt(n)  # rounding errors are no spread
    return Estimate(mean, se, n - 1, n, n)


def estimate_average(sites: Sequence[Estimate | None]) -> Estimate | None:
    """Estimate the average of several sites' means, in which all sites have the same weight.

    With k sites and standard errors se_i, the standard error of the average is sqrt(sum(se_i^2)) / k. Its degrees of
    freedom are those of Welch and Satterthwaite (Satterthwaite, "An approximate distribution of estimates of variance
    components", Biometrics Bulletin 1946, https://doi.org/10.2307/3002019): sum(se_i^2)^2 / sum(se_i^4 / df_i).

    Args:
        sites: the estimate of each site.

    Returns:
        The estimate; None if the estimate of a site is None, or without sites.
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
    longer on the side with more room. Otherwise the interval is mean +- t * se, cut at the limits.

    Args:
        estimate: the estimated mean; None for an unknown one.
        limits: the smallest and the largest possible value.

    Returns:
        The ends of the interval. (None, None) if a site has fewer than 5 patients, or if all patients have the same
        value, because the spread is unknown then.
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


def interval_over_seeds(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Compute the 95 % interval of the mean of values that differ in the seed, by Student's t distribution.

    Args:
        values: one value per seed.

    Returns:
        The ends of the interval; (None, None) for fewer than two seeds.
    """
    estimate = estimate_mean(values)
    if estimate is None:
        return None, None
    half = float(stats.t.ppf((1 + LEVEL) / 2, estimate.df)) * estimate.se
    return estimate.mean - half, estimate.mean + half


def detectable_difference(estimate: Estimate | None, n_tests: int) -> float | None:
    """Compute the smallest true difference that a comparison detects with a probability of 80 %.

    It is se * (t(1 - alpha / 2) + t(0.8)), with quantiles of Student's t distribution and the level
    alpha = 0.05 / n_tests of the first step of Holm's correction.

    Args:
        estimate: the estimated paired difference, whose standard error is that of this comparison.
        n_tests: number of differences that are tested together, at least 1.

    Returns:
        The difference, above 0, in the unit of the estimate. None where `interval` has no interval.
    """
    if estimate is None or estimate.n_smallest < MIN_PATIENTS or not estimate.se:
        return None
    alpha = (1 - LEVEL) / n_tests
    return estimate.se * float(stats.t.ppf(1 - alpha / 2, estimate.df) + stats.t.ppf(POWER, estimate.df))
