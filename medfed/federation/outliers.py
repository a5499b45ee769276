"""Comparisons between the replies of one round: numbers of images and steps, sizes of updates, shared statistics.

Each site is compared with the median of the sites, so that less than half of them cannot move what is expected.
Functions that return a dict map the name of a site to the reason, a clause whose subject is its reply. The replies have
passed the checks on their own, and with fewer than `MIN_SITES` updates there is no outlier.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from medfed.federation.message import Kind, Message
from medfed.federation.reply_checks import Expected, entry_named

RepliesBySite = Mapping[str, Message]

MIN_SITES = 3  # two values do not show which of them is unusual
UNUSUAL_RATIO = 10.0  # a shared statistic this many times as large or small as the median is named, and used
MAX_STEP_RATIO = 10.0
MAX_STEPS_PER_IMAGE = 4.0  # times the median site; incomplete batches can double the steps, and so can one style more
MAX_RECEIVED = 3.0  # largest factor by which received statistics widen the limit of the weights; training needs 1
MAX_INFLUENCE = 0.4  # of largest_change: the share of a site in an average times its change
MAX_INFLUENCE_STEPS = 15.0
BUFFERS = "the running statistics"
EPSILON = 1e-5  # BatchNorm adds it to a variance
ABSURD_RATIO = 100.0  # a shared statistic this many times as large as the median is rejected


def count_outliers(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Find replies whose number of images or steps is more than `largest_count` times the median of the other sites.

    A site with many images dominates every average that is weighted by numbers of images.
    """
    reasons: dict[str, str] = {}
    for name, noun in (("examples", "training images"), ("steps", "training steps"), ("pixels", "pixels")):
        counts = {site: count for site, reply in replies.items() if (count := reported_count(reply, name)) is not None}
        for site, count in counts.items():
            others = [number for other, number in counts.items() if other != site]
            if others and count > expected.largest_count * (median := statistics.median(others)):
                reasons.setdefault(
                    site,
                    f"reports {count:,} {noun}, but the median of the other sites is {median:,g} and "
                    f"federation.largest_count allows {expected.largest_count:g} times the median",
                )
    return reasons


def step_outliers(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Find updates with far more training steps than their number of images explains.

    Every site goes over its images equally often. A site with at most as many images as the median site therefore makes
    at most as many steps, and a site with k times as many images makes about k times as many steps. A factor of
    `MAX_STEPS_PER_IMAGE` is allowed.
    """
    if not _are_updates_of_enough_sites(replies, expected):
        return {}
    n_images, n_steps = _medians(replies)
    limits = {
        site: MAX_STEPS_PER_IMAGE * n_steps * max(1.0, reply.facts["examples"] / n_images)
        for site, reply in replies.items()
    }
    return {
        site: f"reports {reply.facts['steps']:,} training steps with {reply.facts['examples']:,} images, but the "
        f"median of the sites is {n_steps:g} steps with {n_images:g} images, and {limits[site]:.4g} are allowed"
        for site, reply in replies.items()
        if reply.facts["steps"] > limits[site]
    }


def size_outliers(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Find updates that change the weights, the buffers or a control much more than the updates of most sites.

    Two sizes of a change are compared: its L2 norm and its largest element. The limit is `expected.largest_change`
    (None: no limit) times the median over the sites. A site that makes k times as many steps as the median site may
    change the weights k times as much, if it also has k times as many images; k counts at most `MAX_STEP_RATIO`.
    Buffers are the running statistics of BatchNorm. A control is a tensor that is named after an entry of the network,
    such as `change/ENTRY` of SCAFFOLD; it is the mean of few or of many gradients, so that its limit grows with the
    ratio of the steps in both directions. A site that received large statistics of another site may change its buffers
    by their square (`expected.received`), and all else by at most `MAX_RECEIVED`, so that it is not rejected for what
    the other site shared.

    The influence of a site on an average is limited, too: its share of the images (at least 1 / number of sites) times
    the L2 norm of its change is at most `MAX_INFLUENCE` times `expected.largest_change` times the median, and k times
    as much with k times as many steps and images (k at most `MAX_INFLUENCE_STEPS`). In honest training of a small
    network in which one site had 10, 20 and 90 times the images of three other sites, this product was at most 4, 10
    and 36 times the median; the limit is 40 and 60. With momentum m it was at most 8, 24 and 75: the first steps are
    small, so that the limit is divided by 1 - m.
    """
    if expected.largest_change is None or not _are_updates_of_enough_sites(replies, expected):
        return {}
    ratios, shares = _step_ratios(replies), image_shares(replies)
    influence_ratios = _step_ratios(replies, MAX_INFLUENCE_STEPS)
    reasons: dict[str, str] = {}
    for what, are_parameters, is_control, tensors_of in _groups(replies, expected):
        sizes = {site: _sizes(tensors_of(reply)) for site, reply in replies.items()}
        for index, measure in enumerate(("L2 norm", "largest element")):
            median = statistics.median(size[index] for size in sizes.values())
            for site, size in sizes.items():
                slack = max(ratios[site], 1 / ratios[site] if is_control else 1.0)
                received = expected.received.get(site, 1.0)
                received = min(received, MAX_RECEIVED) if are_parameters else received**2
                limit = expected.largest_change * received * slack * median
                if size[index] > limit and (median or what == BUFFERS):
                    reasons.setdefault(
                        site,
                        f"changes {what} by {size[index]:.4g} ({measure}), but the median of the sites is "
                        f"{median:.4g} and federation.largest_change allows {expected.largest_change:g} times the "
                        "median, and more only for more training steps",
                    )
                slack = max(influence_ratios[site], slack) / (1 - expected.momentum)
                received = 1.0 if are_parameters else received
                limit = MAX_INFLUENCE * expected.largest_change * received * slack * median
                if index == 0 and median and shares[site] * size[0] > limit:
                    reasons.setdefault(
                        site,
                        f"changes {what} by {size[0]:.4g} (L2 norm) with {shares[site]:.0%} of the images, but "
                        f"the median of the sites is {median:.4g}, and the product of change and share may be at most "
                        f"{limit:.4g} (it follows from federation.largest_change)",
                    )
    return reasons


def image_shares(replies: RepliesBySite) -> dict[str, float]:
    """Return, by site, its share of the training images of all sites, but at least 1 / number of sites."""
    total = sum(reply.facts["examples"] for reply in replies.values())
    return {site: max(reply.facts["examples"] / total, 1 / len(replies)) for site, reply in replies.items()}


def absurd_statistics(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Find replies with a shared statistic that is at least `ABSURD_RATIO` times as large as the median."""
    return {
        site: f"holds '{name}' {ratio:.3g} times as large as the median of the sites (root mean square), and at most "
        f"{ABSURD_RATIO:g} times is accepted"
        for site, name, ratio in _statistic_ratios(replies, expected)
        if ratio >= ABSURD_RATIO
    }


def unusual_statistics(replies: RepliesBySite, expected: Expected) -> list[tuple[str, str, float]]:
    """Return (site, name, ratio to the median) of statistics that are `UNUSUAL_RATIO` times as large or as small.

    They are not rejected: an unusual scanner is what the other sites should learn from.
    """
    return [
        (site, name, ratio)
        for site, name, ratio in _statistic_ratios(replies, expected)
        if not 1 / UNUSUAL_RATIO <= ratio <= UNUSUAL_RATIO
    ]


def received_ratios(requests: Mapping[str, Message], expected: Expected) -> dict[str, float]:
    """Return, by site, how much larger than usual the statistics are that it receives with its request; at least 1.

    It is the largest ratio, over the tensors that are not named after a network entry, of the root mean square or of
    the largest element to the median of the sites that receive a tensor of this name (of two values, the smaller one).
    """
    result = dict.fromkeys(requests, 1.0)
    for measure in (_root_mean_square, _largest):
        for by_site in _statistic_sizes(requests, expected, measure).values():
            median = statistics.median_low(by_site.values())
            for site, size in by_site.items():
                result[site] = max(result[site], size / median if median else 1.0)
    return result


def variance_outliers(replies: RepliesBySite, expected: Expected) -> dict[str, str]:
    """Find updates whose running variances are, in one layer, far from the median of the sites.

    A variance near 0 changes the sum over all layers little, but multiplies the activations. The geometric mean of the
    ratio of each variance to the median over the sites is compared with `expected.largest_change`, and with the ratio
    of the steps, because few steps leave a running variance near its start.
    """
    if expected.largest_change is None or not _are_updates_of_enough_sites(replies, expected):
        return {}
    reasons: dict[str, str] = {}
    ratios = _step_ratios(replies)
    entries = {site: {**reply.tensors, **reply.weights} for site, reply in replies.items()}
    names = {name for by_name in entries.values() for name in by_name if name.endswith("running_var")}
    for name in sorted(name for name in names if entry_named(name, expected.weights)):
        logs = {
            site: (by_name[name].to(torch.float64) + EPSILON).log()
            for site, by_name in entries.items()
            if name in by_name
        }
        if len(logs) < MIN_SITES:
            continue
        middle = torch.stack(list(logs.values())).quantile(0.5, dim=0)
        for site, log in logs.items():
            slack = max(ratios[site], 1 / ratios[site])
            received = expected.received.get(site, 1.0) ** 2
            ratio = math.exp(float((log - middle).mean()))
            if max(ratio, 1 / ratio) > expected.largest_change * slack * received:
                reasons.setdefault(
                    site,
                    f"holds variances in '{name}' that are {ratio:.3g} times the median of the sites (geometric "
                    f"mean), and federation.largest_change allows a factor of {expected.largest_change:g}, and more "
                    "only for another number of training steps",
                )
    return reasons


def reported_count(reply: Message, name: str) -> int | None:
    """Return the largest of the facts and tensors with this name ("examples", "steps" or "pixels"); None without any.

    The name of a tensor may also end in "/examples", and so on.
    """
    tensors = [entry for key, entry in reply.tensors.items() if key.rpartition("/")[2] == name and entry.numel()]
    counts = [int(entry.max()) for entry in tensors] + ([reply.facts[name]] if name in reply.facts else [])
    return max(counts, default=None)


def _medians(replies: RepliesBySite) -> tuple[float, float]:
    """Return the median number of images and the median number of steps."""
    facts = [reply.facts for reply in replies.values()]
    return statistics.median(f["examples"] for f in facts), statistics.median(f["steps"] for f in facts)


def _step_ratios(replies: RepliesBySite, largest: float = MAX_STEP_RATIO) -> dict[str, float]:
    """Return, by site, the ratio of its steps to the median, from 1 / `largest` to `largest`.

    A ratio that the number of images does not explain does not count: of the ratio of the steps and that of the images,
    the one that is closer to 1 is returned, and 1 if they are on different sides of 1.
    """
    n_images, n_steps = _medians(replies)
    ratios = {}
    for site, reply in replies.items():
        low, high = sorted((reply.facts["examples"] / n_images, reply.facts["steps"] / n_steps))
        ratio = low if low > 1 else min(high, 1.0)
        ratios[site] = min(max(ratio, 1 / largest), largest)
    return ratios


def _groups(
    replies: RepliesBySite, expected: Expected
) -> Iterator[tuple[str, bool, bool, Callable[[Message], Iterable[Tensor]]]]:
    """Yield the groups of tensors whose sizes are compared.

    A group is its name, whether it holds parameters (or buffers), whether it holds controls, and a function that
    returns its tensors.
    """
    for what, are_parameters in (("the weights", True), (BUFFERS, False)):

        def changes(reply: Message, are_parameters: bool = are_parameters) -> Iterable[Tensor]:
            """Yield the change of each parameter, or of each buffer, by local training."""
            return (
                entry.to(torch.float64) - expected.weights[name].to(torch.float64)
                for name, entry in reply.weights.items()
                if entry.is_floating_point() and (name in expected.parameters) == are_parameters
            )

        yield what, are_parameters, False, changes
    names = {name for reply in replies.values() for name in reply.tensors}
    entries = [(name, entry) for name in names if (entry := entry_named(name, expected.weights))]
    groups = {(name.removesuffix(entry), entry in expected.parameters) for name, entry in entries}
    for prefix, are_parameters in sorted(groups):

        def controls(reply: Message, prefix: str = prefix, are_parameters: bool = are_parameters) -> Iterable[Tensor]:
            """Yield the tensors named after parameters, or after buffers, such as the control variates of SCAFFOLD."""
            return (
                tensor
                for name, tensor in reply.tensors.items()
                if tensor.is_floating_point()
                and name.startswith(prefix)
                and name[len(prefix) :] in expected.weights
                and (name[len(prefix) :] in expected.parameters) == are_parameters
            )

        yield f"'{prefix}...'", are_parameters, True, controls


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
    return expected.kind == Kind.TRAIN and len(replies) >= MIN_SITES


def _root_mean_square(tensor: Tensor) -> float:
    return math.sqrt(float(tensor.to(torch.float64).square().mean()))


def _largest(tensor: Tensor) -> float:
    return float(tensor.to(torch.float64).abs().max())


def _statistic_ratios(replies: RepliesBySite, expected: Expected) -> Iterator[tuple[str, str, float]]:
    """Yield the site, the name and the root mean square of each statistic, divided by the median over the sites."""
    for name, by_site in _statistic_sizes(replies, expected, _root_mean_square).items():
        median = statistics.median(by_site.values())
        if len(by_site) >= MIN_SITES and median:
            yield from ((site, name, value / median) for site, value in by_site.items())


def _statistic_sizes(
    messages: RepliesBySite, expected: Expected, measure: Callable[[Tensor], float]
) -> dict[str, dict[str, float]]:
    """Return the size of each statistic, by its name and by site.

    A single number, such as a loss, is left out: its ratios have no limit.
    """
    sizes: dict[str, dict[str, float]] = {}
    for site, message in messages.items():
        for name, tensor in message.tensors.items():
            if tensor.numel() > 1 and tensor.is_floating_point() and not entry_named(name, expected.weights):
                sizes.setdefault(name, {})[site] = measure(tensor)
    return sizes
