"""Comparisons between the replies of one round: numbers of images and steps, sizes of updates, shared statistics.

`medfed.federation.update_checks` rejects the replies that these functions return. No site is the reference: each site
is compared with the median of the sites, so that less than half of them cannot move what is expected.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from medfed.federation.message import Message
from medfed.federation.reply_checks import Expected

RepliesBySite = Mapping[str, Message]

MIN_SITES = 3  # two values do not show which of them is unusual
UNUSUAL_RATIO = 10.0  # a shared statistic this many times as large or small as the median is named, and used
MAX_STEP_RATIO = 10.0
BUFFERS = "the running statistics"
EPSILON = 1e-5  # BatchNorm adds it to a variance
ABSURD_RATIO = 100.0  # a shared statistic this many times as large as the median is rejected


def count_outliers(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Return the replies whose number of images or steps is much larger than at the other sites.

    A site with many images dominates every average that is weighted by numbers of images. The limit is
    `expected.largest_count` times the median over the other sites. With one reply, there is nothing to compare.

    Args:
        replies: by name of the site, replies that passed the checks on their own.
        expected: the kind of the request and the limit.

    Returns:
        Dictionary from the name of a site to the reason, a clause whose subject is the reply.
    """
    reasons: dict[str, str] = {}
    for name, noun in (("examples", "training images"), ("steps", "training steps"), ("pixels", "pixels")):
        counts = {site: count for site, reply in replies.items() if (count := reported_count(reply, name)) is not None}
        for site, count in counts.items():
            others = [number for other, number in counts.items() if other != site]
            if others and count > expected.largest_count * (median := statistics.median(others)):
                reasons.setdefault(
                    site, f"reports {count:,} {noun}, but the median of the other sites is {median:,g} and "
                    f"federation.largest_count allows {expected.largest_count:g} times the median"
                )  # fmt: skip
    return reasons


def size_outliers(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Return the updates that change the weights, the buffers or a control much more than the updates of most sites.

    Two sizes of a change are compared: its L2 norm and its largest element. The limit is `expected.largest_change`
    times the median over the sites. A site that makes k times as many steps as the median site may change the weights
    k times as much. Buffers are the running statistics of BatchNorm. A control is a tensor that is named after an entry
    of the network, such as `change/ENTRY` of SCAFFOLD; it is the mean of few or of many gradients, so that its limit
    grows with the ratio of the steps in both directions. No ratio of steps counts more than `MAX_STEP_RATIO`. If a site
    trains with large statistics of another site, its limits grow with `expected.influences` of the other sites, for
    variances with the square, so that it is not rejected for what the other site shared.

    Args:
        replies: by name of the site, the updates that passed the checks on their own. With fewer than three, none is an
            outlier.
        expected: the kind of the request, the global weights and the limit; no update is an outlier if it is None.

    Returns:
        Dictionary from the name of a site to the reason, a clause whose subject is the update.
    """
    if expected.largest_change is None or not _are_updates_of_enough_sites(replies, expected):
        return {}
    steps = {site: reply.facts["steps"] for site, reply in replies.items()}
    median_steps = statistics.median(steps.values())
    reasons: dict[str, str] = {}
    for what, is_control, tensors_of in _groups(replies, expected):
        sizes = {site: _sizes(tensors_of(reply)) for site, reply in replies.items()}
        for index, measure in enumerate(("L2 norm", "largest element")):
            median = statistics.median(size[index] for size in sizes.values())
            for site, size in sizes.items():
                ratio = min(max(steps[site] / median_steps, 1 / MAX_STEP_RATIO), MAX_STEP_RATIO)
                slack = max(ratio, 1 / ratio if is_control else 1)
                received = _received_influence(site, expected) ** (2 if what == BUFFERS else 1)
                limit = expected.largest_change * received * slack * median
                if size[index] > limit and (median or what == BUFFERS):
                    reasons.setdefault(
                        site, f"changes {what} by {size[index]:.4g} ({measure}), but the median of the sites is "
                        f"{median:.4g} and federation.largest_change allows {expected.largest_change:g} times the "
                        "median, and more only for more training steps"
                    )  # fmt: skip
    return reasons


def absurd_statistics(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Return the replies with a shared statistic that is at least `ABSURD_RATIO` times as large as the median.

    Args:
        replies: by name of the site, replies that passed the checks on their own.
        expected: the global weights; tensors that are named after an entry are compared by `size_outliers`.

    Returns:
        Dictionary from the name of a site to the reason, a clause whose subject is the reply.
    """
    return {
        site: f"holds '{name}' {ratio:.3g} times as large as the median of the sites (root mean square), and at most "
        f"{ABSURD_RATIO:g} times is accepted"
        for site, name, ratio in _statistic_ratios(replies, expected) if ratio >= ABSURD_RATIO
    }


def unusual_statistics(replies: RepliesBySite, expected: Expected) -> list[tuple[str, str, float]]:
    """Return the shared statistics that are far from those of most sites: `UNUSUAL_RATIO` times as large or as small.

    They are not rejected: an unusual scanner is what the other sites should learn from.

    Args:
        replies: by name of the site, the accepted replies.
        expected: the global weights; tensors that are named after an entry are not compared.

    Returns:
        The site, the name of the statistic, and its root mean square divided by the median over the sites.
    """
    return [
        (site, name, ratio) for site, name, ratio in _statistic_ratios(replies, expected)
        if not 1 / UNUSUAL_RATIO <= ratio <= UNUSUAL_RATIO
    ]


def influences(replies: RepliesBySite, expected: Expected) -> dict[str, float]:
    """Return how much larger than usual the statistics are that the other sites receive from each site.

    Args:
        replies: by name of the site, the accepted replies to a "share" request.
        expected: the global weights; tensors that are named after an entry are not compared.

    Returns:
        By name of the site, the largest ratio over its statistics to the median of the sites, of the root mean square
        or of the largest element; at least 1.
    """
    result = dict.fromkeys(replies, 1.0)
    for measure in (_root_mean_square, _largest):
        for site, _, ratio in _statistic_ratios(replies, expected, measure):
            result[site] = max(result[site], ratio)
    return result


def variance_outliers(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Return the updates whose running variances are, in one layer, far from the median of the sites.

    A variance near 0 changes the sum over all layers little, but multiplies the activations. The geometric mean of the
    ratio of each variance to the median over the sites is compared with `expected.largest_change`, and with the ratio
    of the steps, because few steps leave a running variance near its start.

    Args and result are those of `size_outliers`.
    """
    if expected.largest_change is None or not _are_updates_of_enough_sites(replies, expected):
        return {}
    reasons: dict[str, str] = {}
    median_steps = statistics.median(reply.facts["steps"] for reply in replies.values())
    for name in (name for name in expected.weights if name.endswith("running_var")):
        logs = {
            site: (reply.weights[name].to(torch.float64) + EPSILON).log() for site, reply in replies.items()
            if name in reply.weights
        }
        if len(logs) < MIN_SITES:
            continue
        middle = torch.stack(list(logs.values())).quantile(0.5, dim=0)
        for site, log in logs.items():
            steps = replies[site].facts["steps"] / median_steps
            slack = min(max(steps, 1 / steps), MAX_STEP_RATIO)
            received = _received_influence(site, expected) ** 2
            ratio = math.exp(float((log - middle).mean()))
            if max(ratio, 1 / ratio) > expected.largest_change * slack * received:
                reasons.setdefault(
                    site, f"holds variances in '{name}' that are {ratio:.3g} times the median of the sites (geometric "
                    f"mean), and federation.largest_change allows a factor of {expected.largest_change:g}, and more "
                    "only for another number of training steps"
                )  # fmt: skip
    return reasons


def entry_named(name: str, weights: Mapping[str, Tensor]) -> str:
    """Return the entry of the network that a tensor is named after: ENTRY for `control/ENTRY` or `0/control/ENTRY`.

    Args:
        name: the name of a tensor in a message.
        weights: the network's entries by name.

    Returns:
        The name of the entry; "" if the tensor is not named after one.
    """
    while name not in weights and "/" in name:
        name = name.partition("/")[2]
    return name if name in weights else ""


def reported_count(reply: Message, name: str) -> int | None:
    """Return how many images or steps a reply reports.

    Args:
        reply: a reply that passed the checks on its own.
        name: "examples", "steps" or "pixels": the name of a fact, or the end of the names of tensors.

    Returns:
        The largest number; None if the reply reports no such number.
    """
    tensors = [entry for key, entry in reply.tensors.items() if key.rpartition("/")[2] == name and entry.numel()]
    counts = [int(entry.max()) for entry in tensors] + ([reply.facts[name]] if name in reply.facts else [])
    return max(counts, default=None)


def _groups(
    replies: RepliesBySite, expected: Expected
) -> Iterator[tuple[str, bool, Callable[[Message], Iterable[Tensor]]]]:
    """Yield the groups of tensors whose sizes are compared: their name, whether they are controls, and their values."""
    def changes(reply: Message, are_parameters: bool) -> Iterable[Tensor]:
        return (
            entry.to(torch.float64) - expected.weights[name].to(torch.float64) for name, entry in reply.weights.items()
            if entry.is_floating_point() and (name in expected.parameters) == are_parameters
        )

    yield "the weights", False, lambda reply: changes(reply, True)
    yield BUFFERS, False, lambda reply: changes(reply, False)
    names = {name for reply in replies.values() for name in reply.tensors}
    prefixes = {name.removesuffix(entry) for name in names if (entry := entry_named(name, expected.weights))}
    for prefix in sorted(prefixes):
        def controls(reply: Message, prefix: str = prefix) -> Iterable[Tensor]:
            return (
                tensor for name, tensor in reply.tensors.items()
                if tensor.is_floating_point() and name.startswith(prefix) and name[len(prefix) :] in expected.weights
            )

        yield f"'{prefix}...'", True, controls


def _sizes(tensors: Iterable[Tensor]) -> tuple[float, float]:
    """Return the L2 norm and the largest absolute element of some tensors together; zeros if there is no element."""
    norms, largest = [0.0], 0.0
    for tensor in tensors:
        if tensor.numel():
            tensor = tensor.to(torch.float64)
            norms.append(float(torch.linalg.vector_norm(tensor)))
            largest = max(largest, float(torch.linalg.vector_norm(tensor, math.inf)))
    return math.hypot(*norms), largest


def _are_updates_of_enough_sites(replies: RepliesBySite, expected: Expected) -> bool:
    return expected.kind == "train" and len(replies) >= MIN_SITES


def _received_influence(site: str, expected: Expected) -> float:
    """Return the largest influence of the statistics that a site can have received from the other sites; at least 1."""
    return max([1.0, *(one for other, one in expected.influences.items() if other != site)])


def _root_mean_square(tensor: Tensor) -> float:
    return math.sqrt(float(tensor.to(torch.float64).square().mean()))


def _largest(tensor: Tensor) -> float:
    return float(tensor.to(torch.float64).abs().max())


def _statistic_ratios(
    replies: RepliesBySite, expected: Expected, measure: Callable[[Tensor], float] = _root_mean_square
) -> Iterator[tuple[str, str, float]]:
    """Yield the site, the name and the size of each statistic, divided by the median over the sites.

    A single number, such as a loss, is left out: its ratios have no limit.
    """
    values: dict[str, dict[str, float]] = {}
    for site, reply in replies.items():
        for name, tensor in reply.tensors.items():
            if tensor.numel() > 1 and tensor.is_floating_point() and not entry_named(name, expected.weights):
                values.setdefault(name, {})[site] = measure(tensor)
    for name, by_site in values.items():
        median = statistics.median(by_site.values())
        if len(by_site) >= MIN_SITES and median:
            yield from ((site, name, value / median) for site, value in by_site.items())
