"""Contrast between labelled vectors: the mean feature of a region, InfoNCE with labels (ELCFS), triplets (FISC)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def masked_mean(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The mean feature vector inside each mask: one embedding a region and image (ELCFS).

    Args:
        features: (B, D, H, W).
        mask: (B, H, W) of 0 and 1, or weights of at least 0; any type.

    Returns:
        vectors (B, D), at least float32, and present (B,), bool. Where the mask is empty `present` is False and the
        vector is 0: drop it, for it means nothing.

    Raises:
        ValueError: if the shapes do not belong together.
    """
    if features.ndim != 4 or mask.shape != (len(features), *features.shape[2:]):
        raise ValueError(f"features {tuple(features.shape)} need a mask (B, H, W), got {tuple(mask.shape)}")
    with torch.autocast(features.device.type, enabled=False):
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        weights = mask.to(features).flatten(1)                                 # (B, H * W)
        total = weights.sum(dim=1)
        present = total > 0
        sums = torch.bmm(features.flatten(2), weights[..., None])[..., 0]
        return sums / torch.where(present, total, 1)[:, None], present


def pool_levels(levels: Iterable[Tensor], region: Tensor) -> Tensor:
    """The mean feature inside a region, of several decoder levels side by side (ELCFS).

    Averaging each level by itself equals averaging their concatenation, and needs less memory.

    Args:
        levels: (B, D_i, H_i, W_i) each; enlarged to the region's size.
        region: (B, H, W) of 0 and 1.

    Returns:
        (n, sum D_i), of the n images that show the region.
    """
    pooled = []
    for level in levels:
        full = F.interpolate(level, region.shape[-2:], mode="bilinear", align_corners=False)
        vectors, present = masked_mean(full, region)
        pooled.append(vectors[present])
    return torch.cat(pooled, dim=1)


def region_means(features: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """`masked_mean` of R regions an image: features (B, D, H, W), masks (B, R, H, W) to (B * R, D) and (B * R,)."""
    found = [masked_mean(features, masks[:, region]) for region in range(masks.shape[1])]
    vectors, present = (torch.stack(one, dim=1).flatten(0, 1) for one in zip(*found, strict=True))
    return vectors, present


def triplet_loss(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """Mean of max(0, |a - p| - |a - n| + margin) over rows (A, D), each brought to length one (FISC, eq. 6).

    PyTorch's, which adds 1e-6 to each difference, so that its gradient at a = p is finite. Of no rows: 0.
    """
    if not len(anchors):
        return anchors.sum() * 0
    anchors, positives, negatives = (F.normalize(vectors, dim=1) for vectors in (anchors, positives, negatives))
    return F.triplet_margin_loss(anchors, positives, negatives, margin=margin)


def info_nce(
    vectors: Tensor, labels: Tensor, temperature: float = 0.05, denominator: str = "positive_and_negatives"
) -> Tensor:
    """Supervised InfoNCE over every ordered pair of equal labels, with cosine similarity (ELCFS eq. 6-7).

    For anchor i and positive j, with s = cosine / temperature and n running over the vectors of another label:

        positive_and_negatives: -log( e^s_ij / (e^s_ij + sum_n e^s_in) )       as released; 0 or more
        negatives:              -log( e^s_ij / sum_n e^s_in )                  eq. 6 to the letter

    As printed, eq. 6 leaves the positive out of its own denominator, so the loss has no floor at 0 and falls below
    -1/temperature as the vectors separate. The authors' code is the first form, which we follow. The other positives of
    the anchor are in neither denominator. ell_ij is not ell_ji, so both orders count.

    MONAI's `ContrastiveLoss` will not do: it knows pairs only (row i with row i) and takes every other row for a
    negative, also those of the same label.

    Args:
        vectors: (N, D), none of them zero.
        labels: (N,), integers.
        temperature: above 0.
        denominator: "positive_and_negatives" or "negatives".

    Returns:
        The mean over the pairs, a scalar. Without a positive pair, or without a negative, exactly 0, still joined to
        the graph, with gradient 0.

    Raises:
        ValueError: if shapes, temperature or denominator are not as above.
    """
    _check(vectors, labels, temperature, denominator)
    with torch.autocast(vectors.device.type, enabled=False):
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        same = labels[:, None] == labels[None, :]
        positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=same.device)
        if not positive.any() or same.all():
            return vectors.sum() * 0
        directions = F.normalize(vectors, dim=1)
        scores = directions @ directions.T / temperature
        against = scores.masked_fill(same, -torch.inf).logsumexp(dim=1, keepdim=True)     # log sum_n e^s_in
        gap = (against - scores)[positive]
        if denominator == "positive_and_negatives":
            gap = torch.logaddexp(gap, torch.zeros_like(gap))
        return gap.mean()


def _check(vectors: Tensor, labels: Tensor, temperature: float, denominator: str) -> None:
    if vectors.ndim != 2 or labels.shape != vectors.shape[:1]:
        raise ValueError(
            f"vectors must be (N, D) and labels (N,), got {tuple(vectors.shape)} and {tuple(labels.shape)}"
        )
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if denominator not in ("positive_and_negatives", "negatives"):
        raise ValueError(f'denominator must be "positive_and_negatives" or "negatives", got "{denominator}"')
