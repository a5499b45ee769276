"""Name what is unusual about accepted replies but may be honest; such replies are used."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from medfed.federation.checks.expected import CONTENTS, Earlier, Expected, Replies
from medfed.federation.checks.measures import (
    MIN_SITES,
    change_ratios,
    layer_distances,
    reported_count,
    site_changes,
    statistic_ratios,
    variance_slack,
)
from medfed.federation.checks.one_reply import is_unchanged
from medfed.federation.message import Kind, weights_digest

UNUSUAL_STATISTIC_RATIO = 4.0  # above which, or below its inverse, a statistic is named
NAMED_VARIANCE_RATIO = 2.5  # named above; honest sites reach 2.0, and with CCST 3.5 in one layer of one round
NAMED_CHANGE_RATIO = 2.5  # to the median of the sites; honest sites reach 1.7, and a site that was not asked in some
NAMED_CHANGE_ROUNDS = 3  # rounds before (SCAFFOLD) 9.1 in single rounds: a site is named after this number in a row
NAMED_MEAN_DISTANCE, NAMED_MEAN_RATIO = 0.1, 10.0  # named if also as many times as far as the median site
NAMED_LAYERS_RATIO = 0.25  # variances and means are named in at least this fraction of the layers, or
NAMED_LAYER_ROUNDS = 3  # in the same layer in this number of rounds in a row, or
FAR_VARIANCE_RATIO, FAR_MEAN_DISTANCE = 4.0, 0.4  # in one layer of one round; honest sites reach 3.5 and 0.2
OPPOSED_COSINE, OPPOSED_ROUNDS = -0.3, 3  # a site whose change points against the others is named after these rounds
DOMINANT_SHARE = 2 / 3  # of the images; a site with more is named

LAYER_NOTICES = {
    "variances": f"more than {NAMED_VARIANCE_RATIO:g} times as large or as small as the median of the sites",
    "means": "far from those of the other sites, which agree",
}


def find_notices(replies: Replies, expected: Expected, earlier: Earlier) -> Iterator[str]:
    """Yield what is unusual about the accepted replies, and remember these for the next rounds.

    The sentences contain nothing that differs between rounds, so that a resumed run adds no notice.
    """
    yield from _statistics(replies, expected)
    counts = {site: count for site, reply in replies.items() if (count := reported_count(reply, "examples"))}
    if expected.kind in (Kind.SHARE, Kind.TRAIN):
        earlier.n_images |= counts
    if expected.kind != Kind.TRAIN:
        return
    yield from _equal_weights(replies, expected, earlier)
    if expected.largest_change is not None and len(replies) < MIN_SITES:
        yield (
            f"the sizes of the updates are not compared: federation.largest_change needs {MIN_SITES} sites in a "
            f"round; {len(replies)} sent a valid update"
        )
    yield from _counts(counts, expected)
    if len(replies) >= MIN_SITES:
        yield from _layers(replies, expected, earlier)
        for group, products, largest in site_changes(replies, expected):
            if expected.largest_change is not None:
                yield from _large_changes(replies, expected, earlier, group, products, largest)
            yield from _opposed_changes(replies, earlier, group, products)


def _statistics(replies: Replies, expected: Expected) -> Iterator[str]:
    for site, name, ratio, _ in statistic_ratios(replies, expected):
        if not 1 / UNUSUAL_STATISTIC_RATIO <= ratio <= UNUSUAL_STATISTIC_RATIO:
            limit = UNUSUAL_STATISTIC_RATIO if ratio > 1 else 1 / UNUSUAL_STATISTIC_RATIO
            yield (
                f"{site}: its {CONTENTS[expected.kind]} holds '{name}' {'more' if ratio > 1 else 'less'} than "
                f"{limit:g} times as large as the median of the sites (root mean square); it is used, because an "
                "unusual scanner is no error; check the images of that site with python -m medfed.data check"
            )


def _equal_weights(replies: Replies, expected: Expected, earlier: Earlier) -> Iterator[str]:
    senders: dict[str, list[str]] = {}
    for site, update in replies.items():
        checksum = weights_digest(update.weights)
        earlier.rounds.setdefault(site, {})[checksum] = expected.round
        if is_unchanged(update, expected):
            yield f"{site}: returned the weights unchanged: it has not trained; check the log of that site"
        else:
            senders.setdefault(checksum, []).append(site)
    for sites in senders.values():
        if len(sites) > 1:
            yield f"{' and '.join(sites)}: sent the same weights: one of them is a copy, or both have the same images"


def _counts(counts: dict[str, int], expected: Expected) -> Iterator[str]:
    if len(counts) == MIN_SITES - 1 and max(counts.values()) > expected.largest_count * min(counts.values()):
        larger, smaller = sorted(counts, key=lambda site: -counts[site])
        yield (
            f"{larger} and {smaller}: report very different numbers of training images; two sites do not show which "
            "number is wrong; make sure that both are right"
        )
    for site, count in counts.items() if len(counts) >= MIN_SITES else ():
        if count > DOMINANT_SHARE * sum(counts.values()):
            yield (
                f"{site}: reports more than {DOMINANT_SHARE:.0%} of all training images of a round, so that its update "
                "decides most of an average that is weighted by images; make sure that this number is right"
            )


def _layers(replies: Replies, expected: Expected, earlier: Earlier) -> Iterator[str]:
    slack, n_layers, n_unusual = variance_slack(replies, expected), 0, Counter[tuple[str, str]]()
    for name, variance_ratios, distances in layer_distances(replies, expected):
        n_layers += 1
        limit = max(NAMED_MEAN_DISTANCE, NAMED_MEAN_RATIO * statistics.median(distances.values() or [0.0]))
        sizes = {}  # in units of the size that is named, and of the size that is named at once
        for site, ratio in variance_ratios.items():
            size = max(ratio, 1 / ratio) / slack[site]
            sizes[site, "variances"] = size / NAMED_VARIANCE_RATIO, size / FAR_VARIANCE_RATIO
        for site, distance in distances.items():
            size = distance / expected.received.get(site, 1.0) ** 2
            sizes[site, "means"] = size / limit, size / max(limit, FAR_MEAN_DISTANCE)
        for (site, statistic), (size, far) in sizes.items():
            layer = site, statistic, name
            in_a_row = earlier.layers[layer] + 1 if size > 1 else 0
            earlier.layers[layer] = NAMED_LAYER_ROUNDS if far > 1 else in_a_row
            n_unusual[site, statistic] += size > 1
    for (site, statistic), n in n_unusual.items():
        most = max(rounds for key, rounds in earlier.layers.items() if key[:2] == (site, statistic))
        if n and (n >= NAMED_LAYERS_RATIO * n_layers or most >= NAMED_LAYER_ROUNDS):
            yield (
                f"{site}: its running {statistic} are {LAYER_NOTICES[statistic]}, in many layers, in "
                f"{NAMED_LAYER_ROUNDS} rounds in a row in one layer, or there by far; they are used, because an "
                "unusual scanner is no error; check the images of that site with python -m medfed.data check"
            )


def _large_changes(
    replies: Replies, expected: Expected, earlier: Earlier, group: str, products: Tensor, largest: Tensor
) -> Iterator[str]:
    ratios = change_ratios(replies, expected, group, products, largest)
    large = {site for _, site, _, _, ratio in ratios if ratio > NAMED_CHANGE_RATIO}
    for site in replies:
        earlier.large[site, group] = earlier.large[site, group] + 1 if site in large else 0
        if earlier.large[site, group] >= NAMED_CHANGE_ROUNDS:
            yield (
                f"{site}: changes {group} more than {NAMED_CHANGE_RATIO:g} times as much as the median of the "
                f"sites in {NAMED_CHANGE_ROUNDS} rounds in a row; it is used, because unusual images do that too; "
                "check its labels with python -m medfed.data check"
            )


def _opposed_changes(replies: Replies, earlier: Earlier, group: str, products: Tensor) -> Iterator[str]:
    norms = products.diag().clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    for index, (site, cosines) in enumerate(zip(replies, (products / norms.outer(norms)).tolist(), strict=True)):
        is_opposed = statistics.median(cosines[:index] + cosines[index + 1 :]) < OPPOSED_COSINE
        earlier.opposed[site, group] = earlier.opposed[site, group] + 1 if is_opposed else 0
        if earlier.opposed[site, group] >= OPPOSED_ROUNDS:
            yield (
                f"{site}: changes {group} against the other sites in {OPPOSED_ROUNDS} rounds in a row; "
                "it is used, because unusual images do that too; check its labels with python -m medfed.data check"
            )
