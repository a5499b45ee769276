"""Time and memory to average the weights of many sites, compared with a loop over the entries with NumPy."""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from torch import Tensor

from medfed.benchmarks.memory import measure_in_new_process, peak_bytes, print_result
from medfed.core.determinism import cpu_threads
from medfed.core.machine import resident_memory_bytes
from medfed.core.malloc import keep_freed_memory
from medfed.functional.weights import average
from medfed.networks.densenet import DenseNetwork


@cpu_threads(1)
def time_aggregation(n_sites: int = 50, repeats: int = 3) -> dict[str, float]:
    """Time the average of DenseNet121's weights over many sites, in medfed and as a loop in NumPy, with one thread.

    Returns:
        `replies_mb`, the size of the weights of all sites (10^6 bytes); the median times `medfed_s`, `numpy_s` and
        `reading_s` (a read alone); `times_faster`, `numpy_s` / `medfed_s`; `limit`, `numpy_s` / `reading_s`;
        `max_difference` of both averages; and `peak_models`, additional memory in multiples of the model's size.
    """
    replies, fractions = _replies(n_sites)
    work = {
        "medfed": lambda: average(replies, fractions),
        "numpy": lambda: numpy_average(replies, fractions.tolist()),
        "reading": lambda: [float(entry.sum()) for reply in replies for entry in reply.values()],
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    ours, theirs = average(replies, fractions), numpy_average(replies, fractions.tolist())
    medians = {f"{name}_s": statistics.median(seconds) for name, seconds in times.items()}
    return {
        "n_sites": n_sites,
        "replies_mb": n_sites * _n_bytes(replies[0]) / 1e6,
        **medians,
        "times_faster": medians["numpy_s"] / medians["medfed_s"],
        "limit": medians["numpy_s"] / medians["reading_s"],
        "max_difference": max(float((ours[n].double() - torch.from_numpy(theirs[n])).abs().max()) for n in theirs),
        **measure_in_new_process(__name__, f"measure_peak({n_sites})"),
    }


def numpy_average(replies: list[dict[str, Tensor]], fractions: list[float]) -> dict[str, np.ndarray]:
    """The weighted mean of each floating-point entry, in float64: the peer of the benchmark."""
    means: dict[str, np.ndarray] = {}
    for name, entry in replies[0].items():
        if entry.is_floating_point():
            means[name] = np.zeros(entry.shape)
            for reply, fraction in zip(replies, fractions, strict=True):
                means[name] += fraction * reply[name].numpy().astype(np.float64)
    return means


def measure_peak(n_sites: int) -> None:
    """Average the weights of many sites and print the additional memory of this process at its peak, as JSON."""
    keep_freed_memory()  # as every program of medfed does
    replies, fractions = _replies(n_sites)
    start_bytes = resident_memory_bytes() or peak_bytes()
    average(replies, fractions)
    print_result({"peak_models": (peak_bytes() - start_bytes) / _n_bytes(replies[0])})


def _replies(n_sites: int) -> tuple[list[dict[str, Tensor]], Tensor]:
    """Different weights of DenseNet121 for each site, and the weight of each site in the average."""
    network = DenseNetwork().build(3, 2)
    rng = torch.Generator().manual_seed(0)
    entries = network.state_dict()
    noise = torch.empty(max(entry.numel() for entry in entries.values()))
    replies = [_noisy(entries, noise, rng) for _ in range(n_sites)]
    fractions = torch.rand(n_sites, generator=rng, dtype=torch.float64)
    return replies, fractions / fractions.sum()


def _n_bytes(weights: dict[str, Tensor]) -> int:
    return sum(entry.nbytes for entry in weights.values())


def _noisy(entries: dict[str, Tensor], noise: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
    """A copy with noise added to the floating-point entries, without further memory."""
    copies = {name: entry.clone() for name, entry in entries.items()}
    for copy in copies.values():
        if copy.is_floating_point():
            copy.view(-1).add_(noise[: copy.numel()].uniform_(0, 0.01, generator=rng))
    return copies


def aggregation_table(result: dict[str, float]) -> str:
    return (
        f"average of the weights of DenseNet121 over {result['n_sites']} sites ({result['replies_mb']:.0f} MB)\n"
        f"  medfed {result['medfed_s']:.2f} s, NumPy {result['numpy_s']:.2f} s: {result['times_faster']:.2f} times "
        f"faster; limit {result['limit']:.2f}, because reading the weights takes {result['reading_s']:.2f} s\n"
        f"  memory besides the sites' weights: {result['peak_models']:.2f} models; largest difference "
        f"{result['max_difference']:.1e}"
    )
