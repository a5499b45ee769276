"""Paired differences of a method from its baseline, with intervals, corrected p values and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from medfed.metrics.intervals import (
    Estimate,
    detectable_difference,
    estimate_average,
    estimate_mean,
    interval,
    interval_over_seeds,
)
from medfed.metrics.metric import Column
from medfed.metrics.significance import ALPHA, holm, smallest_p
from medfed.outputs.tables.comparison_data import (
    BETTER,
    UNDECIDED,
    UNTESTED,
    WITHDRAWN,
    WORSE,
    Difference,
    Line,
)
from medfed.tasks.scoring import Scoring


@dataclass(frozen=True)
class SiteScores:
    """Scores of one method at one site, in the unit of the block."""

    means: Mapping[int, float]  # by seed
    values: Mapping[str, float]  # by patient, averaged over the seeds; empty if the score has no interval
    rows: Sequence[dict]  # of all seeds

    @property
    def estimate(self) -> Estimate | None:
        """Mean of the patients' values with its standard error; None for fewer than two patients."""
        return estimate_mean(list(self.values.values()))


def difference_of(
    own: Mapping[str, SiteScores],
    other: Mapping[str, SiteScores],
    sites: Sequence[str],
    scoring: Scoring,
    column: Column,
    n_tests: int,
) -> Difference | None:
    """Difference of a method from another row, averaged over `sites` with equal weights, before corrections and
    verdicts; None if the score of a site is unknown. `n_tests` is the number of differences that are tested together.
    """
    if not all(own[site].means and other[site].means for site in sites):
        return None
    estimate = estimate_average([_paired_estimate(own[site].values, other[site].values) for site in sites])
    mean = fmean(fmean(own[site].means.values()) - fmean(other[site].means.values()) for site in sites)
    low, high = interval(estimate)
    rows, others = ([row for site in sites for row in scores[site].rows] for scores in (own, other))
    test = scoring.paired_test(rows, others, column.key)
    seeds = set.intersection(*({*own[site].means} & {*other[site].means} for site in sites))
    of_seeds = tuple(fmean(own[site].means[seed] - other[site].means[seed] for site in sites) for seed in sorted(seeds))
    return Difference(
        estimate.mean if estimate else mean,
        low,
        high,
        test["n"],
        test["p"],
        None,
        _reason(test, n_tests),
        UNTESTED,
        detectable_difference(estimate, n_tests),
        of_seeds,
        *interval_over_seeds(of_seeds),
    )


def _paired_estimate(own: Mapping[str, float], other: Mapping[str, float]) -> Estimate | None:
    """Estimate the mean difference over the patients that both methods have."""
    return estimate_mean([value - other[patient] for patient, value in own.items() if patient in other])


def _reason(test: Mapping, n_tests: int) -> str | None:
    """Why there is no p value, or why it cannot be significant; None otherwise."""
    if test["p"] is None:
        return test["reason"]
    smallest = smallest_p(test["n_differ"], n_tests)
    if smallest < ALPHA:
        return None
    return (
        f"only {test['n_differ']} matched patients differ; with {n_tests} tests, the corrected p cannot be below "
        f"{smallest:.2g}"
    )


def with_verdicts(lines: Sequence[Line], higher_is_better: bool) -> tuple[Line, ...]:
    """Correct the p values of a block (averages together, all sites together; a missing p counts as 1) and add the
    verdicts."""
    averages = iter(_decided([line.difference for line in lines], higher_is_better))
    at_sites = iter(_decided([d for line in lines for d in line.differences], higher_is_better))
    decided = (
        replace(line, difference=next(averages), differences=tuple(next(at_sites) for _ in line.differences))
        for line in lines
    )
    return tuple(_without_loss(line, higher_is_better) for line in decided)


def _without_loss(line: Line, higher_is_better: bool) -> Line:
    """Withdraw "better" from a method that is worse than the baseline of less effort: its effort alone does harm."""
    other = line.from_baseline
    if line.difference is None or line.difference.verdict != BETTER or other is None or other.low is None:
        return line
    is_worse = other.high < 0 if higher_is_better else other.low > 0  # type: ignore[operator]
    return replace(line, difference=replace(line.difference, verdict=UNDECIDED)) if is_worse else line


def without_verdicts(lines: Sequence[Line], not_learned: Collection[str]) -> tuple[Line, ...]:
    """Withdraw the verdicts of lines whose model, or that of the row compared with, did not learn."""

    def withdrawn(difference: Difference | None) -> Difference | None:
        return difference and replace(difference, verdict=WITHDRAWN)

    return tuple(
        replace(line, difference=withdrawn(line.difference), differences=tuple(map(withdrawn, line.differences)))
        if {line.method, line.against} & set(not_learned)
        else line
        for line in lines
    )


def _decided(differences: Sequence[Difference | None], higher_is_better: bool) -> list[Difference | None]:
    """Add corrected p values and verdicts to differences that are tested together."""
    p_values = [1.0 if d.p is None else d.p for d in differences if d is not None and d.n is not None]
    corrected = iter(holm(p_values))
    decided: list[Difference | None] = []
    for difference in differences:
        if difference is not None and difference.n is not None:
            p_holm = next(corrected)
            difference = replace(difference, p_holm=None if difference.p is None else p_holm)
            difference = replace(difference, verdict=_verdict(difference, higher_is_better))
        decided.append(difference)
    return decided


def _verdict(difference: Difference, higher_is_better: bool) -> str:
    """ "better" or "worse" if p, the interval and all seeds agree, otherwise "not decided"."""
    p, low, high = difference.p_holm, difference.low, difference.high
    if p is None or p >= ALPHA or low is None or high is None or low <= 0 <= high:
        return UNDECIDED
    if not difference.of_seeds or not all(value > 0 if low > 0 else value < 0 for value in difference.of_seeds):
        return UNDECIDED
    return BETTER if (low > 0) == higher_is_better else WORSE
