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
    """Scores and predicted masks of test cases. A case is one image or volume of a patient."""

    rows: Rows = field(default_factory=list)  # of scores, for each image, or for each structure of each case
    ratios: Rows = field(default_factory=list)  # for each case, of two structures' heights (`medfed.metrics.ratio`)
    masks: dict[str, PackedMask] = field(default_factory=dict)  # by case, at the unseen site; figures show them
    # At the unseen site, with the same weights but without the adaptation (`evaluation.tent`, `evaluation.match`).
    unadapted: Rows = field(default_factory=list)

    def extend(self, other: EvaluationResult) -> None:
        self.rows.extend(other.rows)
        self.ratios.extend(other.ratios)
        self.masks.update(other.masks)
        self.unadapted.extend(other.unadapted)


@dataclass(frozen=True)
class PackedMask:
    """A binary mask that is compressed in memory; organs need about 1 byte per 100 voxels."""

    shape: tuple[int, ...]
    packed: bytes

    @classmethod
    def pack(cls, mask: Tensor) -> PackedMask:
        return cls(tuple(mask.shape), zlib.compress(np.packbits(mask.cpu().numpy()).tobytes(), level=1))

    def unpack(self) -> Tensor:
        bits = np.frombuffer(zlib.decompress(self.packed), dtype=np.uint8)
        count = int(np.prod(self.shape))
        return torch.from_numpy(np.unpackbits(bits, count=count).reshape(self.shape))
