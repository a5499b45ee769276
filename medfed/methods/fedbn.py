"""FedBN (Li et al., ICLR 2021): each site keeps its own BatchNorm layers; all other weights are averaged.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, https://arxiv.org/abs/2102.07623.

Idea: sites whose images differ in appearance need different normalisation, so BatchNorm is excluded from the average.
A site sends the weights without BatchNorm. It receives all entries, and keeps its own BatchNorm once it has trained.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from medfed.federation.local_round import Architecture
from medfed.federation.method import ALL_DIMENSIONS, Method, SiteWeights, UnseenBatchNorm
from medfed.functional.weights import batch_norm_entries


@dataclass(frozen=True)
class FedBN(Method):
    """FedAvg without BatchNorm: weights, biases and running statistics of BatchNorm layers never leave their site.

    The results of a run name the rule that was used for the unseen site and say whether it is transductive, which means
    that unlabelled test images influence the predictions. An exported bundle always contains the average.

    If the sites' patients are divided among simulated clients (`federation.clients`), each client keeps its own
    BatchNorm. No client is a whole site, so the test images of all sites are scored with the rule for sites that did
    not train, in which the clients take the place of the source sites. A client that was never selected has no entries
    yet and is left out of the average. (The StableFDG paper compares with FedBN at 30 clients and does not say how it
    scores the unseen site; this reading is ours.)

    Departures: BatchNorm layers are recognised by their module type. The public code looks for the letters "bn" in the
    names of entries, which misses `downsample.1` in a ResNet and `norm` in a DenseNet.

    Args:
        unseen_bn: BatchNorm entries of a site that did not train. "average": the average of the source sites' entries,
            weighted by their numbers of images, as the authors recommend. "batch_stats": the same weights and biases,
            but each batch of test images is normalised by its own mean and variance (transductive: the prediction for
            an image depends on the other images of its batch). The paper does not specify this.
        site_weights: weights of the sites in the average of the shared entries: "examples" (n_k / N, in proportion to
            their numbers of images) or "uniform" (1 / K).
    """

    unseen_bn: UnseenBatchNorm = "average"
    site_weights: SiteWeights = "examples"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"site_weights": "uniform"},  # algorithm 1
        "released": {"site_weights": "uniform"},
    }
    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Warn if the network has no BatchNorm layer, so that FedBN is FedAvg."""
        if not batch_norm_entries(network):
            warnings.warn(
                "FedBN: this network has no BatchNorm layer, so no entry stays at the sites and the method is FedAvg; "
                "set network.norm to 'batch', or choose a network with BatchNorm",
                stacklevel=2,
            )
        return network

    def local_keys(self, network: nn.Module) -> frozenset[str]:
        """All entries of BatchNorm layers stay at the sites."""
        return batch_norm_entries(network)
