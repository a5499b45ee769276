"""The constants of `data.standardise: dataset`: mean and standard deviation per channel over all sites that train.

Before round 1, each site that trains sends the mean and the variance of each channel over all pixels of its training
images. The pooled constants become entries of the network (`medfed.networks.parts.input_scale`), so they are sent,
saved and restored with the weights, and no round changes them.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor

from medfed.federation.exchange import Exchange
from medfed.federation.local_round import Samples, batches
from medfed.federation.message import Kind, Message, State
from medfed.federation.method import has_too_few_patients
from medfed.functional.standardisation import INPUT_MEAN, INPUT_STD, positive_std
from medfed.functional.style import PixelMoments

ASKED = "moments"  # fact of a "share" request: 1 asks for the moments of the images, not for the method's statistics
MOMENTS = "image_moments"  # the tensor in the reply: (2, C) float64, the means and the variances
PIXELS = "pixels"  # the fact in the reply: number of pixels per channel, over all training images
RANGES = {MOMENTS: (0.0, 1.0)}  # the intensities are in [0, 1]
MAX_BATCH = 64  # images in memory at the same time


def has_constants(entries: Mapping[str, Tensor]) -> bool:
    return INPUT_MEAN in entries


def moments_request() -> Message:
    return Message(Kind.SHARE, facts={"round": 1, "last": 0, ASKED: 1})


def moments_reply(site: str, samples: Samples, min_patients: int) -> Message:
    """Return the moments of all training images, without augmentation; empty, with a warning, for too few patients."""
    if has_too_few_patients(site, samples, min_patients, "image moments", "data.min_patients"):
        return Message(Kind.SHARE)
    parts = (PixelMoments.from_features(batch.image.flatten(3)) for batch in batches(samples, MAX_BATCH))
    total = reduce(PixelMoments.merge, parts)
    return Message(
        Kind.SHARE,
        tensors={MOMENTS: torch.stack([total.mean, total.deviations / total.count])},
        facts={PIXELS: total.count},
    )


def pool(replies: Mapping[str, Message]) -> dict[str, Tensor]:
    """Compute the network's entries `input_scale.mean` and `input_scale.std`, (C,) float32, of all pixels of all sites.

    The sites are merged in the order of their names. If noise makes a variance negative, or all pixels of a channel are
    equal, the standard deviation is 1. Empty if no site shared its moments. ValueError or KeyError for a wrong reply.
    """
    parts = []
    for site in sorted(site for site, reply in replies.items() if reply.tensors):
        mean, variance = replies[site].tensors[MOMENTS].double()
        n_pixels = replies[site].facts[PIXELS]
        parts.append(PixelMoments(n_pixels, mean, variance * n_pixels))
    if not parts:
        return {}
    total = reduce(PixelMoments.merge, parts)
    return {INPUT_MEAN: total.mean.float(), INPUT_STD: positive_std(total.deviations / total.count).float()}


def agree_on_constants(exchange: Exchange, state: State, sites: Sequence[str]) -> State:
    """Ask the sites for their moments; return a state whose weights contain the pooled constants, or 0 and 1."""
    constants, _ = exchange.apply(pool, exchange.ask(dict.fromkeys(sites, moments_request()), state))
    if not constants:
        warnings.warn(
            "no site shared the moments of its images, so images are not standardised; decrease data.min_patients, or "
            "choose another data.standardise",
            stacklevel=2,
        )
    return replace(state, weights={**state.weights, **constants})


def constants_of(entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a state dict that standardise the input; empty if there are none."""
    return {name: entries[name] for name in (INPUT_MEAN, INPUT_STD) if name in entries}
