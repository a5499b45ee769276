"""A comparison of methods as data, computed once by `build_table`; tables, files and report page only format it."""

from __future__ import annotations

from dataclasses import dataclass

from medfed.metrics.failures import Share
from medfed.metrics.intervals import METHOD
from medfed.metrics.ranking import Rank

BETTER, WORSE, UNDECIDED, UNTESTED = "better", "worse", "not decided", "not tested"
WITHDRAWN = "no verdict"
MIN_SEEDS = 3  # for "better" and "worse"; with fewer, the verdict says in how many

CONCLUSIONS = "What can and what cannot be concluded"  # the heading of the conclusions


@dataclass(frozen=True)
class Cell:
    """Score of one method at one site, or averaged over the sites: mean over seeds, in the unit of the block."""

    mean: float
    sd: float | None  # over seeds; None for a single seed
    n_seeds: int
    low: float | None = None  # end of the 95 % interval over patients; None without an interval
    high: float | None = None
    n_patients: int = 0


@dataclass(frozen=True)
class Difference:
    """Score of a method minus that of another row on the same patients, at one site or on average.

    Args:
        low, high: ends of its 95 % interval over patients; None without an interval.
        n: number of patients in the significance test; None if the metric has no value for each patient.
        p: p value of the Wilcoxon signed-rank test, not corrected; None if there is none.
        p_holm: p value after Holm's correction; None if there is none.
        reason: why there is no p value, or why it cannot be significant; None otherwise.
        verdict: "better" or "worse" if the corrected p is below 0.05, the interval is on one side of 0 and all seeds
            have its sign; "better" also requires that the method is not worse than the baseline of less effort. "not
            decided" otherwise; "not tested" without values for each patient; "no verdict" if a model did not learn.
        detectable: the smallest true difference that is detected with a probability of 80 %; None without an interval.
        of_seeds: the difference of each seed that both rows have at all sites.
        seeds_low, seeds_high: ends of the 95 % interval over seeds; None for fewer than two seeds.
    """

    mean: float
    low: float | None
    high: float | None
    n: int | None
    p: float | None = None
    p_holm: float | None = None
    reason: str | None = None
    verdict: str = UNTESTED
    detectable: float | None = None
    of_seeds: tuple[float, ...] = ()
    seeds_low: float | None = None
    seeds_high: float | None = None

    @property
    def verdict_text(self) -> str:
        """The verdict, with the number of seeds if there are too few to say more: "better in 2 seeds"."""
        n = len(self.of_seeds)
        if self.verdict not in (BETTER, WORSE) or n >= MIN_SEEDS:
            return self.verdict
        return f"{self.verdict} in {n} seed{'s' * (n > 1)}"


@dataclass(frozen=True)
class Line:
    """Scores of one method for one structure and one metric: one line of a table.

    Args:
        average: mean over sites; None if the score of a site is unknown.
        n_missed: number of failures over all sites and seeds: empty predicted masks of a structure that the true mask
            contains; for classification, misclassified images.
        n_cases: number of cases over all sites and seeds.
        against: label of the row that the method is compared with (the baseline, or FedAvg of equal effort), or "".
        differences: difference from this row at each site; empty if the row does not exist.
        difference: difference from this row, averaged over the sites; None if unknown.
        from_baseline: average difference from the baseline of less effort; None if `against` is the baseline.
        rank: rank of the average among all methods; None if it is unknown for a site or for all other methods.
    """

    method: str
    cells: tuple[Cell | None, ...]
    average: Cell | None
    n_missed: int
    n_cases: int
    against: str = ""
    differences: tuple[Difference | None, ...] = ()
    difference: Difference | None = None
    from_baseline: Difference | None = None
    worst_site: str | None = None
    rank: Rank | None = None


@dataclass(frozen=True)
class Block:
    """The scores of all methods for one structure and one metric in one unit: one part of a comparison table."""

    structure: str  # "all" for classification
    metric: str  # key of the metric's column, such as "hd95_mm"
    name: str  # as shown, such as "HD95"
    unit: str  # such as "%" or "mm"
    higher_is_better: bool
    lines: tuple[Line, ...]
    decimals: int = 2  # to print
    n_tests: int = 0  # number of compared lines, for which p is corrected
    trivial: Line | None = None  # scores of a prediction that ignores the image; None if the runs do not have them


@dataclass(frozen=True)
class FailureLine:
    """Shares of one method's patients who have one kind of failure; None if no patient can have it."""

    method: str
    sites: tuple[Share | None, ...]
    total: Share | None


@dataclass(frozen=True)
class FailureBlock:
    """The failures of all methods of one kind and for one structure: one part of a comparison table."""

    structure: str
    kind: str  # "low_dice", "missed" or "false_alarm" (`medfed.metrics.failures.failure_shares`)
    title: str  # such as "Dice < 0.7"
    lines: tuple[FailureLine, ...]


@dataclass(frozen=True)
class Table:
    """A comparison of methods by leave-one-site-out; `head` is printed above the tables, `notes` below them."""

    data: str  # "phantom" or "real"
    selection: str  # name of the rule that selected the round
    seeds: tuple[int, ...]
    sites: tuple[str, ...]
    baseline: str
    head: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    failed: str = "missed"  # heading of the column that counts failures
    failures: tuple[FailureBlock, ...] = ()
    conclusions: tuple[str, ...] = ()
    not_learned: tuple[str, ...] = ()  # labels of the methods with a model that did not learn
    interval_method: str = METHOD
