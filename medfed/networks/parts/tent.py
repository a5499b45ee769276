"""Tent: adapt the BatchNorm layers of a network to the images that it predicts, without labels.

See Wang et al., "Tent: Fully Test-time Adaptation by Entropy Minimization", ICLR 2021,
https://arxiv.org/abs/2006.10726.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from medfed.core.errors import UserError
from medfed.functional.weights import batch_norm_layers


def with_batch_statistics(network: nn.Module) -> nn.Module:
    """Return a copy for evaluation whose BatchNorm uses the statistics of the batch; no parameter has a gradient."""
    adapted = copy.deepcopy(network).requires_grad_(False).eval()
    for norm in batch_norm_layers(adapted).values():
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return adapted


class Tent(nn.Module):
    """Copy of a network that adapts to every batch with one optimiser step and returns the logits before that step.

    BatchNorm normalises with the statistics of the batch. Its weights and biases take one Adam step down the mean
    entropy of the predictions (softmax over the classes, or a sigmoid per structure and pixel). The adaptation is
    transductive: the prediction for an image depends on its batch and on all batches before. CCST's authors make ten
    passes over the images. medfed makes one pass, because more passes can collapse the model.

    Args:
        network: the network to copy; it is not changed.
        learning_rate: learning rate of Adam.
        sigmoid: True if the logits are of independent structures (segmentation), False for exclusive classes.

    Raises:
        UserError: if the network has no BatchNorm with weights.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(784, 2))
        >>> Tent(network.eval())(torch.rand(8, 1, 16, 16)).shape
        torch.Size([8, 2])
    """

    def __init__(self, network: nn.Module, learning_rate: float = 1e-3, sigmoid: bool = False) -> None:
        super().__init__()
        self.network, self.sigmoid = with_batch_statistics(network), sigmoid
        norms = batch_norm_layers(self.network).values()
        adapted = [entry.requires_grad_() for norm in norms for entry in norm.parameters()]
        if not adapted:
            raise UserError(
                "evaluation.tent: this network has no BatchNorm with weights, which Tent adapts; set it to false, "
                "or network.norm to batch"
            )
        self.optimizer = torch.optim.Adam(adapted, learning_rate)

    def train(self, mode: bool = True) -> Tent:
        """Stay in evaluation mode, so that dropout is off; BatchNorm always uses the statistics of the batch."""
        self.network.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Predict a batch (B, C, H, W), then change BatchNorm's weights by one optimiser step for later batches.

        Returns the logits before the step, without a gradient: (B, K) for classes, or (B, S, H, W) for structures.
        """
        with torch.enable_grad():
            logits = self.network(images)
            self.optimizer.zero_grad(set_to_none=True)
            self._entropy(logits).backward()
            self.optimizer.step()
        return logits.detach()

    def _entropy(self, logits: Tensor) -> Tensor:
        """Mean entropy of the predictions, in nats; over structures with `sigmoid`, else over classes."""
        if self.sigmoid:
            entropies = nn.functional.binary_cross_entropy_with_logits(logits, logits.sigmoid(), reduction="none")
            return entropies.sum(dim=1).mean()
        return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1).mean()
