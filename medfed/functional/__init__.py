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
    from medfed.functional.clustering import finch as finch
    from medfed.functional.clustering import finch_partition as finch_partition
    from medfed.functional.clustering import kmeans_plus_plus as kmeans_plus_plus
    from medfed.functional.contrastive import info_nce as info_nce
    from medfed.functional.contrastive import masked_mean as masked_mean
    from medfed.functional.contrastive import nearest_of_same_class as nearest_of_same_class
    from medfed.functional.contrastive import region_means as region_means
    from medfed.functional.contrastive import triplet_loss as triplet_loss
    from medfed.functional.feature_style import SiteStyle as SiteStyle
    from medfed.functional.feature_style import add_style_noise as add_style_noise
    from medfed.functional.feature_style import compute_site_style as compute_site_style
    from medfed.functional.feature_style import explore_styles as explore_styles
    from medfed.functional.feature_style import feature_mean_std as feature_mean_std
    from medfed.functional.feature_style import mix_styles as mix_styles
    from medfed.functional.feature_style import shift_style as shift_style
    from medfed.functional.fourier import exchange_amplitude as exchange_amplitude
    from medfed.functional.fourier import low_frequency_spectrum as low_frequency_spectrum
    from medfed.functional.fourier import low_frequency_window as low_frequency_window
    from medfed.functional.fourier import mix_amplitude as mix_amplitude
    from medfed.functional.fourier import replace_amplitude as replace_amplitude
    from medfed.functional.hooks import capture_features as capture_features
    from medfed.functional.hooks import evaluation_mode as evaluation_mode
    from medfed.functional.hooks import features_at as features_at
    from medfed.functional.hooks import insert_layer as insert_layer
    from medfed.functional.hooks import replace_output as replace_output
    from medfed.functional.regions import background_ring as background_ring
    from medfed.functional.regions import boundary as boundary
    from medfed.functional.regions import edge_agreement as edge_agreement
    from medfed.functional.standardisation import image_moments as image_moments
    from medfed.functional.standardisation import standardise_by as standardise_by
    from medfed.functional.standardisation import standardise_slices as standardise_slices
    from medfed.functional.style import adain as adain
    from medfed.functional.style import channel_mean_std as channel_mean_std
    from medfed.functional.style import moment_match as moment_match
    from medfed.functional.style import replace_mean_std as replace_mean_std
    from medfed.functional.weights import add_scaled as add_scaled
    from medfed.functional.weights import average as average
    from medfed.functional.weights import select_prefix as select_prefix
    from medfed.functional.weights import squared_distance as squared_distance
    from medfed.functional.weights import trimmed_mean as trimmed_mean

__getattr__, __dir__, __all__ = lazy_names(__name__)
