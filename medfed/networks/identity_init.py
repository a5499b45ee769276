"""Initial weights with which the small codec reproduces images before training: a wavelet transform and its inverse.

With random weights the decoder first has to learn how to arrange pixels, which takes thousands of steps. Here every
signal w is carried by two channels, relu(w) and relu(-w), so nothing is lost. The encoder's levels are

    full size      A x       RGB in 6 colour directions
    half size      W C h     opponent colours in four bands (smooth, rows, columns, diagonal)
    quarter size   W h       each of these 12 signals in four bands again (48 signals); the last level copies them

W is the biorthogonal 5/3 wavelet of JPEG 2000 (Le Gall & Tabatabai, "Sub-band coding of digital images using symmetric
short kernel filters and arithmetic coding techniques", ICASSP 1988). Its inverse interpolates between neighbours, so
AdaIN may scale the bands separately without visible blocks (which the Haar wavelet would give). The decoder is this
inverse, exact except for the last position at the bottom and right. Channels beyond those needed are random filters,
which the decoder ignores at first.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from medfed.networks.small_codec import SmallDecoder, SmallEncoder, get_bias

N_SIGNALS = (6, 12, 48, 48)  # of the four levels; each signal takes two channels
SMOOTH, DETAIL = torch.tensor([[-1.0, 2, 6, 2, -1], [0, 0, -4, 8, -4]]) / 8
INVERSE = torch.tensor([[[0.0, 8, 0], [-2, -2, 0]], [[0, 4, 4], [-1, 6, -1]]]) / 8  # [phase, band, tap]
OPPONENT = torch.tensor([[1.0, 1, 1], [1, 0, -1], [1, -2, 1]])


@torch.no_grad()
def init_identity(encoder: SmallEncoder, decoder: SmallDecoder) -> None:
    """Set the weights of a small encoder and decoder so that the decoder reproduces the encoded image before training.

    The encoder computes a wavelet transform, and the decoder computes its inverse. The inverse is exact except at the
    bottom and right border of the image. The encoder's colour directions and its additional filters, which the wavelet
    transform does not need, are random. They are drawn from PyTorch's global generator.

    Args:
        encoder: changed in place. Its four feature maps must have at least 12, 24, 96 and 96 channels.
        decoder: a decoder with the same numbers of channels; changed in place.

    Raises:
        ValueError: if the encoder has too few channels.
    """
    if any(width < 2 * signals for width, signals in zip(encoder.channels, N_SIGNALS, strict=True)):
        raise ValueError(f"channels must be at least {tuple(2 * n for n in N_SIGNALS)}, got {encoder.channels}")
    colour = nn.init.orthogonal_(torch.empty(N_SIGNALS[0], 3))
    opponent = OPPONENT / OPPONENT.norm(dim=1, keepdim=True)
    one_d = torch.stack([SMOOTH, DETAIL])
    bands = torch.einsum("ai,bj->abij", one_d, one_d).flatten(0, 1)  # (band, 5, 5)
    inverse = torch.einsum("pai,qbj->pqabij", INVERSE, INVERSE).flatten(2, 3).flatten(0, 1)  # (phase, band, 3, 3)
    every, same = torch.eye(N_SIGNALS[1]), torch.eye(N_SIGNALS[3])
    encoding = (
        _pointwise_kernel(colour),
        _analysis_kernel(bands, opponent @ colour.T),
        _analysis_kernel(bands, every),
        _pointwise_kernel(same),
    )
    decoding = (
        _pointwise_kernel(same),
        _synthesis_kernel(inverse, every),
        _synthesis_kernel(inverse, colour @ opponent.T),
        _pointwise_kernel(colour.T),
    )
    for layer, kernel in zip(encoder.convolutions(), encoding, strict=True):
        _set_encoder_layer(layer, kernel)
    convolutions = [layer for layer in decoder.layers if isinstance(layer, nn.Conv2d)]
    for layer, kernel in zip(convolutions, decoding, strict=True):
        _set_decoder_layer(layer, kernel)


def _analysis_kernel(bands: Tensor, mix: Tensor) -> Tensor:
    """Return the kernel (4 * out, in, 5, 5) that mixes signals by the matrix (out, in) and splits them into bands."""
    return torch.einsum("bij,os->bosij", bands, mix).flatten(0, 1)


def _synthesis_kernel(inverse: Tensor, mix: Tensor) -> Tensor:
    """Return the kernels (4, out, 4 * in, 3, 3) that undo `_analysis_kernel`, one for each of four pixel phases."""
    return torch.einsum("pbij,os->pobsij", inverse, mix).flatten(2, 3)


def _pointwise_kernel(matrix: Tensor) -> Tensor:
    """Return the 3x3 kernel (out, in, 3, 3) that applies a matrix (out, in) to each pixel."""
    kernel = torch.zeros(*matrix.shape, 3, 3)
    kernel[:, :, 1, 1] = matrix
    return kernel


def _set_encoder_layer(layer: nn.Conv2d, kernel: Tensor) -> None:
    """Let an encoder layer output signals as pairs of channels; the remaining channels get random unit filters."""
    half = layer.out_channels // 2
    filters = torch.randn(half, *layer.weight.shape[1:])
    filters /= filters.flatten(1).norm(dim=1)[:, None, None, None]
    filters[: len(kernel)] = _expand_inputs_to_pairs(kernel, layer.in_channels)
    layer.weight.copy_(torch.cat([filters, -filters]))
    nn.init.zeros_(get_bias(layer))


def _set_decoder_layer(layer: nn.Conv2d, kernel: Tensor) -> None:
    """Let a decoder layer output signals as pairs of channels, or RGB directly.

    Pixel shuffle expects the four phases of a channel next to each other.
    """
    phases = kernel if kernel.ndim == 5 else kernel[None]
    weight = torch.zeros(len(phases), layer.out_channels // len(phases), *layer.weight.shape[1:])
    half = weight.shape[1] // 2
    for phase, signals in zip(weight, phases):
        signals = _expand_inputs_to_pairs(signals, layer.in_channels)
        phase[: len(signals)] = signals
        if layer.out_channels != 3:
            phase[half : half + len(signals)] = -signals
    layer.weight.copy_(weight.transpose(0, 1).flatten(0, 1))
    nn.init.zeros_(get_bias(layer))


def _expand_inputs_to_pairs(kernel: Tensor, channels: int) -> Tensor:
    """Expand a kernel's inputs (out, in, h, w) to pairs relu(w), relu(-w): (out, channels, h, w); RGB has no pairs."""
    if channels == 3:
        return kernel
    widened = kernel.new_zeros(len(kernel), channels, *kernel.shape[2:])
    widened[:, : kernel.shape[1]] = kernel
    widened[:, channels // 2 : channels // 2 + kernel.shape[1]] = -kernel
    return widened
