"""Masks kept small: a bit a voxel, compressed, so that those of a whole site fit beside the scores."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class PackedMask:
    """A mask of zeros and ones of any shape; outlines of organs take about a hundredth of its voxels in bytes."""

    shape: tuple[int, ...]
    packed: bytes

    @classmethod
    def of(cls, mask: Tensor) -> PackedMask:
        """mask: uint8 on any device, 0 or 1."""
        return cls(tuple(mask.shape), zlib.compress(np.packbits(mask.cpu().numpy()).tobytes(), level=1))

    def unpacked(self) -> Tensor:
        """As it was, uint8 on the CPU."""
        bits = np.frombuffer(zlib.decompress(self.packed), dtype=np.uint8)
        count = int(np.prod(self.shape))
        return torch.from_numpy(np.unpackbits(bits, count=count).reshape(self.shape))
