"""Segmentation of volumes by a 3-D network that is trained on patches; the masks are scored as those of slices are."""

# mypy: disable-error-code="override"
# Everything but the kind of samples is that of slices: patches take the place of `Slices`.
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from monai.inferers import SlidingWindowInferer
from monai.transforms import AsDiscreted, Compose, MapTransform, Spacingd, SpatialPadd
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.datasets.case import Case, Volume
from medfed.metrics.trivial import ALL_FOREGROUND, NO_FOREGROUND
from medfed.tasks.augmentation import draw_affine, warp
from medfed.tasks.patch_bundle import MAX_WINDOWS, OVERLAP, PatchBundle
from medfed.tasks.patches import Patches
from medfed.tasks.segmentation import Segmentation
from medfed.tasks.task import UNOBSERVED, Match
from medfed.tasks.trivial_masks import FixedMask


@dataclass(frozen=True)
class PatchSegmentation(Segmentation):
    """Segmentation by a 3-D network: volumes are resampled to one voxel size, and the network receives patches.

    Volumes that are smaller than a patch are padded with 0. The padding belongs to the prepared grid: validation scores
    and `evaluation.also_on: prepared` count false voxels there, and `data.standardise: volume` includes it.
    """

    patch_size: tuple[int, int, int] = (64, 64, 32)  # in voxels along the axes right, anterior and superior
    spacing_mm: tuple[float, float, float] | None = None  # of the prepared voxels; None keeps that of each file

    @property
    def input_size(self) -> tuple[int, ...]:
        return self.patch_size

    @property
    def slice_ratio(self) -> float:
        return 1.0 if self.spacing_mm is None else self.spacing_mm[0] / self.spacing_mm[2]

    def _resampled(self, key: str) -> list[MapTransform]:
        """Linear interpolation, also of masks, whose threshold follows; padding with 0 to the size of a patch."""
        pad = SpatialPadd(key, self.patch_size)
        if self.spacing_mm is None:
            return [pad]
        return [Spacingd(key, self.spacing_mm, mode="bilinear", padding_mode="border"), pad]

    def prepare(self, volumes: Iterable[Volume], n_volumes: int = 0) -> Patches:
        prepare_image = self.preprocessing()
        images, labels, moments = [], [], []
        for volume in volumes:
            if volume.image.shape[-1] == 1:
                raise UserError(
                    "data.patch_size: is for volumes, but an image has a single slice; remove data.patch_size"
                )
            image = prepare_image({"image": volume.image})["image"].as_tensor()
            images.append(image)
            labels.append(self.prepare_mask(volume))
            if (moments_of_volume := self.moments_of(image[None])) is not None:
                moments.append(moments_of_volume)
            del volume  # the loop would keep it until the next volume is read
        return Patches.of(images, labels, self.patch_size, torch.cat(moments) if moments else None)

    def prepare_mask(self, volume: Volume) -> Tensor:
        """The mask of a volume on its prepared grid, (K, X, Y, Z) uint8 of 0 and 1."""
        steps = [*self._oriented("mask"), *self._resampled("mask"), AsDiscreted("mask", threshold=0.5)]
        return Compose(steps)({"mask": volume.mask.float()})["mask"].as_tensor().to(torch.uint8)

    def augment(self, batch: Batch, rng: torch.Generator) -> Batch:
        """Rotate and scale all slices of a patch alike, in their plane, and reflect them left-right, as for slices."""
        theta = draw_affine(len(batch.image), rng)
        voxel = self.spacing_mm or (1.0, 1.0)
        right, anterior = (batch.image.shape[2 + axis] * voxel[axis] for axis in (0, 1))
        theta[:, 0, 1] *= anterior / right  # coordinates run from -1 to 1 along each axis
        theta[:, 1, 0] *= right / anterior
        return batch.transform(
            lambda image: _warp_slices(image, theta), _warp_slices(batch.label, theta, mode="nearest")
        )

    @torch.no_grad()
    def validate(self, network: nn.Module, samples: Patches, decoder_levels: Sequence[str] = ()) -> dict[str, float]:
        """Return "score", the mean Dice over volumes and structures on the prepared grid; 0 if no structure is left.

        A structure is left out if neither the true nor the predicted mask of a volume contains it; if only one contains
        it, the Dice is 0.
        """
        network.eval()
        scores: list[float] = []
        for number, (image, label) in enumerate(zip(samples.images, samples.labels, strict=True)):
            moments = None if samples.moments is None else samples.moments[number : number + 1]
            predicted = self._windows(network, self.standardise(image[None], moments))[0] > self.evaluation.threshold
            reference = label.bool()
            overlap = (predicted & reference).sum(dim=(-3, -2, -1)).double()
            sizes = predicted.sum(dim=(-3, -2, -1)) + reference.sum(dim=(-3, -2, -1))
            scores += (2 * overlap / sizes)[sizes > 0].tolist()
        return {"score": sum(scores) / len(scores) if scores else 0.0}

    def trivial_scores(self, training: Patches, samples: Patches) -> dict[str, float]:
        """The scores of an empty and a full mask. Volumes of different sizes have no mean mask."""
        return {name: self.validate(self._fixed(name), samples)["score"] for name in (NO_FOREGROUND, ALL_FOREGROUND)}

    def evaluate_trivial(
        self, prediction: str, training: Sequence[Patches], dataset: Dataset, cases: Sequence[Case], role: str
    ) -> list[dict]:
        return self.evaluate(self._fixed(prediction), dataset, cases, role, UNOBSERVED).rows

    def _fixed(self, prediction: str) -> FixedMask:
        return FixedMask(torch.full((self.out_channels, *self.patch_size), float(prediction == ALL_FOREGROUND)))

    def probabilities(self, network: nn.Module, image: Tensor, match: Match | None = None) -> Tensor:
        """The probabilities (K, X, Y, Z) on the CPU of a prepared volume (C, X, Y, Z) in [0, 1], not standardised."""
        volume = image[None]
        if match is not None:
            volume = match(volume.to(next(network.parameters()).device)).cpu()
        return self._windows(network, self.standardise(volume, self.moments_of(volume)))[0]

    def _windows(self, network: nn.Module, image: Tensor) -> Tensor:
        """The probabilities (1, K, X, Y, Z) on the CPU of a standardised volume, from overlapping windows."""
        device = next(network.parameters()).device
        inferer = SlidingWindowInferer(
            self.patch_size, MAX_WINDOWS, OVERLAP, mode="gaussian", sw_device=device, device=torch.device("cpu")
        )
        logits = inferer(image, network)
        assert isinstance(logits, Tensor)  # MONAI's inferer also knows networks with several outputs
        return logits.sigmoid()

    def network_images(self, dataset: Dataset, cases: Sequence[Case]) -> Iterator[Tensor]:
        """One batch per volume, the patches that cover it."""
        for case in cases:
            patches = self.prepare([dataset.load(case)])
            yield patches.batch(range(len(patches))).image

    def typical_image(self, samples: Patches) -> Tensor:
        """The axial slice with the largest sum of the structures' areas."""
        areas = [label.sum(dim=(0, 1, 2)) for label in samples.labels]
        volume = max(range(len(areas)), key=lambda number: int(areas[number].max()))
        return samples.images[volume][..., int(areas[volume].argmax())]

    def bundle(self, input_is_2d: bool) -> PatchBundle:
        return PatchBundle(**vars(super().bundle(input_is_2d)), patch_size=self.patch_size, spacing_mm=self.spacing_mm)


def _warp_slices(image: Tensor, theta: Tensor, mode: str = "bilinear") -> Tensor:
    """Transform the slices of patches (B, C, X, Y, Z) in their plane, each patch by its own map of `draw_affine`."""
    as_channels = image.movedim(-1, 2).flatten(1, 2)
    return warp(as_channels, theta, mode).unflatten(1, (image.shape[1], -1)).movedim(2, -1)
