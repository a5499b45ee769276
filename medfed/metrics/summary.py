"""From scores to the numbers one reports: means by site, their mean over sites, the gap, intervals and p values.

What a task declares (`medfed.tasks.scoring`) says which metrics there are and how one group of rows is scored; the
rest is the same for all tasks and is here. What is not known is None, never NaN; it enters no mean and is counted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

ROLES = ("seen", "unseen")
VALIDATION = "validation"  # the role of a site that never trains and on which the round may be chosen
N_BOOTSTRAP = 2000
MIN_PAIRS = 6  # with 5 pairs that differ, the smallest two-sided p is 2/2**5 = 0.0625: nothing could be significant

Rows = Sequence[Mapping]
Group = dict  # the counts and, per metric, {n, mean, ...} of one site and structure


def summarise(
    rows: Sequence[dict],
    structure_of: Callable[[Mapping], str],
    score_group: Callable[[list[dict], tuple], Group],
    counts: Sequence[str],
    metrics: Sequence[str],
    in_gap: Sequence[str],
    with_spread: bool,
) -> dict:
    """Scores per role, site and structure; the mean over sites; the gap.

    Args:
        rows: one per case, with `site`, `role` and `patient`.
        structure_of: the structure of a row.
        score_group: (the rows of one role, site and structure, the names of a random stream) to counts and, for each
            of `metrics`, at least {n, mean}.
        counts: the counts that are summed over sites; the first is the number of cases that a metric should have.
        metrics: names of metrics; the gap is known where as many sites have a metric as have the first.
        in_gap: the metrics of the gap.
        with_spread: whether the mean over sites has the standard deviation over sites.

    Returns:
        A dict that JSON can hold: for each role, `sites[site][structure]` and `mean[structure]`, every site weighing
        the same and only those sites with the metric of all their cases; and `gap[structure][metric]`, seen minus
        unseen. The role "validation" is there if it has rows.

    Each group has a random stream of its own: rows of another site change no site's numbers.
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
                [found[name] for found in sites.values() if name in found], counts, metrics, with_spread
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
    found: dict = {key: sum(group[key] for group in groups) for key in counts}
    for metric in metrics:
        whole = (group[metric] for group in groups if group[counts[0]] and group[metric]["n"] == group[counts[0]])
        means = [scores["mean"] for scores in whole if scores["mean"] is not None]
        found[metric] = {"n_sites": len(means), "mean": math.fsum(means) / len(means) if means else None}
        if with_spread:
            found[metric]["sd"] = float(np.std(means, ddof=1)) if len(means) > 1 else None
    return found


def _generalisation_gap(
    seen: dict | None, unseen: dict | None, first: str, metrics: Sequence[str]
) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for metric in metrics:
        found[metric] = None
        if seen and unseen and all(0 < role[metric]["n_sites"] == role[first]["n_sites"] for role in (seen, unseen)):
            found[metric] = seen[metric]["mean"] - unseen[metric]["mean"]
    return found


def present_roles(rows: Rows) -> tuple[str, ...]:
    """Seen and unseen, and validation where there are such rows."""
    return (*ROLES, VALIDATION) if any(row["role"] == VALIDATION for row in rows) else ROLES


def wilcoxon_test(a: Mapping[tuple, float], b: Mapping[tuple, float], who: str) -> dict:
    """Wilcoxon signed-rank test, two-sided, over the cases that both of two methods score.

    Args:
        a, b: the value of each case.
        who: what a case is, in the plural, for the reason.

    Returns:
        {p, n, n_differ, reason}: n cases are in both, and n_differ of them have unequal values. p is None, and the
        reason a sentence, where fewer than six differ.
    """
    difference = np.array([a[case] - b[case] for case in sorted(a.keys() & b.keys())]).round(9)
    n, difference = len(difference), difference[difference != 0]
    found = {"p": None, "n": n, "n_differ": len(difference), "reason": None}
    if n < MIN_PAIRS:
        return found | {"reason": f"only {n} matched {who}; the test needs {MIN_PAIRS}"}
    if not len(difference):
        return found | {"reason": f"all {n} matched {who} score the same"}
    if len(difference) < MIN_PAIRS:
        differ = f"only {len(difference)} of {n} matched {who} differ"
        return found | {"reason": f"{differ}; the test needs {MIN_PAIRS}"}
    return found | {"p": float(stats.wilcoxon(difference).pvalue)}


def bootstrap_indices(n: int, seed: tuple) -> np.ndarray:
    """(N_RESAMPLES, n): which of n patients each bootstrap resample draws, from a generator that `seed` names."""
    digest = hashlib.sha256("\0".join(map(str, seed)).encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:16], "big"))
    return rng.integers(0, n, (N_BOOTSTRAP, n))
