"""What the benchmarks share: the rows of their tables, times of functions in turn, and sites with images of noise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from medfed.core.seeds import seeded_layers, stream
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.settings import Training
from medfed.federation.site import Site
from medfed.networks.parts.base import NetworkSettings
from medfed.results.text_tables import aligned, number
from medfed.tasks.slices import Slices
from medfed.tasks.task import Task


@dataclass(frozen=True)
class Row:
    """Two numbers for the same work, of medfed and of a peer in the same run; smaller is better."""

    work: str
    peer_name: str
    medfed: float
    peer: float
    unit: str = "ms"
    largest_ratio: float | None = None  # that is possible
    difference: float | None = None  # of the two results

    @property
    def ratio(self) -> float:
        return self.peer / self.medfed if self.medfed else float("nan")


def table(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"{title}\n  not measured, because PyTorch found no CUDA GPU"
    cells = [["work", "medfed", "peer", "ratio", "limit", "unit", "difference", "peer is"]]
    for row in rows:
        numbers = [number(value) for value in (row.medfed, row.peer, row.ratio, row.largest_ratio)]
        difference = "-" if row.difference is None else f"{row.difference:.1e}"
        cells.append([row.work, *numbers, row.unit, difference, row.peer_name])
    return f"{title}\n{aligned(cells)}"


def median_ms(
    functions: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float] = time.process_time
) -> list[float]:
    """Median milliseconds of each function. They run in turn, so that other load on the machine affects all equally;
    the first time of each is not counted."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):
        for function, of_function in zip(functions, times, strict=True):
            start = clock()
            function()
            of_function.append(1000 * (clock() - start))
    return [statistics.median(of_function[1:]) for of_function in times]


def noise(name: str, n_images: int, channels: int, size: int, n_classes: int = 0) -> Slices:
    """Random images, each of another patient, with random masks of one structure, or in turn of each class."""
    rng, numbers = stream(0, "noise", name), torch.arange(n_images)
    images = torch.rand(n_images, channels, size, size, generator=rng)
    masks = (torch.rand(n_images, 1, size, size, generator=rng) > 0.5).to(torch.uint8)
    return Slices(images, numbers % n_classes if n_classes else masks, numbers)


def noise_sites(
    images: Mapping[str, Slices],
    task: Task,
    method: Method,
    network: NetworkSettings,
    training: Training,
    device: str = "cpu",
) -> tuple[list[Site], State]:
    """Sites that share a network, by name with their images, and the state before the first round."""
    with seeded_layers(0, "initial weights"):
        built = method.wrap_network(network.build(task.channels, task.out_channels), network).to(device)
    sites = [
        Site(name, samples, None, task, method, built, network, training, frozenset(), local_epochs=1, seed=0)
        for name, samples in images.items()
    ]
    return sites, State.of(built)
