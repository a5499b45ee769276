"""Differential privacy at a site: clipping and Gaussian noise as the last step before a reply leaves.

`Site.reply` applies `protect` to every reply after the method has finished, so that no method can send anything without
the noise. `medfed.federation.privacy_accounting` computes what the noise is worth.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from medfed.core import bounds
from medfed.core.bounds import NonNegativeFloat
from medfed.core.errors import UserError
from medfed.federation.checks.expected import range_of
from medfed.federation.message import Message


@dataclass(frozen=True)
class Privacy:
    """The `privacy` block of a config: clipping and Gaussian noise on what a site sends.

    This is the Gaussian mechanism (C. Dwork, A. Roth: "The Algorithmic Foundations of Differential Privacy",
    Foundations and Trends in Theoretical Computer Science 9(3-4), 2014, appendix A,
    https://doi.org/10.1561/0400000042). A site clips what it sends to an L2 norm of C. With other images the sent
    numbers could then differ by at most 2 * C, and noise with the standard deviation 2 * C * `noise` is added to each
    number. The guarantee therefore covers all data of a site together, which is more than a guarantee for one patient.
    `summary.json` has (epsilon, delta) over all rounds. Weights and statistics are protected, apart from whole numbers.
    The number of images, the number of steps, the mean loss and the validation score are sent unchanged. Each hospital
    has a secret of its own for the noise; in a simulation, the noise follows from the config's seed.

    Args:
        clip: maximum L2 norm of the change of a site's weights in a round, over all floating-point entries. 0 neither
            clips nor adds noise.
        noise: standard deviation of the noise on the weights, divided by 2 * `clip`; from 0 to a million.
        statistics_clip: maximum L2 norm of the shared statistics, which are all tensors of one message except the
            weights. 0 neither clips nor adds noise.
        statistics_noise: standard deviation of the noise on the shared statistics, divided by 2 * `statistics_clip`;
            from 0 to a million.
        delta: the delta for which epsilon is computed, in (0, 1).
    """

    clip: NonNegativeFloat = 0.0
    noise: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    statistics_clip: NonNegativeFloat = 0.0
    statistics_noise: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def __post_init__(self) -> None:
        bounds.check(self, self._conflicts)

    def _conflicts(self) -> Iterator[tuple[str, ...]]:
        """Yield (key, sentence, other keys ...) for each noise without the limit (`clip`) that gives it a scale."""
        for noise, clip in (("noise", "clip"), ("statistics_noise", "statistics_clip")):
            if getattr(self, noise) and not getattr(self, clip):
                sentence = f"is {getattr(self, noise)}, which has no scale without {clip} above 0; set that too"
                yield noise, sentence, clip


def protect(
    reply: Message, request: Message, privacy: Privacy, key: bytes, ranges: Mapping[str, tuple[float, float]]
) -> Message:
    """Return a reply whose weights and statistics are clipped and have Gaussian noise, as `Privacy` says.

    Integer tensors and facts are not changed. The change of the weights is measured from `request`.

    Args:
        key: at least 32 bytes from which the noise is derived. In a real federation it must be secret, because whoever
            knows it can remove the noise. Different replies need different keys, because the difference of two replies
            with equal noise contains no noise.
        ranges: the lowest and the highest possible number, by name, of running variances, such as `bn.running_var`, and
            of other tensors (`Method.statistic_ranges`). Numbers that are outside after the noise is added are set to
            the end of the range. Otherwise BatchNorm would use the square root of a negative variance, and a negative
            amplitude would turn the sign of an image's mean.

    Raises:
        UserError: if a number that must be clipped is NaN or infinite, because clipping cannot bound it.
    """
    weights = _protected(reply.weights, request.weights, privacy.clip, privacy.noise, key + b"weights", ranges)
    clip, noise = privacy.statistics_clip, privacy.statistics_noise
    tensors = _protected(reply.tensors, {}, clip, noise, key + b"statistics", ranges)
    return replace(reply, weights=weights, tensors=tensors)


def _protected(
    entries: dict[str, Tensor],
    start: Mapping[str, Tensor],
    clip: float,
    noise: float,
    key: bytes,
    ranges: Mapping[str, tuple[float, float]],
) -> dict[str, Tensor]:
    """Return entries whose changes from `start`, or from 0 if it is empty, are scaled down together to the L2 norm
    `clip` if theirs is larger, with noise added."""
    if not (clip and entries):
        return entries
    before = {name: start[name].double() if start else 0.0 for name in entries}
    change = {name: entry.double() - before[name] for name, entry in entries.items() if entry.is_floating_point()}
    scale = clipping_scale(change, clip)
    result = dict(entries)
    for name, entry in change.items():
        normal = standard_normal(key + name.encode(), entry.numel()).reshape(entry.shape) if noise else 0.0
        noised = before[name] + (entry * scale + 2 * clip * noise * normal)
        limits = range_of(name, ranges) or range_of(name.rpartition("/")[2], ranges)  # `domain/bn.running_var`
        result[name] = (noised.clamp(*limits) if limits else noised).to(entries[name].dtype)
    return result


def clipping_scale(change: Mapping[str, Tensor], clip: float) -> float:
    """Return the factor, at most 1, that brings floating-point tensors together to an L2 norm of at most `clip`."""
    entries = [entry.double() for entry in change.values() if entry.is_floating_point()]
    length = math.sqrt(sum(float(entry.square().sum()) for entry in entries))
    if not math.isfinite(length):
        raise UserError(
            "the reply contains NaN or infinite values, which cannot be clipped, so nothing is sent; "
            "training diverged, so try a smaller training.learning_rate"
        )
    return min(1.0, clip / length) if length else 1.0


def standard_normal(key: bytes, n: int) -> Tensor:
    """Return n float64 samples of the standard normal distribution, derived from a secret key with SHAKE-256.

    The seed of PyTorch's CPU generator has only 32 bits: an attacker could try all seeds in a few hours and remove the
    noise.
    """
    bits = np.frombuffer(hashlib.shake_256(key).digest(8 * n), dtype="<u8") >> np.uint64(11)
    return torch.special.ndtri(torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-53))
