"""Training patches of volumes as a set of their axial slices, for methods whose statistics describe 2-D images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medfed.core.batch import Batch
from medfed.federation.local_round import Samples
from medfed.functional.slices import as_slices


def slices_of(samples: Samples) -> Samples:
    """Return the slices of patches of volumes as samples of their own; images and slices are returned unchanged."""
    shape = samples.batch([0]).image.shape if len(samples) else (0,) * 4
    return SliceView(samples, shape[-1]) if len(shape) == 5 else samples


class SliceView:
    """Slice z of patch n has the index n * Z + z, where Z = `n_slices`."""

    def __init__(self, samples: Samples, n_slices: int) -> None:
        self.samples, self.n_slices = samples, n_slices

    def __len__(self) -> int:
        return len(self.samples) * self.n_slices

    @property
    def n_patients(self) -> int:
        return self.samples.n_patients

    @property
    def patient(self) -> Tensor:
        """(N,) int64, with equal numbers for slices of the same patient."""
        patient: Tensor = self.samples.patient  # type: ignore[attr-defined]
        return patient.repeat_interleave(self.n_slices)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Images (B, C, X, Y) and masks (B, K, X, Y) of the given slices."""
        patches = sorted({index // self.n_slices for index in indices})
        whole = self.samples.batch(patches)
        chosen = torch.tensor([patches.index(i // self.n_slices) * self.n_slices + i % self.n_slices for i in indices])
        return Batch(as_slices(whole.image)[chosen], as_slices(whole.label)[chosen])
