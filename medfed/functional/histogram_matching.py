"""Mix the histograms of feature map channels (EFDM and EFDMix).

Implements Zhang et al., "Exact Feature Distribution Matching for Arbitrary Style Transfer and Domain Generalization",
CVPR 2022, https://arxiv.org/abs/2203.07740: the r-th smallest value of a channel becomes the r-th smallest value of the
style's channel. This matches all moments of the distribution, whereas AdaIN matches only the mean and the standard
deviation. The cost is one sort per channel, O(HW log HW).
"""

from __future__ import annotations

from torch import Tensor


def mix_histograms(features: Tensor, ratio: Tensor, partners: Tensor) -> Tensor:
    """Mix the histograms of each sample's channels with those of another sample of the batch (EFDMix).

        ratio * features + (1 - ratio) * (features matched to the partner's histograms)

    Matching replaces the r-th smallest value of a channel by the r-th smallest value of the partner's channel.

    Args:
        features: (B, C, H, W), floating point.
        ratio: (B,) in [0, 1], the weight of a sample's own histogram. 1 returns the sample unchanged.
        partners: (B,) int64, a permutation of 0..B-1: the index of each sample's partner.

    Returns:
        (B, C, H, W) in the dtype of `features`. Equal values are ranked in the order of their positions. The gradient
        passes unchanged to the sample; each value of the partner gets the gradient, times 1 - ratio, of the pixel at
        which it was placed.

    Raises:
        ValueError: if features are not (B, C, H, W), ratio or partners is not (B,), or a ratio is outside [0, 1].
    """
    if features.ndim != 4:
        raise ValueError(f"features must be (B, C, H, W), got {tuple(features.shape)}")
    if not tuple(ratio.shape) == tuple(partners.shape) == (len(features),):
        shapes = f"{tuple(ratio.shape)} and {tuple(partners.shape)}"
        raise ValueError(f"ratio and partners must be ({len(features)},), got {shapes}")
    if not bool(((ratio >= 0) & (ratio <= 1)).all()):
        raise ValueError(f"ratio must be in [0, 1], got {ratio.tolist()}")
    strength = (1 - ratio).to(features)[:, None, None, None]
    own, style = features.detach().flatten(2), features[partners.to(features.device)].flatten(2)
    rank = own.argsort(dim=2, stable=True).argsort(dim=2, stable=True)
    change = style.sort(dim=2, stable=True).values.gather(2, rank) - own
    return features + strength * change.unflatten(2, features.shape[2:])
