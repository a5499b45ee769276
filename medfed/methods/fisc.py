"""FISC, later PARDON (Nguyen et al., 2024; ICDCS 2025): contrast each image with a copy in a style between all sites.

D. T. Nguyen, T. T. Johnson, K. Leach: "FISC: Federated Domain Generalization via Interpolative Style Transfer and
Contrastive Learning", 2024, https://arxiv.org/abs/2410.22622. Its second version and the paper at ICDCS 2025 have the
title "PARDON: Privacy-Aware and Robust Federated Domain Generalization". Equation numbers are those of the first.

Idea: the coordinator computes one common style from the styles of all sites. Each image is also seen in this style, and
a triplet loss keeps the two embeddings of an image close together. Before round 1, each site sends its style (two
vectors; with a VGG encoder up to relu4_1 1,024 numbers, 4,096 bytes; fewer with the default codec) and its number of
clusters. In each round, it receives the common style with the weights, and sends its numbers of triplets and of those
with a loss above 0. The average is that of FedAvg, n_k / N.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from medfed.core import bounds
from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Ratio
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output, Samples, SiteData, count_patients
from medfed.federation.message import Message, State
from medfed.federation.method import NEVER, ONCE, STYLE_RANGES, Effort, Matcher, Method, Tensors, has_too_few_patients
from medfed.federation.sent import SITE_STYLE, Sent
from medfed.functional.clustering import finch_partition
from medfed.functional.contrastive import contrast_views, region_embeddings
from medfed.functional.weights import batch_norm_layers, select_prefix
from medfed.networks.parts.style_transfer import StyleTransfer, Transfer, single_styles
from medfed.transforms.image_store import ImageStore
from medfed.transforms.style_expansion import RestyledView

Partition = Literal["none", "first", "last"]
Spread = Literal["mixture", "mean"]
Median = Literal["middle", "lower"]

STYLE, CLUSTERS = "style/", "clusters/"  # prefixes of tensor names
VIEW = "fisc"  # name of the restyled view in a batch
TRIPLETS, LIVE_TRIPLETS = "triplets", "live_triplets"  # facts of an update, and columns of history.csv
MIN_LIVE_SHARE = 0.05  # a round with a smaller share of live triplets gives a warning
REGULARISATION_OF_CLASSES, REGULARISATION_OF_MASKS = 0.2, 0.0  # default weights of the regulariser


@dataclass(frozen=True)
class FISC(Method):
    """FedAvg that contrasts each image with a copy in one common style, which is interpolated from all sites' styles.

    Before training, each site computes its style: it groups its images by style with the clustering FINCH (eq. 1),
    computes the mean and standard deviation of the feature channels in each cluster (eq. 2), and averages the clusters.
    The coordinator clusters the sites' styles (eq. 3), and the median over the clusters is the interpolation style S of
    the whole run. Each training image x has a second view x', which the decoder D makes from features E(x) (eq. 4, in
    which alpha is 1). With the embeddings z of x and z' of x':

        x' = D((1 - alpha) E(x) + alpha AdaIN(E(x), S))                                            (eq. 4)
        L = L_task(x) + contrast * L_con + regularisation * mean(z^2 + z'^2)                       (eq. 6-7)
        L_con = mean of max(0, |z_i - z'_i| - |z_i - z'_j| + margin)                               (eq. 5)

    j is a random image of another class. Only the pass on x updates BatchNorm's statistics; each pass has its dropout.

    A triplet is alive if its term in eq. 5 is above 0; the others have no gradient. A notice says if fewer than 5 % of
    a round are alive. With the constants of the authors' code, 0 to 5 % are on PACS with a pretrained EfficientNet
    before any training, with margin 1 at least 89 %. With three sites or fewer, FINCH makes one cluster, and S is the
    mean style. The paper expects worse results on greyscale images (appendix C), whose styles rely on the content, so
    that the transfer may add noise. Its tables have no FedAvg row.

    Segmentation (ours): z is the mean feature inside a structure (finest decoder level), z' that of the second view.
    The negative is another structure, or the ring of background, of any image's second view. The regulariser is off,
    because it makes these few features so small that the triplet loss, which sees only their directions, determines the
    mask.

    Ablations v1 to v4 of the paper's Table 11: `site_clusters: none`; `common_clusters: none`; `contrast: 0`,
    `regularisation: 0` and `restyled_loss: true`; `positives: augmented`.

    Departures from the public code, with every preset: the restyled view of an image is computed once and then rotated,
    scaled and flipped together with the image (the code restyles each augmented batch; the text does not say); the
    embeddings of the task's forward pass serve all terms (the code computes features five times); sites cluster styles,
    as in the paper (the code: whole feature maps), computed after the ReLU (the code: before it). `codec: small` is
    neither the paper's nor the code's.

    Readings, because the formulas of eq. 4-7 are missing in our copy of the text, which only says that eq. 4 applies
    AdaIN in full (alpha is 1): the constants of the code; distances that are not squared; one random negative for each
    anchor; a regulariser that is a mean of squares (in the code; the text says L2); and, for v3, no regulariser.

    Args:
        contrast: weight of the triplet loss, at least 0. 0.75 in the authors' code. 0 switches it off.
        regularisation: weight of the mean squared embeddings, at least 0. null uses 0.2 for classification (the
            authors' code, for PACS) and 0 for masks. With `contrast: 0`, set it to 0 as well: nothing else opposes it,
            and the embeddings shrink until the network cannot learn.
        margin: margin of the triplet loss, above 0. 0.3 in the authors' code.
        normalise: whether the embeddings have length 1 in the triplet loss, as in the authors' code (not in the text).
            The regulariser always uses the embeddings as they are.
        restyled_loss: whether the task's loss of x' is added to that of x, so that the network also learns the labels
            from the restyled images. For v3 of the paper's Table 11; the paper does not say how it weights the two.
        positives: "restyled" takes x' as the positive of an anchor. "augmented" is v4 of the paper's Table 11, for
            classification, in our reading of its single sentence: no style is shared, x' is x after another random
            augmentation, and each anchor has a second triplet, with the nearest x' of another image of its class.
        site_clusters: which result of the clustering FINCH a site uses to group its images by style: "first" has the
            most clusters, "last" the fewest, and "none" puts all images into one cluster.
        common_clusters: the same for the coordinator and the sites' styles: "first" (as in the authors' code; the paper
            does not say), "last", often two clusters even for 100 clients, whose median is their mean, or "none".
        spread: how the deviation of a site's style is computed: "mixture" is that of all its clusters together,
            including the distances between them (the authors' code); "mean" is the mean of the clusters' deviations.
        median: median of an even number of clusters: "middle" is the mean of the two middle values, "lower" the smaller
            of them (as in the authors' code).
        freeze_batch_norm: whether BatchNorm keeps the statistics with which it came, as in the authors' code. Only
            useful with a pretrained network; a network with fresh weights does not learn this way.
        noise: factor on the standard deviation `noise_scale` of the noise that each site adds to its style, at least 0.
            For the paper's Table 10 alone: whoever knows the config's seed can remove this noise, but not that of
            `privacy.statistics_noise`.
        noise_scale: standard deviation of the noise before the factor `noise`, at least 0.
        transfer: how images are restyled: "codec" encodes and decodes them with AdaIN, as in the paper; "moments" gives
            the pixel intensities of each channel another mean and standard deviation, which cannot move an edge and
            needs no codec.
        codec: encoder and decoder for `transfer: codec`: "small" for the one that comes with medfed, or the path of a
            file or folder that `python -m medfed.codec` wrote. The paper has a VGG encoder and the decoder of AdaIN.
        alpha: strength of the interpolation style in [0, 1]. 0.5 in the authors' code, 1 in the paper (eq. 4).
        transfer_size: side in pixels to which images are resized before they are restyled; the result is resized to the
            original size. 0 restyles images at their own size.
        ring_width: width in pixels of the ring of background around a structure, at least 1. For segmentation only.
        min_patients: a site with fewer training patients than this shares no style, because its style would describe
            single patients. Such a site trains as usual. At least 1. Not in the paper. Clusters count alike, also one
            of a single patient; `site_clusters: none` weights all images alike.
    """

    contrast: NonNegativeFloat = 0.75
    regularisation: NonNegativeFloat | None = None
    margin: PositiveFloat = 0.3
    normalise: bool = True
    restyled_loss: bool = False
    positives: Literal["restyled", "augmented"] = "restyled"
    site_clusters: Partition = "last"
    common_clusters: Partition = "first"
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

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return eq. 7; for masks, each structure and the background count as a class."""
        output = local.forward(batch, (local.head_input,))
        loss = local.task.loss(output.logits, batch.label)
        if VIEW not in batch.views:
            return loss, output
        second = local.forward(replace(batch, image=batch.views[VIEW]), (local.head_input,), local.parameters())
        if self.restyled_loss:
            loss = loss + local.task.loss(second.logits, batch.label)  # Table 11, v3
        z, second_z, classes, anchors = self._embeddings(local, output, second)
        if not len(z):
            return loss, output  # all masks are empty
        terms = contrast_views(
            z, second_z, classes, anchors, local.rng, self.margin, self.normalise, same_class=self._augments
        )
        if self.contrast:
            local.facts[TRIPLETS] = local.facts.get(TRIPLETS, 0) + len(terms)
            local.facts[LIVE_TRIPLETS] = local.facts.get(LIVE_TRIPLETS, 0) + (terms > 0).sum()
        default = REGULARISATION_OF_CLASSES if local.architecture.embedding else REGULARISATION_OF_MASKS
        weight = default if self.regularisation is None else self.regularisation
        triplet_loss = terms.mean() if len(terms) else terms.sum()  # eq. 5
        regulariser = z.square().mean() + second_z.square().mean()  # eq. 6
        return loss + self.contrast * triplet_loss + weight * regulariser, output  # eq. 7

    def _embeddings(self, local: LocalRound, output: Output, second: Output) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return z and z', (R, D), of images or of the masks' structures and rings, their classes, and the anchors."""
        z, second_z, label = output.features[local.head_input], second.features[local.head_input], output.label
        if local.architecture.embedding:
            return z.flatten(1), second_z.flatten(1), label, torch.ones_like(label, dtype=torch.bool)
        z, classes, _ = region_embeddings(z, label, self.ring_width)
        second_z, *_ = region_embeddings(second_z, label, self.ring_width)
        return z, second_z, classes, classes < label.shape[1]  # the structures are anchors, the rings are not

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return the style, `style/mean` and `style/std`, (C,), and its `n_clusters`, (1,) (eq. 1-2).

        C counts feature channels, or image channels for `transfer: moments`. Each cluster counts alike.
        """
        if has_too_few_patients(site.name, site.samples, self.min_patients, "style"):
            return {}
        order, device = torch.arange(len(site.samples)), next(network.parameters()).device
        encoded = self.style_transfer.encoded(lambda indices: site.samples.batch(indices).image, order, device)
        if (styles := single_styles(encoded, len(order))) is None:
            warnings.warn(f"{site.name}: all training images are blank, so the site shares no style", stacklevel=2)
            return {}
        mean, std, images = styles
        mean, std, label = clustered_site_style(mean, std, self.site_clusters, self.spread)  # eq. 1-2
        n_clusters = int(label.max()) + 1
        # A cluster counts as much as any other, so that the site's style is as close to the patients of the smallest.
        n_patients = min(count_patients(site.samples, images[label == k]) for k in range(n_clusters))
        site.n_patients.update({f"{STYLE}mean": n_patients, f"{STYLE}std": n_patients})
        site.n_patients["n_clusters"] = count_patients(site.samples, images)
        if self.noise:  # Table 10
            noise = self.noise * self.noise_scale * torch.randn(2, len(mean), generator=site.rng, dtype=mean.dtype)
            mean, std = mean + noise[0], (std + noise[1]).clamp(min=0)
        return {f"{STYLE}mean": mean.float(), f"{STYLE}std": std.float(), "n_clusters": torch.tensor([n_clusters])}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Return the interpolation style under the same names, and each site's clusters, `clusters/SITE` (eq. 3)."""
        styles = {site: shared[site] for site in sorted(shared) if shared[site]}
        if not styles:
            warnings.warn("FISC: no site shared a style, so the method is FedAvg", stacklevel=2)
            return {}
        mean, std = (torch.stack([style[STYLE + name] for style in styles.values()]) for name in ("mean", "std"))
        mean, std, n_clusters = interpolation_style(mean, std, self.common_clusters, self.median)  # eq. 3
        if self.common_clusters != "none" and len(styles) <= 3:
            warnings.warn(
                f"FISC: {len(styles)} sites shared a style, and FINCH makes one cluster of up to three sites, so the "
                "interpolation style is their mean",
                stacklevel=2,
            )
        counts = {f"{CLUSTERS}{site}": style["n_clusters"] for site, style in styles.items()}
        interpolation = {f"{STYLE}mean": mean.float(), f"{STYLE}std": std.float()}
        return {**interpolation, "n_clusters": torch.tensor([n_clusters]), **counts}

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send the interpolation style, `style/mean` and `style/std`, to every site."""
        return {name: entry for name, entry in state.memory.items() if name.startswith(STYLE)}

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """Give each image the second view `fisc` in the interpolation style, computed when a batch needs it."""
        if self._augments or not local.message.tensors or not self._needs_view:
            return samples
        mean, std = (local.message.tensors[STYLE + name][None] for name in ("mean", "std"))
        transfer, device = self.style_transfer, local.device  # `restyle` must not keep the whole round in memory

        def restyle(image: Tensor) -> Tensor:
            """The image (1, C, H, W) in the common style."""
            return transfer.restyle(image.to(device), mean, std)  # eq. 4

        store = ImageStore(local.cache, local.site)
        return RestyledView(samples, VIEW, restyle, store)

    def on_round_start(self, local: LocalRound) -> None:
        """With `freeze_batch_norm`, BatchNorm layers use their stored statistics during training."""
        if self.freeze_batch_norm:
            for norm in batch_norm_layers(local.network).values():
                norm.eval()

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """With `positives: augmented`, give the batch an augmented copy as its second view."""
        if not self._augments or not self._needs_view:
            return batch
        copy = local.task.augment(Batch(batch.image, batch.label), local.rng)
        return replace(batch, views={**batch.views, VIEW: copy.image})

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Warn if fewer than 5 % of the triplets of the round were alive."""
        n, live = (sum(update.facts.get(name, 0) for update in updates.values()) for name in (TRIPLETS, LIVE_TRIPLETS))
        if live < MIN_LIVE_SHARE * n:
            warnings.warn(
                f"FISC: fewer than {MIN_LIVE_SHARE:.0%} of the triplets of a round were alive (columns {TRIPLETS} and "
                f"{LIVE_TRIPLETS} of history.csv), so the triplet loss hardly trains the network; increase "
                "method.margin or method.alpha",
                stacklevel=2,
            )
        return state.memory

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """UserError if augmented positives, which are compared by class, are used for segmentation."""
        if self._augments and not architecture.embedding:
            raise UserError(
                "method.positives: 'augmented' compares images by class, but this network segments; "
                "set method.positives: restyled"
            )
        return network

    @property
    def style_transfer(self) -> StyleTransfer:
        """The transfer with which images are redrawn; it needs no codec if nothing is restyled."""
        return StyleTransfer("moments" if self._augments else self.transfer, self.codec, self.alpha, self.transfer_size)

    @property
    def _augments(self) -> bool:
        """True if the second view is an augmented copy, so that nothing is shared or restyled."""
        return self.positives == "augmented"

    @property
    def _needs_view(self) -> bool:
        return self.contrast > 0 or self.regularisation != 0 or self.restyled_loss

    @property
    def files(self) -> tuple[str, ...]:
        return self.style_transfer.files

    def with_files(self, names: Mapping[str, str]) -> FISC:
        return replace(self, codec=names.get(self.codec, self.codec))

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Check the codec, and warn of greyscale images, on which the paper expects poor results."""
        self.style_transfer.check(image_size, channels)
        if channels == 1:
            warnings.warn("FISC on greyscale images: the paper expects poor results there (appendix C)", stacklevel=2)

    def __post_init__(self) -> None:
        bounds.check(self, self._conflicts)

    def _conflicts(self) -> Iterator[tuple[str, ...]]:
        """Yield (key, sentence, other key) if there are no restyled images for `restyled_loss`."""
        if self.restyled_loss and self._augments:
            sentence = "there are no restyled images with positives: augmented; set one of the two"
            yield "restyled_loss", sentence, "positives"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {  # with `codec: small`: the paper's codec is a file, so that its path has to be set
            "contrast": 0.75,  # this and the next: the authors' code; the values are missing in our copy of the text
            "margin": 0.3,
            "normalise": False,  # not in the text
            "alpha": 1.0,  # eq. 4
            "spread": "mean",  # section 2.2
            "common_clusters": "first",  # the authors' code; the text does not say
        },
        "released": {  # the authors' code
            "contrast": 0.75,
            "margin": 0.3,
            "normalise": True,
            "alpha": 0.5,
            "spread": "mixture",
            "common_clusters": "first",
            "median": "lower",
            "freeze_batch_norm": True,
        },
    }
    patients_advice: ClassVar[str] = "set method.site_clusters to none, which weights all images of a site alike"
    sent: ClassVar[Mapping[str, Sent]] = {
        "style/*": SITE_STYLE._replace(received="common to all sites"),
        "n_clusters": Sent("number of clusters of styles", "How many kinds of appearance the site's images have."),
        "triplets": Sent("number of triplets of the triplet loss", "Roughly how many images the site has."),
        "live_triplets": Sent(
            "number of triplets with a loss above 0",
            "How well the network separates the classes of the site's images on average.",
        ),
    }

    @property
    def shares(self) -> str:
        return NEVER if self._augments else ONCE

    share_reads_network = False
    expand_reads = (STYLE,)
    statistic_ranges = {STYLE + name: limits for name, limits in STYLE_RANGES.items()}
    fact_names = frozenset({TRIPLETS, LIVE_TRIPLETS})

    @property
    def match_kinds(self) -> frozenset[str]:
        return frozenset() if self._augments else frozenset({"style"})

    def effort(self, n_sites: int) -> Effort:
        """Twice the images of FedAvg if each image has a second view."""
        return Effort(images=2 if self._needs_view else 1)

    def matcher(self, state: State, kind: str, ratio: float) -> Matcher | None:
        """Redraw a test image in the interpolation style (`evaluation.match`, not in the paper)."""
        if STYLE + "mean" not in state.memory:
            return None
        mean, std = (state.memory[STYLE + name][None] for name in ("mean", "std"))
        return self.style_transfer.to_style(mean, std, ratio)

    def summarise(self, state: State) -> dict[str, Any]:
        """Return the number of clusters of the sites, and of the images of each site."""
        if "n_clusters" not in state.memory:
            return {}
        sites = {site: int(entry) for site, entry in select_prefix(state.memory, CLUSTERS).items()}
        return {"clusters_of_sites": int(state.memory["n_clusters"]), "clusters_of_images": sites}


def clustered_site_style(
    mean: Tensor, std: Tensor, partition: Partition = "last", spread: Spread = "mixture"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a site's style, mean (C,) and std (C,), and the cluster of each image, from the images' styles (N, C).

    Every cluster counts alike, so that rare kinds of images count as much as common ones (eq. 1-2). `spread` "mixture"
    takes the standard deviation of the mixture of the clusters, as the released code does; "mean" averages theirs."""
    mean, std = mean.double(), std.double()
    label = _partition_styles(torch.cat([mean, std], dim=1), partition)
    styles = [mixture_mean_std(mean[label == k], std[label == k]) for k in range(int(label.max()) + 1)]
    means, stds = (torch.stack(parts) for parts in zip(*styles, strict=True))
    if spread == "mean":
        return means.mean(dim=0), stds.mean(dim=0), label
    return *mixture_mean_std(means, stds), label


def mixture_mean_std(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (C,) and standard deviation (C,) of an evenly weighted mixture of N distributions (N, C)."""
    within, between = std.square().mean(dim=0), mean.var(dim=0, correction=0)
    return mean.mean(dim=0), (within + between).sqrt()


def interpolation_style(mean: Tensor, std: Tensor, partition: Partition, median: Median) -> tuple[Tensor, Tensor, int]:
    """Return the interpolation style, mean (C,) and std (C,), and the number of clusters, from styles (N, C) (eq. 3).

    It is the element-wise median of the clusters' means. Up to three sites form one cluster, so that it is their mean.
    For an even number of clusters, "middle" is the mean of the two middle values, "lower" the smaller one."""
    styles = torch.cat([mean, std], dim=1).double()
    label = _partition_styles(styles, partition)
    means = torch.stack([styles[label == k].mean(dim=0) for k in range(int(label.max()) + 1)])
    style = means.median(dim=0).values if median == "lower" else means.quantile(0.5, dim=0)
    interpolation_mean, interpolation_std = style.chunk(2)
    return interpolation_mean, interpolation_std, len(means)


def _partition_styles(styles: Tensor, partition: Partition) -> Tensor:
    """Return (N,) int64: the cluster of each style (N, D); 0 for all if the partition is "none"."""
    return torch.zeros(len(styles), dtype=torch.int64) if partition == "none" else finch_partition(styles, partition)
