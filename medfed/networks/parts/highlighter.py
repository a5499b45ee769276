"""The attention-based feature highlighter of StableFDG: weigh positions that images of a class have in common.

Section 3.2 of Park et al., "StableFDG: Style and Attention Based Learning for Federated Domain Generalization", NeurIPS
2023, https://arxiv.org/abs/2311.00227.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medfed.functional.hooks import add_submodule

NAME = "highlighter"  # the layer's name in the network, and so in its state dict
Similarity = Literal["inner", "cosine"]
QueryOf = Literal["both", "own", "partner", "none"]


class Highlighter(nn.Module):
    """Attention layer that computes an additional part of a network's logits from the last feature map z.

    The layer averages z over all positions, with a learned weight for each position, and applies a linear layer. For
    image i, a partner j of the same class, and 1x1 convolutions q (query) and k (key) to d channels:

        S = ((q(z_j) + q(z_i)) / 2)^T k(z_i)                           eq. 8
        a_i = softmax over positions of the mean of S over the query's positions
        A(z_i) = sum_x a_i(x) z_i(x)                                   eq. 7

    The mean over the query's positions is taken before the product, so the large matrix S is never formed.

    The paper's classifier of twice the width on [pool(z), A(z)] equals the network's own last layer on pool(z) plus
    this module's `classifier` (without bias) on A(z), and no entry of the network is renamed. (Random weights are drawn
    for each half separately, so they start larger by sqrt(2) than those of one wide layer.) The released code also has
    a value projection and an output convolution that nothing uses; without them the attention has 30,780 weights
    instead of 46,172 at 512 channels.

    Args:
        channels: C, number of channels of the last feature map.
        n_classes: K, number of classes.
        dimension: d, size of queries and keys.
        similarity: "inner" multiplies queries and keys as eq. 8 says. "cosine" scales queries and keys to length 1 at
            every position first, as in the released code. With "cosine", no position can get more than e^2 = 7.4 times
            the attention of another one.
        query_of: whose query is used in training. "both": the mean of the partner's and the image's own query (eq. 8).
            "partner": the partner's query, which is cross-attention (eq. 6). "own": the image's own query, which is
            self-attention. "none": no query. The score of a position is then the mean of max(0, .) over the 2 d
            channels of q(z_i) and k(z_i), so the layer has the same number of weights but no attention (a baseline of
            the paper, which does not give its formula; this one is ours).
    """

    def __init__(
        self,
        channels: int,
        n_classes: int,
        dimension: int = 30,
        similarity: Similarity = "cosine",
        query_of: QueryOf = "both",
    ) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, dimension, 1)
        self.key = nn.Conv2d(channels, dimension, 1)
        self.classifier = nn.Linear(channels, n_classes, bias=False)
        self.similarity, self.query_of = similarity, query_of
        self.partners: Tensor | None = None
        self.second: Tensor | None = None
        self.features: Tensor | None = None  # within one forward pass

    def scores(self, features: Tensor) -> Tensor:
        """Return the attention (B, H, W) of each position of feature maps (B, C, H, W), with sum 1 for each image."""
        if self.query_of == "none":
            maps = torch.cat([self.query(features), self.key(features)], dim=1)
            return maps.relu().mean(dim=1).flatten(1).softmax(dim=1).unflatten(1, features.shape[2:])
        query = self._mean_query(features)
        if self.partners is not None and self.query_of != "own":
            queries = query if self.second is None else torch.cat([query, self._mean_query(self.second)])
            partner_query = queries[self.partners]
            query = partner_query if self.query_of == "partner" else (partner_query + query) / 2  # eq. 6, eq. 8
        key = self._scaled(self.key(features).flatten(2))
        return torch.einsum("bd,bdx->bx", query, key).softmax(dim=1).unflatten(1, features.shape[2:])

    def forward(self, features: Tensor) -> Tensor:
        """Return the part (B, K) of the logits that is to be added to the network's own logits."""
        return self.classifier(torch.einsum("bhw,bchw->bc", self.scores(features), features))  # eq. 7

    @contextmanager
    def use_partners(self, partners: Tensor, second: Tensor | None = None) -> Iterator[None]:
        """Use a partner image for the attention of each image, inside the `with` block.

        Outside of the block, the attention depends on the image alone (self-attention).

        Args:
            partners: (B,) int64: the index of each image's partner, usually an image of the same class. 0 to B - 1 are
                the images of the batch, B to B + A - 1 the feature maps in `second`.
            second: (A, C, H, W), last feature maps of A images that are not in the batch; None if there are none.
        """
        self.partners, self.second = partners, second
        try:
            yield
        finally:
            self.partners = self.second = None

    def store_features(self, module: nn.Module, inputs: tuple, output: Tensor) -> None:
        """Forward hook of the submodule that outputs the last feature map."""
        self.features = output

    def add_attention(self, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        """Forward hook of the last layer."""
        features, self.features = self.features, None
        return output + self(features)

    def _mean_query(self, features: Tensor) -> Tensor:
        """Return the mean over the positions of the queries of feature maps (B, C, H, W): (B, d)."""
        return self._scaled(self.query(features).flatten(2)).mean(dim=2)

    def _scaled(self, projected: Tensor) -> Tensor:
        """Return queries or keys (B, d, HW), with length 1 at every position if the similarity is a cosine."""
        return F.normalize(projected, dim=1) if self.similarity == "cosine" else projected


def attach_highlighter(network: nn.Module, features: str, head: str, highlighter: Highlighter) -> None:
    """Add a highlighter as the submodule "highlighter", whose output, from `features`, is added to that of `head`."""
    add_submodule(network, highlighter, NAME)
    network.get_submodule(features).register_forward_hook(highlighter.store_features)
    network.get_submodule(head).register_forward_hook(highlighter.add_attention)
