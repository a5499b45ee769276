"""Gaussian noise on what leaves a site, as the very last step: whatever the method is, it cannot get around it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from medfed.core import bounds
from medfed.core.bounds import NonNegativeFloat
from medfed.core.errors import UserError
from medfed.federation.message import Message

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Privacy:
    """The `privacy` block of a config: clipping and Gaussian noise on what a site sends.

    This is the Gaussian mechanism (Dwork & Roth: "The Algorithmic Foundations of Differential Privacy", 2014, appendix
    A, https://www.cis.upenn.edu/~aaroth/Papers/privacybook.pdf). A site clips what it sends to an L2 norm of C. With
    other images the sent numbers could then differ by at most 2 * C, and noise with the standard deviation
    2 * C * `noise` is added to each number. The guarantee therefore covers all data of a site together, which is more
    than a guarantee for one patient. (epsilon, delta) over all rounds is written to `summary.json`, computed by
    Google's accountant (`medfed.federation.privacy_accounting`). Weights and statistics are protected. The number of
    images, the number of steps, the mean loss and the validation score are sent unchanged.

    Args:
        clip: maximum L2 norm of the change of a site's weights in a round, over all floating-point entries. 0 neither
            clips nor adds noise.
        noise: standard deviation of the noise on the weights, divided by 2 * `clip`; at least 0.
        statistics_clip: maximum L2 norm of the tensors that a method sends besides the weights, all tensors of one
            message together. 0 neither clips nor adds noise.
        statistics_noise: standard deviation of the noise on those tensors, divided by 2 * `statistics_clip`; at least
            0.
        delta: the delta for which epsilon is computed, in (0, 1).
    """

    clip: NonNegativeFloat = 0.0
    noise: NonNegativeFloat = 0.0
    statistics_clip: NonNegativeFloat = 0.0
    statistics_noise: NonNegativeFloat = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ValueError: if a value is out of its range, or noise has no clip to be scaled by.
        """
        bounds.check(self, self._conflicts)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """Yield (key, sentence) for each pair of values that do not fit together."""
        for noise, clip in (("noise", "clip"), ("statistics_noise", "statistics_clip")):
            if getattr(self, noise) and not getattr(self, clip):
                yield noise, f"is {getattr(self, noise)}, which has no scale without {clip} above 0; set that too"


def protect(
    answer: Message, letter: Message, privacy: Privacy, key: bytes, variances: Collection[str] = ()
) -> Message:
    """The answer, clipped and with noise; as it is where `privacy` asks for nothing.

    Args:
        letter: what was asked, with the weights from which the site went on.
        variances: names of the entries that are running variances (`weights.running_variances`). BatchNorm divides by
            the root of them, so they are cut at 0, which noise might take them below.
        key: from which the noise follows, of 32 bytes or more; a secret where the answer leaves a hospital, for who can
            draw the noise again can take it away, and another one for another answer, for the same noise on two of them
            goes when one is taken from the other.

    Raises:
        UserError: if a number is not finite: clipping would do nothing.
    """
    if privacy.clip and answer.weights:
        names = [name for name, entry in answer.weights.items() if entry.is_floating_point()]
        change = {name: answer.weights[name].double() - letter.weights[name].double() for name in names}
        noised = _noised(change, privacy.clip, privacy.noise, key + b"weights")
        moved = {name: letter.weights[name].double() + noised[name] for name in names}
        moved |= {name: moved[name].clamp(min=0) for name in names if name in variances}
        sent = {name: entry.to(answer.weights[name].dtype) for name, entry in moved.items()}
        answer = replace(answer, weights={**answer.weights, **sent})
    if privacy.statistics_clip and answer.tensors:
        sent = {name: entry.double() for name, entry in answer.tensors.items() if entry.is_floating_point()}
        noised = _noised(sent, privacy.statistics_clip, privacy.statistics_noise, key + b"statistics")
        moved = {name: entry.to(answer.tensors[name].dtype) for name, entry in noised.items()}
        answer = replace(answer, tensors={**answer.tensors, **moved})
    return answer


def standard_normal(key: bytes, n: int) -> Tensor:
    """(n,) float64 draws of the standard normal distribution, from SHAKE-256.

    PyTorch's generator for the CPU has 32 bits of seed, however long the number that it is given: whoever knows what an
    answer should be like tries them all in a few hours.
    """
    bits = np.frombuffer(hashlib.shake_256(key).digest(8 * n), dtype="<u8") >> np.uint64(11)
    return torch.special.ndtri(torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-53))


def _noised(tensors: Tensors, clip: float, noise: float, key: bytes) -> dict[str, Tensor]:
    """Float64 tensors, shortened together to `clip` where they are longer, each number with noise."""
    length = math.sqrt(sum(float(entry.square().sum()) for entry in tensors.values()))
    if not math.isfinite(length):
        raise UserError("what it would send is not finite, so that no clipping bounds it, and nothing leaves; training "
                        "diverged")
    scale = min(1.0, clip / length) if length else 1.0
    deviation = 2 * clip * noise
    return {
        name: entry * scale
        + (deviation * standard_normal(key + name.encode(), entry.numel()).reshape(entry.shape) if noise else 0.0)
        for name, entry in tensors.items()
    }

