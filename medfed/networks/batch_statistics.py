"""A network whose BatchNorm normalises each batch of test images by that batch's own statistics."""

from __future__ import annotations

import copy

from torch import nn

from medfed.functional.weights import batch_norms


def with_batch_statistics(network: nn.Module) -> nn.Module:
    """A copy in evaluation mode in which every BatchNorm has forgotten its running statistics, and so uses the batch's.

    Nothing learns. Transductive: what it says of an image depends on those beside it (it is Tent without the step).
    """
    found = copy.deepcopy(network).requires_grad_(False).eval()
    for norm in batch_norms(found).values():
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return found
