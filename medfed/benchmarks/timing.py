"""Compare the run times of several implementations of the same computation."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from torch import Tensor


def time_alternating(implementations: dict[str, Callable[[], Iterator[Tensor]]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each implementation, run in turn, so that other load on the machine affects all equally.
    The time is from the call of an implementation to the end of its iterator."""
    times_ms: dict[str, list[float]] = {name: [] for name in implementations}
    for _ in range(repeats):
        for name, run in implementations.items():
            start = time.perf_counter()
            for _ in run():
                pass
            times_ms[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in times_ms.items()}
