"""FedSR's stochastic embedding (Nguyen et al., NeurIPS 2022): a network says how sure it is of each feature.

In training the features get noise of that size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from medfed.functional.hooks import add_submodule

NAME = "stochastic"  # as a part of the network, and so in its state dict
MEAN, SPREAD = f"{NAME}.mean", f"{NAME}.spread"  # places to tap: mu and rho, each (B, d)


class StochasticEmbedding(nn.Module):
    """z = mu + softplus(rho) e with e ~ N(0, 1): mu is the network's own embedding, rho a linear layer beside it.

    In training the embedding gives z, with e from the global generator on the CPU. In evaluation it gives mu, and the
    head, which must be linear, answers with the log of the mean softmax over `n_samples` draws of z; their softmax
    is that mean. The draws are fixed, and the same for all images: an image has one answer, whatever stands beside it.
    They are a buffer outside of the state dict, made from a fixed seed.

    Args:
        width_in: what rho is computed from.
        width: d, of the embedding.
        n_samples: draws in evaluation; 0 answers from mu alone.
    """

    draws: Tensor

    def __init__(self, width_in: int, width: int, n_samples: int = 20) -> None:
        super().__init__()
        self.mean, self.spread = nn.Identity(), nn.Linear(width_in, width)
        draws = torch.randn(n_samples, width, generator=torch.Generator().manual_seed(0))
        self.register_buffer("draws", draws, persistent=False)

    def forward(self, source: Tensor, embedding: Tensor) -> Tensor:
        """In training, z in the shape of `embedding` (B, d, ...): rho from `source` (B, width_in)."""
        mean, std = self.mean(embedding.flatten(1)), spread_to_std(self.spread(source))
        noise = torch.randn(mean.shape).to(mean)
        return (mean + std * noise).view_as(embedding)

    def predict(self, mean: Tensor, source: Tensor, head: nn.Linear) -> Tensor:
        """(B, d) to the log of the mean probabilities, (B, K)."""
        std = spread_to_std(self.spread(source))
        z = mean[:, None] + std[:, None] * self.draws                          # (B, n_samples, d)
        logits = functional.linear(z, head.weight, head.bias)
        return logits.log_softmax(dim=2).logsumexp(dim=1) - math.log(len(self.draws))


def spread_to_std(rho: Tensor) -> Tensor:
    """softplus(rho), and a little more: it shall have a logarithm where float32 has none left of it."""
    return functional.softplus(rho) + 1e-8


def make_stochastic(network: nn.Module, embedding: str, head: str, n_samples: int) -> None:
    """Make the embedding of a network that classifies stochastic.

    Where the embedding is a linear layer, rho is one beside it, of the same input: together they are the paper's last
    layer of twice the width. Otherwise rho comes from the embedding itself (the pooled features).

    Raises:
        ValueError: if the head is not linear, or the network has a stochastic embedding already.
    """
    last, before = network.get_submodule(head), network.get_submodule(embedding)
    if not isinstance(last, nn.Linear):
        raise ValueError(f"the head must be linear, got {type(last).__name__}")
    beside = isinstance(before, nn.Linear)
    width_in = before.in_features if isinstance(before, nn.Linear) else last.in_features
    layer = StochasticEmbedding(width_in, last.in_features, n_samples)
    add_submodule(network, layer, NAME)
    hooks = _SourceCarrier(layer, beside)
    before.register_forward_hook(hooks.replace_embedding)
    last.register_forward_hook(hooks.replace_logits)


class _SourceCarrier:
    """Carries what rho is computed from to the head, within one forward pass; copied with its network."""

    def __init__(self, layer: StochasticEmbedding, beside: bool) -> None:
        self.layer, self.beside = layer, beside
        self.source: Tensor | None = None

    def replace_embedding(self, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        source = (inputs[0] if self.beside else output).flatten(1)
        self.source = None if self.layer.training else source
        return self.layer(source, output) if self.layer.training else output

    def replace_logits(self, module: nn.Linear, inputs: tuple, output: Tensor) -> Tensor:
        source, self.source = self.source, None
        return output if source is None or not len(self.layer.draws) else self.layer.predict(inputs[0], source, module)


class ClassGaussians(nn.Module):
    """N(r_mu[y], softplus(r_sigma[y])) for each class y, and C: trained with a network, and in no state dict.

    What is in no state dict is in no message, checkpoint or bundle: these parameters stay where they are trained.
    `values` and `fill` are for whoever keeps them there.
    """

    def __init__(self, n_classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(n_classes, width))
        self.spread = nn.Parameter(torch.ones(n_classes, width))
        self.scale = nn.Parameter(torch.ones(()))

    def divergence(self, mean: Tensor, std: Tensor, label: Tensor) -> Tensor:
        """KL( N(C mean, C std) || N(r_mu[y], r_sigma[y]) ), summed over d: (B, d) and labels (B,) to (B,)."""
        own = torch.distributions.Normal(self.scale * mean, self.scale.abs() * std, validate_args=False)
        of_class = torch.distributions.Normal(self.mean[label], spread_to_std(self.spread[label]), validate_args=False)
        return torch.distributions.kl_divergence(own, of_class).sum(dim=1)

    def copy_parameters(self) -> dict[str, Tensor]:
        """Copies, by name, on the CPU."""
        return {name: entry.detach().cpu().clone() for name, entry in self.named_parameters()}

    @torch.no_grad()
    def set_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Take these values; without any, those at the start: 0, 1 and 1."""
        for name, entry in self.named_parameters():
            entry.copy_(values[name] if values else torch.full_like(entry, 0.0 if name == "mean" else 1.0))

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """Nothing."""

    def _load_from_state_dict(self, *args: object) -> None:
        """Nothing, and nothing is missed."""
