"""The sizes by which replies are compared with the median of the sites, which fewer than half of them cannot move."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from medfed.federation.checks.expected import Expected, Replies, entry_named
from medfed.federation.message import Kind, Message

MIN_SITES = 3  # two values do not show which of them is unusual
CHUNK = 2**16  # elements of a layer that are compared at the same time, to limit memory
MAX_STEP_RATIO = 10.0  # how much more a site with more steps and images may change the weights
MAX_RECEIVED = 3.0  # how much more a site may change them that received large statistics of another site
EPSILON = 1e-5  # BatchNorm adds it to a variance


def reported_count(reply: Message, name: str) -> int | None:
    """Return the largest of the facts and tensors of this name (of a tensor also the end "/NAME"); None without any."""
    tensors = [entry for key, entry in reply.tensors.items() if key.rpartition("/")[2] == name and entry.numel()]
    counts = [int(entry.max()) for entry in tensors] + ([reply.facts[name]] if name in reply.facts else [])
    return max(counts, default=None)


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


def statistic_ratios(replies: Replies, expected: Expected) -> Iterator[tuple[str, str, float, int]]:
    """Yield the site, the name, the ratio of its size to the median, and the number of sites of each statistic."""
    for name, by_site in _statistic_sizes(replies, expected, _root_mean_square).items():
        median = statistics.median(by_site.values())
        if len(by_site) >= MIN_SITES and median:
            yield from ((site, name, size / median, len(by_site)) for site, size in by_site.items())


def _statistic_sizes(
    messages: Mapping[str, Message], expected: Expected, measure: Callable[[Tensor], float]
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


def _median(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).quantile(0.5, dim=0)


def _root_mean_square(tensor: Tensor) -> float:
    return math.sqrt(float(tensor.to(torch.float64).square().mean()))


def _largest(tensor: Tensor) -> float:
    return float(tensor.to(torch.float64).abs().max())


def variance_slack(replies: Replies, expected: Expected) -> dict[str, float]:
    """Return, by site, the factor by which a limit of variances grows."""
    ratios = _step_ratios(replies) if expected.kind == Kind.TRAIN else {}
    return {site: max(ratio, 1 / ratio) * expected.received.get(site, 1.0) ** 2 for site, ratio in ratios.items()}


def layer_distances(replies: Replies, expected: Expected) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """Yield, of each layer with running statistics, the name of its variances, and by site two distances from the
    median of the sites: the geometric mean of the ratios of the variances, and the root mean square difference of the
    means in standard deviations (roots of the median variances)."""
    if expected.largest_change is None or expected.kind != Kind.TRAIN or len(replies) < MIN_SITES:
        return
    entries = {site: {**reply.tensors, **reply.weights} for site, reply in replies.items()}
    names = sorted({name for by_name in entries.values() for name in by_name if name.endswith("running_var")})
    for name in (name for name in names if entry_named(name, expected.weights)):
        variances = {site: by_name[name].double() + EPSILON for site, by_name in entries.items() if name in by_name}
        if len(variances) < MIN_SITES:
            continue
        mean_name = f"{name.removesuffix('running_var')}running_mean"
        means = {site: entries[site][mean_name].double() for site in variances if mean_name in entries[site]}
        variance = _median(variances.values())
        ratios = {site: math.exp(float((own / variance).log().mean())) for site, own in variances.items()}
        mean = _median(means.values()) if means else variance
        yield name, ratios, {site: _root_mean_square((own - mean) / variance.sqrt()) for site, own in means.items()}


def site_changes(replies: Replies, expected: Expected) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield what n sites change, and the inner products (n, n) and largest elements (n,) of the changes.

    The parameters are one group, and so are the tensors that are named after parameters with the same beginning, such
    as SCAFFOLD's `change/ENTRY`. A group that sites send in part is left out.
    """
    groups: dict[str, dict[str, dict[str, Tensor]]] = {}
    for site, reply in replies.items():
        for name, entry in reply.weights.items():
            if name in expected.parameters:
                groups.setdefault("the weights", {}).setdefault(site, {})[name] = entry
        for name, tensor in reply.tensors.items():
            if (entry_name := entry_named(name, expected.weights)) in expected.parameters:
                groups.setdefault(f"'{name.removesuffix(entry_name)}...'", {}).setdefault(site, {})[name] = tensor
    for group, by_site in groups.items():
        if len(by_site) == len(replies) and len({tuple(sorted(tensors)) for tensors in by_site.values()}) == 1:
            yield group, *change_products(list(by_site.values()), expected.weights)


def change_products(sent: Sequence[Mapping[str, Tensor]], start: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the inner products (n, n) of the changes of n groups of tensors, and the largest element of each (n,).

    A change is measured from the tensor in `start`, or from 0.
    """
    products, largest = (torch.zeros(size, dtype=torch.float64) for size in ((len(sent), len(sent)), len(sent)))
    for name in sent[0]:
        flat = [tensors[name].flatten().split(CHUNK) for tensors in sent]
        before = start[name].flatten().split(CHUNK) if name in start else (None,) * len(flat[0])
        for parts, origin in zip(zip(*flat, strict=True), before, strict=True):
            changes = torch.stack([part.double() for part in parts])
            changes = changes if origin is None else changes - origin.double()
            if changes.numel():
                products += changes @ changes.T
                largest = largest.maximum(changes.abs().amax(dim=1))
    return products, largest


def change_ratios(
    replies: Replies, expected: Expected, group: str, products: Tensor, largest: Tensor
) -> Iterator[tuple[str, str, float, float, float]]:
    """Yield the measure, the site, the size of its change, the median, and their ratio.

    The ratio is divided by the factor that the site's steps, images and received statistics explain.
    """
    ratios = _step_ratios(replies)
    for measure, norms in (("L2 norm", products.diag().clamp_min(0).sqrt()), ("largest element", largest)):
        sizes = norms.tolist()
        median = statistics.median(sizes)
        for site, size in zip(replies, sizes, strict=True):
            slack = max(ratios[site], 1.0 if group == "the weights" else 1 / ratios[site])
            received = min(expected.received.get(site, 1.0), MAX_RECEIVED)
            if median:
                yield measure, site, size, median, size / (median * received * slack)


def _step_ratios(replies: Replies) -> dict[str, float]:
    """Return, by site, the ratio of its steps to the median, from 1 / `MAX_STEP_RATIO` to `MAX_STEP_RATIO`.

    A ratio that the number of images does not explain does not count: of the ratio of the steps and that of the images,
    the one that is closer to 1 is returned, and 1 if they are on different sides of 1.
    """
    n_images, n_steps = (
        statistics.median(reply.facts[name] for reply in replies.values()) for name in ("examples", "steps")
    )
    ratios = {}
    for site, reply in replies.items():
        low, high = sorted((reply.facts["examples"] / n_images, reply.facts["steps"] / n_steps))
        ratio = low if low > 1 else min(high, 1.0)
        ratios[site] = min(max(ratio, 1 / MAX_STEP_RATIO), MAX_STEP_RATIO)
    return ratios
