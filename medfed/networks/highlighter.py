"""StableFDG's attention (Park et al., NeurIPS 2023, section 3.2): look where images of a class have much in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from medfed.functional.hooks import add_submodule

NAME = "highlighter"  # as a part of the network, and so in its state dict


class Highlighter(nn.Module):
    """Attention over the last feature map z, whose average joins the pooled features as input of the classifier.

    For image i with a partner j of its class, and 1x1 convolutions q and k to `dimension` channels (normalised at every
    position):

        S = ((q(z_j) + q(z_i)) / 2)^T k(z_i),   a_i = softmax(mean of S over the positions of the query)
        A(z_i) = sum_x a_i(x) z_i(x)

    The mean over query positions commutes with the product, so S is never formed: HW numbers an image, not (HW)^2.

    The classifier of twice the width on [pool(z), A(z)] is the network's own head on pool(z) plus this module's
    `classifier` (no bias) on A(z): the same function with the same number of weights, and no entry is renamed. (Fresh
    weights are drawn for each half by itself, so they start larger by the root of two than those of one wide layer.)

    The public code also has a value projection and an output convolution that nothing uses (15,392 weights of 512
    channels); they are not here: 30,780 weights instead of 46,172.

    Args:
        channels: C of the last feature map.
        n_classes: of the head.
        dimension: d of the paper.
    """

    def __init__(self, channels: int, n_classes: int, dimension: int = 30) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, dimension, 1)
        self.key = nn.Conv2d(channels, dimension, 1)
        self.classifier = nn.Linear(channels, n_classes, bias=False)
        self.partners: Tensor | None = None

    def scores(self, features: Tensor) -> Tensor:
        """(B, C, H, W) to (B, H, W): how much each position counts; at least 0, of sum 1."""
        query = functional.normalize(self.query(features).flatten(2), dim=1).mean(dim=2)
        if self.partners is not None:
            query = (query[self.partners] + query) / 2
        key = functional.normalize(self.key(features).flatten(2), dim=1)
        return torch.einsum("bd,bdx->bx", query, key).softmax(dim=1).unflatten(1, features.shape[2:])

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) to what A(z) adds to the logits, (B, K)."""
        return self.classifier(torch.einsum("bhw,bchw->bc", self.scores(features), features))

    @contextmanager
    def use_partners(self, partners: Tensor) -> Iterator[None]:
        """Inside the block image i looks for what it shares with image partners[i] (B,); otherwise with itself."""
        self.partners = partners
        try:
            yield
        finally:
            self.partners = None


def attach_highlighter(network: nn.Module, features: str, head: str, highlighter: Highlighter) -> None:
    """Let the output of submodule `features` (B, C, H, W) add to that of submodule `head` (B, K) through a highlighter.

    Raises:
        ValueError: if the network has one already.
    """
    add_submodule(network, highlighter, NAME)
    hooks = _FeatureCarrier(highlighter)
    network.get_submodule(features).register_forward_hook(hooks.keep)
    network.get_submodule(head).register_forward_hook(hooks.join)


class _FeatureCarrier:
    """Carries the feature map from where it arises to the head, within one forward pass; copied with its network."""

    def __init__(self, highlighter: Highlighter) -> None:
        self.highlighter = highlighter
        self.waiting: Tensor | None = None

    def keep(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        self.waiting = output

    def join(self, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        features, self.waiting = self.waiting, None
        return output + self.highlighter(features)
