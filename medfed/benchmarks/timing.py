"""Forms of the same work that take turns, so that a busy machine is unfair to none."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from torch import Tensor


def time_alternating(forms: dict[str, Callable[[], Iterator[Tensor]]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each form."""
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(repeats):
        for name, form in forms.items():
            start = time.perf_counter()
            for _ in form():
                pass
            taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in taken.items()}
