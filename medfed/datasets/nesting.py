"""Check that a structure lies inside the one that should contain it, such as the optic cup inside the disc."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import ndimage
from torch import Tensor


def nesting_notices(mask: Tensor, labels: Mapping[int, Sequence[str]], structures: Sequence[str]) -> list[str]:
    """Find pieces of an inner structure that lie outside its outer structure, such as "cup with no disc around it".

    A structure is inside another one if all its values belong to the other one as well, by `labels`, such as {0:
    ("disc", "cup"), 128: ("disc",), 255: ()}. A cup far from its disc is then a separate piece of the disc's channel,
    which it covers completely. `mask` is (S, H, W, D) of 0 and 1, with the S `structures` as channels.
    """
    values = {name: {value for value, names in labels.items() if name in names} for name in structures}
    descriptions = []
    for i, inner in enumerate(structures):
        for o, outer in enumerate(structures):
            if values[inner] < values[outer]:
                pieces, n = ndimage.label(mask[o])
                if len(np.unique(pieces[(mask[o] > mask[i]).numpy()])) < n:  # the inner structure covers one completely
                    descriptions.append(f"{inner} with no {outer} around it")
    return descriptions
