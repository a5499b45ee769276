"""Check that a structure lies inside the one that should contain it, such as the optic cup inside the disc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import ndimage
from torch import Tensor


def nesting_notices(mask: Tensor, labels: Mapping[int, Sequence[str]], structures: Sequence[str]) -> list[str]:
    """Describe the structures of which a connected piece fills all of its outer structure.

    A value of the inner structure in the mask also counts as the outer one. So a cup that was drawn far away from its
    disc counts as a separate piece of disc, which the cup covers completely.

    Args:
        mask: (S, H, W, D) of 0 and 1, one channel per structure.
        labels: for each value in the mask file, the structures that it belongs to.
        structures: names of the structures, in the order of the channels.

    Returns:
        One short description for each such pair of structures, such as "cup with no disc around it".
    """
    values = {name: {value for value, names in labels.items() if name in names} for name in structures}
    descriptions = []
    for i, inner in enumerate(structures):
        for o, outer in enumerate(structures):
            if values[inner] < values[outer] and _covers_a_piece(mask[i].numpy() > 0, mask[o].numpy() > 0):
                descriptions.append(f"{inner} with no {outer} around it")
    return descriptions


def _covers_a_piece(inner: np.ndarray, outer: np.ndarray) -> bool:
    """Return whether `inner` covers a connected piece of `outer` completely."""
    pieces, n = ndimage.label(outer)
    outer_sizes, inner_sizes = (np.bincount(pieces[mask], minlength=n + 1)[1:] for mask in (outer, inner))
    return bool((outer_sizes == inner_sizes).any())
