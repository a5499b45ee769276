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
    """Scores and predicted masks of test cases. A case is one image or volume of a patient.

    Args:
        rows: one dict of scores for each image (`medfed.tasks.class_scoring`), or for each structure of each case
            (`medfed.tasks.mask_scoring`).
        ratios: one dict per case with the ratio of two structures' heights (`medfed.metrics.ratio`). Empty if the
            dataset defines no such ratio (`Dataset.ratio_structures`).
        masks: dictionary from the name of a case of the unseen site to its predicted masks; figures show them.
        unadapted: rows of the unseen site, scored with the same weights but without the adaptation to its images. Empty
            without an adaptation (`evaluation.tent`, `evaluation.match`).
    """

    rows: Rows = field(default_factory=list)
    ratios: Rows = field(default_factory=list)
    masks: dict[str, PackedMask] = field(default_factory=dict)
    unadapted: Rows = field(default_factory=list)

    def extend(self, other: EvaluationResult) -> None:
        """Append the rows, ratios, masks and unadapted rows of another result; this object is changed in place.

        Args:
            other: results of other test cases; it stays unchanged.
        """
        self.rows.extend(other.rows)
        self.ratios.extend(other.ratios)
        self.masks.update(other.masks)
        self.unadapted.extend(other.unadapted)


@dataclass(frozen=True)
class PackedMask:
    """A binary mask that is compressed in memory; masks of organs need about 1 byte per 100 voxels.

    Args:
        shape: shape of the mask.
        packed: the voxels, eight per byte, compressed with zlib.
    """

    shape: tuple[int, ...]
    packed: bytes

    @classmethod
    def pack(cls, mask: Tensor) -> PackedMask:
        """Compress a binary mask; the mask stays unchanged.

        Args:
            mask: uint8 of 0 and 1, of any shape and on any device.
        """
        return cls(tuple(mask.shape), zlib.compress(np.packbits(mask.cpu().numpy()).tobytes(), level=1))

    def unpack(self) -> Tensor:
        """Decompress the mask, and return it as a uint8 tensor of 0 and 1 with its original shape, on the CPU."""
        bits = np.frombuffer(zlib.decompress(self.packed), dtype=np.uint8)
        count = int(np.prod(self.shape))
        return torch.from_numpy(np.unpackbits(bits, count=count).reshape(self.shape))
