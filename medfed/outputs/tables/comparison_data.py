"""A comparison of methods as data: every number that its tables, files and report page show.

`medfed.outputs.tables.comparison.build_table` computes it once. All outputs only format it.
"""

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
    """Score of one method at one site, or its average over the sites, averaged over the seeds.

    Args:
        mean: mean over seeds, in the unit of the block that contains the cell.
        sd: standard deviation over seeds; None for a single seed.
        n_seeds: number of seeds.
        low: lower end of the 95 % interval over patients; None without an interval.
        high: upper end of the 95 % interval over patients; None without an interval.
        n_patients: number of patients whose values give the interval.
    """

    mean: float
    sd: float | None
    n_seeds: int
    low: float | None = None
    high: float | None = None
    n_patients: int = 0


@dataclass(frozen=True)
class Difference:
    """Score of a method minus that of the row that it is compared with, for the same patients.

    It belongs to one site, or is averaged over the sites.

    Args:
        mean: the difference, in the unit of the block.
        low: lower end of its 95 % interval; None without an interval.
        high: upper end of its 95 % interval; None without an interval.
        n: number of patients in the significance test; None if the metric has no value for each patient.
        p: p value of the Wilcoxon signed-rank test, not corrected; None if there is none.
        p_holm: p value after Holm's correction; None if there is none.
        reason: why there is no p value, or why it cannot be significant; None otherwise.
        verdict: "better" or "worse" if the corrected p is below 0.05, the interval is on one side of 0, and all seeds
            have its sign, and "better" only if the method is not worse than the baseline of less effort; "not decided"
            otherwise; "not tested" without values for each patient; "no verdict" if a model of the method or of the
            other row did not learn.
        detectable: the smallest true difference that this comparison detects with a probability of 80 %; None without
            an interval.
        of_seeds: the difference of each seed that both rows have at all sites.
        seeds_low: lower end of the 95 % interval over seeds; None for fewer than two seeds.
        seeds_high: upper end of the 95 % interval over seeds; None for fewer than two seeds.
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
        method: label of the method.
        cells: score at each site; None for a site whose score is unknown.
        average: mean over sites; None if the score of a site is unknown.
        n_missed: number of failures over all sites and seeds. For masks, a failure is a structure for which the
            predicted mask is empty although the true mask is not. For classification, it is a misclassified image.
        n_cases: number of cases over all sites and seeds.
        against: label of the row that the method is compared with: the baseline, or FedAvg of equal effort; "" for a
            row that is not compared.
        differences: difference from this row at each site; None where one of the two scores is unknown. Empty for a row
            that is not compared, and if the other row was not run.
        difference: difference from this row, averaged over the sites; None where it is unknown.
        from_baseline: difference from the baseline, which took less effort, averaged over the sites, without a verdict;
            None if the method is compared with the baseline.
        worst_site: name of the site with the worst score; None if a site has no score.
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
    """Part of a comparison table: the scores of all methods for one structure and one metric in one unit.

    Args:
        structure: name of the structure; "all" for classification.
        metric: key of the metric's column, for example "hd95_mm".
        name: name of the metric as shown, for example "HD95".
        unit: unit of the numbers, for example "%" or "mm".
        higher_is_better: whether larger numbers are better.
        lines: one line for each method.
        decimals: number of decimals to print.
        n_tests: number of lines that are compared, for which p is corrected.
        trivial: scores of a prediction that ignores the image; None if the runs do not have them.
    """

    structure: str
    metric: str
    name: str
    unit: str
    higher_is_better: bool
    lines: tuple[Line, ...]
    decimals: int = 2
    n_tests: int = 0
    trivial: Line | None = None


@dataclass(frozen=True)
class FailureLine:
    """Shares of patients of one method for whom the segmentation of a structure failed in one way.

    Args:
        method: label of the method.
        sites: the share at each site; None without patients for whom this failure is possible.
        total: the share of the patients of all sites together; None without such patients, or if a site has no run.
    """

    method: str
    sites: tuple[Share | None, ...]
    total: Share | None


@dataclass(frozen=True)
class FailureBlock:
    """Part of a comparison table: the failures of all methods of one kind and for one structure.

    Args:
        structure: name of the structure.
        kind: "low_dice", "missed" or "false_alarm" (`medfed.metrics.failures.failure_shares`).
        title: the kind in words, for example "Dice < 0.7".
        lines: one line for each method.
    """

    structure: str
    kind: str
    title: str
    lines: tuple[FailureLine, ...]


@dataclass(frozen=True)
class Table:
    """A comparison of methods by leave-one-site-out, as data; `medfed.outputs.tables.table` formats it.

    Args:
        data: "phantom" (synthetic images) or "real".
        selection: name of the rule that selected the round.
        seeds: seeds of the runs, sorted.
        sites: names of the columns, sorted.
        baseline: label of the method that all other methods are tested against.
        head: lines above the table: kind of data, meaning of the columns, meaning of the numbers.
        blocks: one block for each structure, metric and unit.
        notes: remarks below the table.
        failed: heading of the column that counts failures.
        failures: shares of failures, one block for each structure and kind; empty for a task without masks.
        conclusions: sentences that say what can and what cannot be concluded.
        not_learned: labels of the methods with a model that did not learn.
        interval_method: the method of the intervals, in words.
    """

    data: str
    selection: str
    seeds: tuple[int, ...]
    sites: tuple[str, ...]
    baseline: str
    head: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    failed: str = "missed"
    failures: tuple[FailureBlock, ...] = ()
    conclusions: tuple[str, ...] = ()
    not_learned: tuple[str, ...] = ()
    interval_method: str = METHOD
