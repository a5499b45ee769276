"""Predict the Dice of a mask without its reference, from the agreement of several models.

The agreement of a mask is its mean Dice with the masks of other models. Zenk et al., "Comparative benchmarking of
failure detection methods in medical image segmentation: Unveiling the role of confidence aggregation", Medical Image
Analysis 101, 2025, https://doi.org/10.1016/j.media.2024.103392, find that the mean Dice between the members of an
ensemble ranks failures well for most datasets. Where this module departs from them:

* the members are the sites' local models of one federation, which start each round from the same weights, and not
  networks that were trained independently;
* each member is compared with the federated model, and not with all other members;
* a line through the sites' sums converts the agreement to a Dice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import scipy.stats
from torch import Tensor

MIN_PAIRS = 5  # fewer pairs of agreement and Dice fit no line
LEVEL = 0.95  # of the prediction interval
FAR_SD = 2.0  # an agreement that is further from the mean of the calibration than this many sd is extrapolated


def dice(mask: Tensor, other: Tensor) -> float:
    """Compute the Dice of two masks of any equal shape; 1 if both are empty, because they agree.

    Args:
        mask: 0 and 1, or False and True.
        other: the other mask, of the same shape.
    """
    total = int(mask.sum()) + int(other.sum())
    return 2 * int((mask.bool() & other.bool()).sum()) / total if total else 1.0


def agreement(mask: Tensor, members: Sequence[Tensor]) -> float:
    """Compute the mean Dice between a mask and the masks of the members of an ensemble, in [0, 1].

    Args:
        mask: 0 and 1, of any shape.
        members: at least one mask of the same shape.
    """
    return math.fsum(dice(mask, member) for member in members) / len(members)


@dataclass(frozen=True)
class PairSums:
    """Sums over pairs of an agreement x and a Dice y: all that a site sends about its patients.

    Args:
        n: number of pairs.
        x, y, xx, xy, yy: sums of x, y, x * x, x * y and y * y.
    """

    n: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float]]) -> PairSums:
        """Return the sums of some pairs (x, y)."""
        products = [(x, y, x * x, x * y, y * y) for x, y in pairs]
        return cls(len(pairs), *(math.fsum(column) for column in zip(*products))) if pairs else cls()

    @classmethod
    def total(cls, parts: Iterable[PairSums]) -> PairSums:
        """Return the sums over all pairs of several parts, such as the sites."""
        parts = list(parts)
        return cls(
            sum(part.n for part in parts),
            *(math.fsum(getattr(part, entry.name) for part in parts) for entry in fields(cls)[1:]),
        )

    @property
    def spread_x(self) -> float:
        """The sum of (x - mean of x) ** 2, at least 0."""
        return max(self.xx - self.x**2 / self.n, 0.0) if self.n else 0.0

    def line(self) -> tuple[float, float]:
        """Return intercept and slope of the least-squares line; the slope is at least 0.

        Without pairs that differ in x, and instead of a negative slope, the line is the constant mean of y.

        Raises:
            ZeroDivisionError: if there is no pair.
        """
        covariance = self.xy - self.x * self.y / self.n
        slope = max(covariance / self.spread_x, 0.0) if self.spread_x > 1e-12 else 0.0
        return (self.y - slope * self.x) / self.n, slope

    @property
    def correlation(self) -> float | None:
        """The correlation of x and y, in [-1, 1]; None if one of them does not vary."""
        spread_y = max(self.yy - self.y**2 / self.n, 0.0) if self.n else 0.0
        if min(self.spread_x, spread_y) <= 1e-12:
            return None
        return min(max((self.xy - self.x * self.y / self.n) / math.sqrt(self.spread_x * spread_y), -1.0), 1.0)

    def squared_error(self, intercept: float, slope: float) -> float:
        """Return the sum of (y - intercept - slope * x) ** 2 over the pairs, at least 0."""
        square = self.yy - 2 * intercept * self.y - 2 * slope * self.xy
        return max(square + self.n * intercept**2 + 2 * intercept * slope * self.x + slope**2 * self.xx, 0.0)


@dataclass(frozen=True)
class Prediction:
    """A predicted Dice with its 95 % prediction interval, all in [0, 1].

    Args:
        dice: the predicted Dice.
        low, high: ends of the interval; None if the error was not measured between sites.
        is_extrapolated: whether the agreement is far from those of the calibration.
    """

    dice: float
    low: float | None
    high: float | None
    is_extrapolated: bool


@dataclass(frozen=True)
class Calibration:
    """A line from the agreement to the Dice, fitted to the sums of several sites.

    Args:
        sums: the sums over all sites.
        error: root mean squared error if each site is predicted by the line of the other sites; if that is not
            possible, the residual standard deviation of the line.
        constant_error: the same for predicting the other sites' mean Dice for every patient.
        is_between_sites: whether the two errors were measured by leaving each site out.
    """

    sums: PairSums
    error: float
    constant_error: float
    is_between_sites: bool

    @classmethod
    def fit(cls, by_site: Mapping[str, PairSums]) -> Calibration | None:
        """Fit the line; None if the sites have fewer than `MIN_PAIRS` pairs together.

        Args:
            by_site: the sums of each site.
        """
        total = PairSums.total(by_site.values())
        if total.n < MIN_PAIRS:
            return None
        of_line = of_constant = 0.0
        n = 0
        for site, own in by_site.items():
            rest = PairSums.total(sums for other, sums in by_site.items() if other != site)
            if own.n and rest.n >= MIN_PAIRS:
                of_line += own.squared_error(*rest.line())
                of_constant += own.squared_error(rest.y / rest.n, 0.0)
                n += own.n
        if n == total.n:
            return cls(total, math.sqrt(of_line / n), math.sqrt(of_constant / n), True)
        residuals, around_mean = total.squared_error(*total.line()), total.squared_error(total.y / total.n, 0.0)
        return cls(total, math.sqrt(residuals / (total.n - 2)), math.sqrt(around_mean / (total.n - 1)), False)

    @property
    def mean_dice(self) -> float:
        """The mean Dice of the calibration: the constant prediction with which the line is compared."""
        return self.sums.y / self.sums.n

    def predict(self, x: float) -> Prediction:
        """Predict the Dice of a mask.

        The interval is that of a new observation on a regression line, with `error` as the standard deviation:
        dice +- t * error * sqrt(1 + 1 / n + (x - mean of x) ** 2 / spread_x), with the quantile t of Student's
        distribution with n - 2 degrees of freedom. It is cut to [0, 1]. If no site could be left out, there is no
        interval, because the residuals of the same sites say nothing about another hospital.

        Args:
            x: the agreement of the mask, in [0, 1].
        """
        sums, (intercept, slope) = self.sums, self.sums.line()
        off, spread = x - sums.x / sums.n, sums.spread_x
        leverage = off**2 / spread if spread > 1e-12 else 0.0
        t = float(scipy.stats.t.ppf((1 + LEVEL) / 2, sums.n - 2))
        half = t * self.error * math.sqrt(1 + 1 / sums.n + leverage)
        value = intercept + slope * x
        is_far = abs(off) > FAR_SD * math.sqrt(spread / sums.n) + 1e-9
        if not self.is_between_sites:
            return Prediction(_clip(value), None, None, is_far)
        return Prediction(_clip(value), _clip(value - half), _clip(value + half), is_far)


def risk_coverage(confidence: Sequence[float], risk: Sequence[float]) -> list[tuple[float, float]]:
    """Return the risk-coverage curve: the mean risk of the most confident cases, for each number of cases.

    Args:
        confidence: N numbers; higher is more confident. Cases of equal confidence enter together.
        risk: N numbers, such as 1 - Dice.

    Returns:
        (coverage, mean risk), where coverage is the fraction of the cases, ascending to 1. Empty without cases.
    """
    order = sorted(range(len(risk)), key=lambda index: -confidence[index])
    curve, total = [], 0.0
    for position, index in enumerate(order, start=1):
        total += risk[index]
        is_last = position == len(order) or confidence[order[position]] != confidence[index]
        if is_last:
            curve.append((position / len(order), total / position))
    return curve


def _clip(value: float) -> float:
    return min(max(value, 0.0), 1.0)
