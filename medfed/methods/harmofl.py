"""HarmoFL (Jiang et al., AAAI 2022): give all images the same low-frequency amplitudes, and train towards flat minima.

M. Jiang, Z. Wang, Q. Dou: "HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical
Images", AAAI 2022, https://arxiv.org/abs/2112.10775.

Idea: images of different scanners differ in their low-frequency amplitudes, so all sites replace these by common ones
(local drift). Gradients are taken at weights that are moved a small distance up the loss, which leads each site to a
flat minimum, where averaging costs less (global drift). Before round 1, each site sends the mean low-frequency
amplitudes of its training images (25 numbers per channel by default, 300 bytes for colour). Sites of round 1 receive
their mean over all sites; afterwards it is part of the weights. Otherwise, sites send the messages of FedAvg.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output, SiteData, batches
from medfed.federation.message import State
from medfed.federation.method import NEVER, ONCE, Method, SiteWeights, Tensors, has_too_few_patients
from medfed.federation.sent import Sent
from medfed.functional.fourier import low_frequency_window, pack_window, unpack_window
from medfed.networks.parts.amplitude_normaliser import NAME, alpha_for_half_width, prepend_normaliser

WINDOW = "amplitude"  # name of a tensor in messages and memories
MAX_BATCH = 64  # largest number of images whose spectra are computed together


@dataclass(frozen=True)
class HarmoFL(Method):
    """FedAvg with equal low-frequency amplitudes in all images and with weight perturbation in training.

    The network replaces the low-frequency amplitudes of every image by the common ones before its first layer: in
    training, validation and prediction, also at an unseen site, whose own amplitudes are not needed. A training step is

        delta = perturbation * g / ||g||,  g = dL/dw at w                                          (weight perturbation)
        w <- w - step(dL/dw at w + delta)

    with the optimiser of the site. It needs two forward and two backward passes; only the pass at w updates BatchNorm's
    running statistics. Without normalisation and with perturbation 0, the method is FedAvg.

    The normalisation needs non-negative images, so `data.standardise` must be none: the phase of the mean is kept, and
    a standardised image could change its sign.

    Departures from the paper: sites share a window of the amplitude spectrum instead of all of it (1.8 MB for a colour
    image of 384 x 384 pixels), because nothing else is used. Amplitudes are averaged over all training images before
    the first round. Departures from the public code: it exchanges only the mean brightness, and only the first batch
    enters its running mean. It also cuts all sites to the size of the smallest and splits slices instead of patients,
    which we do not. Its network without running statistics is `network.norm: batch_statistics` of densenet. We could
    not check the equation numbers, so lines of the code carry the symbols above.

    Args:
        normalise: whether amplitudes are normalised. false leaves the images as they are and shares nothing.
        half_width: half the side of the exchanged window in cycles per image, at least 0. 3 is a window of 7 x 7
            amplitudes at any image size, 0 only the mean brightness. (A fraction of the image's side, as in ELCFS,
            would make the state dict depend on the image size.)
        perturbation: length of the weight perturbation delta (alpha in the paper), at least 0. 0 gives plain training
            steps. 0.05 in the authors' code.
        site_weights: weights of the sites in the average: "examples" (n_k / N, in proportion to their numbers of
            images, as the other methods) or "uniform" (1 / K, as in the paper and its code).
        min_patients: a site with fewer training patients than this shares no amplitudes, because they would describe
            single patients. Such a site trains as usual. At least 1. Not in the paper.
    """

    normalise: bool = True
    half_width: NonNegativeInt = 3
    perturbation: NonNegativeFloat = 0.05
    site_weights: SiteWeights = "examples"
    min_patients: PositiveInt = 3

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return the task's loss at w + delta, and the network's output at w."""
        loss, output = super().loss(local, batch)
        if self.perturbation == 0:
            return loss, output
        perturbed_weights = sharpness_ascent(loss, local.parameters(), self.perturbation)  # w + delta
        perturbed = local.forward(batch, fast_weights=perturbed_weights)
        return local.task.loss(perturbed.logits, perturbed.label), output  # L at w + delta

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return `amplitude`, (C, (S * S + 1) / 2): the mean amplitudes of the S x S lowest frequencies.

        The amplitudes are point-symmetric, so only the distinct half is sent. That of frequency 0 is the mean of an
        image.
        """
        if has_too_few_patients(site.name, site.samples, self.min_patients, "amplitudes"):
            return {}
        sums = []
        for batch in batches(site.samples, MAX_BATCH):
            alpha = alpha_for_half_width(self.half_width, min(batch.image.shape[2:]))
            sums.append(low_frequency_window(batch.image, alpha).double().sum(dim=0))
        site.n_patients[WINDOW] = site.samples.n_patients
        return {WINDOW: pack_window(sum(sums[1:], sums[0]) / len(site.samples)).float()}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Return `amplitude`, the mean over the sites with equal weights."""
        windows = [shared[site][WINDOW].double() for site in sorted(shared) if WINDOW in shared[site]]
        if not windows:
            warnings.warn("HarmoFL: no site shared amplitudes, so images stay as they are", stacklevel=2)
            return {}
        return {WINDOW: torch.stack(windows).mean(dim=0).float()}

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send the common amplitudes in the first round; in later rounds the network's weights contain them."""
        return {} if state.round else dict(state.memory)

    def on_round_start(self, local: LocalRound) -> None:
        """Write the received amplitudes into the normalising layer."""
        if WINDOW in local.message.tensors:
            local.network.get_buffer(f"{NAME}.window").copy_(unpack_window(local.message.tensors[WINDOW]))

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """UserError if images are standardised, or smaller than the window of amplitudes."""
        if not self.normalise:
            return
        if standardised:
            raise UserError(
                "data.standardise: expected none, because HarmoFL exchanges amplitudes of non-negative images in the "
                "network; set data.standardise to none, or set method.normalise to false"
            )
        if 2 * self.half_width + 1 > image_size:
            raise UserError(
                f"method.half_width: {self.half_width} makes a window of {2 * self.half_width + 1} amplitudes a side, "
                f"but data.image_size is {image_size}; choose at most {(image_size - 1) // 2}"
            )

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Add the normalising layer at the input; it passes images unchanged until the first round."""
        if self.normalise:
            prepend_normaliser(network, self.half_width)
        return network

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"site_weights": "uniform"},
        "released": {"site_weights": "uniform", "half_width": 0},  # the authors' code: only the mean brightness
    }

    fills_network: ClassVar[bool] = True
    sent: ClassVar[Mapping[str, Sent]] = {
        WINDOW: Sent(
            "mean low-frequency amplitude window",
            "Mean brightness and coarse contrast over the site's images, without phase, so no shapes. It can show "
            "which equipment the site uses.",
            "mean over all sites",
        )
    }

    @property
    def shares(self) -> str:
        return ONCE if self.normalise else NEVER

    share_reads_network = False
    statistic_ranges = {WINDOW: (0.0, 1.0)}


def sharpness_ascent(loss: Tensor, parameters: Mapping[str, Tensor], distance: float) -> dict[str, Tensor]:
    """Return w + delta, with delta = distance * g / |g| and g = dL/dw over all weights together; w where g is 0.

    delta is a constant to the gradient, as in sharpness-aware minimisation (Foret et al., ICLR 2021,
    https://arxiv.org/abs/2010.01412)."""
    trained = {name: entry for name, entry in parameters.items() if entry.requires_grad}
    gradients = torch.autograd.grad(loss, list(trained.values()), retain_graph=True, allow_unused=True)
    known = {name: g for name, g in zip(trained, gradients, strict=True) if g is not None}
    if not known:
        return dict(parameters)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in known.values()]))
    scale = torch.where(norm > 0, distance / norm, torch.zeros_like(norm))
    return {**parameters, **{name: trained[name] + scale * g for name, g in known.items()}}
