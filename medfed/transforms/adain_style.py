"""MONAI transforms that change the style of an image: with a codec (AdaIN, as in CCST), or in its intensities.

A style is a mean and a standard deviation per channel; it never is an image. Images are 2-D, (C, H, W), in [0, 1]. Like
MONAI's other intensity transforms they are neither lazy nor invertible, and they keep metadata and affine.

AdaIN: X. Huang, S. Belongie, "Arbitrary Style Transfer in Real-time with Adaptive Instance Normalization", ICCV 2017,
https://arxiv.org/abs/1703.06868. CCST: J. Chen, M. Jiang, Q. Dou, Q. Chen, "Federated Domain Generalization for Image
Recognition via Cross-Client Style Transfer", WACV 2023, https://arxiv.org/abs/2210.00912.
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
from medfed.networks.parts.adain import StyleCodec
from medfed.transforms.from_bank import RandFromBank, RandFromBankd

Style = tuple[NdarrayOrTensor, NdarrayOrTensor]  # (mean, std), both (C,) for one style or (N, C) for N styles


class AdaINStyle(Transform):
    """Redraw an image in a given style with a codec (adaptive instance normalisation).

    Details smaller than the codec's downsampling may move. The image is (1 or 3, H, W) in [0, 1], and so is the result.

    Args:
        codec: from `medfed.networks.load_codec`. It computes on its own device; the result has the image's device.
        mean: (codec.channels,) or (1, codec.channels), mean of each feature channel, as `codec.style` returns it.
        std: standard deviation of each feature channel, in the shape of `mean`.
        alpha: strength in [0, 1]. 0 only encodes and decodes the image.

    Raises:
        ValueError: if mean or std has another shape, or alpha is out of range; when called, if the image is not (1 or
            3, H, W) or too small for the codec.

    >>> import torch
    >>> from medfed.networks import load_codec
    >>> codec = load_codec("small")
    >>> redraw = AdaINStyle(codec, *codec.style(torch.rand(1, 1, 64, 64)), alpha=0.8)
    >>> redraw(torch.rand(1, 48, 48)).shape
    torch.Size([1, 48, 48])
    """

    backend = [TransformBackends.TORCH]

    def __init__(self, codec: StyleCodec, mean: NdarrayOrTensor, std: NdarrayOrTensor, alpha: float = 1.0) -> None:
        _check_alphas((alpha, alpha))
        self.codec = codec
        self.mean, self.std = _single_style(mean, std, codec.channels)
        self.alpha = alpha

    def __call__(self, img: NdarrayOrTensor) -> NdarrayOrTensor:
        return _apply(img, lambda batch: self.codec.stylise(batch, self.mean, self.std, self.alpha))


class MomentMatch(Transform):
    """Give each channel of an image (C, H, W) a new mean and standard deviation of intensity, clamped to [0, 1].

    No edge moves. Integer images become float32.

    Args:
        mean: (C,) or (1, C), mean intensities in [0, 1], as `medfed.functional.style.channel_mean_std` returns them.
        std: standard deviations, in the shape of `mean`.
        alpha: strength in [0, 1]. 0 returns the image, clamped.

    Raises:
        ValueError: if mean and std differ in shape, or alpha is out of range; when called, if they do not fit the
            image.
    """

    backend = AdaINStyle.backend

    def __init__(self, mean: NdarrayOrTensor, std: NdarrayOrTensor, alpha: float = 1.0) -> None:
        _check_alphas((alpha, alpha))
        self.mean, self.std = _single_style(mean, std)
        self.alpha = alpha

    def __call__(self, img: NdarrayOrTensor) -> NdarrayOrTensor:
        return _apply(img, lambda batch: style.moment_match(batch, self.mean, self.std, self.alpha))


class _RandStyle(RandFromBank):
    """Draw one style of a bank, and how strongly to apply it."""

    backend = AdaINStyle.backend

    def __init__(
        self, bank: Sequence[Style], prob: float, alpha: float | tuple[float, float], channels: int | None
    ) -> None:
        lowest, highest = (float(alpha), float(alpha)) if isinstance(alpha, (int, float)) else alpha
        _check_alphas((lowest, highest))
        super().__init__(_styles(bank, channels), prob, (lowest, highest))


class RandAdaINStyle(_RandStyle):
    """Randomly redraw an image in a style that is drawn from a bank, a list of styles of other images.

    Args:
        codec: from `medfed.networks.load_codec`, as in `AdaINStyle`.
        bank: one or more entries (mean, std). Both are (codec.channels,) for one style, or (N, codec.channels) for N
            styles, as `codec.style(images)` returns them. Every style is drawn with the same probability.
        prob: probability of applying the transform.
        alpha: strength in [0, 1], or (lowest, highest), drawn uniformly.

    Raises:
        ValueError: if the bank is empty or does not fit the codec, or alpha is out of range.
    """

    def __init__(
        self, codec: StyleCodec, bank: Sequence[Style], prob: float = 0.1, alpha: float | tuple[float, float] = 1.0
    ) -> None:
        super().__init__(bank, prob, alpha, codec.channels)
        self.codec = codec

    def transform(self, entry: tuple[Tensor, Tensor], amount: float) -> AdaINStyle:
        """The transform to one style, (mean, std), with strength `amount`."""
        return AdaINStyle(self.codec, *entry, amount)


class RandMomentMatch(_RandStyle):
    """Randomly give an image the mean and standard deviation of intensity of a style that is drawn from a bank.

    Args:
        bank: one or more entries (mean, std), both (C,) for one style or (N, C) for N styles.
        prob: probability of applying the transform.
        alpha: strength in [0, 1], or (lowest, highest), drawn uniformly.

    Raises:
        ValueError: if the bank is empty, if its styles differ in the number of channels, or if alpha is out of range.
    """

    def __init__(self, bank: Sequence[Style], prob: float = 0.1, alpha: float | tuple[float, float] = 1.0) -> None:
        super().__init__(bank, prob, alpha, None)

    def transform(self, entry: tuple[Tensor, Tensor], amount: float) -> MomentMatch:
        """The transform to one style, (mean, std), with strength `amount`."""
        return MomentMatch(*entry, amount)


class RandAdaINStyled(RandFromBankd):
    """Version of `RandAdaINStyle` for a dictionary of images. All images get the same style and strength.

    >>> import torch
    >>> from monai.transforms import Compose, NormalizeIntensityd
    >>> from medfed.networks import load_codec
    >>> codec = load_codec("small")
    >>> bank = [codec.style(torch.rand(4, 1, 64, 64))]  # the styles of four images of another site
    >>> augment = Compose([RandAdaINStyled("image", codec, bank, prob=1.0), NormalizeIntensityd("image")])
    >>> augment({"image": torch.rand(1, 64, 64), "label": 1})["image"].shape
    torch.Size([1, 64, 64])
    """

    def __init__(
        self,
        keys: KeysCollection,
        codec: StyleCodec,
        bank: Sequence[Style],
        prob: float = 0.1,
        alpha: float | tuple[float, float] = 1.0,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, RandAdaINStyle(codec, bank, 1.0, alpha), prob, allow_missing_keys)


class RandMomentMatchd(RandFromBankd):
    """Version of `RandMomentMatch` for a dictionary of images. All images get the same style and strength."""

    def __init__(
        self,
        keys: KeysCollection,
        bank: Sequence[Style],
        prob: float = 0.1,
        alpha: float | tuple[float, float] = 1.0,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, RandMomentMatch(bank, 1.0, alpha), prob, allow_missing_keys)


def _apply(img: NdarrayOrTensor, restyle: Callable[[Tensor], Tensor]) -> NdarrayOrTensor:
    """Apply a function of batches (1, C, H, W) to an image (C, H, W); keep its type and metadata."""
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


def _styles(bank: Sequence[Style], channels: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Return the styles of a bank one by one, each (mean, std) of shape (C,); None accepts any C, the same for all."""
    entries = [tuple(convert_to_tensor(part, track_meta=False) for part in entry) for entry in bank]
    shapes = sorted({tuple(part.shape) for entry in entries for part in entry})
    if not entries or any(
        len(entry) != 2 or entry[0].shape != entry[1].shape or entry[0].ndim not in (1, 2) for entry in entries
    ):
        raise ValueError(f"a bank holds one or more (mean, std), both (C,) or both (N, C), got shapes {shapes}")
    rows = ((part.reshape(-1, part.shape[-1]) for part in entry) for entry in entries)
    styles = [pair for means, stds in rows for pair in zip(means, stds)]
    n_channels = {len(mean) for mean, _ in styles}
    if channels is not None and n_channels != {channels}:
        raise ValueError(f"mean and std must have {channels} channels, as the codec has, got shapes {shapes}")
    if len(n_channels) != 1:
        raise ValueError(f"all styles of a bank must have the same number of channels, got shapes {shapes}")
    return styles


def _single_style(mean: NdarrayOrTensor, std: NdarrayOrTensor, channels: int | None = None) -> tuple[Tensor, Tensor]:
    """The mean and std of one style as tensors (C,); ValueError for several styles or other channels."""
    styles = _styles([(mean, std)], channels)
    if len(styles) != 1:
        raise ValueError(f"mean and std must be of one style, (C,) or (1, C), got {len(styles)} styles")
    return styles[0]


def _check_alphas(alphas: Sequence[float]) -> None:
    if len(alphas) != 2 or not 0 <= alphas[0] <= alphas[1] <= 1:
        raise ValueError(f"alpha must be a number in [0, 1], or a pair (lowest, highest) of such numbers, got {alphas}")
