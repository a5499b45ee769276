from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def quantiles(values: Tensor, fractions: Sequence[float]) -> Tensor:
    """Compute quantiles of all values, bit-identical to `torch.quantile`, which takes twenty times as long on a CPU."""
    ascending = torch.from_numpy(np.sort(values.numpy(), axis=None))
    position = torch.tensor(fractions, dtype=values.dtype) * (len(ascending) - 1)  # rounded as in `torch.quantile`
    below, above = ascending[position.long()], ascending[position.ceil().long()]
    return torch.lerp(below, above, position - position.long())
