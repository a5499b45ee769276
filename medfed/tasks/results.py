"""What a task's evaluation of test cases gives: rows of scores, and the masks that they are of."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

Rows = list[dict[str, object]]


@dataclass(frozen=True)
class EvaluationResult:
    """Scores of test cases.

    rows: as `medfed.tasks.mask_scoring` or `medfed.tasks.class_scoring` describes them.
    ratios: one row per patient (`medfed.metrics.ratio`) where the dataset has structures to compare.
    masks: the predicted mask of each patient of the unseen site, so that a figure shows what the score is of.
    """

    rows: Rows = field(default_factory=list)
    ratios: Rows = field(default_factory=list)
    masks: dict[str, PackedMask] = field(default_factory=dict)

    def extend(self, other: EvaluationResult) -> None:
        """Add the results of further cases."""
        self.rows.extend(other.rows)
        self.ratios.extend(other.ratios)
        self.masks.update(other.masks)


@dataclass(frozen=True)
class PackedMask:
    """A compressed mask of zeros and ones of any shape; outlines of organs take about 1 % of its voxels in bytes."""

    shape: tuple[int, ...]
    packed: bytes

    @classmethod
    def pack(cls, mask: Tensor) -> PackedMask:
        """mask: uint8 on any device, 0 or 1."""
        return cls(tuple(mask.shape), zlib.compress(np.packbits(mask.cpu().numpy()).tobytes(), level=1))

    def unpack(self) -> Tensor:
        """The mask as it was, uint8 on the CPU."""
        bits = np.frombuffer(zlib.decompress(self.packed), dtype=np.uint8)
        count = int(np.prod(self.shape))
        return torch.from_numpy(np.unpackbits(bits, count=count).reshape(self.shape))
