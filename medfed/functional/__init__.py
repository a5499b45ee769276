"""The mathematics of the methods: functions of tensors and networks, without configs and files.

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
    from medfed.functional.aggregation import (
        adjust_site_weights,
        clipped_average,
        coordinate_median,
        gradient_masked_average,
        normalized_average,
        sign_agreement,
        trimmed_mean,
    )
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
    from medfed.functional.histogram_matching import mix_histograms
    from medfed.functional.hooks import capture_features, evaluation_mode, features_at, insert_layer, replace_output
    from medfed.functional.jigsaw import shuffle_tiles, tile_permutations
    from medfed.functional.meta_learning import inner_step, sharpness_ascent
    from medfed.functional.prototypes import (
        class_sums,
        cluster_prototypes,
        prototype_contrastive_loss,
        prototype_distance_loss,
    )
    from medfed.functional.random_convolution import ShallowNetworks, draw_shallow_networks
    from medfed.functional.regions import background_ring, boundary, edge_agreement
    from medfed.functional.self_challenging import channel_mask, position_mask
    from medfed.functional.standardisation import image_moments, standardise_by, standardise_slices
    from medfed.functional.style import adain, channel_mean_std, moment_match, replace_mean_std
    from medfed.functional.weights import add_scaled, average, select_prefix, squared_distance

__all__ = [
    "ShallowNetworks",
    "SiteStyle",
    "adain",
    "add_scaled",
    "add_style_noise",
    "adjust_site_weights",
    "average",
    "background_ring",
    "boundary",
    "capture_features",
    "channel_mask",
    "channel_mean_std",
    "class_sums",
    "clipped_average",
    "cluster_prototypes",
    "compute_site_style",
    "coordinate_median",
    "draw_shallow_networks",
    "edge_agreement",
    "evaluation_mode",
    "exchange_amplitude",
    "explore_styles",
    "feature_mean_std",
    "features_at",
    "finch",
    "finch_partition",
    "gradient_masked_average",
    "image_moments",
    "info_nce",
    "inner_step",
    "insert_layer",
    "kmeans_plus_plus",
    "low_frequency_spectrum",
    "low_frequency_window",
    "masked_mean",
    "mix_amplitude",
    "mix_histograms",
    "mix_styles",
    "moment_match",
    "nearest_of_same_class",
    "normalized_average",
    "position_mask",
    "prototype_contrastive_loss",
    "prototype_distance_loss",
    "region_means",
    "replace_amplitude",
    "replace_mean_std",
    "replace_output",
    "select_prefix",
    "sharpness_ascent",
    "shift_style",
    "shuffle_tiles",
    "sign_agreement",
    "squared_distance",
    "standardise_by",
    "standardise_slices",
    "tile_permutations",
    "trimmed_mean",
    "triplet_loss",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "medfed.functional.aggregation": (
            "adjust_site_weights clipped_average coordinate_median gradient_masked_average normalized_average "
            "sign_agreement trimmed_mean"
        ),
        "medfed.functional.clustering": "finch finch_partition kmeans_plus_plus",
        "medfed.functional.contrastive": "info_nce masked_mean nearest_of_same_class region_means triplet_loss",
        "medfed.functional.feature_style": (
            "SiteStyle add_style_noise compute_site_style explore_styles feature_mean_std mix_styles shift_style"
        ),
        "medfed.functional.fourier": (
            "exchange_amplitude low_frequency_spectrum low_frequency_window mix_amplitude replace_amplitude"
        ),
        "medfed.functional.histogram_matching": "mix_histograms",
        "medfed.functional.hooks": "capture_features evaluation_mode features_at insert_layer replace_output",
        "medfed.functional.jigsaw": "shuffle_tiles tile_permutations",
        "medfed.functional.meta_learning": "inner_step sharpness_ascent",
        "medfed.functional.prototypes": (
            "class_sums cluster_prototypes prototype_contrastive_loss prototype_distance_loss"
        ),
        "medfed.functional.random_convolution": "ShallowNetworks draw_shallow_networks",
        "medfed.functional.regions": "background_ring boundary edge_agreement",
        "medfed.functional.self_challenging": "channel_mask position_mask",
        "medfed.functional.standardisation": "image_moments standardise_by standardise_slices",
        "medfed.functional.style": "adain channel_mean_std moment_match replace_mean_std",
        "medfed.functional.weights": "add_scaled average select_prefix squared_distance",
    },
)
