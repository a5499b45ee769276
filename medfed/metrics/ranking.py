"""Ranks of methods, and how stable they are if other patients of the same sites had been tested."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

N_BOOTSTRAP = 2000


@dataclass(frozen=True)
class Rank:
    """The rank of one method by the average over sites, 1 for the best; equal methods share a rank.

    `low` and `high` are the percentiles 2.5 and 97.5 of the rank over the bootstrap samples, `first_share` is the
    fraction of these samples, in [0, 1], in which the rank is 1.
    """

    rank: int
    low: int
    high: int
    first_share: float


def rank_methods(sites: Sequence[np.ndarray], higher_is_better: bool, seed: Sequence[object]) -> list[Rank]:
    """Rank M methods by their average over sites, and repeat this over 2000 bootstrap samples.

    A bootstrap sample draws, at each site, as many patients as the site has, with replacement, and the same patients
    for all methods. `sites` has an array (M, n) for the n patients of each site; `seed` determines the samples.
    """
    sign = -1.0 if higher_is_better else 1.0
    digest = hashlib.sha256("\0".join(map(str, seed)).encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:16], "big"))
    totals, sampled_totals = np.zeros(len(sites[0])), np.zeros((N_BOOTSTRAP, len(sites[0])))
    for values in sites:
        n = values.shape[1]
        counts = rng.multinomial(n, np.full(n, 1 / n), N_BOOTSTRAP)  # how often each sample contains each patient
        totals += values.mean(axis=1)
        sampled_totals += counts @ values.T / n
    ranks = _ranks(sign * totals[None])[0]
    sampled = _ranks(sign * sampled_totals)
    low, high = np.percentile(sampled, [2.5, 97.5], axis=0, method="nearest")
    first = (sampled == 1).mean(axis=0)
    return [Rank(int(r), int(a), int(b), float(f)) for r, a, b, f in zip(ranks, low, high, first, strict=True)]


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks (R, M) of values (R, M) within each row, 1 for the smallest; equal values share a rank."""
    rounded = values.round(9)
    return 1 + (rounded[:, None, :] < rounded[:, :, None]).sum(axis=2)
