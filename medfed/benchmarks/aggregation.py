"""Time and memory to average the weights of many sites, compared with a loop over the entries with NumPy."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from torch import Tensor

from medfed.functional.weights import average
from medfed.networks.densenet import DenseNetwork


def time_aggregation(n_sites: int = 50, repeats: int = 3) -> dict[str, float]:
    """Time the weighted average of the weights of DenseNet121 (8 million entries) over many sites.

    The peer is a loop in NumPy over the entries of the state dict that adds the sites' arrays in float64, as `average`
    does. Both are timed in turn, by the processor time of this process.

    Args:
        n_sites: number of sites.
        repeats: how often each of the two is timed.

    Returns:
        `n_sites`; `replies_mb`, the size of the weights of all sites in MB (10^6 bytes); `medfed_s` and `numpy_s`, the
        median times in seconds; `times_faster`, the ratio of the second time to the first; and `max_difference`, the
        largest difference between the two averages.
    """
    network = DenseNetwork().build(3, 2)
    rng = torch.Generator().manual_seed(0)
    replies = [_noisy(network.state_dict(), rng) for _ in range(n_sites)]
    fractions = torch.rand(n_sites, generator=rng, dtype=torch.float64)
    fractions /= fractions.sum()
    times: dict[str, list[float]] = {"medfed": [], "numpy": []}
    for _ in range(repeats):
        start = time.process_time()
        ours = average(replies, fractions)
        middle = time.process_time()
        theirs = numpy_average(replies, fractions.tolist())
        times["medfed"].append(middle - start)
        times["numpy"].append(time.process_time() - middle)
    difference = max(float((ours[name].double() - torch.from_numpy(theirs[name])).abs().max()) for name in theirs)
    medfed_s, numpy_s = statistics.median(times["medfed"]), statistics.median(times["numpy"])
    n_bytes = sum(entry.numel() * entry.element_size() for entry in replies[0].values())
    return {
        "n_sites": n_sites, "replies_mb": n_sites * n_bytes / 1e6, "medfed_s": medfed_s, "numpy_s": numpy_s,
        "times_faster": numpy_s / medfed_s, "max_difference": difference,
    }  # fmt: skip


def numpy_average(replies: list[dict[str, Tensor]], fractions: list[float]) -> dict[str, np.ndarray]:
    """Average the floating-point entries of several state dicts with NumPy: the peer of the benchmark.

    Args:
        replies: one state dict for each site, on the CPU, all with the same entries.
        fractions: the weight of each site in the average.

    Returns:
        The weighted mean of each floating-point entry, in float64.
    """
    means: dict[str, np.ndarray] = {}
    for name, entry in replies[0].items():
        if entry.is_floating_point():
            arrays = [fraction * reply[name].numpy().astype(np.float64) for fraction, reply in zip(fractions, replies)]
            means[name] = np.sum(arrays, axis=0)
    return means


def _noisy(entries: dict[str, Tensor], rng: torch.Generator) -> dict[str, Tensor]:
    """Return a copy of a state dict with noise added to its floating-point entries."""
    return {
        name: entry + 0.01 * torch.rand(entry.shape, generator=rng) if entry.is_floating_point() else entry.clone()
        for name, entry in entries.items()
    }


def aggregation_table(result: dict[str, float]) -> str:
    """Format the result of `time_aggregation` as text.

    Args:
        result: what `time_aggregation` returned.
    """
    return (
        f"average of the weights of DenseNet121 over {result['n_sites']} sites ({result['replies_mb']:.0f} MB)\n"
        f"medfed {result['medfed_s']:.2f} s, NumPy {result['numpy_s']:.2f} s: {result['times_faster']:.1f} times "
        f"faster, largest difference {result['max_difference']:.1e}"
    )
