"""Coordinate-wise trimmed mean (Yin et al., ICML 2018): average without the hospitals at either end.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal Statistical
Rates", ICML 2018, https://arxiv.org/abs/1803.01498. Idea: leave the smallest and the largest numbers out of the mean,
element by element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from medfed.core.errors import UserError
from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors
from medfed.functional.aggregation import trimmed_mean


@dataclass(frozen=True)
class TrimmedMean(Method):
    """The mean without the b K smallest and the b K largest, element by element (algorithm 1, option II).

    At the coordinator only. As long as no more than b K sites are bad, every element lies between those of good ones.
    BatchNorm's statistics are trimmed too; its counters are the largest. Sites count alike, as in the paper: a number
    of images is what a site says of itself.

    Args:
        trim: b in [0, 0.5), the share of sites cut at each end, b K rounded up, so that a bad site is cut however few
            there are. 0 is the uniform mean.

    It needs more than twice as many sites as it cuts at one end, 3 at least. Of 3 or 4 sites with one cut at each end
    it is the median.

    The paper asks for b of at least the share of bad sites, and less than half; it does not say how b K is rounded, as
    its rates do not depend on it.
    """

    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """The trimmed mean of the sites' weights; UserError if it leaves no site."""
        n = len(updates)
        cut = math.ceil(self.trim * n - 1e-9)  # 0.2 * 5 is 1, whatever the last bit says
        if 2 * cut >= n:
            raise UserError(
                f"method.trim: cuts {cut} at each end of {n} sites ({', '.join(updates)}), and none is left to "
                "average; let more sites take part, or set it to 0"
            )
        return trimmed_mean([update.weights for update in updates.values()], cut)
