"""HarmoFL (Jiang et al., AAAI 2022): give all images the same low frequencies, and settle where the loss is flat."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output, SiteData
from medfed.federation.message import State
from medfed.federation.method import NEVER, ONCE, Method, Tensors
from medfed.functional.fourier import low_frequency_window, pack_window, unpack_window
from medfed.functional.meta_learning import sharpness_ascent
from medfed.networks.amplitude_normaliser import NAME, AmplitudeNormaliser, normalise_before, share_of

WINDOW = "amplitude"
AT_ONCE = 64  # images analysed at a time


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
    half_width: int = 3
    perturbation: float = 0.05
    min_patients: int = 3

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {}, "released": {"half_width": 0}}

    fills_network: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("half_width", "perturbation"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.min_patients < 1:
            raise ValueError(f"min_patients must be at least 1, got {self.min_patients}")

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
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
        if self.normalise:
            normalise_before(network, self.half_width)
        return network

    @property
    def shares(self) -> str:
        return ONCE if self.normalise else NEVER

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """The mean window of the site's images, (C, (S*S + 1) / 2) float32."""
        if site.samples.n_patients < self.min_patients:
            warnings.warn(
                f"{site.name}: has {site.samples.n_patients} training patients and shares no amplitudes, as "
                f"method.min_patients is {self.min_patients}; it trains with the others' all the same",
                stacklevel=2,
            )
            return {}
        total: Tensor | float = 0.0
        for part in torch.arange(len(site.samples)).split(AT_ONCE):
            image = site.samples.batch(part.tolist()).image
            window = low_frequency_window(image, share_of(self.half_width, min(image.shape[2:])))
            total = total + window.double().sum(dim=0)
        return {WINDOW: pack_window(total / len(site.samples)).float()}

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
        if WINDOW in local.message.tensors:
            window = unpack_window(local.message.tensors[WINDOW])
            local.network.get_submodule(NAME).window.copy_(window)

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        loss, output = super().loss(local, batch)
        if self.perturbation == 0:
            return loss, output
        above = sharpness_ascent(loss, dict(local.network.named_parameters()), self.perturbation)
        moved = local.forward(batch, fast_weights=above)
        return local.task.loss(moved.logits, moved.label), output

    def styles(self, state: State, image: Tensor) -> Tensors:
        """The images with the common amplitudes."""
        if WINDOW not in state.memory:
            return {}
        normaliser = AmplitudeNormaliser(image.shape[1], self.half_width)
        normaliser.window.copy_(unpack_window(state.memory[WINDOW]))
        return {"all sites": normaliser(image)}
