"""MONAI transforms: the low-frequency amplitude of other images (ELCFS, CVPR 2021; as in FDA, CVPR 2020).

MONAI has no such transform. The mathematics is `medfed.functional.fourier`. The donors are a bank of small windows,
cut by `fourier.low_frequency_window`, not images or files. As MONAI's other intensity transforms, these are not lazy
and not invertible; metadata and affine stay. Images must be non-negative: mix before z-scoring.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from monai.config import KeysCollection, NdarrayOrTensor
from monai.data.meta_obj import get_track_meta
from monai.transforms import Transform
from monai.utils import convert_to_dst_type, convert_to_tensor
from monai.utils.enums import TransformBackends
from torch import Tensor

from medfed.functional import fourier
from medfed.transforms.from_bank import RandFromBank, RandFromBankd


class AmplitudeMix(Transform):
    """Move the low-frequency amplitude of an image towards a given one; the phase stays.

    Args:
        window: (C, S, S[, S]), the other image's amplitudes, as `fourier.low_frequency_window` cuts them.
        ratio: in [0, 1]. 0 returns the image; 1 takes the other's amplitude whole.
        alpha: half side of the window, a share of the image's shortest side, in [0, 0.5).
        clip: (lowest, highest) intensity of the result; None leaves it.

    Raises:
        ValueError: if ratio, alpha or clip is out of range; when called, if the window does not fit the image.
    """

    backend = [TransformBackends.TORCH]

    def __init__(
        self, window: NdarrayOrTensor, ratio: float, alpha: float = 0.01, clip: tuple[float, float] | None = None
    ) -> None:
        _check_ratios((ratio, ratio))
        _check_alpha_and_clip(alpha, clip)
        self.window = convert_to_tensor(window, track_meta=False)
        self.ratio = ratio
        self.alpha = alpha
        self.clip = clip

    def __call__(self, img: NdarrayOrTensor) -> NdarrayOrTensor:
        """img: (C, H, W[, D]), non-negative; integers are computed and returned as float32."""
        img = convert_to_tensor(img, track_meta=get_track_meta())
        out = _mix(convert_to_tensor(img, track_meta=False), self.window, self.ratio, self.alpha, self.clip)
        return convert_to_dst_type(out, dst=img, dtype=out.dtype)[0]


class RandAmplitudeMix(RandFromBank):
    """Randomly move the low-frequency amplitude of an image towards one that is drawn from a bank; the phase stays.

    Args:
        windows: the bank, (N, C, S, S[, S]) or N of (C, S, S[, S]), as `fourier.low_frequency_window` cuts it.
        prob: probability of applying the transform.
        alpha: half side of the window, a share of the image's shortest side, in [0, 0.5).
        ratio_range: (lowest, highest) ratio within [0, 1], drawn uniformly; x means (0, x). The paper: (0, 1).
        clip: (lowest, highest) intensity of the result; None leaves it.

    Raises:
        ValueError: if the bank is empty or uneven, or ratio_range, alpha or clip is out of range; when called, if the
            windows do not fit the image.
    """

    backend = AmplitudeMix.backend

    def __init__(
        self,
        windows: NdarrayOrTensor | Sequence[NdarrayOrTensor],
        prob: float = 0.1,
        alpha: float = 0.01,
        ratio_range: float | tuple[float, float] = (0.0, 1.0),
        clip: tuple[float, float] | None = None,
    ) -> None:
        lowest, highest = (0.0, ratio_range) if isinstance(ratio_range, (int, float)) else ratio_range
        _check_ratios((lowest, highest))
        _check_alpha_and_clip(alpha, clip)
        super().__init__(_stack_windows(windows), prob, (lowest, highest))
        self.alpha = alpha
        self.clip = clip

    def transform(self, entry: Tensor, amount: float) -> AmplitudeMix:
        return AmplitudeMix(entry, amount, self.alpha, self.clip)


class RandAmplitudeMixd(RandFromBankd):
    """Dictionary-based version of `RandAmplitudeMix`; all keys share one draw.

    Args:
        keys: keys of the images; a missing one is an error unless allow_missing_keys.
        windows, prob, alpha, ratio_range, clip: as in `RandAmplitudeMix`.
    """

    backend = RandAmplitudeMix.backend

    def __init__(
        self,
        keys: KeysCollection,
        windows: NdarrayOrTensor | Sequence[NdarrayOrTensor],
        prob: float = 0.1,
        alpha: float = 0.01,
        ratio_range: float | tuple[float, float] = (0.0, 1.0),
        clip: tuple[float, float] | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        drawn = RandAmplitudeMix(windows, 1.0, alpha, ratio_range, clip)
        super().__init__(keys, drawn, prob, allow_missing_keys)


RandAmplitudeMixD = RandAmplitudeMixDict = RandAmplitudeMixd


def _mix(img: Tensor, window: Tensor, ratio: float, alpha: float, clip: tuple[float, float] | None) -> Tensor:
    img = img if img.is_floating_point() else img.float()
    _warn_about_image(img, alpha)
    out = fourier.exchange_amplitude(img[None], window[None], torch.tensor([ratio]), alpha)[0]
    return out if clip is None else out.clamp(*clip)


def _warn_about_image(img: Tensor, alpha: float) -> None:
    size = tuple(img.shape[1:])
    if alpha > 0 and fourier.window_half_width(size, alpha) == 0:
        enough = math.ceil(1e4 / min(size)) / 1e4
        warnings.warn(
            f"alpha={alpha} on an image of {' x '.join(map(str, size))} leaves a window of one number, so that only "
            f"the mean is exchanged; a side of 3 needs alpha={enough} or more.",
            stacklevel=2,
        )
    if img.min() < 0:
        warnings.warn(
            "the image has negative intensities: a channel of negative mean keeps that sign and comes out wrong; put "
            "this transform before z-scoring.",
            stacklevel=2,
        )


def _stack_windows(windows: NdarrayOrTensor | Sequence[NdarrayOrTensor]) -> Tensor:
    each = [convert_to_tensor(window, track_meta=False) for window in windows]
    shapes = {tuple(window.shape) for window in each}
    if len(shapes) != 1:
        raise ValueError(f"windows must be one or more of one shape, got {sorted(shapes)}")
    return torch.stack(each)


def _check_ratios(ratios: Sequence[float]) -> None:
    if len(ratios) != 2 or not 0 <= ratios[0] <= ratios[1] <= 1:
        raise ValueError(f"ratios must be in [0, 1], lowest first, got {ratios}")


def _check_alpha_and_clip(alpha: float, clip: tuple[float, float] | None) -> None:
    if not 0 <= alpha < 0.5:
        raise ValueError(f"alpha must be in [0, 0.5), got {alpha}")
    if clip is not None and not clip[0] < clip[1]:
        raise ValueError(f"clip must be (lowest, highest), got {clip}")
