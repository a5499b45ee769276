"""The attention-based feature highlighter of StableFDG: weigh positions that images of a class have in common.

Section 3.2 of Park et al., "StableFDG: Style and Attention Based Learning for Federated Domain Generalization", NeurIPS
2023, https://arxiv.org/abs/2311.00227.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medfed.functional.hooks import add_submodule

NAME = "highlighter"  # the layer's name in the network, and so in its state dict


class Highlighter(nn.Module):
    """Attention layer that computes an additional part of a network's logits from the last feature map z.

    The layer averages z over all positions, with a learned weight for each position, and applies a linear layer.

    For image i, a partner j of the same class, and 1x1 convolutions q (query) and k (key) to d channels:

        S = ((q(z_j) + q(z_i)) / 2)^T k(z_i)                           eq. 8
        a_i = softmax over positions of the mean of S over the query's positions
        A(z_i) = sum_x a_i(x) z_i(x)                                   eq. 7

    Queries and keys are scaled to length 1 at every position, as in the released code. The mean over the query's
    positions is taken before the product, so the large matrix S is never formed.

    The paper's classifier of twice the width on [pool(z), A(z)] equals the network's own last layer on pool(z) plus
    this module's `classifier` (without bias) on A(z): the same function with the same number of weights, and no entry
    of the network is renamed. (Random weights are drawn for each half separately, so they start larger by sqrt(2) than
    those of one wide layer.) The released code also has a value projection and an output convolution that nothing uses;
    without them the attention has 30,780 weights instead of 46,172 at 512 channels.

    Args:
        channels: C, number of channels of the last feature map.
        n_classes: K, number of classes.
        dimension: d, size of queries and keys.
    """

    def __init__(self, channels: int, n_classes: int, dimension: int = 30) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, dimension, 1)
        self.key = nn.Conv2d(channels, dimension, 1)
        self.classifier = nn.Linear(channels, n_classes, bias=False)
        self.partners: Tensor | None = None

    def scores(self, features: Tensor) -> Tensor:
        """Return how much attention each position of the feature maps gets.

        The features are projected to queries and keys by learned 1x1 convolutions. A position gets much attention if
        its key is similar to the mean query of the image. Inside `use_partners`, the mean query of the image is
        averaged with the mean query of its partner image.

        Args:
            features: (B, C, H, W), the network's last feature maps.

        Returns:
            (B, H, W), at least 0, with sum 1 for each image.
        """
        query = F.normalize(self.query(features).flatten(2), dim=1).mean(dim=2)
        if self.partners is not None:
            query = (query[self.partners] + query) / 2                         # eq. 8
        key = F.normalize(self.key(features).flatten(2), dim=1)
        return torch.einsum("bd,bdx->bx", query, key).softmax(dim=1).unflatten(1, features.shape[2:])

    def forward(self, features: Tensor) -> Tensor:
        """Return the part of the logits that comes from the attention, to be added to the network's own logits.

        The features are averaged over all positions, weighted by their attention, and then enter a linear layer.

        Args:
            features: (B, C, H, W), the network's last feature maps.

        Returns:
            (B, K), for K classes.
        """
        return self.classifier(torch.einsum("bhw,bchw->bc", self.scores(features), features))  # eq. 7

    @contextmanager
    def use_partners(self, partners: Tensor) -> Iterator[None]:
        """Use a partner image for the attention of each image, inside the `with` block.

        The attention of an image then depends on the image and on its partner, as `scores` describes. Outside of the
        block, it depends on the image alone (self-attention).

        Args:
            partners: (B,) int64: the index in the batch of each image's partner, usually an image of the same class.
        """
        self.partners = partners
        try:
            yield
        finally:
            self.partners = None


def attach_highlighter(network: nn.Module, features: str, head: str, highlighter: Highlighter) -> None:
    """Connect a highlighter (an attention layer) with a network, in place.

    From then on, the highlighter gets the network's last feature map in each forward pass, and its output is added to
    the network's logits.

    Args:
        network: changed in place; the highlighter becomes its submodule "highlighter".
        features: dotted path of the submodule that outputs the last feature map (B, C, H, W).
        head: dotted path of the last layer, which outputs the logits (B, K).
        highlighter: the layer to add, built for C channels and K classes.

    Raises:
        ValueError: if the network has a highlighter already.
    """
    add_submodule(network, highlighter, NAME)
    hooks = _FeatureCarrier(highlighter)
    network.get_submodule(features).register_forward_hook(hooks.store_features)
    network.get_submodule(head).register_forward_hook(hooks.add_attention)


class _FeatureCarrier:
    """Forward hooks that pass the feature map to the last layer within one forward pass; copied with their network."""

    def __init__(self, highlighter: Highlighter) -> None:
        self.highlighter = highlighter
        self.features: Tensor | None = None

    def store_features(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        """Store the feature map until the last layer is called."""
        self.features = output

    def add_attention(self, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        """Return the logits plus the contribution of the attended features."""
        features, self.features = self.features, None
        return output + self.highlighter(features)
