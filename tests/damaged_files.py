"""Damage to files, as a failing disk or memory does it."""

import random


def flipped(data: bytes, rng: random.Random) -> bytes:
    """Return data with one flipped bit."""
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)
