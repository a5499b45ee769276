"""Loss functions of the implemented papers, for any training loop. They need no federation.

>>> import torch
>>> from medfed.losses import info_nce, soft_dice_loss
>>> label = torch.zeros(2, 1, 16, 16)
>>> label[:, :, 4:8, 4:8] = 1
>>> round(soft_dice_loss(logits=20 * (2 * label - 1), label=label).item(), 4)
0.0
>>> embeddings, classes = torch.randn(6, 8, requires_grad=True), torch.tensor([0, 0, 1, 1, 2, 2])
>>> info_nce(embeddings, classes, temperature=0.5).backward()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.functional.contrastive import info_nce as info_nce
    from medfed.functional.contrastive import masked_mean as masked_mean
    from medfed.functional.contrastive import triplet_loss as triplet_loss
    from medfed.functional.weights import squared_distance as squared_distance
    from medfed.losses.dice import soft_dice_loss as soft_dice_loss

__getattr__, __dir__, __all__ = lazy_names(__name__)
