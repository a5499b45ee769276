"""GIN (Ouyang et al., IEEE TMI 2022): train on images whose intensities a random shallow network has changed.

C. Ouyang, C. Chen, S. Li, Z. Li, C. Qin, W. Bai, D. Rueckert: "Causality-inspired Single-source Domain Generalization
for Medical Image Segmentation", IEEE Transactions on Medical Imaging, 2022, https://arxiv.org/abs/2111.12525.

Idea: a small convolutional network with random weights changes intensity and texture, but keeps shapes. A network that
is trained on many such changes has to rely on the shapes. Sites send the same messages as FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from medfed.core.batch import Batch
from medfed.core.bounds import PositiveInt, Ratio
from medfed.core.device import to_device
from medfed.federation.local_round import LocalRound
from medfed.federation.method import ALL_DIMENSIONS, Method

MIN_NORM = 1e-8  # a result with a smaller norm is not scaled up
SLOPE = 0.01  # of the leaky ReLU for negative values
MIN_STD = 1e-6  # of an image that is changed; a blank image has no intensities to change


@dataclass(frozen=True)
class GIN(Method):
    """FedAvg on images whose intensities are changed by random shallow convolutional networks.

    In each step, each image x gets a network of its own with random weights:

        g(x) = (alpha net(x) + (1 - alpha) x) * |x|_F / |alpha net(x) + (1 - alpha) x|_F,   alpha ~ U(0, 1)

    Masks, classes and views stay as they are.

    Volumes (the authors' networks have 2-D slices): the random kernels are cubes, and |x|_F is over all voxels.

    Departures: the paper's second augmentation (IPA) and its consistency loss between two changed copies are left out.
    The authors' images are standardised, those of a method are in [0, 1]: each image is standardised for the transform
    by its own mean and standard deviation per channel, transformed back, and clipped to [0, 1]. We had the authors'
    code and the abstract, but not the paper, so the equations have no numbers.

    Args:
        probability: probability that an image is changed, in [0, 1]. 1 in the authors' code. With 0 the result is
            bit-identical to FedAvg.
        layers: number of convolutions, at least 1. 4 in the authors' code.
        width: number of channels between the convolutions, at least 1. 2 in the authors' code.
        kernel_sizes: odd sides in pixels from which the kernel size of each layer is drawn in each step. 1 and 3 in the
            authors' code.
    """

    probability: Ratio = 1.0
    layers: PositiveInt = 4
    width: PositiveInt = 2
    kernel_sizes: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (1, 3)

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        if even := [size for size in self.kernel_sizes if size % 2 == 0]:
            raise ValueError(f"kernel_sizes: expected odd numbers, which keep the size of the image, got {even[0]}")

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """Mix each image with the output of a random network."""
        if self.probability == 0:
            return batch
        image, rng = batch.image, local.rng
        n, channels = image.shape[:2]
        is_changed, alpha = torch.rand(2, n, generator=rng)
        axes = tuple(range(2, image.ndim))
        networks = draw_shallow_networks(n, channels, self.layers, self.width, self.kernel_sizes, rng, len(axes))
        mean, std = image.mean(dim=axes, keepdim=True), image.std(dim=axes, keepdim=True)
        std = std.clamp(min=MIN_STD)
        changed = random_intensity_transform((image - mean) / std, networks, to_device(alpha, image.device))
        changed = (changed * std + mean).clamp(0, 1)
        chosen = to_device(is_changed < self.probability, image.device).reshape(-1, 1, *[1] * len(axes))
        return replace(batch, image=torch.where(chosen, changed, image))


def draw_shallow_networks(
    n: int, channels: int, n_layers: int, width: int, kernel_sizes: Sequence[int], rng: torch.Generator, n_axes: int = 2
) -> list[tuple[Tensor, Tensor]]:
    """Draw one network for each of n images with `n_axes` axes, with all weights from the standard normal distribution.

    The result has kernels (n, O, I, k, k), or (n, O, I, k, k, k) for volumes, and shifts (n, O) for each layer.
    """
    widths = [channels, *[width] * (n_layers - 1), channels]
    layers = []
    for inputs, outputs in zip(widths[:-1], widths[1:], strict=True):
        side = kernel_sizes[int(torch.randint(len(kernel_sizes), (), generator=rng))]
        kernel = torch.randn(n, outputs, inputs, *[side] * n_axes, generator=rng)
        layers.append((kernel, torch.randn(n, outputs, generator=rng)))
    return layers


def random_intensity_transform(image: Tensor, networks: Sequence[tuple[Tensor, Tensor]], alpha: Tensor) -> Tensor:
    """Return g(x) for images (B, C, H, W) or (B, C, X, Y, Z), with a leaky ReLU after every convolution except the
    last one."""
    n, size, output = len(image), image.shape[2:], image
    convolve = F.conv2d if len(size) == 2 else F.conv3d
    ones = [1] * len(size)
    for layer, (kernel, shift) in enumerate(networks):
        if layer:
            output = F.leaky_relu(output, SLOPE)
        grouped = output.reshape(1, -1, *size)  # each image is a group of channels with kernels of its own
        output = convolve(grouped, kernel.to(image).flatten(0, 1), padding=kernel.shape[-1] // 2, groups=n)
        output = output.reshape(n, -1, *size) + shift.to(image).reshape(*shift.shape, *ones)
    weight = alpha.to(image).reshape(-1, 1, *ones)
    mixed = weight * output + (1 - weight) * image
    norms = [entry.flatten(1).norm(dim=1) for entry in (image, mixed)]
    return mixed * (norms[0] / norms[1].clamp(min=MIN_NORM)).reshape(-1, 1, *ones)
