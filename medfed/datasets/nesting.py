"""Structures that lie within each other, such as the cup in the disc of an eye: is the inner one inside?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import ndimage
from torch import Tensor


def notices(mask: Tensor, labels: Mapping[int, Sequence[str]], structures: Sequence[str]) -> list[str]:
    """A clause for every structure of which some piece has nothing of the structure around it beside it.

    Every value of the inner structure is one of the outer, so that a cup drawn far from its disc counts as disc: the
    two agree there to the voxel, and that gives it away.

    Args:
        mask: (S, H, W, D) of 0 and 1, a channel a structure.
        labels: the structures that each value of the file belongs to.
        structures: their order in the mask.
    """
    values = {name: {value for value, names in labels.items() if name in names} for name in structures}
    found = []
    for i, inner in enumerate(structures):
        for o, outer in enumerate(structures):
            if values[inner] < values[outer] and _has_bare_piece(mask[i].numpy() > 0, mask[o].numpy() > 0):
                found.append(f"{inner} with no {outer} around it")
    return found


def _has_bare_piece(inner: np.ndarray, outer: np.ndarray) -> bool:
    """Whether a connected piece of `outer` is `inner` throughout."""
    pieces, n = ndimage.label(outer)
    whole, covered = (np.bincount(pieces[where], minlength=n + 1)[1:] for where in (outer, inner))
    return bool((whole == covered).any())
