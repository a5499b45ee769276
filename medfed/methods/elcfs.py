"""ELCFS, also called FedDG (Liu et al., CVPR 2021): episodic training with amplitude spectra of other sites.

Q. Liu, C. Chen, J. Qin, Q. Dou, P.-A. Heng: "FedDG: Federated Domain Generalization on Medical Image Segmentation via
Episodic Learning in Continuous Frequency Space", CVPR 2021, https://arxiv.org/abs/2103.06030.

Idea: the low-frequency amplitudes of an image's Fourier spectrum describe its appearance, the phases its content. In
every step, a site takes a virtual training step on its own images, and requires that this step also helps on the same
images with amplitudes of other sites. Before round 1, each site sends the low-frequency window of the amplitude
spectrum of its images (7 x 7 numbers per channel, of which 25 are distinct), and receives those of the other sites with
the weights. Afterwards, sites send the messages of FedAvg.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Ratio, ordered
from medfed.core.device import to_device
from medfed.federation.local_round import LocalRound, Output, SiteData, batches
from medfed.federation.message import State
from medfed.federation.method import ALL_DIMENSIONS, NEVER, ONCE, Effort, Matcher, Method, Tensors, has_too_few_patients
from medfed.federation.sent import Sent
from medfed.functional import fourier
from medfed.functional.contrastive import info_nce, pool_levels
from medfed.functional.regions import background_ring, boundary
from medfed.functional.slices import as_slices, from_slices
from medfed.functional.weights import select_prefix
from medfed.networks.parts.amplitude_normaliser import alpha_for_half_width

BANK, WINDOWS = "bank/", "windows"  # names of tensors in messages and memories
AUTO_HALF_WIDTH = 3  # cycles per image: a window of 7 x 7, as alpha 0.01 has at the paper's 384 pixels
MAX_BATCH = 64  # largest number of images whose spectra are computed together, to limit memory


@dataclass(frozen=True)
class ELCFS(Method):
    """Episodic learning in continuous frequency space: train on a batch and on copies with amplitudes of other sites.

    A batch x is trained together with its restyled copies t, whose low-frequency amplitudes are mixed with those of
    images of other sites. The boundary loss separates the features on the boundary of a structure from the features in
    a ring of background around the structure:

        A' = (1 - r) A_own + r A_other inside the window, r ~ U(0, 1) (lambda in the paper)        (eq. 2)
        t = inverse Fourier transform of A' with the phases of x                                   (eq. 3)
        theta' = theta - beta grad L_task(x; theta)                                                (eq. 4)
        h = mean of the decoder's features on a boundary or in a ring                              (eq. 5)
        l(m, p) = -log(exp(cos(h_m, h_p) / tau) / sum over q of exp(cos(h_m, h_q) / tau))          (eq. 6)
        L_boundary(x, t) = mean of l(m, p) over the pairs of two boundaries or of two rings        (eq. 7)
        L = L_task(x; theta) + L_task(t; theta') + w L_boundary(x, t)                              (eq. 8-9)

    q counts the negatives of m (a ring if m is a boundary) and, with the default of `denominator`, p. L_task is the
    Dice loss for masks. In eq. 8, L_boundary has all features at theta'; by default, those of x are at theta. w is
    gamma in the paper. With `balance: gradient`, the default, w = gamma min(1, |grad L_task(x)| / |grad L_boundary|),
    where both gradients are those at the last features of the decoder for the images x. For classification there is no
    boundary, and the settings of the boundary loss are not used.

    Departures. The default follows the paper, except in `min_patients` and the eight settings that `preset: paper`
    changes. Two of the eight, `alpha: auto` and `balance: gradient`, are in neither the paper nor the public code; the
    others are those of the code. The following have no setting: sites send only the window, which is all that eq. 2
    reads; the window is a square of side 2 floor(alpha min(H, W)) + 1, where the paper has a rectangle of 2 alpha H by
    2 alpha W; restyled images are clipped to [0, 1]; images are standardised after the exchange, because it needs
    intensities of at least 0 (section 4.1: before); BatchNorm's running statistics are those of x alone; and L_boundary
    is the mean over the pairs in both orders, where eq. 7 has each pair once, in an order that the paper does not
    define. Not reproduced from the code: sites that start from different weights, and site weights rounded to two
    decimals.

    Volumes (ours; the paper has slices only): the exchange takes place in each axial slice of a patch, with the windows
    of successive slices of one patch of the other site and one lambda for the patch. Boundary and ring are those of the
    6 neighbours of a voxel, and the ring has as many slices as fit into its width in the plane.

    Readings, where the paper is silent: a boundary of 1 pixel and a ring of 5 pixels, and the sum of the boundary
    losses of several structures, as in the code. Eq. 7 is a loss of one image; a batch has the mean over the images
    that show the structure. Images are augmented before the exchange. `data.standardise: slice` removes the exchanged
    brightness and contrast of a slice, `volume` and `dataset` keep the whole exchange.

    Args:
        alpha: half the side of the exchanged window as a fraction of the image's side (alpha in the paper), in [0,
            0.5). The window covers floor(alpha * side) cycles per image on either side of 0: 0.01 (the paper, section
            4.2) is 7 x 7 at 384 pixels, but only the mean brightness at 96 pixels. "auto" is 7 x 7 at every image size
            (less for an image of fewer than 7 pixels).
        gamma: weight of the boundary loss, at least 0. The paper has 0.1 for fundus images and 0.5 for prostate MRI
            (section 4.2). 0 leaves the boundary loss out.
        balance: "gradient" reduces the weight of the boundary loss in each step as above; it is 0 where one of the
            gradients is 0 or not finite. "none" always has the weight gamma, as in the paper; the gradient is then up
            to 380 times that of the Dice loss (breast ultrasound, 8 rounds: 24.1 % Dice instead of 75.5 %).
        meta_step: step size of the inner step, the virtual training step on the raw images (beta in the paper), at
            least 0. 0.001 in the paper, section 4.2.
        temperature: temperature of the boundary loss (tau in the paper), above 0. 0.05 in the paper, section 4.2.
        views: number of restyled copies of each image, each with the amplitudes of a random other site; at least 0. 0
            makes one copy for every other site, as in the paper, which needs more memory.
        ratio: mixing ratio of own and other amplitudes (lambda in the paper): "uniform" draws it from U(0, 1) for each
            copy, as in the paper; [low, high] draws it from U(low, high) (Figure 6b); a number in [0, 1] is used for
            all copies. 1 replaces the amplitudes completely.
        exchange: whether images are restyled. false shares nothing and trains the raw images twice (ablation).
        episodic: whether the restyled images are trained after the inner step. false trains them at theta (ablation).
        decoder_levels: number of the decoder's last levels that enter the boundary loss, at least 1. 2 in the paper.
        ring_width: width in pixels of the ring of background around a structure, at least 1. 5 in the authors' code.
        boundary_features: weights at which the boundary loss computes the features of x: "before_inner_step" (theta, as
            in the authors' code) or "after_inner_step" (theta', eq. 8; one more forward pass).
        boundary_pairs: which feature vectors the boundary loss compares: those of the whole "batch" (as in the authors'
            code, so that the images of other patients are positives too), or only those of one "image" and its restyled
            copies (eq. 6-7).
        inner_clamp: largest absolute value of an element of the gradient of the inner step, above 0; larger ones are
            clipped. 100 in the authors' code. null clips nothing, as in the paper.
        second_order: whether gradients pass through the inner step, as eq. 9 says. false ignores how the inner step
            depends on the weights (first order), as in the authors' code.
        denominator: denominator of the boundary loss: "positive_and_negatives" (bounded below by 0, as in the authors'
            code) or "negatives" (eq. 6 as printed). The latter has no lower bound and outweighs the task's loss
            (prostate phantom: 4.3 % Dice instead of 74.3 %), so configs of the paper's experiments do not use it.
        bank_share: fraction of a site's images, drawn at random, whose amplitudes it shares, in (0, 1]. 1 in the paper.
        min_patients: a site with fewer training patients than this trains as usual, but shares nothing, because its
            amplitudes could be traced to single patients. At least 1. Not in the paper.

    Some settings of the public code belong to other blocks of a config: `data.standardise: none` (with slice, an
    exchanged mean has no effect), `training.augment: false`, Adam's betas (0.9, 0.999), and a threshold of 0.75.
    """

    alpha: Annotated[float, Field(ge=0, lt=0.5)] | Literal["auto"] = "auto"
    gamma: NonNegativeFloat = 0.5
    balance: Literal["gradient", "none"] = "gradient"
    meta_step: NonNegativeFloat = 1e-3
    temperature: PositiveFloat = 0.05
    views: NonNegativeInt = 1
    ratio: Literal["uniform"] | Ratio | Annotated[tuple[Ratio, Ratio], AfterValidator(ordered)] = "uniform"
    exchange: bool = True
    episodic: bool = True
    decoder_levels: PositiveInt = 2
    ring_width: PositiveInt = 5
    boundary_features: Literal["before_inner_step", "after_inner_step"] = "before_inner_step"
    boundary_pairs: Literal["batch", "image"] = "batch"
    inner_clamp: PositiveFloat | None = 100.0
    second_order: bool = False
    denominator: Literal["positive_and_negatives", "negatives"] = "positive_and_negatives"
    bank_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_patients: PositiveInt = 3

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return the task's loss on the images and their restyled copies, plus the boundary loss (eq. 8-9)."""
        with_boundary = self.gamma > 0 and batch.label.dim() > 1  # masks, not classes (B,)
        taps = local.architecture.decoder_levels[: self.decoder_levels] if with_boundary else ()  # finest first
        raw = local.forward(batch, taps)
        loss_raw = local.task.loss(raw.logits, batch.label)  # eq. 9, first term
        theta_prime: Mapping[str, Tensor] = local.parameters()  # given weights leave BatchNorm's statistics as they are
        if self.episodic:  # eq. 4
            theta_prime = inner_step(loss_raw, theta_prime, self.meta_step, self.inner_clamp, self.second_order)
        restyled = local.forward(self._restyled(local, batch), taps, theta_prime)
        total = loss_raw + local.task.loss(restyled.logits, restyled.label)  # eq. 8, first term; eq. 9
        if not with_boundary:
            return total, raw
        after = self.boundary_features == "after_inner_step" and self.episodic
        originals = local.forward(batch, taps, theta_prime) if after else raw
        boundary_loss = self.boundary_loss([originals, restyled], local.task.slice_ratio)  # eq. 5-7
        finest = taps[0]
        if w := self._boundary_weight((loss_raw, raw.features[finest]), (boundary_loss, originals.features[finest])):
            total = total + w * boundary_loss  # eq. 8, second term
        return total, raw

    def _boundary_weight(self, *pairs: tuple[Tensor, Tensor]) -> float:
        """Return w for (loss, decoder's last features) of the task and of the boundary; 0 leaves the boundary out."""
        if self.balance == "none":
            return self.gamma  # eq. 8
        gradients = (torch.autograd.grad(loss, features, retain_graph=True)[0] for loss, features in pairs)
        return self.gamma * min(1.0, _norm_ratio(*gradients))

    def boundary_loss(self, outputs: list[Output], slice_ratio: float = 1.0) -> Tensor:
        """Return a scalar: InfoNCE of the decoder's mean features on the boundary and in the ring of each structure.

        `outputs` are those for the B original images and for their V * B restyled copies (copy v of image b has the
        position v * B + b). A structure that no image of the batch shows adds 0.
        """
        total, n_images = outputs[0].logits.new_zeros(()), len(outputs[0].label)
        for structure in range(outputs[0].label.shape[1]):
            vectors, labels, images = [], [], []  # label 1 for the boundary, 0 for the ring
            for output in outputs:
                mask = output.label[:, structure : structure + 1]
                for label, region in enumerate((background_ring(mask, self.ring_width, slice_ratio), boundary(mask))):
                    pooled = pool_levels(output.features.values(), region[:, 0].to(output.logits.dtype))  # eq. 5
                    vectors.append(pooled)
                    labels.append(torch.full((len(pooled),), label, device=pooled.device))
                    if self.boundary_pairs == "image":
                        images.append(region.flatten(1).any(dim=1).nonzero()[:, 0] % n_images)
            groups = torch.cat(images) if images else None
            loss = info_nce(torch.cat(vectors), torch.cat(labels), self.temperature, self.denominator, groups)
            total = total + loss  # eq. 6-7
        return total

    def _restyled(self, local: LocalRound, batch: Batch) -> Batch:
        """Return the V restyled copies, (V B, C, H, W); the batch itself if no other site shared amplitudes."""
        banks = [bank for name, bank in sorted(local.message.tensors.items()) if name.startswith(BANK)]
        if not banks:
            return batch
        n = len(batch.image)
        n_slices = len(as_slices(batch.image)) // n  # of a patch of a volume; 1 for images
        if self.views == 0:
            donors = torch.arange(len(banks))[:, None].expand(-1, n)
        else:
            donors = torch.randint(len(banks), (self.views, n), generator=local.rng)
        spectrum, images = self.spectrum(batch.image), []  # eq. 1; the same for all views
        for row in donors.tolist():
            positions, ratio = torch.rand(2, n, generator=local.rng)
            packed = []
            for bank, u in zip((banks[donor] for donor in row), positions.tolist(), strict=True):
                first = int(u * (len(bank) // n_slices)) * n_slices
                packed += [bank[(first + z) % len(bank)] for z in range(n_slices)]  # a donor may have sent fewer
            images.append(mixed(batch.image, spectrum, packed, self._mixing_ratio(ratio)))  # eq. 2-3
        label = batch.label.repeat(len(images), *[1] * (batch.label.dim() - 1))
        moments = None if batch.moments is None else batch.moments.repeat(len(images), 1, 1)
        return Batch(torch.cat(images), label, moments=moments)

    def _mixing_ratio(self, uniform: Tensor) -> Tensor:
        """Return the mixing ratios (B,) for uniform random numbers (B,)."""
        if self.ratio == "uniform":
            return uniform
        if isinstance(self.ratio, tuple | list):
            low, high = self.ratio
            return (low + (high - low) * uniform).clamp(low, high)  # rounding may exceed the limits
        return torch.full_like(uniform, self.ratio)

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return `windows`, (n, C, P): P = (S * S + 1) / 2 distinct amplitudes of the S x S lowest frequencies (eq. 1).

        One row for each of n images, or of the slices of patches, one after the other. The amplitude at frequency 0 is
        the mean of the image.
        """
        if has_too_few_patients(site.name, site.samples, self.min_patients, "frequency windows"):
            return {}
        image = site.samples.batch([0]).image
        if self.alpha not in ("auto", 0) and self.spectrum(image).half_width == 0:
            warnings.warn(
                f"{site.name}: for method.alpha {self.alpha} and {min(image.shape[2:])} pixels a side, the window has "
                "only the mean brightness, which data.standardise: slice removes; set method.alpha to auto for the "
                "paper's window of 7 x 7",
                stacklevel=2,
            )
        n = len(site.samples)
        # A random order, so that the order of the windows does not reveal which images are of one patient.
        chosen = torch.randperm(n, generator=site.rng)[: math.ceil(self.bank_share * n)]
        site.n_patients[WINDOWS] = 1  # a row for each image
        windows = [self.spectrum(batch.image).window() for batch in batches(site.samples, MAX_BATCH, chosen)]
        return {WINDOWS: torch.cat([fourier.pack_window(window) for window in windows])}  # eq. 1: amplitudes

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Return the paper's distribution bank: `bank/SITE`, (n, C, P), the windows of each site."""
        return {BANK + site: tensors[WINDOWS] for site, tensors in shared.items() if WINDOWS in tensors}

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send `bank/SITE`, (n, C, P), of all other sites."""
        return {name: windows for name, windows in state.memory.items() if name != BANK + site}

    def spectrum(self, image: Tensor) -> fourier.LowFrequencySpectrum:
        """The low frequencies of images (B, C, H, W), or of the slices of patches (B, C, X, Y, Z), in a window of the
        size that `alpha` gives."""
        image = as_slices(image)
        alpha, side = self.alpha, min(image.shape[2:])
        if alpha == "auto":
            alpha = alpha_for_half_width(min(AUTO_HALF_WIDTH, (side - 1) // 2), side)
        return fourier.low_frequency_spectrum(image, alpha)

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {  # `gamma` differs between the paper's tasks (section 4.2), so it has to be set
            "alpha": 0.01,  # section 4.2
            "balance": "none",  # eq. 8: a constant weight
            "views": 0,  # section 3.2: a copy for each other site
            "boundary_features": "after_inner_step",  # eq. 8: theta'
            "boundary_pairs": "image",  # eq. 6-7
            "inner_clamp": None,  # eq. 4 has no limit
            "second_order": True,  # eq. 9: gradients through the inner step
            "denominator": "negatives",  # eq. 6 as printed
        },
        "released": {  # the authors' public code, which trains on fundus images with gamma 0.1
            "alpha": 0.0,  # only the mean brightness is exchanged,
            "ratio": 1.0,  # and completely
            "balance": "none",
            "decoder_levels": 1,
            "bank_share": 0.125,  # every eighth image
        },
    }
    patients_advice: ClassVar[str] = (
        "set method.exchange to false, or choose a method that shares means over the site, such as harmofl"
    )
    _amplitudes = Sent(
        "low-frequency amplitude windows",
        "Brightness and coarse contrast of single images, without phase, so no shapes. Their number is the number of "
        "images. Someone who has an image could match it to its window.",
    )
    sent: ClassVar[Mapping[str, Sent]] = {
        WINDOWS: _amplitudes,
        f"{BANK}*": _amplitudes._replace(title=f"{_amplitudes.title}, of the other sites"),
    }

    @property
    def shares(self) -> str:
        return ONCE if self.exchange else NEVER

    share_reads_network = False
    statistic_ranges = {WINDOWS: (0.0, 1.0)}
    row_tensors = frozenset({WINDOWS})

    @property
    def match_kinds(self) -> frozenset[str]:
        return frozenset({"window"}) if self.exchange else frozenset()

    def effort(self, n_sites: int) -> Effort:
        """A step has the images and their restyled copies."""
        return Effort(images=1 + (self.views or n_sites - 1) if self.exchange and n_sites > 1 else 1)

    def matcher(self, state: State, kind: str, ratio: float) -> Matcher | None:
        """Mix the federation's mean window into a test image, if `evaluation.match` says so (not in the paper)."""
        windows = list(mean_windows(state).values())
        if not windows:
            return None
        mean = torch.stack(windows).mean(dim=0)

        def match(image: Tensor) -> Tensor:
            ratios = torch.full((len(image),), ratio)
            return mixed(image, self.spectrum(image), [mean] * len(as_slices(image)), ratios)  # eq. 2-3

        return match


def _norm_ratio(first: Tensor, second: Tensor) -> float:
    """Return |first| / |second|, or 0 if one of the norms is 0 or not finite."""
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in (first, second)]).tolist()
    return norms[0] / norms[1] if all(0 < norm < math.inf for norm in norms) else 0.0


def mean_windows(state: State) -> Tensors:
    """The mean over the packed windows that each site shared, (C, P), by name of the site."""
    return {site: bank.mean(dim=0) for site, bank in select_prefix(state.memory, BANK).items()}


def mixed(image: Tensor, spectrum: fourier.LowFrequencySpectrum, packed: list[Tensor], ratio: Tensor) -> Tensor:
    """Mix a packed window (C, P) into each image (B, C, H, W), or each slice of patches (B, C, X, Y, Z), clipped to [0,
    1] (eq. 2-3). `ratio` is (B,); the slices of a patch have the same."""
    window, ratio = fourier.unpack_window(torch.stack(packed)), ratio.repeat_interleave(len(packed) // len(image))
    window, ratio = (to_device(entry, image.device).to(image.dtype) for entry in (window, ratio))
    return from_slices(fourier.mix_amplitude(as_slices(image), spectrum, window, ratio).clamp(0, 1), image)


def inner_step(
    loss: Tensor, parameters: Mapping[str, Tensor], step_size: float, clamp: float | None, second_order: bool = False
) -> dict[str, Tensor]:
    """Return theta' = theta - beta clamp(dL/dtheta), the weights after the virtual step on L (eq. 4), by name.

    With `second_order`, gradients pass through this step; else d theta' / d theta is taken as the identity."""
    trained = {name: entry for name, entry in parameters.items() if entry.requires_grad}
    gradients = torch.autograd.grad(
        loss, list(trained.values()), retain_graph=True, create_graph=second_order, allow_unused=True
    )
    theta_prime = dict(parameters)
    for (name, entry), gradient in zip(trained.items(), gradients, strict=True):
        if gradient is not None:
            limited = gradient if clamp is None else gradient.clamp(-clamp, clamp)
            theta_prime[name] = entry - step_size * limited  # eq. 4
    return theta_prime
