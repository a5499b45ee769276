"""Paired test of two methods, and its correction for the number of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

ALPHA = 0.05
MIN_PAIRS = 6  # with 5 differing pairs the smallest two-sided p is 2 / 2**5 = 0.0625, which is never significant


def wilcoxon_test(a: Mapping[tuple, float], b: Mapping[tuple, float]) -> dict:
    """Compute the two-sided Wilcoxon signed-rank test over the cases that two methods have in common.

    Args:
        a: the first method's values, one per case, by a tuple that identifies the case, such as (site, patient).
        b: the second method's values, by tuples of the same form. Cases that only one method has are ignored.

    Returns:
        `p`, the p value, None if the values of fewer than six cases differ; `rank_sign`, that of the sum of the signed
        ranks: 1 if `a` is higher, -1 if it is lower, 0 if neither; `n`, the number of common cases.
    """
    difference = np.array([a[case] - b[case] for case in sorted(a.keys() & b.keys())]).round(9)
    differing = difference[difference != 0]
    p = float(stats.wilcoxon(differing).pvalue) if len(differing) >= MIN_PAIRS else None
    signed_ranks = np.sign(differing) @ stats.rankdata(np.abs(differing))
    return {"p": p, "rank_sign": int(np.sign(signed_ranks)), "n": len(difference)}


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct m p values for the number of tests by Holm's method: the k-th smallest is multiplied by m + 1 - k.

    Each is at least as large as the corrected ones before it, and at most 1. If all tests with a corrected p below 0.05
    are called significant, the probability of at least one wrong call is at most 5 %. Holm, "A simple sequentially
    rejective multiple test procedure", Scandinavian Journal of Statistics 1979, https://www.jstor.org/stable/4615733.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return corrected.tolist()
