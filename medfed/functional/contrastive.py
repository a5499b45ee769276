"""Mean features of image regions, and losses that compare feature vectors: InfoNCE with labels, and triplet losses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from medfed.functional.regions import background_ring
from medfed.functional.sampling import draw_other_class


def masked_mean(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean feature vector inside a mask, for each image of a batch.

    Implements eq. 5 of ELCFS (Liu et al., CVPR 2021, https://arxiv.org/abs/2103.06030).

    Args:
        features: (B, D, H, W) or (B, D, X, Y, Z), floating point: D feature channels for each pixel of B images.
        mask: (B, H, W) or (B, X, Y, Z), any dtype: 0 and 1, or weights of at least 0.

    Returns:
        A pair. `vectors`: (B, D), the mean vectors, in the dtype of `features` but at least float32. `present`: (B,)
        bool, False for an image whose mask is empty; its vector is 0.

    Raises:
        ValueError: if the shapes do not fit each other.
    """
    if features.ndim not in (4, 5) or mask.shape != (len(features), *features.shape[2:]):
        raise ValueError(f"mask must be (B, ...) for features {tuple(features.shape)}, got {tuple(mask.shape)}")
    with torch.autocast(features.device.type, enabled=False):
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        weights = mask.to(features).flatten(1)  # (B, H * W)
        total = weights.sum(dim=1)
        present = total > 0
        sums = torch.bmm(features.flatten(2), weights[..., None])[..., 0]
        return sums / torch.where(present, total, 1)[:, None], present  # eq. 5


def pool_levels(levels: Iterable[Tensor], region: Tensor) -> Tensor:
    """Return the mean feature vectors inside the images' regions, concatenated over several feature maps.

    `levels` are (B, D_i, H_i, W_i), `region` is (B, H, W) of 0 and 1, or with a third axis each for volumes; the result
    is (n, sum of D_i) for the n images whose region is not empty. ELCFS (eq. 5) resizes each map bilinearly to (H, W)
    and averages over the region. The same average is computed here without enlarging a map, as a weighted mean over the
    small map.
    """
    region = region.to(torch.promote_types(region.dtype, torch.float32))
    pooled = [masked_mean(level, _weights_of_entries(region, level.shape[2:]))[0] for level in levels]
    return torch.cat(pooled, dim=1)[region.flatten(1).any(dim=1)]


def _weights_of_entries(region: Tensor, size: Sequence[int]) -> Tensor:
    """Return (B, h, w), or (B, x, y, z): the weight of each entry of a map of `size` in the sum over a region of the
    resized map."""
    if tuple(region.shape[1:]) == tuple(size):
        return region
    rows, columns, *slices = (
        F.interpolate(torch.eye(n, device=region.device, dtype=region.dtype)[None], n_pixels, mode="linear")[0]
        for n, n_pixels in zip(size, region.shape[1:], strict=True)
    )  # (h, H) and (w, W): the weight of each entry at each pixel
    with torch.autocast(region.device.type, enabled=False):
        if slices:
            return (rows @ (region @ slices[0].T).movedim(-1, 1) @ columns.T).movedim(1, -1)
        return rows @ region @ columns.T


def region_means(features: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean feature vector inside each of several masks, for each image of a batch.

    Args:
        features: (B, D, H, W), floating point.
        masks: (B, R, H, W), R regions per image, of 0 and 1 or weights of at least 0.

    Returns:
        A pair: the mean vectors (B * R, D), sorted by image and then by region, and (B * R,) bool, False where the mask
        is empty. The vector of an empty mask is 0.
    """
    means = [masked_mean(features, masks[:, region]) for region in range(masks.shape[1])]
    vectors, present = (torch.stack(parts, dim=1).flatten(0, 1) for parts in zip(*means, strict=True))
    return vectors, present


def region_embeddings(features: Tensor, label: Tensor, ring_width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean feature vectors of the structures and of the background ring around them, for each image.

    `features` is (B, D, H, W), `label` masks (B, S, H, W); the ring is `ring_width` pixels wide. The result: vectors
    (R, D) of the R regions that contain a pixel, their classes (R,) int64, S for the background, and their images (R,).
    """
    inside = label.bool()
    around = background_ring(inside.any(dim=1, keepdim=True), ring_width)
    masks = torch.cat([inside, around.to(inside)], dim=1)
    vectors, present = region_means(features, masks)
    n_images, n_classes = masks.shape[:2]
    classes = torch.arange(n_classes, device=vectors.device).repeat(n_images)
    images = torch.arange(n_images, device=vectors.device).repeat_interleave(n_classes)
    return vectors[present], classes[present], images[present]


def triplet_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    margin: float,
    normalise: bool = True,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """Return max(0, |a - p| - |a - n| + margin) of anchors, positives and negatives (A, D), as eq. 5 of FISC does.

    The vectors are scaled to length 1 first unless `normalise` is False. PyTorch adds 1e-6 to each difference, which
    keeps the gradient finite at a = p.

    Returns:
        A scalar for the reduction "mean" (0 with gradient 0 if A is 0), or (A,) for "none"."""
    if not len(anchors):
        return anchors.sum() * 0 if reduction == "mean" else anchors.sum(dim=1)
    if normalise:
        anchors, positives, negatives = (F.normalize(vectors, dim=1) for vectors in (anchors, positives, negatives))
    return F.triplet_margin_loss(anchors, positives, negatives, margin=margin, reduction=reduction)  # eq. 5


def contrast_views(
    z: Tensor,
    second_z: Tensor,
    kinds: Tensor,
    anchors: Tensor,
    rng: torch.Generator,
    margin: float,
    normalise: bool = True,
    same_class: bool = False,
) -> Tensor:
    """Return the triplet loss (N,) of each anchor: its second view against the second view of a random other class.

    Row i of `z` (R, D) is an anchor if `anchors[i]`, row i of `second_z` its positive, and a random row of `second_z`
    of another class (`kinds`) its negative. With `same_class`, each anchor has a second triplet, whose positive is the
    nearest second view of another row of its class. An anchor without a row of another class has no triplet.
    """
    chosen, exists = draw_other_class(kinds.cpu(), kinds.cpu(), rng)
    chosen, used = chosen.to(z.device), anchors & exists.to(z.device)
    triplets = [(z[used], second_z[used], second_z[chosen[used]])]
    if same_class:
        nearest, exists = nearest_of_same_class(z, second_z, kinds, normalise)
        used = used & exists
        triplets.append((z[used], second_z[nearest[used]], second_z[chosen[used]]))
    anchor, positive, negative = (torch.cat(vectors) for vectors in zip(*triplets, strict=True))
    return triplet_loss(anchor, positive, negative, margin, normalise, "none")


@torch.no_grad()
def nearest_of_same_class(
    anchors: Tensor, candidates: Tensor, labels: Tensor, normalise: bool = True
) -> tuple[Tensor, Tensor]:
    """Return for each anchor (B, D) the row of the nearest candidate (B, D) of the same class, but not of its own row.

    The second tensor is False for an anchor if no other row has its class; the row of such an anchor has no meaning."""
    if normalise:
        anchors, candidates = F.normalize(anchors, dim=1), F.normalize(candidates, dim=1)
    allowed = labels[:, None] == labels[None, :]
    allowed = allowed & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    distances = (anchors[:, None] - candidates[None, :]).norm(dim=2).masked_fill(~allowed, float("inf"))
    return distances.argmin(dim=1), allowed.any(dim=1)


def info_nce(
    vectors: Tensor,
    labels: Tensor,
    temperature: float = 0.05,
    denominator: str = "positive_and_negatives",
    groups: Tensor | None = None,
) -> Tensor:
    """Return the supervised InfoNCE loss with cosine similarity, averaged over all ordered pairs of equal labels.

    For a pair of vectors i (the anchor) and j (the positive) with equal labels, s_ij is their cosine similarity divided
    by the temperature, and n runs over all vectors with another label (the negatives). The loss of the pair is, for
    each value of `denominator`:

        positive_and_negatives: -log( e^s_ij / (e^s_ij + sum_n e^s_in) )       at least 0; the authors' released code
        negatives:              -log( e^s_ij / sum_n e^s_in )                  eq. 6 as printed; may be negative

    Implements eq. 6-7 of ELCFS (Liu et al., CVPR 2021, https://arxiv.org/abs/2103.06030). Neither denominator includes
    other vectors with the anchor's label. Eq. 7 counts each pair once, in an order that the paper does not define; (i,
    j) and (j, i) have different losses, so both count here.

    MONAI's `ContrastiveLoss` is a different loss: its positive pairs are row i of two inputs, and all other rows are
    negatives, even rows with the same label.

    Args:
        vectors: (N, D), floating point; no vector may be all zeros.
        labels: (N,), integers.
        temperature: divisor of the cosine similarities, above 0.
        denominator: "positive_and_negatives" or "negatives": which of the two formulas is used.
        groups: (N,), integers, such as the image of each vector. Only vectors of the same group are compared; a vector
            whose group has no other label is no anchor. None compares all vectors.

    Returns:
        Scalar, the mean over the pairs of all groups; 0 with gradient 0 if there is no pair, or no negative.

    Raises:
        ValueError: if the shapes do not fit, the temperature is not above 0, or `denominator` is another word.
    """
    _check(vectors, labels, temperature, denominator, groups)
    with torch.autocast(vectors.device.type, enabled=False):
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        same = labels[:, None] == labels[None, :]
        together = torch.ones_like(same) if groups is None else groups[:, None] == groups[None, :]
        negative = ~same & together
        positive = same & together & ~torch.eye(len(labels), dtype=torch.bool, device=same.device)
        positive &= negative.any(dim=1, keepdim=True)
        if not positive.any():
            return vectors.sum() * 0
        directions = F.normalize(vectors, dim=1)
        scores = directions @ directions.T / temperature
        negatives = scores.masked_fill(~negative, -torch.inf).logsumexp(dim=1, keepdim=True)  # log sum_n e^s_in
        losses = (negatives - scores)[positive]  # eq. 6
        if denominator == "positive_and_negatives":
            losses = torch.logaddexp(losses, torch.zeros_like(losses))
        return losses.mean()  # eq. 7


def _check(vectors: Tensor, labels: Tensor, temperature: float, denominator: str, groups: Tensor | None) -> None:
    for name, entry in (("labels", labels), ("groups", labels if groups is None else groups)):
        if vectors.ndim != 2 or entry.shape != vectors.shape[:1]:
            raise ValueError(
                f"vectors must be (N, D) and {name} (N,), got {tuple(vectors.shape)} and {tuple(entry.shape)}"
            )
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if denominator not in ("positive_and_negatives", "negatives"):
        raise ValueError(f'denominator must be "positive_and_negatives" or "negatives", got "{denominator}"')
