"""Find masks that were read wrongly: they lost all foreground, cover nearly the whole image, or equal the image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from monai.data import MetaTensor
from torch import Tensor

from medfed.core.errors import Problem
from medfed.images.mask_colours import LOST

MAX_COVERED = 0.9  # of the pixels; a structure that covers more in most masks of a site may be the background
MAX_SAMPLED_VOXELS = 100_000  # number of voxels that are compared with the mask
MIN_VARIANCE_RATIO = 0.02  # of the intensities within the labels of a mask to all; below, the image equals the mask


def lost_problem(site: str, n_lost: int, n_masks: int) -> Problem | None:
    """Return the problem that all masks of a site that were read have the notice `LOST`, or None."""
    if not n_lost or n_lost < n_masks:
        return None
    return Problem(
        "masks that lost all structures",
        site,
        f"{LOST}, in each of {n_masks} masks; expected the colours of every structure",
        "correct data.mask_colours, or list only the other sites in data.sites",
    )


def cover_warnings(
    site: str, structures: Sequence[str], foreground: Sequence[Sequence[float]], suggest_keys: bool
) -> list[Problem]:
    """Warn about structures that cover more than 90 % of the pixels in most masks, and about masks without a shape.

    `foreground` has, for each mask, the part of the image that each structure covers.
    """
    keys = "if the masks are inverted, set data.background_value to the value of the background (such as 255), or name "
    cure = keys + "the colours in data.mask_colours" if suggest_keys else "look at the files, and write the masks again"
    warnings = []
    for index, name in enumerate(structures):
        covered = [parts[index] for parts in foreground]
        n_large = sum(part > MAX_COVERED for part in covered)
        if 2 * n_large <= len(covered) and not (1.0 in covered and set(covered) <= {0.0, 1.0}):
            continue
        if set(covered) <= {0.0, 1.0}:
            found = f"every mask is completely covered by {name} or does not show it, so that the masks have no shape"
        else:
            found = f"{name} covers more than {MAX_COVERED:.0%} of the pixels in {n_large} of {len(covered)} masks"
        warnings.append(
            Problem(
                "masks that may be inverted",
                site,
                f"{found}; the masks may be inverted, or a wrong channel may have been read, such as one without the "
                "alpha channel",
                cure,
            )
        )
    return warnings


def equal_notices(image: MetaTensor, mask: Tensor) -> list[str]:
    """Describe an image (C, H, W, D) that equals its mask (S, H, W, D): it is nearly constant in each label."""
    grey = image.numpy().mean(0).reshape(-1).astype(np.float64)
    labels = (mask.numpy() * (1 << np.arange(len(mask)))[:, None, None, None]).sum(0).reshape(-1)
    step = max(1, grey.size // MAX_SAMPLED_VOXELS)
    grey, labels = grey[::step], labels[::step]
    within = sum(grey[labels == label].var() * np.mean(labels == label) for label in np.unique(labels))
    if within < MIN_VARIANCE_RATIO * grey.var():
        return ["the image equals its mask; correct the patterns data.image and data.mask"]
    return []
