"""Random shallow convolutional networks that change the intensities of images, as GIN uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_NORM = 1e-8  # a result with a smaller norm is not scaled up
SLOPE = 0.01  # of the leaky ReLU for negative values


class ShallowNetworks(NamedTuple):
    """One random convolutional network for each of B images.

    Args:
        kernels: one tensor per layer, (B, O, I, k, k) for I input and O output channels.
        shifts: one tensor per layer, (B, O), added to the output channels.
    """

    kernels: tuple[Tensor, ...]
    shifts: tuple[Tensor, ...]


def draw_shallow_networks(
    n: int, channels: int, n_layers: int, width: int, kernel_sizes: Sequence[int], rng: torch.Generator
) -> ShallowNetworks:
    """Draw one random network for each of n images; all numbers are from the standard normal distribution.

    Args:
        channels: number of channels of the images, and of the networks' outputs.
        n_layers: number of convolutions, at least 1.
        width: number of channels between the convolutions, at least 1.
        kernel_sizes: odd sides in pixels from which the kernel size of each layer is drawn, the same for all images.
        rng: CPU generator.
    """
    widths = [channels, *[width] * (n_layers - 1), channels]
    kernels, shifts = [], []
    for inputs, outputs in zip(widths[:-1], widths[1:], strict=True):
        side = kernel_sizes[int(torch.randint(len(kernel_sizes), (), generator=rng))]
        kernels.append(torch.randn(n, outputs, inputs, side, side, generator=rng))
        shifts.append(torch.randn(n, outputs, generator=rng))
    return ShallowNetworks(tuple(kernels), tuple(shifts))


def random_intensity_transform(image: Tensor, networks: ShallowNetworks, alpha: Tensor) -> Tensor:
    """Mix each image with the output of its random network, and scale the result to the Frobenius norm of the image.

        g(x) = (alpha net(x) + (1 - alpha) x) * |x|_F / |alpha net(x) + (1 - alpha) x|_F

    This is the global intensity non-linear augmentation (GIN) of Ouyang et al., "Causality-inspired Single-source
    Domain Generalization for Medical Image Segmentation", IEEE Transactions on Medical Imaging, 2022,
    https://arxiv.org/abs/2111.12525. `image` is (B, C, H, W), `alpha` (B,) in [0, 1]; 0 returns the image up to
    rounding. A leaky ReLU follows every convolution except the last one. Edges are padded with zeros.
    """
    n, channels, height, width = image.shape
    output = image
    for layer, (kernel, shift) in enumerate(zip(networks.kernels, networks.shifts, strict=True)):
        if layer:
            output = F.leaky_relu(output, SLOPE)
        grouped = output.reshape(1, -1, height, width)  # each image is a group of channels with kernels of its own
        output = F.conv2d(grouped, kernel.to(image).flatten(0, 1), padding=kernel.shape[-1] // 2, groups=n)
        output = output.reshape(n, -1, height, width) + shift.to(image)[..., None, None]
    weight = alpha.to(image)[:, None, None, None]
    mixed = weight * output + (1 - weight) * image
    norms = [entry.flatten(1).norm(dim=1) for entry in (image, mixed)]
    return mixed * (norms[0] / norms[1].clamp(min=MIN_NORM))[:, None, None, None]
