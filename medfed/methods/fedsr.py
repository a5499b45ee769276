"""FedSR (Nguyen et al., NeurIPS 2022): keep features simple, so that they hold what the classes need, not the site.

A. T. Nguyen, P. Torr, S.-N. Lim: "FedSR: A Simple and Effective Domain Generalization Method for Federated Learning",
NeurIPS 2022,
https://proceedings.neurips.cc/paper_files/paper/2022/hash/fd946a6c99541fddc3d64a3ea39a1bc2-Abstract-Conference.html.
Idea: draw the embedding from a distribution, and penalise its norm and what it tells of an image beyond the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, NonNegativeInt
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output
from medfed.federation.method import Method, SiteWeights, Tensors
from medfed.functional.hooks import add_submodule, input_output_widths
from medfed.functional.weights import add_prefix, select_prefix
from medfed.networks.stochastic import MEAN, SPREAD, ClassGaussians, make_stochastic, spread_to_std

PRIVATE = "fedsr_private"  # a part of the network that no state dict has; also the prefix in a site's memory


@dataclass(frozen=True)
class FedSR(Method):
    """A simple representation: z ~ N(mu, sigma^2), sigma = softplus(rho), of the image x, and

        L = CE + l2 * mean ||z||_2 + cmi * mean KL( N(C mu, (C sigma)^2) || N(r_mu[y], softplus(r_sigma[y])^2) )

    The norm bounds how much z can tell at all; the second term how much it tells of x beyond the class y. r_mu (0 at
    first), r_sigma (1) and C (1) are trained with the network and **never leave a site**: they are in no state dict
    (`medfed.networks.stochastic`), so in no message, model or bundle, and are kept in the site's memory between rounds.
    What is shared are the weights, which grow by the layer for rho.

    mu is the network's own embedding. `network.embedding_size: 512` on a ResNet gives the paper's net, a last layer of
    twice 512; without a linear layer there, rho is linear in the pooled features, which are at least 0, and so is mu.

    Predictions are the mean softmax over `n_samples` fixed draws of z, so that an image has one answer; a bundle has
    the same draws. With 0 samples they are those of mu, and a bundle is the plain network.

    Args:
        l2: weight of the norm, which is not squared (the code's). A public copy squares it: over 2048 dimensions that
            term is about 9.8 at first, five times the cross-entropy, and the tables made with it are at chance.
        cmi: weight of the divergence, a sum over dimensions and a mean over images.
        stochastic: false takes z = mu, and adds no layer: then cmi must be 0. With l2 0, too, this is FedAvg.
        n_samples: draws of a prediction.
        site_weights: "examples" (n_k / N), or "uniform".

    C may turn negative under a large step; its absolute value scales sigma, as the distribution of C z has it:
    log(C sigma) would have no value there.

    Segmentation: not built. The paper tells classes of images, and nobody published what y and z would be for masks.

        what                         medfed              paper               released
        cmi                          0.0005              0.001 (its readme)  0.0005
        weights of sites             by images           by images           uniform
    """

    l2: NonNegativeFloat = 0.01
    cmi: NonNegativeFloat = 0.0005
    stochastic: bool = True
    n_samples: NonNegativeInt = 20
    site_weights: SiteWeights = "examples"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"cmi": 0.001},
        "released": {"site_weights": "uniform"},
    }

    fills_network: ClassVar[bool] = True

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with a stochastic embedding.

        Raises:
            UserError: if the network draws masks, or cmi is wanted of an embedding that is no distribution.
        """
        if self.cmi and not self.stochastic:
            raise UserError(
                f"method.cmi: is {self.cmi}, but method.stochastic is false, which leaves no distribution; set it to 0"
            )
        if not architecture.embedding and (self.stochastic or self.l2):
            raise UserError(
                "method.name: 'fedsr' compares images with their classes, and this network draws masks; choose another "
                "method, such as fpl or fisc"
            )
        if self.stochastic:
            make_stochastic(network, architecture.embedding, architecture.head, self.n_samples)
        if self.cmi:
            width, n_classes = input_output_widths(network.get_submodule(architecture.head))
            add_submodule(network, ClassGaussians(n_classes, width), PRIVATE)
        return network

    def on_round_start(self, local: LocalRound) -> None:
        """The site's own r and C, as its last round left them, in place of another's that this process trained."""
        if self.cmi:
            getattr(local.network, PRIVATE).set_parameters(select_prefix(local.memory, f"{PRIVATE}/"))

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """L: the task loss of a sample of z, plus the two penalties."""
        place = local.architecture.embedding
        taps = (place, MEAN, SPREAD) if self.stochastic else (place,)
        output = local.forward(batch, taps)
        loss = local.task.loss(output.logits, batch.label)
        if self.l2:
            loss = loss + self.l2 * output.features[place].flatten(1).norm(dim=1).mean()
        if self.cmi:
            mean, std = output.features[MEAN], spread_to_std(output.features[SPREAD])
            loss = loss + self.cmi * getattr(local.network, PRIVATE).divergence(mean, std, batch.label).mean()
        return loss, output

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Nothing for the coordinator; r and C into the site's memory."""
        if self.cmi:
            local.memory.update(add_prefix(getattr(local.network, PRIVATE).copy_parameters(), f"{PRIVATE}/"))
        return {}
