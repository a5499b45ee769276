"""The stochastic embedding of FedSR: in training, Gaussian noise of a learned size is added to each feature.

See Nguyen et al., "FedSR: A Simple and Effective Domain Generalization Method for Federated Learning", NeurIPS 2022,
https://proceedings.neurips.cc/paper_files/paper/2022/hash/fd946a6c99541fddc3d64a3ea39a1bc2-Abstract-Conference.html.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medfed.functional.hooks import add_submodule

NAME = "stochastic"  # the layer's name in the network, and so in its state dict
MEAN, SPREAD = f"{NAME}.mean", f"{NAME}.spread"  # submodules whose outputs are mu and rho, each (B, d)


class StochasticEmbedding(nn.Module):
    """Layer that makes a network's embedding random: z = mu + softplus(rho) * e, with e ~ N(0, 1).

    mu is the network's own embedding; rho is computed by a linear layer. In training the embedding is z, with e from
    PyTorch's global generator on the CPU. In evaluation it is mu, and the linear last layer's logits are replaced by
    the logarithm of the mean class probabilities over `n_samples` draws of z. The draws are fixed and the same for all
    images, so a prediction does not depend on the other images of its batch. The draws are a buffer outside of the
    state dict, generated from a fixed seed.

    Args:
        width_in: number of inputs from which rho is computed.
        width: d, size of the embedding.
        n_samples: number of draws in evaluation; 0 predicts from mu alone.
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
    """Make the embedding of a classification network stochastic: add a `StochasticEmbedding` as "stochastic".

    `embedding` and `head` are the paths of the embedding and of the linear last layer. If `embedding` is a linear
    layer, rho is computed from the input of this layer, otherwise from the embedding itself (the pooled features).
    """
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
    """One learned Gaussian distribution of embeddings for each class, and one learned scale, as FedSR uses them.

    FedSR writes N(r_mu[y], softplus(r_sigma[y])) for the Gaussian of class y, and C for the scale. Here r_mu is the
    parameter `mean`, r_sigma is `spread`, each (n_classes, d), and C is the scalar `scale`. These parameters are kept
    out of the state dict, so they are in no message, checkpoint or bundle and stay at the site, which stores them with
    `copy_parameters` and restores them with `set_parameters`.
    """

    def __init__(self, n_classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(n_classes, width))
        self.spread = nn.Parameter(torch.ones(n_classes, width))
        self.scale = nn.Parameter(torch.ones(()))

    def divergence(self, mean: Tensor, std: Tensor, label: Tensor) -> Tensor:
        """Return the Kullback-Leibler divergence (B,) of random embeddings from the learned Gaussians of their classes.

            KL( N(scale * mean, |scale| * std) || N(class mean, class std) ), summed over the d features

        `mean` and `std` are (B, d), `label` is (B,) in 0..n_classes-1.
        """
        own = torch.distributions.Normal(self.scale * mean, self.scale.abs() * std, validate_args=False)
        of_class = torch.distributions.Normal(self.mean[label], spread_to_std(self.spread[label]), validate_args=False)
        return torch.distributions.kl_divergence(own, of_class).sum(dim=1)

    def copy_parameters(self) -> dict[str, Tensor]:
        """Return copies of the learned parameters by name, on the CPU."""
        return {name: entry.detach().cpu().clone() for name, entry in self.named_parameters()}

    @torch.no_grad()
    def set_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Set the parameters by name; {} sets the initial values, 0 for `mean` and 1 for `spread` and `scale`."""
        for name, entry in self.named_parameters():
            entry.copy_(values[name] if values else torch.full_like(entry, 0.0 if name == "mean" else 1.0))

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """Add nothing to the state dict: the parameters stay at the site."""

    def _load_from_state_dict(self, *args: object) -> None:
        """Load nothing and report nothing as missing."""
