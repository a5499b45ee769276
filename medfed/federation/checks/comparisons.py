"""Compare replies with the network and with each other: each function yields the sites whose reply is rejected."""

from __future__ import annotations

import reprlib
import statistics
from collections import Counter
from collections.abc import Iterator

from torch import Tensor

from medfed.federation.checks.expected import NOUNS, Expected, Replies, entry_named
from medfed.federation.checks.measures import (
    MIN_SITES,
    change_ratios,
    layer_distances,
    reported_count,
    site_changes,
    statistic_ratios,
    variance_slack,
)
from medfed.federation.message import Kind
from medfed.functional.weights import check_same_entries

Reasons = Iterator[tuple[str, str]]  # sites, and why each reply is rejected: a clause whose subject is the reply
MIN_SITES_TO_REJECT_STATISTICS = 4
MAX_STATISTIC_RATIO = 8.0  # to the median of the sites, above which a statistic is rejected
MAX_VARIANCE_RATIO = 5.0  # of running variances of a layer, or its inverse
MAX_MEAN_DISTANCE = 3.0  # of running means of a layer, in standard deviations


def _wrong_entries(replies: Replies, expected: Expected) -> Reasons:
    """Find updates with missing or unknown network entries, or entries of another shape or dtype."""
    if expected.kind != Kind.TRAIN:
        return
    local = expected.local_keys
    if local is None:
        sent = Counter(name for reply in replies.values() for name in reply.weights)
        local = frozenset(name for name in expected.weights if 2 * sent[name] < len(replies))
    common = {name: entry for name, entry in expected.weights.items() if name not in local}
    for site, reply in replies.items():
        if not common:
            yield site, "does not fit the network: it holds none of its entries"
        try:
            check_same_entries(common, reply.weights)
        except ValueError as error:
            yield site, f"does not fit the network: {error}"


def _unlike_other_sites(replies: Replies, expected: Expected) -> Reasons:
    """Find tensors whose dtype or shape is not that of their network entry, or of most sites that sent the tensor."""
    if expected.kind == Kind.SHARE:  # a site may share nothing
        names = Counter(tuple(sorted(reply.tensors)) for reply in replies.values() if reply.tensors)
        for site, reply in replies.items():
            if reply.tensors and 2 * names[tuple(sorted(reply.tensors))] <= names.total():
                yield site, f"holds {reprlib.repr(sorted(reply.tensors))}, but at most half of the sites sent these"
    votes: dict[str, Counter] = {}
    for reply in replies.values():
        for name, tensor in reply.tensors.items():
            votes.setdefault(name, Counter())[_form(name, tensor, expected)] += 1
    for site, reply in replies.items():
        for name, tensor in reply.tensors.items():
            holds = f"holds '{name}' as {_format(tensor)}, but"
            entry = expected.weights.get(entry_named(name, expected.weights))
            if entry is not None:
                if entry.shape != tensor.shape or entry.dtype != tensor.dtype:
                    yield site, f"{holds} the network's entry is {_format(entry)}"
            elif name in expected.row_tensors and not (tensor.dim() and len(tensor)):
                yield site, f"{holds} at least one row is expected"
            elif 2 * votes[name][_form(name, tensor, expected)] <= votes[name].total():
                yield site, f"{holds} at most half of the sites sent that form"
    if expected.kind == Kind.TRAIN:  # the comparison of changes needs the same tensors of all sites
        named = {
            site: tuple(sorted(name for name in reply.tensors if entry_named(name, expected.weights)))
            for site, reply in replies.items()
        }
        common, n = Counter(named.values()).most_common(1)[0]
        for site, of_entries in named.items():
            if of_entries != common and 2 * n > len(named):
                difference = min(set(of_entries) ^ set(common))
                yield site, f"{'holds' if difference in of_entries else 'lacks'} '{difference}', unlike most sites"


def _form(name: str, tensor: Tensor, expected: Expected) -> tuple:
    """Return what must be equal at all sites: the dtype and the shape, or the shape of one row."""
    return tensor.dtype, tensor.dim(), tuple(tensor.shape[int(name in expected.row_tensors) :])


def _format(tensor: Tensor) -> str:
    """Shape and dtype as text, such as "(2, 3) float32"."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _count_outliers(replies: Replies, expected: Expected) -> Reasons:
    """Find numbers above `largest_count` times the median: a site with many images dominates weighted averages."""
    for name, noun in NOUNS.items():
        counts = {site: count for site, reply in replies.items() if (count := reported_count(reply, name)) is not None}
        for site, count in counts.items() if len(counts) >= MIN_SITES else ():
            others = [number for other, number in counts.items() if other != site]
            if count > expected.largest_count * (median := statistics.median(others)):
                yield (
                    site,
                    f"reports {count:,} {noun}, but the median of the other sites is {median:,g} and "
                    f"federation.largest_count allows {expected.largest_count:g} times the median",
                )


def _statistic_outliers(replies: Replies, expected: Expected) -> Reasons:
    """Find shared statistics far above the median of at least `MIN_SITES_TO_REJECT_STATISTICS` sites."""
    for site, name, ratio, n_sites in statistic_ratios(replies, expected):
        if ratio > MAX_STATISTIC_RATIO and n_sites >= MIN_SITES_TO_REJECT_STATISTICS:
            yield (
                site,
                f"holds '{name}' {ratio:.3g} times as large as the median of the sites (root mean square), and at most "
                f"{MAX_STATISTIC_RATIO:g} times is accepted",
            )


def _layer_outliers(replies: Replies, expected: Expected) -> Reasons:
    """Find updates whose running means or variances are, in one layer, far from the median of the sites.

    Both change the sum over all layers little, but all activations of their layer. Few steps leave a running variance
    near its start, so that its limit grows with the ratio of the steps. A site that received large statistics of
    another site may be as far as their square.
    """
    slack = variance_slack(replies, expected)
    for name, variance_ratios, distances in layer_distances(replies, expected):
        for site, ratio in variance_ratios.items():
            if max(ratio, 1 / ratio) > (limit := MAX_VARIANCE_RATIO * slack[site]):
                yield (
                    site,
                    f"holds variances in '{name}' that are {ratio:.3g} times the median of the sites (geometric mean), "
                    f"but at most a factor of {limit:.3g} is accepted",
                )
        for site, distance in distances.items():
            if distance > (limit := MAX_MEAN_DISTANCE * expected.received.get(site, 1.0) ** 2):
                yield (
                    site,
                    f"holds means beside '{name}' that are {distance:.3g} standard deviations from the median of the "
                    f"sites (root mean square), but at most {limit:.3g} are accepted",
                )


def _size_outliers(replies: Replies, expected: Expected) -> Reasons:
    """Find updates that change the weights, or a control, much more than the updates of most sites.

    Two sizes are compared: the L2 norm and the largest element. The limit is `largest_change` times the median. A site
    that makes k times as many steps as the median site may change the weights k times as much, if it also has k times
    as many images. A control is a mean of few or of many gradients, so that its limit grows with the ratio of the steps
    in both directions. A site that received large statistics of another site may change the weights more, so that it is
    not rejected for what the other site shared.
    """
    if expected.largest_change is None or expected.kind != Kind.TRAIN or len(replies) < MIN_SITES:
        return
    for group, products, largest in site_changes(replies, expected):
        for measure, site, size, median, ratio in change_ratios(replies, expected, group, products, largest):
            if ratio > expected.largest_change:
                yield (
                    site,
                    f"changes {group} by {size:.4g} ({measure}), but the median of the sites is {median:.4g} and "
                    f"federation.largest_change allows {expected.largest_change:g} times the median, and more only "
                    "for more training steps",
                )


COMPARISONS = (
    _wrong_entries,
    _unlike_other_sites,
    _count_outliers,
    _statistic_outliers,
    _size_outliers,
    _layer_outliers,
)
