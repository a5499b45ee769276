"""Results of the evaluation of test cases: rows of scores, and the predicted masks."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

Rows = list[dict[str, object]]


@dataclass(frozen=True)
class EvaluationResult:
    """Scores and predictions for the test cases of one site.

    Args:
        rows: rows of scores, as `medfed.tasks.mask_scoring` or `medfed.tasks.class_scoring` describes them.
        ratios: one row per patient (`medfed.metrics.ratio`) if the dataset has `ratio_structures`; otherwise empty.
        masks: predicted mask of each patient of the unseen site, by the name of the case, for the figures.
    """

    rows: Rows = field(default_factory=list)
    ratios: Rows = field(default_factory=list)
    masks: dict[str, PackedMask] = field(default_factory=dict)

    def extend(self, other: EvaluationResult) -> None:
        """Append the results of other test cases to this object."""
        self.rows.extend(other.rows)
        self.ratios.extend(other.ratios)
        self.masks.update(other.masks)


@dataclass(frozen=True)
class PackedMask:
    """A compressed binary mask; for organs, it needs about 1 byte per 100 voxels.

    Args:
        shape: shape of the mask.
        packed: the voxels, packed into bits and compressed with zlib.
    """

    shape: tuple[int, ...]
    packed: bytes

    @classmethod
    def pack(cls, mask: Tensor) -> PackedMask:
        """Compress a mask of any shape, uint8 of 0 and 1, on any device."""
        return cls(tuple(mask.shape), zlib.compress(np.packbits(mask.cpu().numpy()).tobytes(), level=1))

    def unpack(self) -> Tensor:
        """Decompress the mask; return it with its original shape, uint8 of 0 and 1, on the CPU."""
        bits = np.frombuffer(zlib.decompress(self.packed), dtype=np.uint8)
        count = int(np.prod(self.shape))
        return torch.from_numpy(np.unpackbits(bits, count=count).reshape(self.shape))
