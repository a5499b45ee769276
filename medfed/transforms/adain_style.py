"""MONAI transforms: the style of other images, by a codec (AdaIN, CCST) or in the intensities themselves.

MONAI has no such transforms. The mathematics is `medfed.functional.style`, the codec `medfed.networks.adain`. A style
is a mean and a deviation a channel, never an image. As MONAI's other intensity transforms, these are not lazy and not
invertible; metadata and affine stay. Images are 2-D, (C, H, W), in [0, 1], so they come before z-scoring.

`AdaINStyle` redraws an image, and what is smaller than the codec's downsampling may move; `MomentMatch` cannot move an
edge.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from monai.config import KeysCollection, NdarrayOrTensor
from monai.data.meta_obj import get_track_meta
from monai.transforms import Transform
from monai.utils import convert_to_dst_type, convert_to_tensor
from monai.utils.enums import TransformBackends
from torch import Tensor

from medfed.functional import style
from medfed.networks.adain import StyleCodec
from medfed.transforms.from_bank import RandFromBank, RandFromBankd

Bank = Sequence[tuple[NdarrayOrTensor, NdarrayOrTensor]]  # of (mean, std), each (C,)


class AdaINStyle(Transform):
    """Redraw an image in a given style.

    Args:
        codec: from `networks.adain.load_codec`; it works where it is, and the result goes back to the image's device.
        mean, std: (codec.channels,), as `StyleCodec.style` or `functional.style.Moments` give them.
        alpha: strength in [0, 1]. 0 still encodes and decodes.

    Raises:
        ValueError: if mean or std has another shape, or alpha is out of range; when called, if the image is not
            (1 or 3, H, W) or too small for the codec.
    """

    backend = [TransformBackends.TORCH]

    def __init__(self, codec: StyleCodec, mean: NdarrayOrTensor, std: NdarrayOrTensor, alpha: float = 1.0) -> None:
        _check_alphas((alpha, alpha))
        self.codec = codec
        self.mean, self.std = _bank([(mean, std)], codec.channels)[0]
        self.alpha = alpha

    def __call__(self, img: NdarrayOrTensor) -> NdarrayOrTensor:
        """img: (C, H, W) in [0, 1]; integers are computed and returned as float32."""
        return _apply(img, lambda batch: self.codec.stylise(batch, self.mean, self.std, self.alpha))


class MomentMatch(Transform):
    """Give every channel of an image another mean and deviation of intensity, clamped to [0, 1].

    Args:
        mean, std: (C,), of intensities in [0, 1], as `functional.style.statistics` or `Moments` give them.
        alpha: strength in [0, 1]. 0 returns the image, clamped.

    Raises:
        ValueError: if mean and std differ in shape, or alpha is out of range; when called, if they do not fit the
            image.
    """

    backend = AdaINStyle.backend

    def __init__(self, mean: NdarrayOrTensor, std: NdarrayOrTensor, alpha: float = 1.0) -> None:
        _check_alphas((alpha, alpha))
        self.mean, self.std = _bank([(mean, std)])[0]
        self.alpha = alpha

    def __call__(self, img: NdarrayOrTensor) -> NdarrayOrTensor:
        """img: (C, H, W) in [0, 1]; integers are computed and returned as float32."""
        return _apply(img, lambda batch: style.moment_match(batch, self.mean, self.std, self.alpha))


class _RandStyle(RandFromBank):
    """A bank of styles, of which one is taken at some strength."""

    backend = AdaINStyle.backend

    def __init__(self, bank: Bank, prob: float, alpha: float | tuple[float, float], channels: int | None) -> None:
        lowest, highest = (float(alpha), float(alpha)) if isinstance(alpha, (int, float)) else alpha
        _check_alphas((lowest, highest))
        super().__init__(_bank(bank, channels), prob, (lowest, highest))


class RandAdaINStyle(_RandStyle):
    """Randomly redraw an image in a style that is drawn from a bank.

    Args:
        codec: as in `AdaINStyle`.
        bank: one or more (mean, std), each (codec.channels,).
        prob: probability of applying the transform.
        alpha: strength in [0, 1], or (lowest, highest), drawn uniformly.

    Raises:
        ValueError: if the bank is empty or does not fit, or alpha is out of range.
    """

    def __init__(
        self, codec: StyleCodec, bank: Bank, prob: float = 0.1, alpha: float | tuple[float, float] = 1.0
    ) -> None:
        super().__init__(bank, prob, alpha, codec.channels)
        self.codec = codec

    def transform(self, entry: tuple[Tensor, Tensor], amount: float) -> AdaINStyle:
        return AdaINStyle(self.codec, *entry, amount)


class RandMomentMatch(_RandStyle):
    """Randomly give an image the mean and deviation of a style of a bank; arguments as in `RandAdaINStyle`."""

    def __init__(self, bank: Bank, prob: float = 0.1, alpha: float | tuple[float, float] = 1.0) -> None:
        super().__init__(bank, prob, alpha, None)

    def transform(self, entry: tuple[Tensor, Tensor], amount: float) -> MomentMatch:
        return MomentMatch(*entry, amount)


class RandAdaINStyled(RandFromBankd):
    """Dictionary-based version of `RandAdaINStyle`; all keys share one draw.

    Args:
        keys: keys of the images; a missing one is an error unless allow_missing_keys.
        codec, bank, prob, alpha: as in `RandAdaINStyle`.
    """

    def __init__(
        self,
        keys: KeysCollection,
        codec: StyleCodec,
        bank: Bank,
        prob: float = 0.1,
        alpha: float | tuple[float, float] = 1.0,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, RandAdaINStyle(codec, bank, 1.0, alpha), prob, allow_missing_keys)


class RandMomentMatchd(RandFromBankd):
    """Dictionary-based version of `RandMomentMatch`; all keys share one draw. Arguments as in `RandAdaINStyled`."""

    def __init__(
        self,
        keys: KeysCollection,
        bank: Bank,
        prob: float = 0.1,
        alpha: float | tuple[float, float] = 1.0,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, RandMomentMatch(bank, 1.0, alpha), prob, allow_missing_keys)


RandAdaINStyleD = RandAdaINStyleDict = RandAdaINStyled
RandMomentMatchD = RandMomentMatchDict = RandMomentMatchd


def _apply(img: NdarrayOrTensor, restyle: Callable[[Tensor], Tensor]) -> NdarrayOrTensor:
    img = convert_to_tensor(img, track_meta=get_track_meta())
    plain = convert_to_tensor(img, track_meta=False)
    plain = plain if plain.is_floating_point() else plain.float()
    if plain.numel() and not (plain.min() >= 0 and plain.max() <= 1):
        warnings.warn(
            f"the image has intensities from {plain.min():g} to {plain.max():g}, and the result is in [0, 1]; scale "
            "images to [0, 1] before this transform, and z-score after it.",
            stacklevel=3,
        )
    out = restyle(plain[None])[0]
    return convert_to_dst_type(out, dst=img, dtype=out.dtype)[0]


def _bank(styles: Bank, channels: int | None = None) -> list[tuple[Tensor, Tensor]]:
    each = [tuple(convert_to_tensor(part, track_meta=False) for part in one) for one in styles]
    shapes = {tuple(part.shape) for one in each for part in one}
    if len(shapes) != 1 or any(len(one) != 2 for one in each) or len(next(iter(shapes))) != 1:
        raise ValueError(f"a bank is one or more (mean, std), each (C,), got shapes {sorted(shapes)}")
    if channels is not None and shapes != {(channels,)}:
        raise ValueError(f"mean and std must be ({channels},), as the codec has channels, got {sorted(shapes)}")
    return each


def _check_alphas(alphas: Sequence[float]) -> None:
    if len(alphas) != 2 or not 0 <= alphas[0] <= alphas[1] <= 1:
        raise ValueError(f"alpha must be in [0, 1], lowest first, got {alphas}")
