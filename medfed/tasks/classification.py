"""Classification of whole pictures, which are read when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from monai.data import MetaTensor
from torch import Tensor, nn
from torch.nn import functional

from medfed.core.batch import Batch
from medfed.datasets.base import Case
from medfed.tasks.augmentation import draw_affine, warp
from medfed.tasks.segmentation import Evaluation

KEPT_BYTES = 2 * 2**30  # of a site's pictures that stay in memory, as bytes; the others are read anew each time
AT_ONCE = 64  # images, at most, that go through a network together
COLOUR_MEAN, COLOUR_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as all four papers normalise
GREY_MEAN, GREY_STD = (0.449,), (0.226,)

Read = Callable[[Case], MetaTensor]  # (C, H, W, 1), from 0 to 255


def even_parts(order: Tensor) -> tuple[Tensor, ...]:
    """(N,) in parts of at most AT_ONCE that differ by one at most: a batch of one left over has no statistics."""
    return order.tensor_split(-(-len(order) // AT_ONCE)) if len(order) else ()


@dataclass(frozen=True)
class Pictures:
    """The pictures of some cases: read on demand, kept as bytes while there is room.

    Args:
        cases: each with its `label`.
        read: gives one as the file has it.
        size: side in pixels to which it is brought (bilinear, with anti-aliasing).
        kept_bytes: how much of them may stay in memory.
    """

    cases: tuple[Case, ...]
    read: Read
    size: int
    kept_bytes: int = KEPT_BYTES
    _kept: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def n_patients(self) -> int:
        return len({case.subject for case in self.cases})

    @property
    def labels(self) -> Tensor:
        """(N,) int64."""
        return torch.tensor([case.label for case in self.cases])

    def batch(self, indices: Sequence[int]) -> Batch:
        """Images (B, C, S, S) in [0, 1] and labels (B,)."""
        pixels = torch.stack([self._picture(index) for index in indices])
        return Batch(pixels.float() / 255, torch.tensor([self.cases[index].label for index in indices]))

    def first(self) -> Iterator[None]:
        """Read as many as are kept, one a step, so that what is wrong with them shows before training."""
        for index in range(len(self)):
            yield self._picture(index) if self._has_room() else None

    def _has_room(self) -> bool:
        one = next(iter(self._kept.values())).numel() if self._kept else 0
        return (len(self._kept) + 1) * one <= self.kept_bytes

    def _picture(self, index: int) -> Tensor:
        if index in self._kept:
            return self._kept[index]
        pixels = self.read(self.cases[index]).as_tensor()[..., 0]
        if pixels.shape[1:] != (self.size, self.size):
            size = (self.size, self.size)
            pixels = functional.interpolate(pixels[None], size, mode="bilinear", antialias=True, align_corners=False)[0]
        pixels = pixels.round().clamp(0, 255).to(torch.uint8)
        if self._has_room():
            self._kept[index] = pixels
        return pixels


@dataclass(frozen=True)
class Classification:
    """One class an image.

    Args:
        classes: their names, in the order of the logits.
        channels: image channels, 1 or 3.
        image_size: side in pixels of what the network sees.
        evaluation: whether predictions adapt to the test images (`tent`); its other fields are for masks.
        standardised: whether the network sees colours on ImageNet's scale, (x - mean) / std with fixed numbers, or as
            they are in [0, 1]. Fixed, because an image's own mean is the stain, which sites exchange.
    """

    classes: tuple[str, ...]
    channels: int
    image_size: int
    evaluation: Evaluation = Evaluation()
    standardised: bool = True

    @property
    def out_channels(self) -> int:
        return len(self.classes)

    def prepare(self, cases: Sequence[Case], read: Read) -> Pictures:
        """Samples for training and validation, in the order of the cases; no file is opened yet."""
        return Pictures(tuple(cases), read, self.image_size)

    def standardise(self, image: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1] to what the network sees."""
        if not self.standardised:
            return image
        mean, std = (COLOUR_MEAN, COLOUR_STD) if self.channels == 3 else (GREY_MEAN, GREY_STD)
        return (image - image.new_tensor(mean)[:, None, None]) / image.new_tensor(std)[:, None, None]

    def augment(self, batch: Batch, rng: torch.Generator) -> Batch:
        """Random rotation, scaling and left-right flipping."""
        theta = draw_affine(len(batch.image), rng)
        # The maps flip the first image axis, and here that is up-down.
        return batch.moved(lambda image: warp(image.mT, theta).mT.contiguous(), batch.label)

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Mean cross-entropy of logits (B, K) and labels (B,)."""
        return functional.cross_entropy(logits, label)

    def validate(self, network: nn.Module, samples: Pictures, decoder_levels: Sequence[str] = ()) -> dict[str, float]:
        """Share of the images that are classified right; there are no decoder levels."""
        right = self.probabilities(network, samples).argmax(dim=1) == samples.labels
        return {"score": float(right.double().mean())}

    @torch.no_grad()
    def probabilities(self, network: nn.Module, samples: Pictures) -> Tensor:
        """(N, K) float64, softmax of the logits, in the order of the samples.

        Batches are drawn in another order, fixed but telling no class: Tent and batch statistics see a batch whole.
        """
        network.eval()
        device = next(network.parameters()).device
        found = torch.zeros(len(samples), self.out_channels, dtype=torch.float64)
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0))
        for chosen in even_parts(order):
            image = samples.batch(chosen.tolist()).image
            found[chosen] = network(self.standardise(image.to(device))).double().softmax(dim=1).cpu()
        return found
