"""Mathematics of methods, layers and tasks: functions of tensors and networks, which read no config and no file.

>>> import torch
>>> from medfed.functional import exchange_amplitude, low_frequency_window
>>> window = low_frequency_window(torch.rand(1, 3, 64, 64), alpha=0.05)
>>> exchange_amplitude(torch.rand(1, 3, 64, 64), window, ratio=torch.tensor([0.5]), alpha=0.05).shape
torch.Size([1, 3, 64, 64])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.functional.clustering import finch, finch_partition, kmeans_plus_plus
    from medfed.functional.contrastive import info_nce, masked_mean, nearest_of_same_class, region_means, triplet_loss
    from medfed.functional.feature_style import (
        SiteStyle,
        add_style_noise,
        compute_site_style,
        explore_styles,
        feature_mean_std,
        mix_styles,
        shift_style,
    )
    from medfed.functional.fourier import (
        exchange_amplitude,
        low_frequency_spectrum,
        low_frequency_window,
        mix_amplitude,
        replace_amplitude,
    )
    from medfed.functional.hooks import capture_features, evaluation_mode, features_at, insert_layer, replace_output
    from medfed.functional.regions import background_ring, boundary, edge_agreement
    from medfed.functional.standardisation import image_moments, standardise_by, standardise_slices
    from medfed.functional.style import adain, channel_mean_std, moment_match, replace_mean_std
    from medfed.functional.weights import add_scaled, average, select_prefix, squared_distance, trimmed_mean

__all__ = [
    "SiteStyle",
    "adain",
    "add_scaled",
    "add_style_noise",
    "average",
    "background_ring",
    "boundary",
    "capture_features",
    "channel_mean_std",
    "compute_site_style",
    "edge_agreement",
    "evaluation_mode",
    "exchange_amplitude",
    "explore_styles",
    "feature_mean_std",
    "features_at",
    "finch",
    "finch_partition",
    "image_moments",
    "info_nce",
    "insert_layer",
    "kmeans_plus_plus",
    "low_frequency_spectrum",
    "low_frequency_window",
    "masked_mean",
    "mix_amplitude",
    "mix_styles",
    "moment_match",
    "nearest_of_same_class",
    "region_means",
    "replace_amplitude",
    "replace_mean_std",
    "replace_output",
    "select_prefix",
    "shift_style",
    "squared_distance",
    "standardise_by",
    "standardise_slices",
    "trimmed_mean",
    "triplet_loss",
]

__getattr__, __dir__ = lazy_names(__name__)
