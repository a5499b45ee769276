"""Summaries of scores: means per site, their mean over sites, the generalisation gap, bootstrap and Wilcoxon test.

A task (`medfed.tasks.scoring`) says which metrics there are and how a group of rows is scored; everything else is the
same for all tasks. An unknown value is None, never NaN; it is left out of means, and counted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

ROLES = ("seen", "unseen")
VALIDATION = "validation"  # role of a site that never trains and may be used to select the round
N_BOOTSTRAP = 2000
MIN_PAIRS = 6  # with 5 differing pairs the smallest two-sided p is 2 / 2**5 = 0.0625, which is never significant

Rows = Sequence[Mapping]
Group = dict  # of one site and structure: counts, and for each metric {n, mean, ...}


def summarise(
    rows: Sequence[dict],
    structure_of: Callable[[Mapping], str],
    score_group: Callable[[list[dict], tuple], Group],
    counts: Sequence[str],
    metrics: Sequence[str],
    in_gap: Sequence[str],
    with_spread: bool,
) -> dict:
    """Compute the scores of each role, site and structure from the rows of a run, then their means over the sites.

    A row is a dict with the results of one image, or of one structure of one patient. The role of a site is "seen" (it
    trained), "unseen" (it did not train) or "validation" (it did not train, but may have helped to select the round).

    Args:
        rows: all rows of the run, each with at least `site`, `role` and `patient`.
        structure_of: function from a row to the name of its structure.
        score_group: function that computes the scores of one group. Its arguments are the rows of one role, site and
            structure, and the names (role, site, structure), from which it may seed random numbers. It returns the
            counts by name and, for each of `metrics`, a dict with at least `n` (number of values) and `mean`.
        counts: names of the counts that are summed over sites. The first name belongs to the number of cases for which
            every metric should have a value.
        metrics: names of the metrics.
        in_gap: names of those metrics for which the gap between seen and unseen sites is computed.
        with_spread: True adds the standard deviation over the sites, as `sd`, to each mean over the sites.

    Returns:
        JSON values. `result[role]["sites"][site][structure]` is the result of `score_group`.
        `result[role]["mean"][structure]` contains the summed counts and, for each metric, a dict with `n_sites` and the
        mean over these sites, in which every site has the same weight. A site counts for a metric only if all cases of
        the site have a value. `result["gap"][structure][metric]` is the mean of the seen sites minus the mean of the
        unseen sites. The gap is None if a site lacks the metric, or if a role has no sites. The role "validation" is
        included only if rows have this role.
    """
    summary: dict = {}
    for role in present_roles(rows):
        groups: dict[str, dict[str, list[dict]]] = {}
        of_role = [row for row in rows if row["role"] == role]
        for row in sorted(of_role, key=lambda row: (row["site"], structure_of(row), row["patient"])):
            groups.setdefault(row["site"], {}).setdefault(structure_of(row), []).append(row)
        sites = {
            site: {name: score_group(group, (role, site, name)) for name, group in of_site.items()}
            for site, of_site in groups.items()
        }
        structures = sorted({name for of_site in sites.values() for name in of_site})
        mean = {
            name: _mean_over_sites(
                [site[name] for site in sites.values() if name in site], counts, metrics, with_spread
            )
            for name in structures
        }
        summary[role] = {"sites": sites, "mean": mean}
    structures = sorted({structure_of(row) for row in rows})
    seen, unseen = (summary[role]["mean"] for role in ROLES)
    summary["gap"] = {
        name: _generalisation_gap(seen.get(name), unseen.get(name), metrics[0], in_gap) for name in structures
    }
    return summary


def _mean_over_sites(groups: list[Group], counts: Sequence[str], metrics: Sequence[str], with_spread: bool) -> dict:
    """Return summed counts, and the mean (and standard deviation) over sites of each metric of one structure."""
    mean: dict = {key: sum(group[key] for group in groups) for key in counts}
    for metric in metrics:
        whole = (group[metric] for group in groups if group[counts[0]] and group[metric]["n"] == group[counts[0]])
        means = [scores["mean"] for scores in whole if scores["mean"] is not None]
        mean[metric] = {"n_sites": len(means), "mean": math.fsum(means) / len(means) if means else None}
        if with_spread:
            mean[metric]["sd"] = float(np.std(means, ddof=1)) if len(means) > 1 else None
    return mean


def _generalisation_gap(
    seen: dict | None, unseen: dict | None, first: str, metrics: Sequence[str]
) -> dict[str, float | None]:
    """Return seen minus unseen mean of each metric; None where a site lacks the metric or a role has no sites."""
    gap: dict[str, float | None] = {}
    for metric in metrics:
        gap[metric] = None
        if seen and unseen and all(0 < role[metric]["n_sites"] == role[first]["n_sites"] for role in (seen, unseen)):
            gap[metric] = seen[metric]["mean"] - unseen[metric]["mean"]
    return gap


def present_roles(rows: Rows) -> tuple[str, ...]:
    """Return the roles of sites that a summary shows: always "seen" and "unseen", and "validation" if a row has it.

    Args:
        rows: rows with the entry `role`: "seen", "unseen" or "validation".
    """
    return (*ROLES, VALIDATION) if any(row["role"] == VALIDATION for row in rows) else ROLES


def wilcoxon_test(a: Mapping[tuple, float], b: Mapping[tuple, float], cases: str) -> dict:
    """Compute the two-sided Wilcoxon signed-rank test over the cases that two methods have in common.

    Args:
        a: the first method's values, one per case, by a tuple that identifies the case, such as (site, patient).
        b: the second method's values, by tuples of the same form. Cases that only one method has are ignored.
        cases: what a case is, in the plural (for example "patients"); used in the text of `reason`.

    Returns:
        A dict with these keys:

        * `p`: the p value; None if the values of fewer than six cases differ.
        * `n`: the number of common cases.
        * `n_differ`: the number of common cases with different values.
        * `reason`: a sentence that says why there is no p value; None if there is one.
    """
    difference = np.array([a[case] - b[case] for case in sorted(a.keys() & b.keys())]).round(9)
    n, difference = len(difference), difference[difference != 0]
    result = {"p": None, "n": n, "n_differ": len(difference), "reason": None}
    if n < MIN_PAIRS:
        return result | {"reason": f"only {n} matched {cases}; the test needs {MIN_PAIRS}"}
    if not len(difference):
        return result | {"reason": f"all {n} matched {cases} score the same"}
    if len(difference) < MIN_PAIRS:
        differ = f"only {len(difference)} of {n} matched {cases} differ"
        return result | {"reason": f"{differ}; the test needs {MIN_PAIRS}"}
    return result | {"p": float(stats.wilcoxon(difference).pvalue)}


def bootstrap_indices(n: int, seed: tuple) -> np.ndarray:
    """Draw 2000 bootstrap samples of n patients, with replacement.

    Args:
        n: number of patients.
        seed: names and numbers that determine the random generator. The same seed gives the same samples.

    Returns:
        (2000, n) integers in 0..n-1: the indices of the patients in each bootstrap sample, one sample per row.
    """
    digest = hashlib.sha256("\0".join(map(str, seed)).encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:16], "big"))
    return rng.integers(0, n, (N_BOOTSTRAP, n))
