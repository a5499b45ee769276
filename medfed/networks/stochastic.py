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

    def forward(self, source: Tensor, embedding: Tensor) -> Tensor:
        """Return a random embedding: the given embedding plus Gaussian noise of a learned size.

        The standard deviation of the noise is softplus(rho) + 1e-8, where rho is the output of the linear layer
        `spread`. The noise comes from PyTorch's global generator on the CPU.

        Args:
            source: (B, width_in), the input of the linear layer `spread`.
            embedding: the network's own embedding, which is the mean: (B, width), or a map such as (B, width, 1, 1)
                with `width` numbers per image.

        Returns:
            The random embedding, in the shape of `embedding`.
        """
        mean, std = self.mean(embedding.flatten(1)), spread_to_std(self.spread(source))
        noise = torch.randn(mean.shape).to(mean)
        return (mean + std * noise).view_as(embedding)

    def predict(self, mean: Tensor, source: Tensor, head: nn.Linear) -> Tensor:
        """Return the logarithm of the mean class probabilities over several draws of the random embedding.

        The number of draws is the argument `n_samples` of the class, which must be at least 1. The draws are fixed and
        the same for all images. The class probabilities of one draw are the softmax of the last layer's logits.

        Args:
            mean: (B, d), the network's own embeddings, which are the means of the random embeddings.
            source: (B, width_in), the input of the linear layer that computes the standard deviations.
            head: the network's last layer, from d inputs to K classes.

        Returns:
            (B, K), for K classes. The values can be used as logits: their softmax is the mean of the class
            probabilities.
        """
        std = spread_to_std(self.spread(source))
        z = mean[:, None] + std[:, None] * self.draws  # (B, n_samples, d)
        logits = F.linear(z, head.weight, head.bias)
        return logits.log_softmax(dim=2).logsumexp(dim=1) - math.log(len(self.draws))


def spread_to_std(rho: Tensor) -> Tensor:
    """Turn the output of a linear layer, rho, into standard deviations: softplus(rho) + 1e-8.

    The constant keeps the result above 0 where softplus underflows in float32.

    Args:
        rho: any shape, any real numbers.

    Returns:
        Standard deviations above 0, in the shape of `rho`.
    """
    return F.softplus(rho) + 1e-8


def make_stochastic(network: nn.Module, embedding: str, head: str, n_samples: int) -> None:
    """Make the embedding of a classification network stochastic, in place (FedSR).

    The embedding is the input of the last layer. In training it becomes a draw from a normal distribution. The mean of
    the distribution is the old embedding. Its standard deviation is softplus(rho), where rho is the output of a new
    linear layer. If the submodule `embedding` is a linear layer, the new layer gets the same input as this submodule.
    Otherwise the new layer gets the embedding itself (the pooled features). In evaluation, the network returns the
    logarithm of the mean class probabilities over fixed draws. See Nguyen et al., "FedSR: A Simple and Effective Domain
    Generalization Method for Federated Learning", NeurIPS 2022.

    Args:
        network: changed in place; it gets the submodule "stochastic".
        embedding: dotted path of the submodule whose output, flattened to (B, d), is the embedding.
        head: dotted path of the last layer, which must be linear.
        n_samples: number of draws in evaluation. With 0, the prediction uses the mean embedding alone.

    Raises:
        ValueError: if the last layer is not linear, or the network has a stochastic embedding already.
    """
    last, embedder = network.get_submodule(head), network.get_submodule(embedding)
    if not isinstance(last, nn.Linear):
        raise ValueError(f"the last layer '{head}' must be nn.Linear, got {type(last).__name__}")
    is_linear = isinstance(embedder, nn.Linear)
    width_in = embedder.in_features if isinstance(embedder, nn.Linear) else last.in_features
    layer = StochasticEmbedding(width_in, last.in_features, n_samples)
    add_submodule(network, layer, NAME)
    hooks = _SourceCarrier(layer, is_linear)
    embedder.register_forward_hook(hooks.replace_embedding)
    last.register_forward_hook(hooks.replace_logits)


class _SourceCarrier:
    """Forward hooks that pass the input of rho from the embedding to the last layer; copied with their network.

    `uses_input`: whether rho is computed from the embedding module's input, not from its output.
    """

    def __init__(self, layer: StochasticEmbedding, uses_input: bool) -> None:
        self.layer, self.uses_input = layer, uses_input
        self.source: Tensor | None = None

    def replace_embedding(self, module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        """Return the random embedding in training; in evaluation keep the mean and store the input of rho."""
        source = (inputs[0] if self.uses_input else output).flatten(1)
        self.source = None if self.layer.training else source
        return self.layer(source, output) if self.layer.training else output

    def replace_logits(self, module: nn.Linear, inputs: tuple, output: Tensor) -> Tensor:
        """Return the log of the mean probabilities in evaluation; keep the logits in training or without draws."""
        source, self.source = self.source, None
        if source is None or not len(self.layer.draws):
            return output
        return self.layer.predict(inputs[0], source, module)


class ClassGaussians(nn.Module):
    """One learned Gaussian distribution of embeddings for each class, and one learned scale, as FedSR uses them.

    FedSR writes N(r_mu[y], softplus(r_sigma[y])) for the Gaussian of class y, and C for the scale. Here r_mu is the
    parameter `mean`, r_sigma is `spread`, and C is `scale`; all are learned together with the network. These three
    parameters are kept out of the state dict, so they are in no message, checkpoint or bundle and stay at the site. The
    site stores them with `copy_parameters` and restores them with `set_parameters`.

    Args:
        n_classes: number of classes.
        width: d, size of the embedding.
    """

    def __init__(self, n_classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(n_classes, width))
        self.spread = nn.Parameter(torch.ones(n_classes, width))
        self.scale = nn.Parameter(torch.ones(()))

    def divergence(self, mean: Tensor, std: Tensor, label: Tensor) -> Tensor:
        """Return the Kullback-Leibler divergence of random embeddings from the learned Gaussians of their classes.

            KL( N(scale * mean, |scale| * std) || N(class mean, class std) ), summed over the d features

        N(m, s) is the normal distribution with mean m and standard deviation s. The scale (one number), and the mean
        and standard deviation of each feature for each class, are learned parameters of this module.

        Args:
            mean: (B, d), means of the embeddings.
            std: (B, d), standard deviations of the embeddings, above 0.
            label: (B,), integers in 0..n_classes-1, the class of each embedding.

        Returns:
            (B,), one divergence per embedding, at least 0.
        """
        own = torch.distributions.Normal(self.scale * mean, self.scale.abs() * std, validate_args=False)
        of_class = torch.distributions.Normal(self.mean[label], spread_to_std(self.spread[label]), validate_args=False)
        return torch.distributions.kl_divergence(own, of_class).sum(dim=1)

    def copy_parameters(self) -> dict[str, Tensor]:
        """Return copies of the learned parameters by name, on the CPU.

        Returns:
            Three tensors. `mean` (n_classes, d) contains the means of the classes' Gaussians. `spread` (n_classes, d)
            contains the numbers from which softplus computes the standard deviations of the classes' Gaussians. `scale`
            is a scalar, by which embeddings are multiplied.
        """
        return {name: entry.detach().cpu().clone() for name, entry in self.named_parameters()}

    @torch.no_grad()
    def set_parameters(self, values: Mapping[str, Tensor]) -> None:
        """Set the parameters `mean`, `spread` and `scale`, in place.

        Args:
            values: the new values by name, as `copy_parameters` returns them: `mean` and `spread`, each (n_classes, d),
                and the scalar `scale`. {} sets the initial values, which are 0 for `mean` and 1 for `spread` and
                `scale`.
        """
        for name, entry in self.named_parameters():
            entry.copy_(values[name] if values else torch.full_like(entry, 0.0 if name == "mean" else 1.0))

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """Add nothing to the state dict: the parameters stay at the site."""

    def _load_from_state_dict(self, *args: object) -> None:
        """Load nothing and report nothing as missing."""
