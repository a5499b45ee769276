"""HarmoFL (Jiang et al., AAAI 2022): give all images the same low frequencies, and settle where the loss is flat.

M. Jiang, Z. Wang, Q. Dou: "HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical
Images", AAAI 2022, https://arxiv.org/abs/2112.10775. Idea: give all images the same low-frequency amplitudes, and take
the gradient at weights that are moved up the loss.
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
from medfed.federation.method import NEVER, ONCE, Method, Tensors, has_too_few_patients
from medfed.functional.fourier import low_frequency_window, pack_window, unpack_window
from medfed.functional.meta_learning import sharpness_ascent
from medfed.networks.amplitude_normaliser import NAME, AmplitudeNormaliser, alpha_for_half_width, prepend_normaliser

WINDOW = "amplitude"
MAX_BATCH = 64  # images analysed at a time


@dataclass(frozen=True)
class HarmoFL(Method):
    """Harmonised local and global drifts: amplitude normalisation at the input, weight perturbation in training.

    Once, before training, each site shares the mean low-frequency amplitudes of its training images: with the default
    window 25 numbers a channel, 300 bytes for colour. The coordinator takes the mean over the sites, sends it with the
    first round, and it stays for the whole run. The network swaps the amplitudes of every image for it before its first
    layer, in training, validation and prediction, at an unseen hospital too, whose own amplitudes are not asked for.
    A step is

        delta = perturbation * g / |g|,  g = dL/dw at w;      w <- w - step(dL/dw at w + delta)

    with whatever optimiser the site has. Two forward and two backward passes; the pass at w alone moves BatchNorm's
    statistics.

    Args:
        normalise: the amplitude normalisation; false leaves images as they are.
        half_width: of the window, in cycles per field of view: 3 is 7x7 amplitudes at any image size, 0 the mean
            brightness alone. (A share of the side, as ELCFS has it, would change the state dict with the image size.)
        perturbation: |delta|; 0 is a plain step.
        min_patients: a site with fewer training patients trains, but shares no amplitudes: they would be those of
            single people.

    Without normalisation and with perturbation 0 this is FedAvg.

    The swap needs non-negative images (the phase of the mean is kept, and would turn the sign of a z-scored one), so
    `data.standardise` must be false. Standardising after it would take the mean away again.

    Where paper and public code differ, and from both: the code swaps the mean brightness alone (preset `released`), and
    of the running mean that it means to share only the first batch counts; ours is the mean over all training images,
    and before the first round where theirs comes after it. What is shared is the window and not the whole spectrum
    (1.8 MB for colour at 384 pixels): nothing else enters. Sites weigh by their images, the paper's weigh alike. The
    code's cut of all sites to the smallest, and its split of slices rather than patients, are not copied; its network
    without running statistics is `network.norm: batch_statistics` of densenet.

        what                         medfed              paper               released
        window                       7x7                 7x7                 1x1: the mean brightness
    """

    normalise: bool = True
    half_width: NonNegativeInt = 3
    perturbation: NonNegativeFloat = 0.05
    min_patients: PositiveInt = 3

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {}, "released": {"half_width": 0}}

    fills_network: ClassVar[bool] = True

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Refuse standardised images, and images that are smaller than the window."""
        if not self.normalise:
            return
        if standardised:
            raise UserError(
                "data.standardise is true, but HarmoFL swaps amplitudes of non-negative images inside the network; set "
                "it to false, or method.normalise to false"
            )
        if 2 * self.half_width + 1 > image_size:
            raise UserError(
                f"method.half_width: {self.half_width} is a window of {2 * self.half_width + 1} amplitudes, but "
                f"data.image_size is {image_size}; choose at most {(image_size - 1) // 2}"
            )

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with the amplitude normalisation before its first layer."""
        if self.normalise:
            prepend_normaliser(network, self.half_width)
        return network

    @property
    def shares(self) -> str:
        """Once, or never without normalisation."""
        return ONCE if self.normalise else NEVER

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """The mean window of the site's images, (C, (S*S + 1) / 2) float32."""
        if has_too_few_patients(site.name, site.samples, self.min_patients, "amplitudes"):
            return {}
        sums = []
        for batch in batches(site.samples, MAX_BATCH):
            alpha = alpha_for_half_width(self.half_width, min(batch.image.shape[2:]))
            sums.append(low_frequency_window(batch.image, alpha).double().sum(dim=0))
        return {WINDOW: pack_window(sum(sums[1:], sums[0]) / len(site.samples)).float()}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """The mean over the sites, each weighing the same."""
        found = [shared[site][WINDOW].double() for site in sorted(shared) if WINDOW in shared[site]]
        if not found:
            if self.normalise:
                warnings.warn("no site shared amplitudes, so HarmoFL leaves images as they are", stacklevel=2)
            return {}
        return {WINDOW: torch.stack(found).mean(dim=0).float()}

    def broadcast(self, state: State, site: str) -> Tensors:
        """The common window, to whoever takes part in the first round; from then on it is among the weights."""
        return {} if state.round else dict(state.memory)

    def on_round_start(self, local: LocalRound) -> None:
        """Write the common window into the network, in the first round."""
        if WINDOW in local.message.tensors:
            local.network.get_buffer(f"{NAME}.window").copy_(unpack_window(local.message.tensors[WINDOW]))

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """The task loss at w + delta; the pass at w gives the output, and moves BatchNorm's statistics."""
        loss, output = super().loss(local, batch)
        if self.perturbation == 0:
            return loss, output
        above = sharpness_ascent(loss, local.parameters(), self.perturbation)  # w + delta
        moved = local.forward(batch, fast_weights=above)
        return local.task.loss(moved.logits, moved.label), output

    def styles(self, state: State, image: Tensor) -> Tensors:
        """The images with the common amplitudes."""
        if WINDOW not in state.memory:
            return {}
        normaliser = AmplitudeNormaliser(image.shape[1], self.half_width)
        normaliser.get_buffer("window").copy_(unpack_window(state.memory[WINDOW]))
        return {"all sites": normaliser(image)}
