"""CCST (Chen et al., WACV 2023): redraw each image in the styles of the other hospitals, before training.

J. Chen, M. Jiang, Q. Dou, Q. Chen: "Federated Domain Generalization for Image Recognition via Cross-Client Style
Transfer", WACV 2023, https://arxiv.org/abs/2210.00912. Idea: sites share the mean and deviation of their images'
features, and each site trains on its images in the styles of all sites.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from medfed.core.bounds import NonNegativeInt, PositiveInt, Ratio
from medfed.federation.local_round import LocalRound, Samples, SiteData, batches
from medfed.federation.message import State
from medfed.federation.method import Method, SiteWeights, Tensors, has_too_few_patients
from medfed.functional.regions import edge_agreement
from medfed.functional.style import PixelMoments, channel_mean_std
from medfed.functional.weights import select_prefix
from medfed.networks.style_transfer import StyleTransfer, Transfer, drop_blank_images
from medfed.transforms.style_expansion import StyleExpansion

STYLE, ERROR = "style/", "codec_error"
MAX_BATCH = 32  # images encoded together
N_CHECKED = 32  # images whose reconstruction error and edges are measured


@dataclass(frozen=True)
class CCST(Method):
    """Cross-Client Style Transfer.

    Once, before training, each site shares a style: mean and deviation of the channels of its images' features. With a
    VGG encoder to relu4_1 that is 1,024 numbers, 4,096 bytes. Every training image is then there K times, in K of the
    sites' styles, and FedAvg runs on these K n images:

        I' = D(sigma_s (F - mu(F)) / sigma(F) + mu_s),   F = E(I)                              (eq. 1-4)

    The paper's own domain is among those drawn, and leaves the image as it is. Images are drawn when a batch first
    wants them, and kept in memory (`medfed.transforms.style_expansion`): validation and test images are never styled.

    Args:
        style: "overall" shares one style of all pixels of a site; "single" the styles of ceil(n / images_per_style) of
            its images, drawn at random, of which every image that is styled takes one at random.
        k: domains drawn for each image, without replacement, the site's own included; more than there are means all.
        transfer: "codec" redraws with AdaIN; "moments" matches mean and deviation of the intensities themselves, which
            cannot move an edge and needs no codec (ours, for segmentation).
        codec: "small" (ships with medfed), or what `python -m medfed.codec train` wrote.
        alpha: strength of the style in [0, 1].
        images_per_style: 32 in the paper.
        transfer_size: side in pixels at which images are redrawn, before they are brought back to their own (the paper
            has 96 -> 512 -> 96 for Camelyon17); 0 leaves them as they are.
        site_weights: "examples" (n_k / N), or "uniform".
        min_patients: a site with fewer training patients shares no style: it would be that of single people.

    Where paper and public code differ: the paper's FedAvg weighs sites by their images, its code all alike (preset
    `released`); single styles are those that sites uploaded, where the code reads the other site's images; the split
    comes before the expansion, where the code styles first and so validates on styled training images; blank images
    have no part in a style. The batch statistics of the code's DenseNet belong to `network.norm`.

        what                         medfed              paper               released
        weights of sites             by images           by images           uniform
        size of the transfer         as the images       512                 512
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

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"transfer_size": 512},
        "released": {"transfer_size": 512, "site_weights": "uniform"},
    }

    @property
    def _style_transfer(self) -> StyleTransfer:
        return StyleTransfer(self.transfer, self.codec, self.alpha, self.transfer_size)

    @property
    def files(self) -> tuple[str, ...]:
        """The codec, unless it is medfed's own."""
        return self._style_transfer.files

    def with_files(self, names: Mapping[str, str]) -> CCST:
        """A copy with another codec."""
        return replace(self, codec=names.get(self.codec, self.codec))

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Refuse images that the codec cannot redraw."""
        self._style_transfer.check(image_size, channels)

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Mean and std, each (C,) for overall style or (J, C) for single; and how far the codec is from identity."""
        if has_too_few_patients(site.name, site.samples, self.min_patients, "style"):
            return {}
        device = next(network.parameters()).device
        order = torch.randperm(len(site.samples), generator=site.rng)  # an order that does not tell patients apart
        n_single = math.ceil(len(order) / self.images_per_style)
        moments: PixelMoments | None = None
        singles: list[tuple[Tensor, Tensor]] = []
        for features in self._features(site, order, device):
            if self.style == "single":
                singles += list(zip(*channel_mean_std(features), strict=True))
                if len(singles) >= n_single:
                    break
            else:
                moments = PixelMoments.from_features(features) if moments is None else moments.add(features)
        if moments is None and not singles:
            warnings.warn(f"{site.name}: all its training images are blank, so it shares no style", stacklevel=2)
            return {}
        return {**_style(moments, singles[:n_single]), **self._error(site, order, device)}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """The style bank, by site."""
        return {f"{STYLE}{site}/{name}": entry for site, sent in shared.items() for name, entry in sent.items()}

    def broadcast(self, state: State, site: str) -> Tensors:
        """The whole bank: a site's own style is told by its name."""
        return {name: entry for name, entry in state.memory.items() if not name.endswith(ERROR)}

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """The site's images in K styles each (D of the paper, |D| = K n)."""
        bank = _bank(local.message.tensors)
        domains = [local.site, *(name for name in sorted(bank) if name != local.site)]
        if self.k > len(domains):
            warnings.warn(f"{local.site}: method.k is {self.k}, but there are {len(domains)} styles; all are used",
                          stacklevel=2)  # fmt: skip
        offered: list[tuple[Tensor, Tensor]] = []
        first: dict[str, int] = {}
        for domain in domains[1:]:
            first[domain] = len(offered)
            offered += list(zip(*bank[domain], strict=True))
        draws = torch.rand(len(samples), len(domains), 2, generator=rng)
        chosen = draws[..., 0].argsort(dim=1)[:, : self.k].tolist()
        choices = [
            [None if d == 0 else first[domains[d]] + int(draws[i, d, 1] * len(bank[domains[d]][0])) for d in row]
            for i, row in enumerate(chosen)
        ]
        transfer, device = self._style_transfer, local.device  # and no more of the round, which would stay in memory

        def restyle(image: Tensor, styles: Sequence[int]) -> Tensor:
            mean, std = (torch.stack(one) for one in zip(*(offered[s] for s in styles), strict=True))
            return transfer.restyle(image.to(device), mean, std)  # eq. 1-4

        expanded = StyleExpansion(samples, choices, restyle, local.max_cache_bytes)
        self._check_masks(local.site, samples, expanded)
        return expanded

    def facts(self, state: State) -> dict[str, Any]:
        """The codec's error at alpha = 0, mean over sites, in [0, 1]: no mask or detail survives better than that."""
        errors = [float(entry) for name, entry in state.memory.items() if name.endswith(ERROR)]
        return {"codec_reconstruction_error": sum(errors) / len(errors)} if errors else {}

    def styles(self, state: State, image: Tensor) -> Tensors:
        """The image in the style of each site; of single styles, in the first."""
        bank = _bank(state.memory)
        return {
            site: torch.cat([self._style_transfer.restyle(one[None], mean[:1], std[:1]) for one in image]).cpu()
            for site, (mean, std) in bank.items()
        }

    def _features(self, site: SiteData, order: Tensor, device: torch.device) -> Iterator[Tensor]:
        """Feature maps of the images that are not blank, a few images at a time."""
        for batch in batches(site.samples, MAX_BATCH, order):
            images = drop_blank_images(batch.image)
            if len(images):
                yield from map(Tensor.cpu, self._style_transfer.features(images.to(device)))

    def _error(self, site: SiteData, order: Tensor, device: torch.device) -> Tensors:
        """How far the codec alone is from the identity, at the size of the images."""
        images = site.samples.batch(order[:N_CHECKED].tolist()).image.to(device)
        error = self._style_transfer.reconstruction_error(images)
        return {} if error is None else {ERROR: error}

    def _check_masks(self, site: str, samples: Samples, expanded: StyleExpansion) -> None:
        """Warn how well the edges of styled images agree with those of the originals along the masks."""
        if self.transfer == "moments" or samples.batch([0]).label.dim() != 4:
            return
        choices = enumerate(chain.from_iterable(expanded.choices))
        styled = list(islice((i for i, choice in choices if choice is not None), N_CHECKED))
        if not styled:
            return
        before, after = samples.batch([i // expanded.n_styles for i in styled]), expanded.batch(styled)
        agreement = edge_agreement(before.image, after.image, before.label)
        if agreement is not None:
            warnings.warn(
                f"{site}: along the masks, the edges of styled images agree with those of the originals to "
                f"{agreement:.2f} (1: unmoved; method.transfer: moments cannot move them)", stacklevel=2,
            )


def _style(moments: PixelMoments | None, singles: list[tuple[Tensor, Tensor]]) -> Tensors:
    if moments is not None:
        return {"mean": moments.mean.float(), "std": moments.std.float()}
    mean, std = zip(*singles, strict=True)
    return {"mean": torch.stack(mean), "std": torch.stack(std)}


def _bank(tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and std (J, C) by site; J is 1 for overall styles."""
    styles = select_prefix(tensors, STYLE)
    sites = sorted(name.removesuffix("/mean") for name in styles if name.endswith("/mean"))
    return {site: (torch.atleast_2d(styles[f"{site}/mean"]), torch.atleast_2d(styles[f"{site}/std"])) for site in sites}
