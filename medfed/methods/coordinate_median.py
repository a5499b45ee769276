"""Coordinate-wise median (Yin et al., ICML 2018): aggregate by the median, which a minority of sites cannot move far.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, https://arxiv.org/abs/1803.01498.

Idea: the mean follows a single wrong or malicious site; the median of each weight does not. Sites send the same
messages as FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from medfed.federation.message import Message, State
from medfed.federation.method import ALL_DIMENSIONS, Method, Tensors
from medfed.functional.weights import trimmed_mean


@dataclass(frozen=True)
class CoordinateMedian(Method):
    """Aggregate by the median of the sites' weights, element by element (Definition 1; Algorithm 1, option I).

    If fewer than half of the sites send wrong weights, every element lies between values of correct sites. BatchNorm's
    statistics are medians as well; its integer counters take the maximum.

    All sites count alike, because a site reports its number of images itself: in a median that is weighted by images, a
    site could choose the result by claiming more than half of them. For an even number of sites the median is the mean
    of the two middle values. For one or two sites it is therefore their mean, which protects against nothing.

    The median ignores what only a minority of the sites has learned. If no site is faulty but the sites' images differ,
    as in domain generalisation, it costs accuracy. This method has no settings.

    Departures: the median is taken of weights after local training, and not of gradients as in the paper.
    """

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Return the median of the sites' weights, element by element (Def. 1)."""
        return trimmed_mean([update.weights for update in updates.values()], (len(updates) - 1) // 2)  # Def. 1
