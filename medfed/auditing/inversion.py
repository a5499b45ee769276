"""Gradient inversion: reconstruct images from a change of weights, with a network on which this must succeed.

The attack optimises the pixels of candidate images until the gradient of the training loss points in the same direction
as the change of the weights, and the images are smooth (equation 4 of Geiping et al., "Inverting Gradients - How easy
is it to break privacy in federated learning?", NeurIPS 2020, https://arxiv.org/abs/2003.14053):

    arg min_x  1 - <grad L(x), change> / (|grad L(x)| |change|) + alpha TV(x),        x in [0, 1]^n

As there, Adam receives the signs of the gradient only, and its step size is divided by ten three times. The idea to
optimise images until their gradients agree is from Zhu et al., "Deep Leakage from Gradients", NeurIPS 2019,
https://arxiv.org/abs/1906.08935.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from medfed.auditing.image_scores import align, compare, scored_channel
from medfed.cli.progress import ProgressBar
from medfed.core.seeds import seeded_layers

SIDE = 64  # height and width in pixels of attacked images
STEP, SMOOTHNESS = 0.1, 1e-3  # first step size of Adam in the unit of the pixels; alpha in the equation above
DECAYS = (3 / 8, 5 / 8, 7 / 8)  # fractions of the steps after which the step size is divided by ten
SOFTNESS = 0.3  # |gradient| at which the soft sign is 1 / 2, as a fraction of the tensor's mean


@dataclass(frozen=True)
class Observation:
    """What the attacker has: the loss as a function of the images, the trained weights, and how they changed."""

    loss: Callable[[Tensor], Tensor]  # of images (B, C, H, W) in [0, 1] at the weights before the change; labels known
    parameters: Sequence[Tensor]  # the weights before the change
    change: Sequence[Tensor]  # the weights before minus after; of one step of SGD, proportional to the gradient
    signed: bool = False  # compare soft signs of the gradient, because the first step of Adam has its signs only

    def distance(self, images: Tensor) -> Tensor:
        """1 minus the cosine similarity of the images' gradient and the change, a scalar in [0, 2]."""
        gradients = torch.autograd.grad(
            self.loss(images),
            self.parameters,
            create_graph=images.requires_grad,
            allow_unused=True,
            materialize_grads=True,
        )
        if self.signed:
            gradients = tuple(g / (g.abs() + SOFTNESS * g.detach().abs().mean() + 1e-20) for g in gradients)
        product = _dot(gradients, self.change)
        lengths = (_dot(gradients, gradients) * _dot(self.change, self.change)).sqrt()
        return 1 - product / lengths.clamp_min(1e-30)


def invert(
    observation: Observation, shape: Sequence[int], n_steps: int, rng: torch.Generator, quiet: bool = True
) -> tuple[Tensor, float]:
    """The images (B, C, H, W) in [0, 1] with the smallest distance from the observation of all steps of Adam, and this
    distance; the original images are not needed for this choice."""
    start = 0.5 + 0.01 * torch.randn(*shape, generator=rng)
    images = start.to(observation.change[0].device).requires_grad_()
    optimizer = torch.optim.Adam([images], STEP)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [int(part * n_steps) for part in DECAYS], 0.1)
    best, smallest = start, float("inf")
    for _ in ProgressBar(range(n_steps), desc="inverting an update", disable=quiet, leave=False):
        distance = observation.distance(images)
        total_variation = images.diff(dim=-2).abs().mean() + images.diff(dim=-1).abs().mean()
        if distance.item() < smallest:
            best, smallest = images.detach().cpu().clone(), distance.item()
        (gradient,) = torch.autograd.grad(distance + SMOOTHNESS * total_variation, [images])
        images.grad = gradient.nan_to_num().sign()  # a constant image has no standard deviation to scale by
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    return best, smallest


def favourable_observation(image: Tensor, seed: int) -> Observation:
    """An observation from which the attack must succeed, if it works for images like this one (1, C, H, W) at all: of a
    network with many channels, smooth activations, no normalisation and no pooling. H and W are multiples of 4."""
    channels, (height, width) = image.shape[1], image.shape[2:]
    with seeded_layers(seed, "favourable network"):
        network = nn.Sequential(
            nn.Conv2d(channels, 16 * channels, 5, 2, 2),
            nn.Softplus(10),
            nn.Conv2d(16 * channels, 32 + 10 * channels, 3, 2, 1),
            nn.Softplus(10),
            nn.Flatten(),
            nn.Linear((32 + 10 * channels) * height * width // 16, 10),
        )
    known_class = torch.zeros(1, dtype=torch.long)

    def loss(images: Tensor) -> Tensor:
        return F.cross_entropy(network((images - 0.5) / 0.25), known_class)

    parameters = list(network.parameters())
    return Observation(loss, parameters, torch.autograd.grad(loss(image), parameters))


def score(estimates: Tensor, originals: Tensor, distance: float) -> list[tuple[Tensor, dict[str, float]]]:
    """For each original of (B, C, H, W) another estimate, the one that fits best, aligned, and its scores."""
    channel = scored_channel(originals)
    pairs = [
        [(image := align(estimate, original), compare(image, original)) for estimate in estimates[:, channel]]
        for original in originals[:, channel]
    ]
    costs = [[-scores["detail_correlation"] for _, scores in row] for row in pairs]
    order = linear_sum_assignment(costs)[1]
    chosen = [row[index] for row, index in zip(pairs, order, strict=True)]
    return [(image, scores | {"misfit": distance}) for image, scores in chosen]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return torch.stack([(x * y).sum() for x, y in zip(a, b, strict=True)]).sum()
