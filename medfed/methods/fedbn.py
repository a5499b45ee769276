"""FedBN (Li et al., ICLR 2021): every hospital keeps its own BatchNorm, and the rest is shared.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, https://arxiv.org/abs/2102.07623. Idea: average all entries of the network except those of
BatchNorm.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from medfed.federation.local_round import Architecture
from medfed.federation.method import Method, SiteWeights, UnseenBatchNorm
from medfed.functional.weights import batch_norm_entries


@dataclass(frozen=True)
class FedBN(Method):
    """FedAvg of everything but BatchNorm, whose weights, biases and statistics never leave their site.

    BatchNorm is found by module type; the public code looks for the letters "bn" in names, which misses
    `downsample.1` in a ResNet and `norm` in a DenseNet.

    The paper does not say what a hospital that took no part shall use; `unseen_bn` does:

        average      the source sites' entries, averaged by their number of images, as its author advises.
        batch_stats  the same, but each batch of test images is normalised by its own statistics. Transductive: what the
                     model says of an image depends on those beside it.
        nearest      the entries of the source site whose running statistics are nearest to those of the unseen site's
                     images (`medfed.experiments.unseen_batch_norm`). Transductive in the weak sense: the choice of a
                     site, and nothing else, looks at unlabelled test images.

    Results say which, and that the latter two are transductive. A bundle has the average in any case.

    Args:
        unseen_bn: "average", "batch_stats" or "nearest".
        site_weights: of the entries that are shared: "examples" (n_k / N), or "uniform".

        what                         medfed              paper               released
        weights of sites             by images           by images           uniform
    """

    unseen_bn: UnseenBatchNorm = "average"
    site_weights: SiteWeights = "examples"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {},
        "released": {"site_weights": "uniform"},
    }

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network as it is; warns if it has no BatchNorm."""
        if not batch_norm_entries(network):
            warnings.warn(
                "this network has no BatchNorm, so FedBN keeps nothing at the sites and is FedAvg; set network.norm to "
                "batch, or choose another network",
                stacklevel=2,
            )
        return network

    def local_keys(self, network: nn.Module) -> frozenset[str]:
        """All entries of BatchNorm layers."""
        return batch_norm_entries(network)
