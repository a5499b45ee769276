"""Tent (Wang et al., ICLR 2021): while predicting, make the network more certain on the images that it sees."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from medfed.core.errors import UserError


class Tent(nn.Module):
    """A copy of a network that adapts with every batch, once, and answers with what it said before the step.

    BatchNorm uses the statistics of the batch; its weights and biases take one Adam step down the mean entropy of the
    prediction (softmax over classes, or a sigmoid for each structure and pixel). Transductive: what it says of an image
    depends on the images before and beside it. CCST's authors make ten passes; more passes collapse the model, so here
    it is one.

    Args:
        network: left as it is.
        learning_rate: of Adam.
        sigmoid: whether logits are of structures, each by itself.

    Raises:
        UserError: if the network has no BatchNorm with weights to adapt.
    """

    def __init__(self, network: nn.Module, learning_rate: float = 1e-3, sigmoid: bool = False) -> None:
        super().__init__()
        self.network, self.sigmoid = copy.deepcopy(network).requires_grad_(False), sigmoid
        norms = [part for part in self.network.modules() if isinstance(part, _BatchNorm)]
        adapted = [entry.requires_grad_() for norm in norms for entry in norm.parameters()]
        if not adapted:
            raise UserError(
                "evaluation.tent: this network has no BatchNorm with weights, which is all that Tent adapts; set it to "
                "false, or network.norm to batch"
            )
        for norm in norms:
            norm.track_running_stats = False
            norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        self.optimizer = torch.optim.Adam(adapted, learning_rate)

    def train(self, mode: bool = True) -> Tent:
        """As it is: BatchNorm takes the batch's statistics in either mode, and dropout stays off."""
        self.network.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Logits from before this batch's step."""
        with torch.enable_grad():
            logits = self.network(images)
            self.optimizer.zero_grad(set_to_none=True)
            self._entropy(logits).backward()
            self.optimizer.step()
        return logits.detach()

    def _entropy(self, logits: Tensor) -> Tensor:
        if self.sigmoid:
            each = nn.functional.binary_cross_entropy_with_logits(logits, logits.sigmoid(), reduction="none")
            return each.sum(dim=1).mean()
        return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1).mean()
