"""The style codec of AdaIN: an encoder, a decoder, and images redrawn in another style (Huang & Belongie, ICCV 2017).

    features = E(image),    image' = D(adain(features, mean, std, alpha))

Encode once, decode as often as there are styles. `StyleCodec.reconstruction_error` tells what the codec costs when no
style is changed: no result on small structures can be better than that.
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
from medfed.functional.style import adain, channel_mean_std
from medfed.functional.weights import first_non_finite
from medfed.networks.small_codec import CHANNELS, SmallDecoder, SmallEncoder
from medfed.networks.vgg import BLOCK_SIZES, Decoder, VGGEncoder, load_renamed_weights

SMALL_CODEC_FILE = Path(__file__).with_name("codec_small.safetensors")
CODEC_FILE_NAME = "codec.safetensors"
HEADER_KEY = "medfed_codec"


class StyleCodec(nn.Module):
    """A frozen encoder and decoder of style.

    Args:
        encoder: images (B, 3, H, W) to four maps; has `channels`, `downsampling` and `margin`.
        decoder: the last map to RGB.
        facts: what is known of its training, for people and result files.
    """

    encoder: SmallEncoder | VGGEncoder
    decoder: SmallDecoder | Decoder

    def __init__(
        self, encoder: SmallEncoder | VGGEncoder, decoder: SmallDecoder | Decoder,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.facts = dict(facts or {})
        self.eval().requires_grad_(False)

    @property
    def channels(self) -> int:
        """Channels of the features that carry the style: it is twice as many numbers."""
        return self.encoder.channels[-1]

    @property
    def downsampling(self) -> int:
        """Pixels along a side of what one feature stands for."""
        return self.encoder.downsampling

    @property
    def min_side(self) -> int:
        """Pixels; reflection needs this many."""
        return (1 + self.encoder.margin) * self.downsampling + 1

    def train(self, mode: bool = True) -> StyleCodec:
        """Stays as it is: a frozen codec is never in training mode, whoever holds it."""
        return super().train(False)

    def encoder_levels(self, images: Tensor) -> list[Tensor]:
        """The four maps of the encoder, with gradients where the images have them; arguments as `encode`."""
        self._check(images)
        weight = next(self.encoder.parameters())
        rgb = images.to(weight).expand(-1, 3, -1, -1)
        return self.encoder(self._padded(rgb))

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """The features that carry the style.

        Args:
            images: (B, 3, H, W), or (B, 1, H, W), which is repeated; in [0, 1], any size from `min_side`.

        Returns:
            (B, channels, ceil(H / downsampling), ceil(W / downsampling)), float32, and one more of each for the small
            codec; what is missing of the image is reflected on.

        Raises:
            ValueError: for another number of channels, or sides below `min_side`.
        """
        return self.encoder_levels(images)[-1]

    @torch.no_grad()
    def decode(self, features: Tensor, size: Sequence[int], channels: int = 3) -> Tensor:
        """Features to images (B, channels, *size), clamped to [0, 1].

        Args:
            features: as `encode` gives them, or styled by `functional.style.adain`.
            size: H and W of the images that were encoded; what was padded is cut off.
            channels: 3, or 1 for the mean of RGB.
        """
        images = self.decoder(features)[..., : size[0], : size[1]].clamp(0, 1)
        return images.mean(dim=1, keepdim=True) if channels == 1 else images

    def style(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the features of each image, each (B, channels); what CCST shares, 4 bytes a number."""
        return channel_mean_std(self.encode(images))

    def stylise(self, images: Tensor, mean: Tensor, std: Tensor, alpha: float | Tensor = 1.0) -> Tensor:
        """Images redrawn in another style.

        Args:
            images: as in `encode`; grey stays grey.
            mean, std: (channels,) or (B, channels), of `style`, or of `functional.style.Moments` over `encode`.
            alpha: strength in [0, 1], a number or (B,). 0 only encodes and decodes, which is not the identity.

        Returns:
            The shape, type and device of `images`, in [0, 1].
        """
        styled = adain(self.encode(images), mean, std, alpha)
        return self.decode(styled, images.shape[2:], images.shape[1]).to(images)

    def reconstruction_error(self, images: Tensor) -> dict[str, float]:
        """Mean absolute and root mean square error of decoding what was encoded (alpha = 0), in intensity units."""
        again = self.decode(self.encode(images), images.shape[2:], images.shape[1])
        difference = again.double() - images.to(again).double()
        return {"mean_absolute_error": float(difference.abs().mean()), "rmse": float(difference.square().mean().sqrt())}

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
            found = f"{images.dtype} {tuple(images.shape)}"
            raise ValueError(f"images must be floating point, (B, 1 or 3, H, W), got {found}")
        if min(images.shape[2:]) < self.min_side:
            least = self.min_side
            raise ValueError(f"images must have sides of {least} pixels or more, got {tuple(images.shape)}")

    def _padded(self, images: Tensor) -> Tensor:
        """Reflected on, below and on the right, to whole cells of the downsampling, two or more, and the margin."""
        height, width = (self.downsampling * (self._cells(side) + self.encoder.margin) for side in images.shape[2:])
        return F.pad(images, (0, width - images.shape[3], 0, height - images.shape[2]), mode="reflect")

    def _cells(self, side: int) -> int:
        return max(2, -(-side // self.downsampling))


def build_codec(settings: Mapping[str, Any]) -> StyleCodec:
    """An untrained codec.

    Args:
        settings: {"architecture": "small", "channels": [16, 32, 96, 128]}, or "vgg19" or "vgg16".

    Raises:
        ValueError: for another architecture.
    """
    architecture = settings.get("architecture")
    if architecture == "small":
        channels = tuple(int(width) for width in settings.get("channels", CHANNELS))
        return StyleCodec(SmallEncoder(channels), SmallDecoder(channels))
    if architecture not in BLOCK_SIZES:
        raise ValueError(f"architecture must be small, vgg19 or vgg16, got {architecture!r}")
    return StyleCodec(VGGEncoder(architecture), Decoder(architecture))


def serialise_codec(codec: StyleCodec, settings: Mapping[str, Any]) -> bytes:
    """As safetensors, with the settings and facts in the header; the same codec is the same bytes."""
    entries = {name: entry.detach().cpu().contiguous() for name, entry in codec.state_dict().items()}
    header = json.dumps({**settings, "facts": codec.facts}, sort_keys=True)
    return safetensors.torch.save(entries, metadata={HEADER_KEY: header})


def codec_path(name_or_path: str | Path) -> Path:
    """Where the codec of this name, file or folder lies."""
    path = SMALL_CODEC_FILE if str(name_or_path) == "small" else Path(name_or_path)
    return path / CODEC_FILE_NAME if path.is_dir() else path


def load_codec(name_or_path: str | Path = "small") -> StyleCodec:
    """A trained codec.

    Args:
        name_or_path: "small" for the one that comes with medfed (made from synthetic images only), or the file or
            folder that `python -m medfed.codec train` wrote.

    Raises:
        UserError: if there is no such codec, or its file is damaged or of another kind.
    """
    path = codec_path(name_or_path)
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(HEADER_KEY)
            entries = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it cannot be iterated
        settings = json.loads(header or "null")
        codec = build_codec(settings or {})
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"{path}: there is no codec here; expected 'small', or what medfed.codec train wrote") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{path}: is no whole codec ({error}); copy it again, or train one with medfed.codec") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is no codec of medfed ({error}); train one with medfed.codec train") from None
    load_renamed_weights(codec, entries, {name: name for name in codec.state_dict()}, path)
    if name := first_non_finite(entries):
        raise UserError(f"{path}: is not finite (first in '{name}'); copy it again, or train another with medfed.codec")
    codec.facts = settings.get("facts", {})
    return codec
