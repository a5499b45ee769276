"""MONAI transforms that move the style of other images into an image. They need no federation.

Images are (C, H, W) with intensities in [0, 1]: apply these transforms before z-scoring. The random versions
(`Rand...`) draw from a bank of styles; `low_frequency_window` and `load_codec` make what the banks hold.

Both exchanges in a MONAI `Compose`:

>>> import torch
>>> from monai.transforms import Compose, NormalizeIntensityd
>>> from medfed.transforms import RandAdaINStyled, RandAmplitudeMixd, load_codec, low_frequency_window
>>> other_site = torch.rand(8, 1, 64, 64)  # images of another site
>>> codec = load_codec("small")
>>> augment = Compose([
...     RandAmplitudeMixd("image", low_frequency_window(other_site, alpha=0.05), 0.5, alpha=0.05, clip=(0, 1)),
...     RandAdaINStyled("image", codec, bank=[codec.style(other_site)], prob=0.5),
...     NormalizeIntensityd("image"),
... ])
>>> augment({"image": torch.rand(1, 64, 64)})["image"].shape
torch.Size([1, 64, 64])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.functional.fourier import low_frequency_window as low_frequency_window
    from medfed.networks.parts.adain import load_codec as load_codec
    from medfed.transforms.adain_style import AdaINStyle as AdaINStyle
    from medfed.transforms.adain_style import MomentMatch as MomentMatch
    from medfed.transforms.adain_style import RandAdaINStyle as RandAdaINStyle
    from medfed.transforms.adain_style import RandAdaINStyled as RandAdaINStyled
    from medfed.transforms.adain_style import RandMomentMatch as RandMomentMatch
    from medfed.transforms.adain_style import RandMomentMatchd as RandMomentMatchd
    from medfed.transforms.amplitude_mix import AmplitudeMix as AmplitudeMix
    from medfed.transforms.amplitude_mix import RandAmplitudeMix as RandAmplitudeMix
    from medfed.transforms.amplitude_mix import RandAmplitudeMixd as RandAmplitudeMixd
    from medfed.transforms.big_aug import BigAugRanges as BigAugRanges
    from medfed.transforms.big_aug import build_big_aug as build_big_aug
    from medfed.transforms.resize_slices import ResizeSlicesd as ResizeSlicesd
    from medfed.transforms.scale_intensity import ScalePercentilesd as ScalePercentilesd
    from medfed.transforms.simpleitk_reader import SimpleITKReader as SimpleITKReader

__getattr__, __dir__, __all__ = lazy_names(__name__)
