"""Coordinate-wise trimmed mean (Yin et al., ICML 2018): average without the smallest and the largest values.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, https://arxiv.org/abs/1803.01498.

Idea: extreme values of a weight may come from wrong or malicious sites, so they do not enter the mean. Sites send the
same messages as FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from medfed.core.errors import UserError
from medfed.federation.message import Message, State
from medfed.federation.method import ALL_DIMENSIONS, Method, Tensors
from medfed.functional.weights import trimmed_mean


@dataclass(frozen=True)
class TrimmedMean(Method):
    """Aggregate by the mean of the sites' weights without the extremes, element by element (Definition 2; option II).

    With K sites, ceil(trim * K) values are cut at each end. If at most that many sites send wrong weights, every
    element lies between values of correct sites. BatchNorm's statistics are trimmed as well; its integer counters take
    the maximum. All sites count alike, as in the paper, because a number of images is what a site reports about itself.

    More than twice as many sites are needed as are cut at one end: at least 3. For 3 or 4 sites with one value cut at
    each end, the trimmed mean is the median.

    Departures: the mean is taken of weights after local training, and not of gradients as in the paper. The paper does
    not say how the number of sites to cut is rounded; we round up.

    Args:
        trim: fraction of the sites whose values are cut at each end (beta in the paper), in [0, 0.5). The number of cut
            values is rounded up, so that any value above 0 cuts at least one. 0 gives the uniform mean. The paper
            requires at least the fraction of faulty sites; the default 0.2 is our choice.
    """

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Return the trimmed mean of the sites' weights (Def. 2); UserError if no site would be left."""
        n_sites = len(updates)
        n_cut = math.ceil(self.trim * n_sites - 1e-9)  # the 1e-9 absorbs rounding errors: 0.2 * 5 must give 1, not 2
        if 2 * n_cut >= n_sites:
            raise UserError(
                f"method.trim: {self.trim:g} cuts {n_cut} of {n_sites} sites at each end ({', '.join(updates)}), which "
                "leaves no site to average; let more sites take part, or set method.trim to 0"
            )
        return trimmed_mean([update.weights for update in updates.values()], n_cut)  # Def. 2
