"""The amplitude normalisation of HarmoFL: all images get the same low-frequency amplitudes, the mean over all sites.

See Jiang et al., "HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical Images",
AAAI 2022, https://arxiv.org/abs/2112.10775.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medfed.functional.fourier import low_frequency_spectrum, replace_amplitude
from medfed.functional.hooks import prepend_layer

NAME = "amplitude"  # the layer's name in the network, and so in its state dict


class AmplitudeNormaliser(nn.Module):
    """Layer that replaces the low-frequency amplitudes of images by common ones and keeps the phase.

        x' = F^-1(A' e^{iP}),   A' = the common amplitudes inside the window, the image's own amplitudes outside

    The common amplitudes are the buffer `window`, (C, S, S) with S = 2 * half_width + 1, so they are sent, saved and
    exported with the weights. While the buffer is 0 everywhere, images pass unchanged.

    Args:
        channels: C, number of channels of the images.
        half_width: highest frequency of the window, in cycles per field of view; 0 replaces only the mean brightness.
    """

    window: Tensor

    def __init__(self, channels: int, half_width: int) -> None:
        super().__init__()
        side = 2 * half_width + 1
        self.half_width = half_width
        self.register_buffer("window", torch.zeros(channels, side, side))

    def forward(self, image: Tensor) -> Tensor:
        """Return images (B, C, H, W) in [0, 1] with the common low-frequency amplitudes, clipped to [0, 1].

        Raises:
            ValueError: if an image is smaller than the window.
        """
        window = self.window.expand(image.shape[0], -1, -1, -1)
        spectrum = low_frequency_spectrum(image, alpha_for_half_width(self.half_width, min(image.shape[2:])))
        normalised = replace_amplitude(image, spectrum, window).clamp(0, 1)
        return torch.where(self.window.any(), normalised, image)  # no `if`, which torch.export cannot record


def alpha_for_half_width(half_width: int, side: int) -> float:
    """Return the alpha of `medfed.functional.fourier` whose window, on images of this side, ends at `half_width`."""
    if not 0 <= half_width <= (side - 1) // 2:
        largest = (side - 1) // 2
        raise ValueError(f"half_width must be from 0 to {largest} for images of {side} pixels, got {half_width}")
    return min((half_width + 0.5) / int(side), 0.5 - 1e-9)


def prepend_normaliser(network: nn.Module, half_width: int) -> None:
    """Insert an `AmplitudeNormaliser` before the first layer of a network, in place."""
    channels = next(p.shape[1] for p in network.parameters() if p.ndim == 4)  # of the first convolution
    prepend_layer(network, AmplitudeNormaliser(channels, half_width), NAME)
