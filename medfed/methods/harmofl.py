"""HarmoFL (Jiang et al., AAAI 2022): give all images the same low-frequency amplitudes, and train towards flat minima.

M. Jiang, Z. Wang, Q. Dou: "HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical
Images", AAAI 2022, https://arxiv.org/abs/2112.10775.

Idea: images of different scanners differ in their low-frequency amplitudes, so all sites replace these by common ones
(local drift). Gradients are taken at weights that are moved a small distance up the loss, which leads each site to a
flat minimum, where averaging costs less (global drift).

Communication: before round 1, each site sends the mean low-frequency amplitudes of its training images (25 numbers per
channel by default, 300 bytes for colour). Sites of round 1 receive their mean over all sites; afterwards it is part of
the weights. Otherwise the messages of FedAvg.

Departures from the paper: sites share a window of the amplitude spectrum instead of all of it (1.8 MB for a colour
image of 384 x 384 pixels), because nothing else is used. Amplitudes are averaged over all training images before the
first round. In the preset "medfed", sites are weighted by their numbers of images; the paper and its code weight them
alike. Departures from the public code: it exchanges only the mean brightness (preset "released"), and only the first
batch enters its running mean. It also cuts all sites to the size of the smallest and splits slices instead of patients,
which we do not. Its network without running statistics is `network.norm: batch_statistics` of densenet. Lines of the
code carry the symbols below instead of equation numbers, which we could not check.
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
from medfed.functional.fourier import low_frequency_window, pack_window, unpack_window
from medfed.functional.meta_learning import sharpness_ascent
from medfed.networks.amplitude_normaliser import NAME, AmplitudeNormaliser, alpha_for_half_width, prepend_normaliser

WINDOW = "amplitude"  # name of a tensor in messages and memories
MAX_BATCH = 64  # largest number of images whose spectra are computed together


@dataclass(frozen=True)
class HarmoFL(Method):
    """FedAvg with equal low-frequency amplitudes in all images and with weight perturbation in training.

    The network replaces the low-frequency amplitudes of every image by the common ones before its first layer: in
    training, validation and prediction, also at an unseen site. The amplitudes of an unseen site are not needed. A
    training step is

        delta = perturbation * g / ||g||,  g = dL/dw at w                                          (weight perturbation)
        w <- w - step(dL/dw at w + delta)

    with the optimiser of the site. It needs two forward and two backward passes; only the pass at w updates BatchNorm's
    running statistics. Without normalisation and with perturbation 0, the method is FedAvg.

    The normalisation needs non-negative images, so `data.standardise` must be none: the phase of the mean is kept, and
    a standardised image could change its sign.

    Args:
        normalise: whether amplitudes are normalised. false leaves the images as they are and shares nothing.
        half_width: half the side of the exchanged window in cycles per image, at least 0. 3 is a window of 7 x 7
            amplitudes at any image size, 0 only the mean brightness. (A fraction of the image's side, as in ELCFS,
            would make the state dict depend on the image size.)
        perturbation: length of the weight perturbation delta (alpha in the paper), at least 0. 0 gives plain training
            steps. 0.05 in the authors' code.
        site_weights: weights of the sites in the average: "examples" (n_k / N, in proportion to their numbers of
            images) or "uniform" (1 / K).
        min_patients: a site with fewer training patients than this shares no amplitudes, because they would describe
            single patients. Such a site trains as usual. At least 1. Not in the paper.

    Presets: "medfed" is the default; it weights sites by their numbers of images, as the other methods do. "paper" has
    uniform weights. "released" has uniform weights and exchanges only the mean brightness, as the authors' code.
    """

    normalise: bool = True
    half_width: NonNegativeInt = 3
    perturbation: NonNegativeFloat = 0.05
    site_weights: SiteWeights = "examples"
    min_patients: PositiveInt = 3

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"site_weights": "uniform"},
        "released": {"site_weights": "uniform", "half_width": 0},
    }

    fills_network: ClassVar[bool] = True

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Raise UserError for standardised images and for images that are smaller than the amplitude window.

        The window has 2 * half_width + 1 frequencies per side. If `normalise` is false, all images are accepted.

        Args:
            image_size: height and width of the images in pixels.
            channels: not used.
            standardised: True if the network receives standardised images, False if it receives images in [0, 1].

        Raises:
            UserError: if `standardised` is true, or if `image_size` is below 2 * half_width + 1.
        """
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
        """Add a layer at the network's input that equalises low-frequency amplitudes; return the network.

        The layer replaces the low-frequency amplitudes of each image by the average over all sites, which the sites
        receive in the first round. Until then, images pass unchanged. If `normalise` is false, no layer is added.

        Args:
            network: the network, changed in place.
            architecture: names of the network's submodules, such as the encoder's stages and the head (the last layer).
        """
        if self.normalise:
            prepend_normaliser(network, self.half_width)
        return network

    @property
    def shares(self) -> str:
        """When the sites share the low-frequency amplitudes of their images: `ONCE` or `NEVER`.

        `ONCE` means before the first round. The value is `NEVER` if the setting `normalise` is false.
        """
        return ONCE if self.normalise else NEVER

    @property
    def share_reads_network(self) -> bool:
        """Whether `share` reads the network's weights: False, because a site shares only amplitudes of its images."""
        return False

    @property
    def statistic_ranges(self) -> Mapping[str, tuple[float, float]]:
        """No amplitude exceeds the mean of an image with intensities in [0, 1]."""
        return {WINDOW: (0.0, 1.0)}

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return the low-frequency amplitudes of the Fourier transform, averaged over the site's training images.

        The amplitude at frequency 0 is the mean of an image. The amplitudes are point-symmetric, so only about half of
        them are sent.

        Args:
            site: the site's images.
            network: not used.

        Returns:
            `amplitude`, (C, (S * S + 1) / 2) float32, for C channels and the S x S lowest frequencies. S is 2 *
            `half_width` + 1, where `half_width` is a setting. Empty if the site has fewer than `min_patients` training
            patients.
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
        """Return the mean of the sites' low-frequency amplitudes, with equal weight for each site.

        Args:
            state: not used.
            shared: what each site returned from `share`, by name of the site.
            rng: not used.

        Returns:
            `amplitude`, (C, (S * S + 1) / 2) float32, for C channels and the S x S lowest frequencies. S is 2 *
            `half_width` + 1, where `half_width` is a setting. Empty, with a warning, if no site shared amplitudes.
        """
        windows = [shared[site][WINDOW].double() for site in sorted(shared) if WINDOW in shared[site]]
        if not windows:
            if self.normalise:
                warnings.warn("HarmoFL: no site shared amplitudes, so images stay as they are", stacklevel=2)
            return {}
        return {WINDOW: torch.stack(windows).mean(dim=0).float()}

    def broadcast(self, state: State, site: str) -> Tensors:
        """Return the common low-frequency amplitudes, which every site receives in the first round.

        In later rounds nothing is returned, because the amplitudes are then a part of the network's weights.

        Args:
            state: the coordinator's state, whose memory holds the amplitudes.
            site: not used. All sites receive the same tensor.

        Returns:
            `amplitude`, (C, (S * S + 1) / 2) float32, for C channels and the S x S lowest frequencies. S is 2 *
            `half_width` + 1, where `half_width` is a setting. Empty in later rounds, and if no site shared amplitudes.
        """
        return {} if state.round else dict(state.memory)

    def on_round_start(self, local: LocalRound) -> None:
        """In the first round, write the received common amplitudes into the network's normalisation layer.

        In later rounds nothing is done, because the amplitudes are then a part of the network's weights.

        Args:
            local: the site's round of training. `local.network` is changed in place.
        """
        if WINDOW in local.message.tensors:
            local.network.get_buffer(f"{NAME}.window").copy_(unpack_window(local.message.tensors[WINDOW]))

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return the task's loss at perturbed weights, and the network's output at its present weights.

        The perturbed weights are the present weights, moved by the distance `perturbation` in the direction of the
        gradient of the loss. If `perturbation` is 0, the loss at the present weights is returned. Only the forward pass
        at the present weights changes BatchNorm's running statistics.

        Args:
            local: the site's round of training.
            batch: images (B, C, H, W) in [0, 1], not standardised, and their class indices (B,) int64 or masks (B, S,
                H, W) of 0 and 1 for S structures.

        Returns:
            The loss at the perturbed weights, a scalar, and the network's output at the present weights.
        """
        loss, output = super().loss(local, batch)
        if self.perturbation == 0:
            return loss, output
        perturbed_weights = sharpness_ascent(loss, local.parameters(), self.perturbation)  # w + delta
        perturbed = local.forward(batch, fast_weights=perturbed_weights)
        return local.task.loss(perturbed.logits, perturbed.label), output  # L at w + delta

    def styles(self, state: State, image: Tensor) -> Tensors:
        """Return copies of images with the common low-frequency amplitudes, the average over all sites.

        Args:
            state: the coordinator's state, whose memory holds the amplitudes.
            image: (B, C, H, W), in [0, 1].

        Returns:
            {"all sites": (B, C, H, W) in [0, 1]}. Empty if no site shared amplitudes.
        """
        if WINDOW not in state.memory:
            return {}
        normaliser = AmplitudeNormaliser(image.shape[1], self.half_width)
        normaliser.get_buffer("window").copy_(unpack_window(state.memory[WINDOW]))
        return {"all sites": normaliser(image)}
