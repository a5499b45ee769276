"""What replies are compared with, apart from each other: the request, and what is remembered of earlier rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from medfed.federation.message import Kind, Message

Replies = dict[str, Message]
CONTENTS: dict[str, str] = {
    Kind.SURVEY: "survey",
    Kind.SHARE: "share",
    Kind.TRAIN: "update",
    Kind.VALIDATE: "score",
}
# The facts that a site's reply may hold, by the kind of the request. A reply to "train" also holds those that the
# method reports (`Method.fact_names`), one to "survey" those of `medfed.federation.survey`, and a reply to "share" has
# `pixels` only with the moments of the images.
REPLY_FACTS: dict[str, frozenset[str]] = {
    Kind.SURVEY: frozenset(),
    Kind.SHARE: frozenset({"pixels"}),
    Kind.TRAIN: frozenset({"examples", "steps", "loss"}),
    Kind.VALIDATE: frozenset({"score", "boundary_distance"}),
    Kind.END: frozenset(),
}
NOUNS = {"examples": "training images", "steps": "training steps", "pixels": "pixels"}
MAX_COUNT, MAX_PIXELS = 10**8, 10**15  # more images or steps, and more pixels of all images, than any hospital has
MAX_NUMBER = 1e18  # the square of a larger number could overflow float32
DIVERGED = (
    "training diverged at this site, so try a smaller training.learning_rate, or check its images with "
    "python -m medfed.data check"
)
ADVICE = (
    "check the data and the log of that site, or set federation.on_bad_update to drop to continue without its reply"
)


@dataclass
class Earlier:
    """What the coordinator remembers of the sites' replies of earlier rounds, in this process."""

    n_images: dict[str, int] = field(default_factory=dict)  # by site, the number of training images that it reported
    rounds: dict[str, dict[str, int]] = field(default_factory=dict)  # by site, of its updates by digest of the weights
    opposed: Counter[tuple[str, str]] = field(default_factory=Counter)  # by site and group of tensors, rounds in a row
    large: Counter[tuple[str, str]] = field(default_factory=Counter)  # the same, of large changes
    layers: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by site, statistic and layer, the same


@dataclass(frozen=True)
class Expected:
    """What the replies to one request are compared with."""

    kind: str
    round: int
    weights: Mapping[str, Tensor]  # the global weights that were sent
    parameters: frozenset[str]  # names of the entries of `weights` that are parameters; the others are buffers
    largest_change: float | None = None  # `federation.largest_change`
    largest_count: float = math.inf  # `federation.largest_count`
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # `Method.statistic_ranges`
    row_tensors: frozenset[str] = frozenset()  # `Method.row_tensors`
    received: Mapping[str, float] = field(default_factory=dict)  # `received_ratios`
    local_keys: frozenset[str] | None = None  # names of the entries that stay at the sites; None if not known
    local_epochs: int = 1
    fact_names: frozenset[str] = frozenset()  # `Method.fact_names`
    batch_size: int = 0  # 0 if it is not known, or if the method trains on other images than the site's own


class InvalidReply(ValueError):
    """A reply fails a check. Its arguments are the `reason` of a `Rejection`, and optionally its `advice`."""


def range_of(name: str, ranges: Mapping[str, tuple[float, float]]) -> tuple[float, float] | None:
    """Return the range of a tensor, or None; a name in `ranges` that ends in "/" is the beginning of names."""
    return ranges.get(name) or next(
        (limits for start, limits in ranges.items() if start.endswith("/") and name.startswith(start)), None
    )


def entry_named(name: str, weights: Mapping[str, Tensor]) -> str:
    """Return the network entry after which a tensor is named: ENTRY for `control/ENTRY` or `0/control/ENTRY`; or ""."""
    while name not in weights and "/" in name:
        name = name.partition("/")[2]
    return name if name in weights else ""


def is_number(value: object) -> bool:
    """Return whether a fact is a finite number with an absolute value of at most 1e18."""
    return isinstance(value, int | float) and type(value) is not bool and -MAX_NUMBER <= value <= MAX_NUMBER
