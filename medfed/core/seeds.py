"""Named random streams: each purpose has a generator of its own, seeded by its name.

The random numbers of a site therefore do not change if other sites are added or if the sites run in another order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream_seed(seed: int, *purpose: str | int) -> int:
    """Return the seed of a named stream of random numbers.

    Args:
        seed: the seed of the run.
        purpose: the name of the stream, in one or more parts such as "train", the site and the round. Another name
            gives an independent seed.

    Returns:
        An integer in [0, 2**63), the same on every machine.
    """
    text = "\x1f".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def stream(seed: int, *purpose: str | int) -> torch.Generator:
    """Return a new random generator for a named stream of random numbers, e.g. `stream(seed, "train", site, round)`.

    The generator is on the CPU. Sample on the CPU and then move the values to the GPU, so that the values are the same
    on every machine.

    Args:
        seed: the seed of the run.
        purpose: the name of the stream, in one or more parts. The same name always gives the same numbers.
    """
    return torch.Generator().manual_seed(stream_seed(seed, *purpose))


@contextmanager
def seeded_layers(seed: int, *purpose: str | int) -> Iterator[None]:
    """Context manager that seeds PyTorch's global generators with a named stream inside a `with` statement.

    PyTorch's layers sample their initial weights and dropout masks from the global generators. After the `with`
    statement, these generators continue from the state that they had before.

    Args:
        seed: the seed of the run.
        purpose: the name of the stream, in one or more parts, as for `stream`.
    """
    with torch.random.fork_rng():
        if torch.accelerator.is_available():
            torch.manual_seed(stream_seed(seed, *purpose))
        else:  # without an accelerator, `torch.manual_seed` formats and keeps a call stack for each missing generator
            torch.default_generator.manual_seed(stream_seed(seed, *purpose))
        yield
