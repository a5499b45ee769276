"""HarmoFL's amplitude normalisation (Jiang et al., AAAI 2022): every image gets the hospitals' mean low frequencies."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medfed.functional.fourier import low_frequency_spectrum, mix_amplitude
from medfed.functional.hooks import add_submodule

NAME = "amplitude"  # as a part of the network, and so in its state dict


class AmplitudeNormaliser(nn.Module):
    """Before the first layer: x' = F^-1(A' e^{iP}), A' = the common amplitudes inside the window, those of x outside.

    The window is a buffer, and so goes wherever the weights go: to the sites, to the checkpoint, to an unseen hospital.
    Until it has been set (all 0), images pass as they are.

    Args:
        channels: C of the images.
        half_width: highest frequency of the window, in cycles per field of view; 0 is the mean brightness alone.
    """

    window: Tensor

    def __init__(self, channels: int, half_width: int) -> None:
        super().__init__()
        side = 2 * half_width + 1
        self.half_width = half_width
        self.register_buffer("window", torch.zeros(channels, side, side))

    def forward(self, image: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1] to the same, clipped to that range.

        Raises:
            ValueError: if the image is smaller than the window.
        """
        if not bool(self.window.any()):
            return image
        window = self.window.expand(image.shape[0], -1, -1, -1)
        analysis = low_frequency_spectrum(image, alpha_for_half_width(self.half_width, min(image.shape[2:])))
        return mix_amplitude(image, analysis, window, image.new_ones(image.shape[0])).clamp(0, 1)


def alpha_for_half_width(half_width: int, side: int) -> float:
    """The alpha of `medfed.functional.fourier` whose window on images of this side has that half width.

    Raises:
        ValueError: if the window does not fit.
    """
    if not 0 <= half_width <= (side - 1) // 2:
        largest = (side - 1) // 2
        raise ValueError(f"half_width must be from 0 to {largest} for images of {side} pixels, got {half_width}")
    return min((half_width + 0.5) / int(side), 0.5 - 1e-9)


def prepend_normaliser(network: nn.Module, half_width: int) -> None:
    """Put an `AmplitudeNormaliser` before the first layer of a network; no entry is renamed.

    Raises:
        ValueError: if the network has one already.
    """
    channels = next(p.shape[1] for p in network.parameters() if p.ndim == 4)  # of the first convolution
    normaliser = AmplitudeNormaliser(channels, half_width)
    add_submodule(network, normaliser, NAME)
    network.register_forward_pre_hook(_LayerPreHook(normaliser))


class _LayerPreHook:
    """A hook that knows its layer as an attribute, so that copying the network copies the bond."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (self.layer(inputs[0]),)
