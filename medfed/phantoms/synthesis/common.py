"""Shared tools of the phantom generators: named random streams and JPEG compression."""

from __future__ import annotations

import hashlib
import io

import numpy as np
from numpy import ndarray
from PIL import Image


def stream(seed: int, *purpose: object) -> np.random.Generator:
    """Return a generator with a seed of its own for each purpose: another case or site changes no other draws."""
    name = "/".join(map(str, (seed, *purpose))).encode()
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "big"))


def jpeg_compressed(image: ndarray, quality: int) -> ndarray:
    """Compress an image (H, W, 3) uint8 with JPEG of quality 1 to 95, as a camera or scanner does, and decode it."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    with Image.open(file) as decoded:
        return np.asarray(decoded)
