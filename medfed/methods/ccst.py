"""CCST (Chen et al., WACV 2023): train on each image in the styles of several sites.

J. Chen, M. Jiang, Q. Dou, Q. Chen: "Federated Domain Generalization for Image Recognition via Cross-Client Style
Transfer", WACV 2023, https://arxiv.org/abs/2210.00912.

Idea: the mean and standard deviation of feature channels describe the style of an image. Before round 1, each site
sends its style (two vectors; with a VGG encoder up to relu4_1 1,024 numbers, 4,096 bytes) and the error of its codec,
one number. It receives the styles of all sites with the weights, and redraws its training images in them. Afterwards,
sites send the messages of FedAvg.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from medfed.core.bounds import NonNegativeInt, PositiveInt, Ratio
from medfed.federation.local_round import LocalRound, Samples, SiteData, count_patients
from medfed.federation.message import State
from medfed.federation.method import (
    ALL_DIMENSIONS,
    STYLE_RANGES,
    Effort,
    Matcher,
    Method,
    SiteWeights,
    Tensors,
    has_too_few_patients,
)
from medfed.federation.sent import Sent
from medfed.functional.regions import edge_agreement
from medfed.functional.slices import as_slices
from medfed.functional.style import PixelMoments
from medfed.functional.weights import select_prefix
from medfed.networks.parts.style_transfer import Encoded, StyleTransfer, Transfer, single_styles
from medfed.transforms.image_store import ImageStore
from medfed.transforms.slice_view import slices_of
from medfed.transforms.style_expansion import ORIGINAL, StyleExpansion

STYLE, ERROR = "style/", "codec_error"  # names of tensors in messages and memories
STYLE_OF_IMAGES = Sent(
    "style: mean and spread of image features",
    "Colour, contrast and texture without position, so no shapes. They are those of all images together or, if the "
    "shape has a row for each image, of single images; someone who has such an image could match it to its row.",
)
N_CHECKED = 32  # number of images whose reconstruction error and edges are measured


@dataclass(frozen=True)
class CCST(Method):
    """FedAvg on an expanded training set that has each image in K styles (cross-client style transfer).

    Each site shares its style (S_mu, S_sigma): mean and standard deviation of the channels of the encoder E's features
    (eq. 4-8). Each site then draws K of the sites for each of its n training images and redraws the image I in their
    styles with the decoder D:

        I' = D(S_sigma (F - mu(F)) / sigma(F) + S_mu),   F = E(I)                                  (eq. 5)

    If the site itself is among the K, the original image stands for it. FedAvg runs on the K n images. Validation and
    test images are restyled only if `evaluation.match: style` says so, which is not in the paper.

    Volumes (ours; the paper has 2-D images): styles are those of the axial slices of the patches, the slices of a patch
    are redrawn one by one in the same style.

    Departures from the paper: the codec that comes with medfed is not the paper's (`codec`; no preset changes it),
    blank images are left out of a style, a site of few patients shares none (`min_patients`), and images are redrawn
    when they are first needed instead of before training; the result is the same, rounded to float16. Departures from
    the public code: FedAvg weights sites by their numbers of images (the code weights all equally, preset "released").
    Single styles are those that the sites sent (the code reads the images of the other site). Training and validation
    images are split before the expansion (the code styles first, so that styled copies of training images are in its
    validation set). Images are redrawn at their own size (`transfer_size`). The batch statistics of the code's DenseNet
    are a setting of the network (`network.norm`).

    Readings: J, the number of single styles (eq. 7), has no value in the paper. Section 4.2 gives ceil(n / 32) for M,
    which in eq. 8 is the number of images of an overall style, where it would have no effect; we take it as J.

    Args:
        style: what a site shares: "overall" is one style, computed over all pixels of all its images; "single" is a set
            of styles of ceil(n / images_per_style) random images, of which each restyled image uses one at random.
        k: number of sites (K in the paper) whose styles are drawn for each image, without replacement, at least 1. The
            site itself is one of the candidates. Values above the number of sites use all. 3 in the paper for PACS and
            Office-Home.
        transfer: how images are restyled: "codec" encodes and decodes them with AdaIN, as in the paper; "moments" gives
            the pixel intensities of each channel another mean and standard deviation, which cannot move an edge and
            needs no codec (not in the paper; for segmentation).
        codec: encoder and decoder for `transfer: codec`: "small" for the one that comes with medfed, or the path of a
            file or folder that `python -m medfed.codec` wrote. The paper has AdaIN's (VGG; there, up to relu4_1).
        alpha: strength of the style in [0, 1]. 0 encodes and decodes without a change of style; 1, as in the paper,
            applies the other style in full.
        images_per_style: with `style: single`, number of images per shared style, at least 1. 32 is our reading.
        transfer_size: side in pixels to which images are resized before they are restyled; the result is resized to the
            original size. 0 restyles images at their own size. The authors' code uses 512, also for patches of 96 x 96.
        site_weights: weights of the sites in the average: "examples" (n_k / N for n_k images) or "uniform" (all alike).
        min_patients: a site with fewer training patients than this shares no style, because its style would describe
            single patients. Such a site trains as usual. At least 1. Not in the paper.
    """

    style: Literal["overall", "single"] = "overall"
    k: PositiveInt = 3
    transfer: Transfer = "codec"
    codec: str = "small"
    alpha: Ratio = 1.0
    images_per_style: PositiveInt = 32
    transfer_size: NonNegativeInt = 0
    site_weights: SiteWeights = "examples"
    min_patients: PositiveInt = 3

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return `mean` and `std`, (C,), or (J, C) for `style: single`, and with a codec `codec_error`, (1,).

        Called once, before round 1. C counts feature channels, or image channels for `transfer: moments`. `codec_error`
        is the mean absolute difference between images in [0, 1] and their reconstruction by the codec.
        """
        if has_too_few_patients(site.name, site.samples, self.min_patients, "style"):
            return {}
        device, samples = next(network.parameters()).device, slices_of(site.samples)
        # A random order, so that the order of single styles does not reveal which images are of one patient.
        order = torch.randperm(len(samples), generator=site.rng)
        encoded = self.style_transfer.encoded(lambda indices: samples.batch(indices).image, order, device)
        n_single = math.ceil(len(order) / self.images_per_style)
        style = single_styles(encoded, n_single) if self.style == "single" else _overall_style(encoded)
        if style is None:
            warnings.warn(f"{site.name}: all training images are blank, so the site shares no style", stacklevel=2)
            return {}
        mean, std, images = style
        n_patients = 1 if self.style == "single" else count_patients(samples, images)
        site.n_patients.update({"mean": n_patients, "std": n_patients})
        return {"mean": mean, "std": std, **self._error(site, samples, order[:N_CHECKED], device)}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Return the bank B under `style/SITE/mean` and `style/SITE/std` (eq. 9-10), and `style/SITE/codec_error`."""
        return {f"{STYLE}{site}/{name}": entry for site, tensors in shared.items() for name, entry in tensors.items()}

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send the bank B to every site, without the reconstruction errors."""
        return {name: entry for name, entry in state.memory.items() if not name.endswith(ERROR)}

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """Return the K n images of Algorithm 1. The draws are those of the whole run: `rng` has a fixed seed."""
        bank = style_bank(local.message.tensors)
        domains = [local.site, *(name for name in sorted(bank) if name != local.site)]
        if self.k > len(domains):
            warnings.warn(
                f"{local.site}: method.k is {self.k}, but only {len(domains)} sites have a style; all of them are used",
                stacklevel=2,
            )
        n_styles = [0, *(len(bank[domain][0]) for domain in domains[1:])]  # of each site; none of the site itself
        choices = _draw_styles(len(samples), n_styles, self.k, rng)  # Alg. 1
        styles = [bank[domain] for domain in domains[1:]] or [(torch.zeros(0, 0), torch.zeros(0, 0))]
        mean, std = (torch.cat(column) for column in zip(*styles, strict=True))
        transfer, device = self.style_transfer, local.device  # `restyle` must not keep the whole round in memory

        def restyle(image: Tensor, drawn: Sequence[int], n_drawn: int) -> Tensor:
            """The image (1, C, H, W) in each of the drawn styles."""
            return transfer.restyle(image.to(device), mean[drawn], std[drawn], n_drawn)  # eq. 5

        # Images are redrawn when a batch first needs them, and kept in the store, in memory or on disk.
        store = ImageStore(local.cache, local.site)
        expanded = StyleExpansion(samples, choices, restyle, store)
        self._check_masks(local.site, samples, expanded)
        return expanded

    @property
    def style_transfer(self) -> StyleTransfer:
        """How images are redrawn, as the settings say."""
        return StyleTransfer(self.transfer, self.codec, self.alpha, self.transfer_size)

    def _error(self, site: SiteData, samples: Samples, indices: Tensor, device: torch.device) -> Tensors:
        """Return `codec_error` over some images; nothing for `transfer: moments`."""
        images = samples.batch(indices.tolist()).image.to(device)
        error = self.style_transfer.reconstruction_error(images)
        if error is None:
            return {}
        site.n_patients[ERROR] = count_patients(samples, indices)
        return {ERROR: error}

    def _check_masks(self, site: str, samples: Samples, expanded: StyleExpansion) -> None:
        """Warn how well restyled images keep the edges of the originals near the outlines of the masks."""
        if self.transfer == "moments" or samples.batch([0]).label.dim() == 1:
            return
        restyled = (expanded.choices.flatten() != ORIGINAL).nonzero().flatten()[:N_CHECKED].tolist()
        if not restyled:
            return
        before, after = samples.batch([i // expanded.n_styles for i in restyled]), expanded.batch(restyled)
        agreement = edge_agreement(as_slices(before.image), as_slices(after.image), as_slices(before.label))
        if agreement is not None:
            warnings.warn(
                f"{site}: along the outlines of the masks, the edges of restyled images and of the originals have a "
                f"correlation of {agreement:.2f} (1 means that no edge moved, 0 that the edges do not correspond); "
                "method.transfer: moments keeps all edges in place",
                stacklevel=2,
            )

    @property
    def files(self) -> tuple[str, ...]:
        return self.style_transfer.files

    def with_files(self, names: Mapping[str, str]) -> CCST:
        return replace(self, codec=names.get(self.codec, self.codec))

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        self.style_transfer.check(image_size, channels)

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"transfer_size": 512},  # as in the authors' code; the text names no size
        "released": {"transfer_size": 512, "site_weights": "uniform"},
    }
    patients_advice: ClassVar[str] = "set method.style to overall, which shares one style of all patients"
    sent: ClassVar[Mapping[str, Sent]] = {
        "mean": STYLE_OF_IMAGES,
        "std": STYLE_OF_IMAGES,
        "codec_error": Sent("error of the style codec", "How similar an image and its copy from the codec are."),
        "style/*": STYLE_OF_IMAGES._replace(title=f"{STYLE_OF_IMAGES.title}, of all sites"),
    }
    share_reads_network = False
    expand_reads = (STYLE,)
    statistic_ranges = {**STYLE_RANGES, "codec_error": (0.0, 1.0)}

    @property
    def row_tensors(self) -> frozenset[str]:
        return frozenset({"mean", "std"}) if self.style == "single" else frozenset()

    match_kinds = frozenset({"style"})

    def effort(self, n_sites: int) -> Effort:
        """K times the steps, because each image is trained in K styles."""
        copies = min(self.k, n_sites)
        return Effort(copies, copies)

    def matcher(self, state: State, kind: str, ratio: float) -> Matcher | None:
        """Redraw a test image in the mean of the sites' styles (`evaluation.match`, not in the paper)."""
        bank = style_bank(state.memory)
        if not bank:
            return None
        mean, std = (
            torch.stack([style.mean(dim=0) for style in styles]).mean(dim=0, keepdim=True)
            for styles in zip(*bank.values(), strict=True)
        )
        return self.style_transfer.to_style(mean, std, ratio)

    def summarise(self, state: State) -> dict[str, Any]:
        """Return the sites' mean `codec_error`, the error that encoding and decoding alone add to restyled images."""
        errors = [float(entry) for name, entry in state.memory.items() if name.endswith(ERROR)]
        return {"codec_reconstruction_error": sum(errors) / len(errors)} if errors else {}


def style_bank(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return mean and standard deviation, each (J, C), by site; J is 1 for an overall style."""
    styles = select_prefix(tensors, STYLE)
    sites = sorted(name.removesuffix("/mean") for name in styles if name.endswith("/mean"))
    return {site: (torch.atleast_2d(styles[f"{site}/mean"]), torch.atleast_2d(styles[f"{site}/std"])) for site in sites}


def _overall_style(encoded: Encoded) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return mean and standard deviation (C,) over all pixels of all images, and the indices of the images (eq. 8)."""
    overall: PixelMoments | None = None
    used: list[Tensor] = []
    for indices, features in encoded:
        moments = PixelMoments.from_features(features)
        overall = moments if overall is None else overall.merge(moments)
        used.append(indices)
    return None if overall is None else (overall.mean.float(), overall.std.float(), torch.cat(used))


def _draw_styles(n_images: int, n_styles: Sequence[int], k: int, rng: torch.Generator) -> Tensor:
    """Draw K sites for each image and a style of each site, as Algorithm 1 does: (n, K) rows of the bank, int32.

    `n_styles` counts each site's styles in the bank. The first site is the own one, for which the result is ORIGINAL.
    """
    draws, counts = torch.rand(n_images, len(n_styles), 2, generator=rng), torch.tensor(n_styles)
    sites = draws[..., 0].argsort(dim=1)[:, :k]  # Alg. 1, line 3
    first_row = counts.cumsum(dim=0) - counts  # of each site in the bank
    rows = first_row[sites] + (draws[..., 1].gather(1, sites) * counts[sites]).long()  # lines 7-10
    return torch.where(sites == 0, ORIGINAL, rows).int()  # lines 5-6
