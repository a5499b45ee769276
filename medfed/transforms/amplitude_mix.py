"""MONAI transforms that move the low-frequency amplitude of images towards that of other images, and keep the phase.

See ELCFS (Liu et al., "FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic Learning in
Continuous Frequency Space", CVPR 2021, https://arxiv.org/abs/2103.06030) and FDA (Yang & Soatto, "FDA: Fourier Domain
Adaptation for Semantic Segmentation", CVPR 2020, https://arxiv.org/abs/2004.05498). As MONAI's other intensity
transforms, these are neither lazy nor invertible, and keep metadata and affine. Images must be non-negative.
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
    """Move the low-frequency amplitude of an image towards a given amplitude, and keep the phase.

    The image is (C, H, W[, D]) and non-negative; integer images become float32.

    Args:
        window: (C, S, S[, S]), the amplitudes to move to: one entry of the batch that `low_frequency_window` returns.
        ratio: in [0, 1]. 0 returns the image; 1 replaces the amplitude inside the window.
        alpha: half of the window's side as a fraction of the image's shortest side, in [0, 0.5).
        clip: (lowest, highest) intensity to which the result is clipped; None does not clip.

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
        img = convert_to_tensor(img, track_meta=get_track_meta())
        out = _mix(convert_to_tensor(img, track_meta=False), self.window, self.ratio, self.alpha, self.clip)
        return convert_to_dst_type(out, dst=img, dtype=out.dtype)[0]


class RandAmplitudeMix(RandFromBank):
    """Move the low-frequency amplitude of an image towards one that is drawn from a bank, at random; keep the phase.

    Args:
        windows: the bank, (N, C, S, S[, S]) or N windows (C, S, S[, S]), as `low_frequency_window` returns them.
        prob: probability of applying the transform.
        alpha: half of the window's side as a fraction of the image's shortest side, in [0, 0.5).
        ratio_range: (lowest, highest) mixing ratio within [0, 1], drawn uniformly; a number x means (0, x). The paper
            of ELCFS has (0, 1).
        clip: (lowest, highest) intensity to which the result is clipped; None does not clip.

    Raises:
        ValueError: if the bank is empty or its windows differ in shape, or ratio_range, alpha or clip is out of range;
            when called, if the windows do not fit the image.
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
        """The transform to one window, with ratio `amount`."""
        return AmplitudeMix(entry, amount, self.alpha, self.clip)


class RandAmplitudeMixd(RandFromBankd):
    """Version of `RandAmplitudeMix` for a dictionary of images. All images get the same random draw."""

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
        always = RandAmplitudeMix(windows, 1.0, alpha, ratio_range, clip)  # `prob` is drawn once for all keys
        super().__init__(keys, always, prob, allow_missing_keys)


def _mix(img: Tensor, window: Tensor, ratio: float, alpha: float, clip: tuple[float, float] | None) -> Tensor:
    """Replace the amplitudes of an image (C, H, W) by a mixture with `window`, clipped if `clip` is given."""
    img = img if img.is_floating_point() else img.float()
    _warn_about_image(img, alpha)
    out = fourier.exchange_amplitude(img[None], window[None], torch.tensor([ratio]), alpha)[0]
    return out if clip is None else out.clamp(*clip)


def _warn_about_image(img: Tensor, alpha: float) -> None:
    """Warn if the window holds only the mean, or if the image has negative intensities."""
    size = tuple(img.shape[1:])
    if alpha > 0 and fourier.window_half_width(size, alpha) == 0:
        larger_alpha = math.ceil(1e4 / min(size)) / 1e4
        warnings.warn(
            f"alpha={alpha} on an image of {' x '.join(map(str, size))} gives a window of one number, so only the mean "
            f"is exchanged; set alpha to at least {larger_alpha} for a window of side 3.",
            stacklevel=2,
        )
    if img.min() < 0:
        warnings.warn(
            "the image has negative intensities, so a channel with a negative mean comes out with the wrong sign; "
            "apply this transform before z-scoring.",
            stacklevel=2,
        )


def _stack_windows(windows: NdarrayOrTensor | Sequence[NdarrayOrTensor]) -> Tensor:
    """Windows of equal shape as one tensor (N, ...)."""
    tensors = [convert_to_tensor(window, track_meta=False) for window in windows]
    shapes = {tuple(window.shape) for window in tensors}
    if len(shapes) != 1:
        raise ValueError(f"windows must be one or more windows of the same shape, got shapes {sorted(shapes)}")
    return torch.stack(tensors)


def _check_ratios(ratios: Sequence[float]) -> None:
    if len(ratios) != 2 or not 0 <= ratios[0] <= ratios[1] <= 1:
        raise ValueError(f"ratios must be in [0, 1], lowest first, got {ratios}")


def _check_alpha_and_clip(alpha: float, clip: tuple[float, float] | None) -> None:
    if not 0 <= alpha < 0.5:
        raise ValueError(f"alpha must be in [0, 0.5), got {alpha}")
    if clip is not None and not clip[0] < clip[1]:
        raise ValueError(f"clip must be (lowest, highest), got {clip}")
