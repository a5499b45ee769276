"""Coordinate-wise median (Yin et al., ICML 2018): what most hospitals agree on, whatever one of them sends.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, https://arxiv.org/abs/1803.01498. Idea: replace the mean over the sites by the median, element by
element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors
from medfed.functional.aggregation import coordinate_median


@dataclass(frozen=True)
class CoordinateMedian(Method):
    """w = median_k w_k, element by element (the paper's algorithm 1, option I, for weights instead of gradients).

    At the coordinator only. As long as fewer than half of the sites are bad, every element lies between those of good
    ones. BatchNorm's statistics have medians too; its counters are the largest.

    Sites count alike: a number of images is what a site says of itself, and a median by images would be whatever a site
    sends that claims more than half of them. Of an even number it is the mean of the middle two, so of one or two
    sites it is their mean, which guards against nothing.

    The median follows the site in the middle, element by element. Where hospitals differ, as in domain generalisation,
    it gives away what only a few of them know: it costs accuracy where no site is bad.
    """

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """The median of the sites' weights."""
        return coordinate_median([update.weights for update in updates.values()])
