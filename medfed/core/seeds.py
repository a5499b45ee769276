"""Named random streams: each purpose has a generator of its own, seeded by its name.

The random numbers of a site therefore do not change if other sites are added or if the sites run in another order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream_seed(seed: int, *purpose: str | int) -> int:
    """The seed, in [0, 2**63), of the stream of a purpose such as ("train", site, round); the same on every machine."""
    return int.from_bytes(digest(seed, *purpose)[:8], "little") >> 1


def digest(seed: int, *purpose: str | int) -> bytes:
    """32 bytes that depend only on seed and purpose. They rank patients in the splits, so they never change."""
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return hashlib.sha256(text.encode()).digest()


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """A new CPU generator of a named stream. Sample on the CPU, so that a GPU gets the same values on every machine."""
    return torch.Generator().manual_seed(stream_seed(seed, *purpose))


@contextmanager
def seeded_layers(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed PyTorch's global generators, which initial weights and dropout use, and restore them afterwards."""
    with torch.random.fork_rng():
        if torch.accelerator.is_available():
            torch.manual_seed(stream_seed(seed, *purpose))
        else:  # without an accelerator, `torch.manual_seed` formats and keeps a call stack for each missing generator
            torch.default_generator.manual_seed(stream_seed(seed, *purpose))
        yield
