"""Random streams that are named, not counted: no stream moves when sites are added or run in another order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit number for one purpose, the same on every machine."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose, e.g. `stream(seed, "train", site, round)`.

    Draw on the CPU and move to the device: the numbers are then the same everywhere.
    """
    return torch.Generator().manual_seed(stream_seed(seed, *purpose))


@contextmanager
def seeded_layers(seed: int, *purpose: str | int) -> Iterator[None]:
    """Give the draws that layers make by themselves (initial weights, dropout) a named stream, inside the block.

    PyTorch takes these from its global generators; they are put back afterwards.
    """
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, *purpose))
        yield
