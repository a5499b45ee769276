"""Check that a structure lies inside the one that should contain it, such as the optic cup inside the disc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import ndimage
from torch import Tensor


def nesting_notices(mask: Tensor, labels: Mapping[int, Sequence[str]], structures: Sequence[str]) -> list[str]:
    """Find pieces of an inner structure that lie outside its outer structure, such as a cup outside the disc.

    The mask file has one value per pixel, and a value can belong to several structures. For example, the value 0
    belongs to the cup and to the disc, and the value 128 belongs only to the disc. All values of the cup then belong to
    the disc as well, so the cup is called an inner structure, and the disc is called its outer structure. A cup that
    was drawn far from its disc appears in the channel of the disc, too, as a separate connected piece. The cup covers
    this piece completely. This function searches for such pieces.

    Args:
        mask: (S, H, W, D) of 0 and 1, one channel per structure.
        labels: for each value in the mask file, the names of the structures that it belongs to, such as {0: ("disc",
            "cup"), 128: ("disc",), 255: ()}.
        structures: names of the S structures, in the order of the channels.

    Returns:
        One short description for each pair of inner and outer structure with such a piece, such as "cup with no disc
        around it". The list is empty if there is no such piece.
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
