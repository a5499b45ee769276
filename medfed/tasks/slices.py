"""The slices of a site's volumes, prepared for a 2-D network and kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from medfed.core.batch import Batch


class SliceBuffer:
    """A growing tensor of slices, to which the slices of one volume after another are appended.

    The slices are written into their final place, because concatenating them at the end would need twice the memory. A
    list of small tensors for each volume would also need more memory: each of them stays where a large image was freed,
    so that the next image does not fit there.
    """

    def __init__(self) -> None:
        self._slices, self._length = torch.empty(0), 0

    def __len__(self) -> int:
        return self._length

    def append(self, slices: Tensor, n_volumes_left: int = 0) -> None:
        """Copy slices (D, ...) of one volume behind the earlier ones, and reserve memory for `n_volumes_left` more."""
        end = self._length + len(slices)
        if end > len(self._slices):
            # Reserved memory needs no RAM until it is written.
            capacity = max(end + n_volumes_left * len(slices), end * 3 // 2 if self._length else 0)
            enlarged = slices.new_empty(capacity, *slices.shape[1:])
            if self._length:
                enlarged[: self._length] = self._slices[: self._length]
            self._slices = enlarged
        self._slices[self._length : end] = slices
        self._length = end

    def content(self) -> Tensor:
        """All appended slices, (N, ...), without a copy."""
        return self._slices[: self._length]


class OfVolumes:
    """Samples that are parts of volumes: slices or patches."""

    volume: Tensor  # (N,) int64, the index of the volume that each sample belongs to
    patient_of_volume: Tensor | None  # (V,) int64, equal for volumes of one patient; None if all differ

    @property
    def n_patients(self) -> int:
        return len(self.patient.unique())

    @property
    def patient(self) -> Tensor:
        """(N,) int64, with equal numbers for samples of the same patient."""
        return self.volume if self.patient_of_volume is None else self.patient_of_volume[self.volume]


@dataclass(frozen=True)
class Slices(OfVolumes):
    """Slices of several volumes, prepared for the network and kept in memory."""

    images: Tensor  # (N, C, S, S) float32 in [0, 1]
    labels: Tensor  # (N, K, S, S) uint8 of 0 and 1; without masks, as in measurements of speed, class numbers (N,)
    volume: Tensor
    moments: Tensor | None = None  # (N, 2, C) float32, `Task.moments_of` the volume of each slice, if they are needed
    patient_of_volume: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Images (B, C, S, S) float32 in [0, 1] and masks (B, K, S, S) uint8 of 0 and 1 at the given positions."""
        chosen = torch.as_tensor(indices)
        moments = None if self.moments is None else self.moments[chosen]
        return Batch(self.images[chosen], self.labels[chosen], moments=moments)
