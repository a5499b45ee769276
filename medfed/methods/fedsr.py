"""FedSR (Nguyen et al., NeurIPS 2022): learn simple features that contain what the classes need and little else.

A. T. Nguyen, P. Torr, S.-N. Lim: "FedSR: A Simple and Effective Domain Generalization Method for Federated Learning",
NeurIPS 2022,
https://proceedings.neurips.cc/paper_files/paper/2022/hash/fd946a6c99541fddc3d64a3ea39a1bc2-Abstract-Conference.html.

Idea: an image's embedding is drawn from a normal distribution. One penalty bounds its norm, another the information
about the image that it has beyond the class. Features that are specific to a site then do not pay off. Sites send the
messages of FedAvg; the weights include one additional layer, for the standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, NonNegativeInt
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output
from medfed.federation.method import Method, SiteWeights, Tensors
from medfed.functional.hooks import add_submodule, input_output_widths
from medfed.functional.weights import select_prefix

PRIVATE = "fedsr_private"  # name of a submodule without state-dict entries; also a prefix in a site's memory
NAME = "stochastic"  # the stochastic layer's name in the network, and so in its state dict
MEAN, SPREAD = f"{NAME}.mean", f"{NAME}.spread"  # submodules whose outputs are mu and rho, each (B, d)


@dataclass(frozen=True)
class FedSR(Method):
    """FedAvg with a random embedding whose norm and information about the image are penalised.

    For the embedding z ~ N(mu, sigma^2) of image x with class y, sigma = softplus(rho):

        L = CE + l2 * mean ||z||_2 + cmi * mean KL( N(C mu, (C sigma)^2) || N(r_mu[y], softplus(r_sigma[y])^2) )

    The second term bounds the information in z, the third the information in z about x that the class y does not
    explain. r_mu (0 at first), r_sigma (1) and C (1) are trained together with the network but **never leave a site**:
    they are in no state dict, and so in no message, model or bundle. The site keeps them in its memory between rounds.

    mu is the network's own embedding. A ResNet with `network.embedding_size: 512` is the paper's network, with a last
    layer of 2 x 512 outputs. In a network without a linear embedding layer, rho is a linear function of the pooled
    features, which are non-negative, and mu is the pooled features themselves.

    A prediction is the mean softmax over `n_samples` fixed draws of z, so that an image always gets the same
    prediction. A bundle contains the same draws.

    Departures: the norm is not squared, as in the authors' code. (A public copy squares it; with 2048 dimensions, that
    penalty is about five times the cross-entropy at first, and results obtained with it are at chance level.) |C|
    scales the standard deviation instead of C, because a large step may make C negative, where log(C sigma) is not
    defined. Segmentation is not built: nobody published what class and embedding would be for masks. We could not check
    the equation numbers, so lines of the code carry the symbols above.

    Args:
        l2: weight of the Euclidean norm of the embedding in the loss, at least 0. 0.01 in the authors' code.
        cmi: weight of the Kullback-Leibler divergence between an embedding's distribution and that of its class, summed
            over the dimensions and averaged over the images, at least 0. 0.0005 in the authors' code, 0.001 in its
            readme.
        stochastic: whether the embedding is drawn at random. false uses z = mu and adds no layer; `cmi` must then be 0.
            If `l2` is 0 as well, the method is FedAvg.
        n_samples: number of draws of the embedding for a prediction, at least 0. 0 predicts from mu, and a bundle is
            then the plain network. 20 in the authors' code.
        site_weights: weights of the sites in the average: "examples" (n_k / N, in proportion to their numbers of
            images) or "uniform" (1 / K).
    """

    l2: NonNegativeFloat = 0.01
    cmi: NonNegativeFloat = 0.0005
    stochastic: bool = True
    n_samples: NonNegativeInt = 20
    site_weights: SiteWeights = "examples"

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return the task's loss for one draw of z, plus the two penalties."""
        place = local.architecture.embedding
        taps = (place, MEAN, SPREAD) if self.stochastic else (place,)
        output = local.forward(batch, taps)
        loss = local.task.loss(output.logits, batch.label)
        if self.l2:
            loss = loss + self.l2 * output.features[place].flatten(1).norm(dim=1).mean()  # mean ||z||_2
        if self.cmi:
            mean, std = output.features[MEAN], spread_to_std(output.features[SPREAD])
            divergence = getattr(local.network, PRIVATE).divergence(mean, std, batch.label)  # KL, (B,)
            loss = loss + self.cmi * divergence.mean()
        return loss, output

    def on_round_start(self, local: LocalRound) -> None:
        """Load the site's own r_mu, r_sigma and C: in one process, the network may still hold those of another site."""
        if self.cmi:
            getattr(local.network, PRIVATE).set_parameters(select_prefix(local.memory, f"{PRIVATE}/"))

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Keep r_mu, r_sigma and C in the site's memory; nothing is sent."""
        if self.cmi:
            own = getattr(local.network, PRIVATE).named_parameters()
            local.memory.update({f"{PRIVATE}/{name}": entry.detach().cpu().clone() for name, entry in own})
        return {}

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Add the layer for rho, and the parameters that never leave the site."""
        if self.cmi and not self.stochastic:
            raise UserError(
                f"method.cmi: is {self.cmi}, but with method.stochastic: false the embedding has no distribution; set "
                "method.cmi to 0"
            )
        if not architecture.embedding and (self.stochastic or self.l2):
            raise UserError(
                "method.name: 'fedsr' needs one class per image, but this network predicts masks; choose another "
                "method, such as fpl or fisc"
            )
        if self.stochastic:
            make_stochastic(network, architecture.embedding, architecture.head, self.n_samples)
        if self.cmi:
            width, n_classes = input_output_widths(network.get_submodule(architecture.head))
            add_submodule(network, ClassGaussians(n_classes, width), PRIVATE)
        return network

    # No preset "paper", because we could not read the paper's weights of the two penalties.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "readme": {"cmi": 0.001},  # of the authors' code
        "released": {"site_weights": "uniform"},  # the authors' code
    }
    fills_network: ClassVar[bool] = True


class StochasticEmbedding(nn.Module):
    """Layer that makes a network's embedding random: z = mu + softplus(rho) * e, with e ~ N(0, 1).

    In training, e comes from PyTorch's global generator on the CPU. In evaluation the embedding is mu, and the logits
    are replaced by the logarithm of the mean class probabilities over `n_samples` draws of z. The draws are a buffer
    outside of the state dict, generated from a fixed seed and the same for all images, so a prediction does not depend
    on the other images of its batch.
    """

    draws: Tensor

    def __init__(self, width_in: int, width: int, n_samples: int = 20) -> None:
        super().__init__()
        self.mean, self.spread = nn.Identity(), nn.Linear(width_in, width)
        draws = torch.randn(n_samples, width, generator=torch.Generator().manual_seed(0))
        self.register_buffer("draws", draws, persistent=False)
        self.uses_input = False  # whether rho is computed from the embedding module's input, not from its output
        self.source: Tensor | None = None  # the input of rho, within one forward pass in evaluation

    def forward(self, source: Tensor, embedding: Tensor) -> Tensor:
        """Return a random embedding around the given one, (B, width) or a map such as (B, width, 1, 1).

        `source` (B, width_in) is the input of the linear layer `spread`.
        """
        mean, std = self.mean(embedding.flatten(1)), spread_to_std(self.spread(source))
        noise = torch.randn(mean.shape).to(mean)
        return (mean + std * noise).view_as(embedding)

    def replace_embedding(self, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        """Forward hook: the random embedding in training; in evaluation keep the mean and store the input of rho."""
        source = (inputs[0] if self.uses_input else output).flatten(1)
        self.source = None if self.training else source
        return self(source, output) if self.training else output

    def replace_logits(self, module: nn.Linear, inputs: tuple, output: Tensor) -> Tensor:
        """Forward hook: the log of the mean probabilities in evaluation; the logits in training or without draws."""
        source, self.source = self.source, None
        if source is None or not len(self.draws):
            return output
        std = spread_to_std(self.spread(source))
        z = inputs[0][:, None] + std[:, None] * self.draws  # (B, n_samples, d)
        logits = F.linear(z, module.weight, module.bias)
        return logits.log_softmax(dim=2).logsumexp(dim=1) - math.log(len(self.draws))


def spread_to_std(rho: Tensor) -> Tensor:
    """Return softplus(rho) + 1e-8, which stays above 0 where softplus underflows in float32."""
    return F.softplus(rho) + 1e-8


def make_stochastic(network: nn.Module, embedding: str, head: str, n_samples: int) -> None:
    """Add a `StochasticEmbedding` between the submodule `embedding` and the linear last layer `head`."""
    last, embedder = network.get_submodule(head), network.get_submodule(embedding)
    if not isinstance(last, nn.Linear):
        raise ValueError(f"the last layer '{head}' must be nn.Linear, got {type(last).__name__}")
    width_in = embedder.in_features if isinstance(embedder, nn.Linear) else last.in_features
    layer = StochasticEmbedding(width_in, last.in_features, n_samples)
    add_submodule(network, layer, NAME)
    layer.uses_input = isinstance(embedder, nn.Linear)
    embedder.register_forward_hook(layer.replace_embedding)
    last.register_forward_hook(layer.replace_logits)


class ClassGaussians(nn.Module):
    """The parameters r_mu (`mean`) and r_sigma (`spread`), each (n_classes, d), and C (`scale`), in no state dict."""

    def __init__(self, n_classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(n_classes, width))
        self.spread = nn.Parameter(torch.ones(n_classes, width))
        self.scale = nn.Parameter(torch.ones(()))

    def divergence(self, mean: Tensor, std: Tensor, label: Tensor) -> Tensor:
        """Return KL( N(C mu, (C sigma)^2) || N(r_mu[y], softplus(r_sigma[y])^2) ), (B,), summed over the d features."""
        own = torch.distributions.Normal(self.scale * mean, self.scale.abs() * std, validate_args=False)
        of_class = torch.distributions.Normal(self.mean[label], spread_to_std(self.spread[label]), validate_args=False)
        return torch.distributions.kl_divergence(own, of_class).sum(dim=1)

    @torch.no_grad()
    def set_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Set the parameters by name; {} sets the initial values, 0 for `mean` and 1 for `spread` and `scale`."""
        for name, entry in self.named_parameters():
            entry.copy_(values[name] if values else torch.full_like(entry, 0.0 if name == "mean" else 1.0))

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """Add nothing to the state dict: the parameters stay at the site."""

    def _load_from_state_dict(self, *args: object) -> None:
        """Load nothing and report nothing as missing."""
