"""FISC (Nguyen et al., 2024; PARDON, ICDCS 2025): see each image also in a style between all hospitals, both close.

D. T. Nguyen, T. T. Johnson, K. Leach: "FISC: Federated Domain Generalization via Interpolative Style Transfer and
Contrastive Learning", 2024, https://arxiv.org/abs/2410.22622. Idea: every image is also seen in one style that lies
between those of all sites, and a triplet loss keeps the two embeddings of an image close.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, Ratio
from medfed.federation.local_round import LocalRound, Output, Samples, SiteData, batches
from medfed.federation.message import State
from medfed.federation.method import Method, Tensors, has_too_few_patients
from medfed.functional.contrastive import region_means, triplet_loss
from medfed.functional.regions import background_ring
from medfed.functional.sampling import draw_other_class
from medfed.functional.style import channel_mean_std
from medfed.functional.style_clusters import Median, Partition, Spread, clustered_site_style, interpolation_style
from medfed.functional.weights import batch_norm_layers, select_prefix
from medfed.networks.style_transfer import StyleTransfer, Transfer, drop_blank_images
from medfed.transforms.restyled_view import RestyledView

VIEW = "fisc"
STYLE, CLUSTERS = "style/", "clusters/"
MAX_BATCH = 32  # images encoded together
CLASSES, MASKS = 0.2, 0.0  # regularisation where no value is given


@dataclass(frozen=True)
class FISC(Method):
    """Federated Interpolation Style and Contrastive learning.

    Once, before training, each site shares a style: FINCH clusters its images by style, and the average of the
    clusters' styles is the site's (with a VGG encoder to relu4_1 1,024 numbers, 4,096 bytes). The coordinator clusters
    the sites' styles, and the median over the clusters is the interpolation style S of the whole run. Every training
    image x then has a second view x' = AdaIN(x, S), and

        L = L_task(x) + contrast * L_con + regularisation * mean(z^2 + z'^2)                           (eq. 5-8)
        L_con = mean of max(0, |z_i - z'_i| - |z_i - z'_j| + margin),  j a random image of another class

    with the embeddings z of x and z' of x', in L_con of length one.

    Args:
        contrast, regularisation: weights of the two terms; 0 switches one off. Without a value the regulariser weighs
            0.2 where images are classified (the code's, for PACS) and nothing on masks.
        margin: of the triplets.
        site_clusters, common_clusters: which partition of FINCH the site and the coordinator take: "first", "last", or
            "none" for the mean over all images, or sites.
        spread: deviation of a site's style, "mixture" over its clusters or "mean" (`functional.style_clusters`).
        median: of an even number of clusters, "middle" or "lower".
        freeze_batch_norm: BatchNorm keeps the statistics that it came with. As released, with a pretrained network; one
            that starts afresh does not learn so.
        noise, noise_scale: each site adds noise * N(0, noise_scale^2) to every number of its style; its deviations stay
            at least 0. For the paper's Table 10 alone: it follows from the seed, so whoever knows the config can take
            it off. What protects is `privacy.statistics_noise`, which is drawn from a secret of the site.
        transfer, codec, alpha, transfer_size: as in `StyleTransfer`.
        ring_width: of the background beside a structure, in pixels (segmentation).
        min_patients: a site with fewer training patients shares no style: it would be that of single people. Clusters
            count alike, so the few images of one cluster, even of one patient, weigh as much as the many of another;
            `site_clusters: none` weighs all images alike.

    Ablations of the paper's Table 11: v3 is `contrast: 0`, v5 all of it; `site_clusters: none` and `common_clusters:
    none` are our reading of v1 and v2, both terms off of v4.

    The second view is drawn once and kept, and rotated, scaled and flipped with its image, where the paper styles each
    augmented batch anew. Only the pass over x moves BatchNorm's statistics. (A network with dropout draws it anew for
    z', and so adds noise to the distance.) z and z' of the task's pass serve all terms, where the public code computes
    features five times. The code clusters whole feature maps at the sites and takes statistics before the ReLU; this is
    the paper's: styles, after it. AdaIN of strength 0.5 is the code's (eq. 4 has 1).

    Greyscale: the paper's appendix C expects nothing of the method there, as styles then hardly differ.

    Segmentation (ours): z is the mean feature inside a structure (finest decoder level), z' that of the second view,
    and the negative another structure's or the background ring's, of any image of the second views. The regulariser is
    off: these few features draw the mask themselves, and made small, the contrast of their directions overrules the
    mask.

        what                         medfed              paper               released
        alpha                        0.5                 1                   0.5
        clusters of the coordinator  last                last                first
        median                       middle              middle              lower
        deviation of a site          mixture             mean                mixture
        BatchNorm                    trained             not stated          frozen
    """

    contrast: NonNegativeFloat = 0.75
    regularisation: NonNegativeFloat | None = None
    margin: NonNegativeFloat = 0.3
    site_clusters: Partition = "last"
    common_clusters: Partition = "last"
    spread: Spread = "mixture"
    median: Median = "middle"
    freeze_batch_norm: bool = False
    noise: NonNegativeFloat = 0.0
    noise_scale: NonNegativeFloat = 1.0
    transfer: Transfer = "codec"
    codec: str = "small"
    alpha: Ratio = 0.5
    transfer_size: NonNegativeInt = 0
    ring_width: PositiveInt = 5
    min_patients: PositiveInt = 3

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"alpha": 1.0, "spread": "mean"},
        "released": {"common_clusters": "first", "median": "lower", "freeze_batch_norm": True},
    }

    @property
    def _style_transfer(self) -> StyleTransfer:
        return StyleTransfer(self.transfer, self.codec, self.alpha, self.transfer_size)

    @property
    def _compares(self) -> bool:
        return self.contrast > 0 or self.regularisation != 0

    @property
    def files(self) -> tuple[str, ...]:
        """The codec, unless it is medfed's own."""
        return self._style_transfer.files

    def with_files(self, names: Mapping[str, str]) -> FISC:
        """A copy with another codec."""
        return replace(self, codec=names.get(self.codec, self.codec))

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Refuse images that the codec cannot redraw; warn of greyscale images."""
        self._style_transfer.check(image_size, channels)
        if channels == 1:
            warnings.warn("FISC on greyscale images: its own paper (appendix C) expects no gain there", stacklevel=2)

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """style/mean and style/std, each (C,), and how many clusters they are the average of (1,)."""
        if has_too_few_patients(site.name, site.samples, self.min_patients, "style"):
            return {}
        device, styles = next(network.parameters()).device, []
        for batch in batches(site.samples, MAX_BATCH):
            images = drop_blank_images(batch.image)
            if len(images):
                parts = self._style_transfer.features(images.to(device))
                styles += [[one.cpu() for one in channel_mean_std(features)] for features in parts]
        if not styles:
            warnings.warn(f"{site.name}: all its training images are blank, so it shares no style", stacklevel=2)
            return {}
        mean, std = (torch.cat(one) for one in zip(*styles, strict=True))
        mean, std, n_clusters = clustered_site_style(mean, std, self.site_clusters, self.spread)  # eq. 1-3
        if self.noise:
            noise = self.noise * self.noise_scale * torch.randn(2, len(mean), generator=site.rng, dtype=mean.dtype)
            mean, std = mean + noise[0], (std + noise[1]).clamp(min=0)
        return {f"{STYLE}mean": mean.float(), f"{STYLE}std": std.float(), "n_clusters": torch.tensor([n_clusters])}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """The interpolation style, and the numbers of clusters."""
        styles = {site: shared[site] for site in sorted(shared) if shared[site]}
        if not styles:
            warnings.warn("no site shared a style, so FISC trains as FedAvg does", stacklevel=2)
            return {}
        mean, std = (torch.stack([one[STYLE + name] for one in styles.values()]) for name in ("mean", "std"))
        mean, std, n_clusters = interpolation_style(mean, std, self.common_clusters, self.median)
        if self.common_clusters != "none" and len(styles) <= 3:
            warnings.warn(
                f"FISC: {len(styles)} sites shared a style, and FINCH makes one cluster of three or fewer: the "
                "interpolation style is their mean", stacklevel=2,
            )
        counts = {f"{CLUSTERS}{site}": one["n_clusters"] for site, one in styles.items()}
        style = {f"{STYLE}mean": mean.float(), f"{STYLE}std": std.float()}
        return {**style, "n_clusters": torch.tensor([n_clusters]), **counts}

    def broadcast(self, state: State, site: str) -> Tensors:
        """The interpolation style."""
        return {name: entry for name, entry in state.memory.items() if name.startswith(STYLE)}

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """The site's own samples; their batches bring the second view."""
        if not local.message.tensors or not self._compares:
            return samples
        mean, std = (local.message.tensors[STYLE + name][None] for name in ("mean", "std"))
        transfer, device = self._style_transfer, local.device  # and no more of the round, which would stay in memory
        return RestyledView(
            samples, VIEW, lambda image: transfer.restyle(image.to(device), mean, std), local.max_cache_bytes
        )

    def on_round_start(self, local: LocalRound) -> None:
        """Freeze BatchNorm's statistics, if asked for."""
        if self.freeze_batch_norm:
            for norm in batch_norm_layers(local.network).values():
                norm.eval()

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """L: the task loss, plus the contrast and the size of the embeddings of both views."""
        embedding, place = local.architecture.embedding, local.head_input
        output = local.forward(batch, (place,))
        loss = local.task.loss(output.logits, batch.label)
        if VIEW not in batch.views:
            return loss, output
        second = local.forward(Batch(batch.views[VIEW], batch.label), (place,), local.parameters())
        regularisation = (CLASSES if embedding else MASKS) if self.regularisation is None else self.regularisation
        z, second_z = output.features[place].flatten(1), second.features[place].flatten(1)
        kinds, anchors = batch.label, torch.ones_like(batch.label, dtype=torch.bool)
        if not embedding:
            z, second_z, kinds, anchors = self._of_regions(output.features[place], second.features[place], batch.label)
            if not len(z):
                return loss, output  # empty masks
        chosen, exists = draw_other_class(kinds.cpu(), kinds.cpu(), local.rng)
        chosen, used = chosen.to(z.device), anchors & exists.to(z.device)
        contrast = triplet_loss(z[used], second_z[used], second_z[chosen[used]], self.margin)  # eq. 5-6
        size = z.square().mean() + second_z.square().mean()  # eq. 7
        return loss + self.contrast * contrast + regularisation * size, output  # eq. 8

    def _of_regions(self, features: Tensor, second: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Embeddings of the structures and rings that are there, in both views; which each is; whether a structure."""
        inside = label.bool()
        around = background_ring(inside.any(dim=1, keepdim=True), self.ring_width)
        masks = torch.cat([inside, around.to(inside)], dim=1)
        (z, there), (second_z, _) = region_means(features, masks), region_means(second, masks)
        kinds = torch.arange(masks.shape[1], device=z.device).repeat(len(masks))
        return z[there], second_z[there], kinds[there], kinds[there] < label.shape[1]

    def facts(self, state: State) -> dict[str, Any]:
        """How many clusters FINCH found, at the coordinator and at the sites."""
        if "n_clusters" not in state.memory:
            return {}
        sites = {site: int(entry) for site, entry in select_prefix(state.memory, CLUSTERS).items()}
        return {"clusters_of_sites": int(state.memory["n_clusters"]), "clusters_of_images": sites}

    def styles(self, state: State, image: Tensor) -> Tensors:
        """The images in the interpolation style."""
        if STYLE + "mean" not in state.memory:
            return {}
        mean, std = (state.memory[STYLE + name][None] for name in ("mean", "std"))
        return {"all sites": torch.cat([self._style_transfer.restyle(one[None], mean, std) for one in image]).cpu()}
