"""ELCFS (Liu et al., CVPR 2021): practise on the other hospitals' brightness patterns, and mind the boundary.

Q. Liu, C. Chen, J. Qin, Q. Dou, P.-A. Heng: "FedDG: Federated Domain Generalization on Medical Image Segmentation via
Episodic Learning in Continuous Frequency Space", CVPR 2021, https://arxiv.org/abs/2103.06030. Idea: sites share
low-frequency amplitudes; each site learns from its own images such that a step on them also helps on images with
another site's amplitudes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Ratio
from medfed.federation.local_round import LocalRound, Output, SiteData, batches
from medfed.federation.message import State
from medfed.federation.method import NEVER, ONCE, Method, Tensors, has_too_few_patients
from medfed.functional.contrastive import info_nce, pool_levels
from medfed.functional.fourier import (
    LowFrequencySpectrum,
    low_frequency_spectrum,
    low_frequency_window,
    mix_amplitude,
    pack_window,
    unpack_window,
    window_half_width,
)
from medfed.functional.meta_learning import inner_step
from medfed.functional.regions import background_ring, boundary
from medfed.functional.weights import select_prefix

BANK, WINDOWS = "bank/", "windows"
MAX_BATCH = 64  # images analysed at a time, so that a large site needs little memory


@dataclass(frozen=True)
class ELCFS(Method):
    """Episodic learning in continuous frequency space ("FedDG").

    Once, before training, each site shares the low-frequency window of the amplitude spectrum of its images: at 384
    pixels and alpha 0.01 that is 7x7 numbers a channel, of which 25 are distinct. A site then trains on its own images
    (inner step) and on the same images with another site's window mixed in (outer step), and pulls the features along
    the structures' boundaries apart from those of the ring around them.

        A' = (1 - r) A_own + r A_other inside the window, r ~ U(0, 1)                         (eq. 2-3)
        theta' = theta - beta grad L_dice(x; theta)                                           (eq. 4)
        L = L_dice(x; theta) + L_dice(t; theta') + gamma L_boundary                           (eq. 8-9)

    Args:
        alpha: half side of the exchanged window, a share of the image side, in [0, 0.5). It counts cycles per field of
            view: 0.01 is 7x7 at 384 pixels, but the mean alone at 96; small images want a larger alpha.
        gamma: weight of the boundary loss: 0.1 for fundus, 0.5 for prostate. 0 leaves it out.
        meta_step: beta, the size of the inner step.
        temperature: tau of the boundary loss.
        views: restyled copies of each image: n draws n other sites at random; 0 takes one from every other site.
        ratio: "uniform" draws r from U(0, 1); a number in [0, 1] is r itself; "one" swaps the window whole, as 1 does.
        exchange, episodic: switches for ablations; without `exchange` the outer step sees the raw images, without
            `episodic` it runs at theta.
        decoder_levels: how many of the last decoder levels feed the boundary loss.
        ring_width: pixels of background around a structure that count as its ring.
        inner_clamp: the inner gradient is cut to plus or minus this.
        second_order: differentiate through the inner step.
        denominator: of the boundary loss: "positive_and_negatives" (bounded, as the code) or "negatives" (eq. 6 as
            printed, unbounded below).
        bank_share: share of a site's images, drawn at random, whose windows it gives; in (0, 1].
        min_patients: a site with fewer training patients trains, but shares nothing: its windows would point at single
            people. (The public code fails below eight images.)

    Where paper and public code differ we follow the paper, except that: one view is the default, for memory; the
    boundary loss takes the raw image's features at theta (saves a forward pass) and pools its vectors over the batch;
    its denominator holds the positive; the inner step is of first order, as its author confirms.

        what                         medfed              paper               released
        ratio of the exchange        U(0, 1)             U(0, 1)             1: the window is swapped whole
        window                       alpha               alpha               alpha 0: the mean brightness alone
        views of an image            1                   one a foreign site  1
        decoder levels               2                   2                   1
        images that give windows     all                 all                 an eighth, at random

    Not in a preset, as they belong to other blocks of a config: the public code leaves images as they are
    (`data.standardise: false`; otherwise a swapped mean has no effect), augments nothing (`training.augment: false`),
    has Adam's betas at (0.9, 0.999) and a threshold of 0.75. Not reproduced: sites that start from different weights,
    and site weights rounded to two decimals, which sum to more than 1 over five sites.

    For classification there is no boundary, and gamma is not used.
    """

    alpha: Annotated[float, Field(ge=0, lt=0.5)] = 0.01
    gamma: NonNegativeFloat = 0.5
    meta_step: NonNegativeFloat = 1e-3
    temperature: PositiveFloat = 0.05
    views: NonNegativeInt = 1
    ratio: Literal["uniform", "one"] | Ratio = "uniform"
    exchange: bool = True
    episodic: bool = True
    decoder_levels: PositiveInt = 2
    ring_width: PositiveInt = 5
    inner_clamp: PositiveFloat = 100.0
    second_order: bool = False
    denominator: Literal["positive_and_negatives", "negatives"] = "positive_and_negatives"
    bank_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_patients: PositiveInt = 3

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"views": 0},
        "released": {"alpha": 0.0, "ratio": "one", "decoder_levels": 1, "bank_share": 0.125},
    }

    @property
    def shares(self) -> str:
        """Once, or never without the exchange."""
        return ONCE if self.exchange else NEVER

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """The low-frequency windows of the site's images: (n, C, (S*S + 1) / 2) float32, nothing else."""
        if has_too_few_patients(site.name, site.samples, self.min_patients, "frequency windows"):
            return {}
        shape = tuple(site.samples.batch([0]).image.shape[2:])
        if self.alpha > 0 and window_half_width(shape, self.alpha) == 0:
            warnings.warn(
                f"{site.name}: method.alpha {self.alpha} at {min(shape)} pixels is a window of one number, the mean "
                f"brightness, which standardising takes away again; the paper's 7x7 wants alpha {3.5 / min(shape):.3g}",
                stacklevel=2,
            )
        n = len(site.samples)  # in a random order, which does not tell patients apart
        chosen = torch.randperm(n, generator=site.rng)[: math.ceil(self.bank_share * n)]
        images = [batch.image for batch in batches(site.samples, MAX_BATCH, chosen)]
        return {WINDOWS: torch.cat([pack_window(low_frequency_window(part, self.alpha)) for part in images])}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """The distribution bank, by site."""
        return {BANK + site: tensors[WINDOWS] for site, tensors in shared.items() if WINDOWS in tensors}

    def broadcast(self, state: State, site: str) -> Tensors:
        """The bank without the site's own windows."""
        if not self.exchange:  # and yet a memory may hold one: of an older medfed, which asked for it all the same
            return {}
        return {name: windows for name, windows in state.memory.items() if name != BANK + site}

    def styles(self, state: State, image: Tensor) -> Tensors:
        """The image with the mean window of each site, swapped whole."""
        analysis, whole = low_frequency_spectrum(image, self.alpha), image.new_ones(len(image))
        means = {site: bank.mean(dim=0) for site, bank in select_prefix(state.memory, BANK).items()}
        windows = {s: unpack_window(mean, image.dim() - 2).expand(len(image), *[-1] * (image.dim() - 1))
                   for s, mean in means.items()}
        return {s: mix_amplitude(image, analysis, window, whole).clamp(0, 1) for s, window in windows.items()}

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """The episodic loss: the task's at theta, the task's on restyled images at theta', and the boundary loss."""
        taps = local.architecture.decoder_levels[: self.decoder_levels]
        with_boundary = self.gamma > 0 and batch.label.dim() == 4
        raw = local.forward(batch, taps if with_boundary else ())
        inner = local.task.loss(raw.logits, batch.label)
        fast: Mapping[str, Tensor] = local.parameters()
        if self.episodic:
            fast = inner_step(inner, fast, self.meta_step, self.inner_clamp, self.second_order)  # eq. 4
        views = local.forward(self._restyled(local, batch), tuple(raw.features), fast)
        total = inner + local.task.loss(views.logits, views.label)  # eq. 8
        if with_boundary:
            total = total + self.gamma * self.boundary_loss([raw, views])  # eq. 8-9
        return total, raw

    def _restyled(self, local: LocalRound, batch: Batch) -> Batch:
        """t: copies of the batch, each image with the amplitudes of an image of another site (eq. 2-3)."""
        banks = [bank for name, bank in sorted(local.message.tensors.items()) if name.startswith(BANK)]
        if not banks or not self.exchange:
            return batch
        n = len(batch.image)
        if self.views == 0:
            donors = torch.arange(len(banks))[:, None].expand(-1, n)
        else:
            donors = torch.randint(len(banks), (self.views, n), generator=local.rng)
        analysis = low_frequency_spectrum(batch.image, self.alpha)  # one serves all views
        images = [self._restyle(batch.image, analysis, banks, row.tolist(), local.rng) for row in donors]
        return Batch(torch.cat(images), batch.label.repeat(len(images), *[1] * (batch.label.dim() - 1)))

    def _restyle(
        self,
        image: Tensor,
        analysis: LowFrequencySpectrum,
        banks: list[Tensor],
        donors: list[int],
        rng: torch.Generator,
    ) -> Tensor:
        """One view of the images (B, C, H, W): each with a random window of the bank that `donors` (B,) names."""
        which, ratio = torch.rand(2, len(donors), generator=rng)
        if self.ratio != "uniform":
            ratio = torch.full_like(ratio, 1.0 if self.ratio == "one" else self.ratio)
        packed = [banks[d][int(u * len(banks[d]))] for d, u in zip(donors, which.tolist(), strict=True)]
        window = unpack_window(torch.stack(packed), image.dim() - 2).to(image)
        return mix_amplitude(image, analysis, window, ratio.to(image)).clamp(
            0, 1
        )  # eq. 2-3, in the range of prepared images

    def boundary_loss(self, outputs: list[Output]) -> Tensor:
        """InfoNCE between features along the boundaries and those of the rings, summed over structures (eq. 5-7)."""
        total = outputs[0].logits.new_zeros(())
        for structure in range(outputs[0].label.shape[1]):
            vectors, labels = [], []
            for output in outputs:
                mask = output.label[:, structure : structure + 1]
                for label, region in enumerate((background_ring(mask, self.ring_width), boundary(mask))):
                    pooled = pool_levels(output.features.values(), region[:, 0].to(output.logits.dtype))  # eq. 5
                    vectors.append(pooled)
                    labels.append(torch.full((len(pooled),), label, device=pooled.device))
            contrast = info_nce(torch.cat(vectors), torch.cat(labels), self.temperature, self.denominator)  # eq. 6-7
            total = total + contrast
        return total
