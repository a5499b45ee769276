"""The style codec of AdaIN: an encoder and a decoder that redraw images in another style.

    features = E(image),    image' = D(adain(features, mean, std, alpha))

See Huang & Belongie, "Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization", ICCV 2017,
https://arxiv.org/abs/1703.06868. To redraw an image in many styles, encode it once and decode it once per style.
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
from medfed.networks.parts.pretrained import check_plain_tensors, load_entries
from medfed.networks.parts.small_codec import CHANNELS, SmallDecoder, SmallEncoder
from medfed.networks.parts.vgg import Decoder, VGGEncoder, load_published

SMALL_CODEC_FILE = Path(__file__).with_name("codec_small.safetensors")
CODEC_FILE_NAME = "codec.safetensors"
HEADER_KEY = "medfed_codec"


class StyleCodec(nn.Module):
    """A frozen encoder and decoder that redraw images in a given style.

    The style of an image is the mean and standard deviation of each of its `channels` feature channels. Images are (B,
    3, H, W) or (B, 1, H, W) in [0, 1] (one channel is repeated to three), with sides of at least `min_side` pixels;
    others are a ValueError.

    Args:
        encoder: from images (B, 3, H, W) to a feature map, which carries the style; it has the attributes `channels`,
            `downsampling` and `margin`.
        decoder: from the feature map to RGB images.

    Example:
        >>> import torch
        >>> codec = load_codec("small")
        >>> images, others = torch.rand(2, 1, 64, 64), torch.rand(5, 3, 48, 48)
        >>> features = codec.encode(images)
        >>> codec.decode(features, size=(64, 64), channels=1).shape
        torch.Size([2, 1, 64, 64])
    """

    def __init__(self, encoder: SmallEncoder | VGGEncoder, decoder: SmallDecoder | Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.eval().requires_grad_(False)

    @property
    def channels(self) -> int:
        """Number of feature channels that `encode` returns. A style has twice as many numbers."""
        return self.encoder.channels[-1]

    @property
    def min_side(self) -> int:
        """Smallest height and width in pixels of an image that the codec can process, for example 9."""
        return (1 + self.encoder.margin) * self.encoder.downsampling + 1

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Encode images to feature maps (B, channels, h, w), float32, without gradients.

        h is ceil(H / downsampling) if the encoder is a `VGGEncoder`, and larger by one if it is a `SmallEncoder`; w
        follows from W in the same way, because the images are padded by reflection.
        """
        if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
            given = f"{images.dtype} {tuple(images.shape)}"
            raise ValueError(f"images must be floating point, (B, 1 or 3, H, W), got {given}")
        if min(images.shape[2:]) < self.min_side:
            raise ValueError(f"images must have sides of {self.min_side} pixels or more, got {tuple(images.shape)}")
        rgb = images.to(next(self.encoder.parameters())).expand(-1, 3, -1, -1)
        return self.encoder(self._padded(rgb))

    @torch.no_grad()
    def decode(self, features: Tensor, size: Sequence[int], channels: int = 3) -> Tensor:
        """Decode a feature map to images (B, channels, H, W), float32 in [0, 1], without gradients.

        Args:
            features: (B, C, h, w), as `encode` returns them, possibly changed to another style by `adain`.
            size: (H, W) of the images that were encoded. The padding that `encode` added is cut off.
            channels: 3 for RGB, 1 for grey (the mean of RGB).
        """
        images = self.decoder(features)[..., : size[0], : size[1]].clamp(0, 1)
        return images.mean(dim=1, keepdim=True) if channels == 1 else images

    def style(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the style of each image: mean and standard deviation of the channels, each (B, channels) float32.

        Sites send such styles to each other in the method CCST, 4 bytes per number.
        """
        return channel_mean_std(self.encode(images))

    def stylise(self, images: Tensor, mean: Tensor, std: Tensor, alpha: float | Tensor = 1.0) -> Tensor:
        """Redraw images in another style.

        Args:
            images: (B, 3, H, W) or (B, 1, H, W) in [0, 1]. Grey images stay grey.
            mean: the mean of each feature channel in the new style: (channels,) for all images, or (B, channels).
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

    def _padded(self, images: Tensor) -> Tensor:
        """Pad images by reflection, at the bottom and right, to whole feature positions (at least 2) and the margin."""
        cells = (max(2, -(-side // self.encoder.downsampling)) for side in images.shape[2:])
        height, width = (self.encoder.downsampling * (n_cells + self.encoder.margin) for n_cells in cells)
        return F.pad(images, (0, width - images.shape[3], 0, height - images.shape[2]), mode="reflect")


def build_codec(settings: Mapping[str, Any]) -> StyleCodec:
    """Build a frozen style codec with random weights from `architecture`, and for "small" the encoder's `channels`."""
    architecture = settings.get("architecture")
    if architecture == "small":
        channels = tuple(int(width) for width in settings.get("channels", CHANNELS))
        return StyleCodec(SmallEncoder(channels), SmallDecoder(channels))
    if architecture != "vgg19":
        raise ValueError(f"architecture must be small or vgg19, got {architecture!r}")
    return StyleCodec(VGGEncoder(), Decoder())


def serialise_codec(codec: StyleCodec, settings: Mapping[str, Any]) -> bytes:
    """Return the bytes of a safetensors file for `load_codec`, whose header has the `settings` of `build_codec`."""
    entries = {name: entry.detach().cpu().contiguous() for name, entry in codec.state_dict().items()}
    return safetensors.torch.save(entries, metadata={HEADER_KEY: json.dumps(settings, sort_keys=True)})


def convert_codec(encoder_file: Path, decoder_file: Path, folder: Path) -> Path:
    """Write published weights of the VGG encoder and its decoder as a codec file; return its path in the folder."""
    encoder, decoder = VGGEncoder(), Decoder()
    load_published(encoder, encoder_file)
    load_published(decoder, decoder_file)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CODEC_FILE_NAME
    write_atomically(path, serialise_codec(StyleCodec(encoder, decoder), {"architecture": "vgg19"}))
    return path


def codec_path(name_or_path: str | Path) -> Path:
    """Return the file of medfed's own codec ("small"), of a codec's path, or of a folder with `codec.safetensors`."""
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
    check_plain_tensors(entries, path)
    load_entries(codec, entries, str(path))
    return codec
