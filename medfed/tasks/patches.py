"""Overlapping 3-D patches of a site's volumes, prepared for a 3-D network and kept in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from medfed.core.batch import Batch
from medfed.tasks.slices import OfVolumes

FOREGROUND_SHARE = 1 / 3  # of the patches, as in nnU-Net


@dataclass(frozen=True)
class Patches(OfVolumes):
    """Patches of several volumes, which are kept in memory on the prepared grid.

    The list of patches is the same in every run and round: `grid_corners` and `foreground_corners` of each volume. A
    training epoch uses each patch once.
    """

    images: tuple[Tensor, ...]  # (C, X, Y, Z) float32 in [0, 1] of each volume, each axis at least as long as a patch
    labels: tuple[Tensor, ...]  # (K, X, Y, Z) uint8 of 0 and 1 of each volume
    size: tuple[int, int, int]  # of a patch in voxels, (X, Y, Z)
    corners: Tensor  # (N, 3) int64, the first voxel of each patch in its volume
    volume: Tensor
    moments: Tensor | None = None  # (V, 2, C) float32, `Task.moments_of` each volume, if they are needed
    patient_of_volume: Tensor | None = None

    @classmethod
    def of(
        cls,
        images: Sequence[Tensor],
        labels: Sequence[Tensor],
        size: tuple[int, int, int],
        moments: Tensor | None = None,
    ) -> Patches:
        """Divide volumes into patches."""
        corners = [torch.tensor([*grid_corners(label, size), *foreground_corners(label, size)]) for label in labels]
        volume = torch.arange(len(corners)).repeat_interleave(torch.tensor([len(one) for one in corners]))
        return cls(tuple(images), tuple(labels), size, torch.cat(corners), volume, moments)

    def __len__(self) -> int:
        return len(self.corners)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Images (B, C, X, Y, Z) in [0, 1] and masks (B, K, X, Y, Z) uint8 of 0 and 1 at the given positions."""
        volumes = self.volume[torch.as_tensor(indices)]
        image, label = (
            torch.stack([self._crop(of[v], self.corners[i]) for i, v in zip(indices, volumes.tolist(), strict=True)])
            for of in (self.images, self.labels)
        )
        return Batch(image, label, moments=None if self.moments is None else self.moments[volumes])

    def _crop(self, volume: Tensor, corner: Tensor) -> Tensor:
        x, y, z = (slice(start, start + length) for start, length in zip(corner.tolist(), self.size, strict=True))
        return volume[:, x, y, z]


def grid_corners(label: Tensor, size: Sequence[int]) -> list[tuple[int, ...]]:
    """Corners (x, y, z) of patches that cover a volume (K, X, Y, Z) and overlap by at least half in each axis."""
    return list(product(*(_starts(n, length) for n, length in zip(label.shape[1:], size, strict=True))))


def n_patches(shape: Sequence[int], size: Sequence[int]) -> int:
    """Number of patches of a volume (X, Y, Z) that shows a structure."""
    n = math.prod(len(_starts(n, length)) for n, length in zip(shape, size, strict=True))
    return n + _n_foreground(n)


def _n_foreground(n: int) -> int:
    return round(n * FOREGROUND_SHARE / (1 - FOREGROUND_SHARE))


def _starts(n: int, length: int) -> list[int]:
    """Evenly spaced starts of intervals of a length that cover n voxels, at most half a length apart."""
    n_steps = -(-(n - length) // max(1, length // 2))
    return [round(step * (n - length) / max(1, n_steps)) for step in range(n_steps + 1)]


def foreground_corners(label: Tensor, size: Sequence[int]) -> list[tuple[int, ...]]:
    """Corners of patches around evenly spaced voxels of the structures in turn: a third of a volume's patches."""
    voxels = [structure.nonzero() for structure in label if structure.any()]
    n = _n_foreground(len(grid_corners(label, size))) if voxels else 0
    corners = []
    for number in range(n):
        of_structure = voxels[number % len(voxels)]
        centre = of_structure[(2 * number + 1) * len(of_structure) // (2 * n)].tolist()
        axes = zip(centre, size, label.shape[1:], strict=True)
        corners.append(tuple(min(max(0, middle - length // 2), n_voxels - length) for middle, length, n_voxels in axes))
    return corners
