"""The statistics of a comparison, from its cases: means with intervals, paired differences, tests and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np

from medfed.metrics.intervals import MIN_PATIENTS, Estimate, estimate_average, interval
from medfed.metrics.metric import Column
from medfed.metrics.ranking import Rank, rank_methods
from medfed.outputs.tables.comparison_data import Cell, Difference, Line
from medfed.outputs.tables.differences import SiteScores, difference_of, with_verdicts
from medfed.outputs.tables.local_runs import score_of_models, values_of_patients
from medfed.tasks.scoring import RUN, Scoring

Key = tuple[str, str, int]  # (method, site, seed)
Runs = Mapping[Key, list[dict]]  # the scores of every case of each run
Groups = Mapping[Key, Mapping[str, Mapping[str, Any]]]  # the scores of each run by structure, from its summary


@dataclass(frozen=True)
class BlockStatistics:
    """Computes the lines of one block of a comparison: the scores of all methods for one structure and one metric.

    Args:
        baselines: label of the row with which each method is compared, in the order of the table; None for a reference,
            which is neither compared nor ranked.
        less_effort: label of the baseline, for methods that are compared with FedAvg of equal effort.
    """

    scoring: Scoring
    column: Column
    structure: str
    sites: Sequence[str]
    baselines: Mapping[str, str | None]
    less_effort: Mapping[str, str] = field(default_factory=dict)

    def lines(self, runs: Runs, groups: Groups) -> tuple[Line, ...]:
        """One line for each method; `groups` has scores of metrics that cannot be computed from rows."""

        def shared(methods: Sequence[str]) -> Mapping[str, Mapping[str, SiteScores]]:
            """The scores of each method over the runs (sites and seeds) that all these methods have."""
            of_all = _runs_of_all(runs, methods)
            return {method: self._method_scores(method, of_all, groups) for method in methods}

        scores = {method: self._method_scores(method, runs, groups) for method in self.baselines}
        lines = []
        for method, baseline in self.baselines.items():
            is_compared = baseline and baseline in scores and baseline != method
            line = self._line(method, scores[method], shared([method, str(baseline)]) if is_compared else {})
            if (less := self.less_effort.get(method)) in scores and less != baseline:
                paired, other = shared([method, self.less_effort[method]]).values()
                line = replace(line, from_baseline=self._difference(paired, other, self.sites, 1))
            lines.append(line)
        ranked = sorted(line.method for line in lines if line.average and self.baselines[line.method] is not None)
        ranks = self._ranks(ranked, shared(ranked))
        lines = [replace(line, rank=ranks.get(line.method)) for line in lines]
        return with_verdicts(lines, self.column.metric.higher_is_better)

    @property
    def n_tests(self) -> int:
        """Number of methods that are compared with their baseline."""
        return sum(baseline in self.baselines and baseline != method for method, baseline in self.baselines.items())

    def _method_scores(self, method: str, runs: Runs, groups: Groups) -> dict[str, SiteScores]:
        """The scores of one method at each site."""
        return {
            site: self._site_scores({key: rows for key, rows in runs.items() if key[:2] == (method, site)}, groups)
            for site in self.sites
        }

    def _site_scores(self, runs: Runs, groups: Groups) -> SiteScores:
        """The scores of one method at one site, from its runs, which differ in the seed."""
        means: dict[int, float] = {}
        with_score = []
        for key, rows in runs.items():
            score = score_of_models(self.scoring, rows, self.column.key)
            if score is None and not self.scoring.has_structures:  # an outside metric whose code is missing here
                score = groups[key].get(self.structure, {}).get(self.column.key, {}).get("mean")
            if score is not None:
                means[key[2]] = self.column.scale * score
                with_score.append(rows)
        values = values_of_patients(self.scoring, with_score, self.column.key)
        scaled = {patient: self.column.scale * value for patient, value in values.items()}
        return SiteScores(means, scaled, [row | {RUN: key[2]} for key, rows in runs.items() for row in rows])

    def _line(
        self, method: str, own: Mapping[str, SiteScores], compared: Mapping[str, Mapping[str, SiteScores]]
    ) -> Line:
        """The line of a method before corrections; `compared` has its and the baseline's scores in common runs."""
        cells = tuple(self._cell(list(own[site].means.values()), own[site].estimate) for site in self.sites)
        rows = [row for site in self.sites for row in own[site].rows]
        worst = min if self.column.metric.higher_is_better else max
        means = {site: cell.mean for site, cell in zip(self.sites, cells, strict=True) if cell is not None}
        differences: tuple[Difference | None, ...] = ()
        difference = None
        if compared:
            paired, other = compared.values()
            n_site_tests = self.n_tests * len(self.sites)
            differences = tuple(self._difference(paired, other, [site], n_site_tests) for site in self.sites)
            difference = self._difference(paired, other, self.sites, self.n_tests)
        return Line(
            method,
            cells,
            self._average(cells, own),
            against=str(self.baselines[method]) if compared else "",
            n_missed=sum(map(self.scoring.is_failure, rows)),
            n_cases=sum(map(self.scoring.is_case, rows)),
            differences=differences,
            difference=difference,
            worst_site=worst(means, key=lambda site: means[site]) if len(means) == len(self.sites) else None,
        )

    def _difference(
        self, own: Mapping[str, SiteScores], other: Mapping[str, SiteScores], sites: Sequence[str], n_tests: int
    ) -> Difference | None:
        """The difference between a method and the one it is compared with; `n_tests` is for Holm's correction."""
        return difference_of(own, other, sites, self.scoring, self.column, n_tests)

    def _cell(self, means: Sequence[float], estimate: Estimate | None) -> Cell | None:
        """Return the mean over seeds with its standard deviation and its interval; None without a mean."""
        if not means:
            return None
        mean = fmean(means)
        low, high = self._interval(replace(estimate, mean=mean) if estimate else None)
        sd = stdev(means) if len(means) > 1 else None
        return Cell(mean, sd, len(means), low, high, estimate.n if estimate else 0)

    def _average(self, cells: Sequence[Cell | None], scores: Mapping[str, SiteScores]) -> Cell | None:
        """Average over sites with equal weights; the standard deviation is over the seeds that all sites have."""
        known = [cell for cell in cells if cell is not None]
        if len(known) < len(cells):
            return None
        seeds = [
            seed
            for seed in sorted(scores[self.sites[0]].means)
            if all(seed in scores[site].means for site in self.sites)
        ]
        of_seeds = [fmean(scores[site].means[seed] for site in self.sites) for seed in seeds]
        estimate = estimate_average([scores[site].estimate for site in self.sites])
        average = self._cell([cell.mean for cell in known], estimate)
        assert average is not None
        return replace(average, sd=stdev(of_seeds) if len(seeds) > 1 else None, n_seeds=len(seeds))

    def _interval(self, estimate: Estimate | None) -> tuple[float, float] | tuple[None, None]:
        """The confidence interval within the limits of the metric; (None, None) without an estimate."""
        low, high = self.column.limits
        return interval(estimate, (self.column.scale * low, self.column.scale * high))

    def _ranks(self, methods: Sequence[str], scores: Mapping[str, Mapping[str, SiteScores]]) -> dict[str, Rank]:
        """The rank of each method; {} unless each site has values of at least 5 patients common to all methods."""
        sites = []
        for site in self.sites:
            values = [scores[method][site].values for method in methods]
            common = sorted(set.intersection(*map(set, values))) if values else []
            if len(common) < MIN_PATIENTS:
                return {}
            sites.append(np.array([[of_method[patient] for patient in common] for of_method in values]))
        if len(methods) < 2:
            return {}
        names = (self.structure, self.column.key, *methods)
        ranks = rank_methods(sites, self.column.metric.higher_is_better, names)
        return dict(zip(methods, ranks, strict=True))


def _runs_of_all(runs: Runs, methods: Sequence[str]) -> Runs:
    """The runs of these methods with a site and seed that all of them have."""
    of_methods = [{key[1:] for key in runs if key[0] == method} for method in methods]
    common = set.intersection(*of_methods) if of_methods else set()
    return {key: rows for key, rows in runs.items() if key[0] in methods and key[1:] in common}
