"""The style codec of AdaIN: an encoder and a decoder that redraw images in another style.

    features = E(image),    image' = D(adain(features, mean, std, alpha))

See Huang & Belongie, "Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization", ICCV 2017,
https://arxiv.org/abs/1703.06868. To redraw an image in many styles, encode it once and decode it once per style.
`StyleCodec.reconstruction_error` measures what encoding and decoding change even without a new style; redrawn small
structures cannot be more accurate than that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.functional.style import adain, channel_mean_std
from medfed.functional.weights import first_non_finite
from medfed.networks.small_codec import CHANNELS, SmallDecoder, SmallEncoder
from medfed.networks.vgg import BLOCK_SIZES, Decoder, VGGEncoder, load_decoder, load_encoder, load_renamed_weights

SMALL_CODEC_FILE = Path(__file__).with_name("codec_small.safetensors")
CODEC_FILE_NAME = "codec.safetensors"
HEADER_KEY = "medfed_codec"


class StyleCodec(nn.Module):
    """A frozen encoder and decoder that redraw images in a given style.

    The style of an image is the mean and standard deviation of each of its `channels` feature channels.

    Args:
        encoder: from images (B, 3, H, W) to four feature maps, of which the last carries the style; it has the
            attributes `channels`, `downsampling` and `margin`.
        decoder: from the last feature map to RGB images.

    Example:
        >>> import torch
        >>> codec = load_codec("small")
        >>> images, others = torch.rand(2, 1, 64, 64), torch.rand(5, 3, 48, 48)
        >>> features = codec.encode(images)
        >>> codec.decode(features, size=(64, 64), channels=1).shape
        torch.Size([2, 1, 64, 64])
    """

    encoder: SmallEncoder | VGGEncoder
    decoder: SmallDecoder | Decoder

    def __init__(self, encoder: SmallEncoder | VGGEncoder, decoder: SmallDecoder | Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.eval().requires_grad_(False)

    @property
    def channels(self) -> int:
        """Number C of feature channels that `encode` returns. A style has 2 C numbers: a mean and a std per channel."""
        return self.encoder.channels[-1]

    @property
    def downsampling(self) -> int:
        """Number of image pixels, along each axis, that one position of the feature map represents, for example 4."""
        return self.encoder.downsampling

    @property
    def min_side(self) -> int:
        """Smallest height and width in pixels of an image that the codec can process, for example 9."""
        return (1 + self.encoder.margin) * self.downsampling + 1

    def train(self, mode: bool = True) -> StyleCodec:
        """Override `nn.Module.train`: the codec is frozen, so it always stays in evaluation mode.

        Args:
            mode: ignored.

        Returns:
            The codec itself.
        """
        return super().train(False)

    def encoder_levels(self, images: Tensor) -> list[Tensor]:
        """Return the four feature maps that the encoder computes for images, with gradients if the images require them.

        Args:
            images: (B, 3, H, W) or (B, 1, H, W) in [0, 1], sides of at least `min_side` pixels. One channel is repeated
                to three. The images are padded by reflection at the bottom and on the right.

        Returns:
            Four feature maps (B, C_i, H_i, W_i), in the order in which the encoder computes them: the first one has the
            largest height and width, and the last one is the map that `encode` returns.

        Raises:
            ValueError: if the images are not floating point, have another number of channels, or sides below
                `min_side`.
        """
        self._check(images)
        weight = next(self.encoder.parameters())
        rgb = images.to(weight).expand(-1, 3, -1, -1)
        return self.encoder(self._padded(rgb))

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Encode images to feature maps, without gradients.

        The style of an image consists of the mean and the standard deviation of each channel of its feature map.

        Args:
            images: (B, 3, H, W) or (B, 1, H, W) in [0, 1], sides of at least `min_side` pixels. One channel is repeated
                to three. The images are padded by reflection at the bottom and on the right.

        Returns:
            (B, channels, h, w), float32. h is ceil(H / downsampling) if the encoder is a `VGGEncoder`, and larger by
            one if it is a `SmallEncoder`. w follows from W in the same way.

        Raises:
            ValueError: if the images are not floating point, have another number of channels, or sides below
                `min_side`.
        """
        return self.encoder_levels(images)[-1]

    @torch.no_grad()
    def decode(self, features: Tensor, size: Sequence[int], channels: int = 3) -> Tensor:
        """Decode a feature map to images, without gradients.

        Args:
            features: (B, C, h, w), as `encode` returns them, possibly changed to another style by `adain`.
            size: (H, W) of the images that were encoded. The padding that `encode` added is cut off.
            channels: number of channels of the returned images: 3 for RGB, 1 for grey (the mean of RGB).

        Returns:
            (B, channels, H, W), float32, clamped to [0, 1].
        """
        images = self.decoder(features)[..., : size[0], : size[1]].clamp(0, 1)
        return images.mean(dim=1, keepdim=True) if channels == 1 else images

    def style(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the style of each image: the mean and the standard deviation of each feature channel.

        Sites send such styles to each other in the method CCST, 4 bytes per number. A transform can draw from the B
        styles of the result: `RandAdaINStyle(codec, bank=[codec.style(images)])`.

        Args:
            images: (B, 3, H, W) or (B, 1, H, W) in [0, 1], sides of at least `min_side` pixels.

        Returns:
            mean (B, channels) and std (B, channels), float32.

        Raises:
            ValueError: if the images are not floating point, have another number of channels, or sides below
                `min_side`.
        """
        return channel_mean_std(self.encode(images))

    def stylise(self, images: Tensor, mean: Tensor, std: Tensor, alpha: float | Tensor = 1.0) -> Tensor:
        """Redraw images in another style.

        Args:
            images: (B, 3, H, W) or (B, 1, H, W) in [0, 1], sides of at least `min_side` pixels. Grey images stay grey.
            mean: the mean of each of the C feature channels in the new style, as `style` returns it: (C,), one style
                for all images, or (B, C), one style per image.
            std: the standard deviation of each feature channel in the new style, in the shape of `mean`.
            alpha: strength of the new style in [0, 1], one number for all images or (B,). At 0 the images are only
                encoded and decoded, which changes them slightly.

        Returns:
            Images in [0, 1], in the shape and dtype and on the device of `images`.

        Raises:
            ValueError: if the images, mean, std or alpha do not fit.
        """
        styled = adain(self.encode(images), mean, std, alpha)
        return self.decode(styled, images.shape[2:], images.shape[1]).to(images)

    def reconstruction_error(self, images: Tensor) -> dict[str, float]:
        """Measure how much encoding and decoding change images when the style stays the same.

        Args:
            images: (B, 3, H, W) or (B, 1, H, W) in [0, 1], sides of at least `min_side` pixels.

        Returns:
            A dict with `mean_absolute_error` and `rmse` (root mean square error) over all pixels, in [0, 1]: 0.01 is
            one percent of the intensity range.

        Raises:
            ValueError: if the images are not floating point, have another number of channels, or sides below
                `min_side`.
        """
        decoded = self.decode(self.encode(images), images.shape[2:], images.shape[1])
        difference = decoded.double() - images.to(decoded).double()
        return {"mean_absolute_error": float(difference.abs().mean()), "rmse": float(difference.square().mean().sqrt())}

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
            given = f"{images.dtype} {tuple(images.shape)}"
            raise ValueError(f"images must be floating point, (B, 1 or 3, H, W), got {given}")
        if min(images.shape[2:]) < self.min_side:
            raise ValueError(f"images must have sides of {self.min_side} pixels or more, got {tuple(images.shape)}")

    def _padded(self, images: Tensor) -> Tensor:
        """Pad images by reflection, at the bottom and right, to whole feature positions (at least 2) and the margin."""
        height, width = (self.downsampling * (self._cells(side) + self.encoder.margin) for side in images.shape[2:])
        return F.pad(images, (0, width - images.shape[3], 0, height - images.shape[2]), mode="reflect")

    def _cells(self, side: int) -> int:
        """Return the number of feature positions for an image side of `side` pixels, at least 2."""
        return max(2, -(-side // self.downsampling))


def build_codec(settings: Mapping[str, Any]) -> StyleCodec:
    """Build a style codec (an encoder and a decoder that redraw images in another style) with random weights.

    Args:
        settings: a dict. `architecture` is "small", "vgg19" or "vgg16". `channels` is for "small" only: the numbers of
            channels of the encoder's four feature maps, by default [16, 32, 96, 128].

    Returns:
        The codec, frozen and in evaluation mode.

    Raises:
        ValueError: if `architecture` is missing or another word.
    """
    architecture = settings.get("architecture")
    if architecture == "small":
        channels = tuple(int(width) for width in settings.get("channels", CHANNELS))
        return StyleCodec(SmallEncoder(channels), SmallDecoder(channels))
    if architecture not in BLOCK_SIZES:
        raise ValueError(f"architecture must be small, vgg19 or vgg16, got {architecture!r}")
    return StyleCodec(VGGEncoder(architecture), Decoder(architecture))


def serialise_codec(codec: StyleCodec, settings: Mapping[str, Any]) -> bytes:
    """Return a codec as the bytes of a safetensors file, which `load_codec` can read. Equal codecs give equal bytes.

    Args:
        codec: the codec to save.
        settings: the settings with which `build_codec` built the codec; the file's header contains them.

    Returns:
        The content of the file.
    """
    entries = {name: entry.detach().cpu().contiguous() for name, entry in codec.state_dict().items()}
    return safetensors.torch.save(entries, metadata={HEADER_KEY: json.dumps(settings, sort_keys=True)})


def convert_codec(encoder_file: Path, decoder_file: Path, folder: Path) -> Path:
    """Write published weights of a VGG encoder and its decoder as a codec file; return its path in the folder."""
    encoder = load_encoder(encoder_file)
    codec = StyleCodec(encoder, load_decoder(decoder_file, encoder.architecture))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CODEC_FILE_NAME
    write_atomically(path, serialise_codec(codec, {"architecture": encoder.architecture}))
    return path


def codec_path(name_or_path: str | Path) -> Path:
    """Return the path of the file that contains a style codec. Whether the file exists is not checked.

    Args:
        name_or_path: "small" for the codec that is part of medfed, or the path of a codec's file, or the path of a
            folder that contains the file `codec.safetensors`.

    Returns:
        The path of the file.
    """
    path = SMALL_CODEC_FILE if str(name_or_path) == "small" else Path(name_or_path)
    return path / CODEC_FILE_NAME if path.is_dir() else path


def load_codec(name_or_path: str | Path = "small") -> StyleCodec:
    """Load a style codec: an encoder and a decoder that redraw images in another style.

    Args:
        name_or_path: "small" for the codec that is part of medfed (a wavelet transform and its inverse), or the path of
            a file or folder that `python -m medfed.codec` wrote.

    Returns:
        The codec, frozen, in evaluation mode, on the CPU.

    Raises:
        UserError: if there is no such file, it is damaged, or it is not a codec of medfed.
    """
    path = codec_path(name_or_path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(HEADER_KEY)
            entries = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file has keys() but is not iterable)
        settings = json.loads(header or "null")
        codec = build_codec(settings or {})
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"{path}: no codec found; expected 'small', or what medfed.codec wrote") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: the codec's file is damaged ({error}); copy it again") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is not a codec of medfed ({error}); write one with medfed.codec") from None
    load_renamed_weights(codec, entries, {name: name for name in codec.state_dict()}, path)
    if name := first_non_finite(entries):
        raise UserError(f"{path}: contains NaN or infinite values, first in the entry '{name}'; copy the file again")
    return codec
