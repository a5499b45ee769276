"""FISC, later PARDON (Nguyen et al., 2024; ICDCS 2025): contrast each image with a copy in a style between all sites.

D. T. Nguyen, T. T. Johnson, K. Leach: "FISC: Federated Domain Generalization via Interpolative Style Transfer and
Contrastive Learning", 2024, https://arxiv.org/abs/2410.22622. Its second version and the paper at ICDCS 2025 have the
title "PARDON: Privacy-Aware and Robust Federated Domain Generalization". Equation numbers are those of the first.

Idea: the coordinator computes one common style from the styles of all sites. Each image is also seen in this style, and
a triplet loss keeps the two embeddings of an image close together.

Communication: before round 1, each site sends its style (two vectors; with a VGG encoder 1,024 numbers) and receives
the common style with the weights. Afterwards the messages of FedAvg.

Departures from the paper: the restyled view of an image is computed once and then rotated, scaled and flipped together
with the image; the paper restyles each augmented batch again. The embeddings of the task's forward pass serve all
terms; the public code computes features five times. Embeddings have length 1 in the triplet loss, and the regulariser
is a mean of squares, both as in the code. AdaIN has strength 0.5 as in the code (eq. 4 has 1). As in the paper, and
unlike in the code, sites cluster styles (the code: whole feature maps), computed after the ReLU (the code: before it).
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
from medfed.transforms.image_store import ImageStore
from medfed.transforms.restyled_view import RestyledView

VIEW = "fisc"  # name of the restyled view in a batch
STYLE, CLUSTERS = "style/", "clusters/"  # prefixes of tensor names
MAX_BATCH = 32  # largest number of images that are encoded together
REGULARISATION_OF_CLASSES, REGULARISATION_OF_MASKS = 0.2, 0.0  # default weights of the regulariser


@dataclass(frozen=True)
class FISC(Method):
    """FedAvg that contrasts each image with a copy in one common style, which is interpolated from all sites' styles.

    Before training, each site computes its style: it groups its images by style with the clustering FINCH (eq. 1),
    computes the mean and standard deviation of the feature channels in each cluster (eq. 2), and averages the clusters.
    With a VGG encoder up to relu4_1 these are 1,024 numbers, 4,096 bytes. The coordinator clusters the sites' styles
    (eq. 3), and the median over the clusters is the interpolation style S of the whole run. Each training image x has a
    second view x' = AdaIN(x, S) (eq. 4). With the embeddings z of x and z' of x':

        L = L_task(x) + contrast * L_con + regularisation * mean(z^2 + z'^2)                       (eq. 6-7)
        L_con = mean of max(0, |z_i - z'_i| - |z_i - z'_j| + margin)                               (eq. 5)

    j is a random image of another class; the embeddings in L_con have length 1. Only the forward pass on x updates
    BatchNorm's statistics. A network with dropout draws it separately for x and x', which adds noise to the distance.

    With three sites or fewer, FINCH makes one cluster, and S is the mean style. On greyscale images, the paper's
    appendix C expects no gain, because styles hardly differ there.

    Segmentation (ours): z is the mean feature inside a structure (finest decoder level), z' that of the second view.
    The negative is another structure, or the ring of background, of any image's second view. The regulariser is off,
    because these few features form the mask themselves: if they are small, the contrast of their directions determines
    the mask.

    Ablations of the paper's Table 11: v1 is `site_clusters: none`, v2 `common_clusters: none`, v5 the whole method.
    `contrast: 0` is close to v3, which also trains on the restyled images. v4 is not available.

    Args:
        contrast: weight of the triplet loss, at least 0. 0.75 in the authors' code. 0 switches it off.
        regularisation: weight of the mean squared embeddings, at least 0. null uses 0.2 for classification (the
            authors' code, for PACS) and 0 for masks. 0 switches it off.
        margin: margin of the triplet loss, at least 0. 0.3 in the authors' code.
        site_clusters: which result of the clustering FINCH a site uses to group its images by style: "first" has the
            most clusters, "last" the fewest, and "none" puts all images into one cluster.
        common_clusters: which result of the clustering FINCH the coordinator uses to group the sites' styles: "first"
            has the most clusters, "last" the fewest, and "none" puts all sites into one cluster.
        spread: how the deviation of a site's style is computed: "mixture" is that of all its clusters together,
            including the distances between them (as in the authors' code); "mean" is the average of the clusters'
            standard deviations.
        median: median of an even number of clusters: "middle" is the mean of the two middle values, "lower" the smaller
            of them (as in the authors' code).
        freeze_batch_norm: whether BatchNorm keeps the statistics with which it came, as in the authors' code. Only
            useful with a pretrained network; a network with fresh weights does not learn this way.
        noise: factor on the standard deviation `noise_scale` of the noise that each site adds to its style, at least 0.
            For the experiment of the paper's Table 10 alone: the noise follows from the seed, so whoever knows the
            config can remove it. `privacy.statistics_noise` protects, because it is drawn from a secret of the site.
        noise_scale: standard deviation of the noise before the factor `noise`, at least 0. Standard deviations of a
            style remain at least 0.
        transfer: how images are restyled: "codec" encodes and decodes them with AdaIN, as in the paper; "moments" gives
            the pixel intensities of each channel another mean and standard deviation, which cannot move an edge and
            needs no codec.
        codec: encoder and decoder for `transfer: codec`: "small" for the one that comes with medfed, or the path of a
            file that `python -m medfed.codec train` wrote.
        alpha: strength of the interpolation style in [0, 1]. 0.5 in the authors' code, 1 in the paper (eq. 4).
        transfer_size: side in pixels to which images are resized before they are restyled; the result is resized to the
            original size. 0 restyles images at their own size.
        ring_width: width in pixels of the ring of background around a structure, at least 1. For segmentation only; not
            in the paper.
        min_patients: a site with fewer training patients than this shares no style, because its style would describe
            single patients. Such a site trains as usual. At least 1. Not in the paper. Clusters count alike, so a
            cluster of a single patient has the same weight as a large one; `site_clusters: none` weights all images
            alike.

    Presets: "medfed" is the default. "paper" has alpha 1 and the mean of the clusters' standard deviations. "released"
    is the authors' code: the finest clusters of sites, the lower median, and frozen BatchNorm.
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
        """The restyling function that these settings describe."""
        return StyleTransfer(self.transfer, self.codec, self.alpha, self.transfer_size)

    @property
    def _compares(self) -> bool:
        """True if the loss uses the second view: if the triplet loss or the regulariser has a weight."""
        return self.contrast > 0 or self.regularisation != 0

    @property
    def files(self) -> tuple[str, ...]:
        """The path of the style codec (an encoder and a decoder that redraw images) that the sites read, in a tuple.

        The tuple is empty for the codec that comes with medfed, and for `transfer: moments`, which needs no codec.
        """
        return self._style_transfer.files

    def with_files(self, names: Mapping[str, str]) -> FISC:
        """Return a copy of the method that reads its style codec from another path.

        Args:
            names: dictionary from the present path of a file to its new path. A file that is not in the dictionary
                keeps its path.
        """
        return replace(self, codec=names.get(self.codec, self.codec))

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Raise UserError if the style codec (encoder and decoder) does not accept this image size or channel number.

        For greyscale images, a warning says that the FISC paper expects no gain. With `transfer: moments`, which needs
        no codec, all images are accepted.

        Args:
            image_size: height and width of the images in pixels.
            channels: number of channels of the images.
            standardised: not used.

        Raises:
            UserError: if the codec cannot be loaded or the images have neither 1 nor 3 channels. Also if the images are
                smaller than the codec needs. A setting `transfer_size` above 0 counts as the size of the images.
        """
        self._style_transfer.check(image_size, channels)
        if channels == 1:
            warnings.warn("FISC on greyscale images: the paper expects no gain there (appendix C)", stacklevel=2)

    @property
    def share_reads_network(self) -> bool:
        """Whether `share` reads the weights of the network that is trained: False.

        A site computes its style from its images, with the style codec or without a network.
        """
        return False

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return the style of a site: the mean and standard deviation of the feature channels of its images.

        The images are first grouped into clusters of similar style. The site's style is computed from the mean and
        standard deviation of each cluster, and each cluster counts equally.

        Args:
            site: the site's images and random generator.
            network: only its device is used. The encoder of the style codec computes the features.

        Returns:
            `style/mean` and `style/std`, (C,) float32 each for C feature channels (image channels for `transfer:
            moments`), and `n_clusters`, (1,) int64: the number of clusters. Empty if the site has fewer than
            `min_patients` training patients or only blank images.
        """
        if has_too_few_patients(site.name, site.samples, self.min_patients, "style"):
            return {}
        device, styles = next(network.parameters()).device, []
        for batch in batches(site.samples, MAX_BATCH):
            images = drop_blank_images(batch.image)
            if len(images):
                parts = self._style_transfer.features(images.to(device))
                styles += [[moment.cpu() for moment in channel_mean_std(features)] for features in parts]
        if not styles:
            warnings.warn(f"{site.name}: all training images are blank, so the site shares no style", stacklevel=2)
            return {}
        mean, std = (torch.cat(moment) for moment in zip(*styles, strict=True))
        mean, std, n_clusters = clustered_site_style(mean, std, self.site_clusters, self.spread)  # eq. 1-2
        if self.noise:  # Table 10
            noise = self.noise * self.noise_scale * torch.randn(2, len(mean), generator=site.rng, dtype=mean.dtype)
            mean, std = mean + noise[0], (std + noise[1]).clamp(min=0)
        return {f"{STYLE}mean": mean.float(), f"{STYLE}std": std.float(), "n_clusters": torch.tensor([n_clusters])}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Compute the one style that all sites use (the interpolation style): a median over the styles of the sites.

        The sites' styles are first grouped into clusters of similar styles. The result is the median, for each channel,
        of the clusters' mean styles.

        Args:
            state: not used.
            shared: what each site returned from `share`, by name of the site.
            rng: not used.

        Returns:
            `style/mean` and `style/std`, (C,) float32 each for C feature channels; `n_clusters`, (1,) int64, the number
            of clusters of sites; `clusters/SITE`, (1,) int64, the number of clusters of the site's images. Empty if no
            site shared a style.
        """
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
        common = {f"{STYLE}mean": mean.float(), f"{STYLE}std": std.float()}
        return {**common, "n_clusters": torch.tensor([n_clusters]), **counts}

    def broadcast(self, state: State, site: str) -> Tensors:
        """Return the interpolation style, which every site receives together with the global weights.

        The interpolation style is the common style that the coordinator computed from the styles of all sites.

        Args:
            state: the coordinator's state, whose memory holds the interpolation style.
            site: not used. All sites receive the same style.

        Returns:
            `style/mean` and `style/std`, (C,) float32 each for C feature channels (image channels for `transfer:
            moments`). Empty if no site shared a style.
        """
        return {name: entry for name, entry in state.memory.items() if name.startswith(STYLE)}

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """Return the site's samples with a second version of each image, redrawn in the interpolation style.

        The interpolation style is the common style that the coordinator computed from the styles of all sites. The
        second version of an image is in `Batch.views["fisc"]`. The second version is computed when a batch first needs
        it, and is then stored as `local.cache` says. If the site received no style, or the loss does not use the second
        version, the samples are returned unchanged.

        Args:
            local: the site's round of training. The received message contains the style.
            samples: the site's training images.
            rng: not used.
        """
        if not local.message.tensors or not self._compares:
            return samples
        mean, std = (local.message.tensors[STYLE + name][None] for name in ("mean", "std"))
        transfer, device = self._style_transfer, local.device  # `restyle` must not keep the whole round in memory

        def restyle(image: Tensor) -> Tensor:
            return transfer.restyle(image.to(device), mean, std)  # eq. 4

        store = ImageStore(local.cache, local.site, transfer.fingerprint(device, mean, std))
        return RestyledView(samples, VIEW, restyle, store)

    def on_round_start(self, local: LocalRound) -> None:
        """Put the BatchNorm layers into evaluation mode if the setting `freeze_batch_norm` is true.

        In evaluation mode, BatchNorm layers normalise with their running statistics, which do not change. If
        `freeze_batch_norm` is false, nothing is done.

        Args:
            local: the site's round of training. `local.network` is changed in place.
        """
        if self.freeze_batch_norm:
            for norm in batch_norm_layers(local.network).values():
                norm.eval()

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return the task's loss, plus two terms that compare each image with its copy in the interpolation style.

        The interpolation style is the common style of all sites. A triplet loss, with weight `contrast`, brings the
        embeddings of an image and of its copy together and separates embeddings of different classes. A regulariser,
        with weight `regularisation`, is the mean square of the embeddings of the images plus the mean square of the
        embeddings of their copies. For masks, an embedding is the mean feature vector of a region of an image: of a
        structure, or of the background around the structures. Each structure and the background count as a class. If
        the batch has no copies, only the task's loss is returned.

        Args:
            local: the site's round of training.
            batch: images (B, C, H, W) in [0, 1], not standardised, and their class indices (B,) int64 or masks (B, S,
                H, W) of 0 and 1 for S structures.

        Returns:
            The loss, a scalar, and the network's output for the original images.
        """
        embedding, place = local.architecture.embedding, local.head_input
        output = local.forward(batch, (place,))
        loss = local.task.loss(output.logits, batch.label)
        if VIEW not in batch.views:
            return loss, output
        second = local.forward(Batch(batch.views[VIEW], batch.label), (place,), local.parameters())
        regularisation = self.regularisation
        if regularisation is None:
            regularisation = REGULARISATION_OF_CLASSES if embedding else REGULARISATION_OF_MASKS
        z, second_z = output.features[place].flatten(1), second.features[place].flatten(1)
        kinds, anchors = batch.label, torch.ones_like(batch.label, dtype=torch.bool)
        if not embedding:
            z, second_z, kinds, anchors = self._of_regions(output.features[place], second.features[place], batch.label)
            if not len(z):
                return loss, output  # all masks are empty
        chosen, exists = draw_other_class(kinds.cpu(), kinds.cpu(), local.rng)
        chosen, used = chosen.to(z.device), anchors & exists.to(z.device)
        contrast = triplet_loss(z[used], second_z[used], second_z[chosen[used]], self.margin)  # eq. 5
        size = z.square().mean() + second_z.square().mean()  # eq. 6
        return loss + self.contrast * contrast + regularisation * size, output  # eq. 7

    def _of_regions(self, features: Tensor, second: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the embeddings of structures and rings of background in both views (segmentation).

        Args:
            features: (B, D, H, W), feature maps of the images.
            second: (B, D, H, W), feature maps of their second views.
            label: masks (B, S, H, W) of 0 and 1 for S structures.

        Returns:
            Embeddings z and z', each (R, D), for the R structures and rings that are in the images; the kind of each,
            (R,) int64 (0 to S - 1 for a structure, S for a ring); and whether each is a structure, (R,) bool.
        """
        inside = label.bool()
        around = background_ring(inside.any(dim=1, keepdim=True), self.ring_width)
        masks = torch.cat([inside, around.to(inside)], dim=1)
        (z, there), (second_z, _) = region_means(features, masks), region_means(second, masks)
        kinds = torch.arange(masks.shape[1], device=z.device).repeat(len(masks))
        return z[there], second_z[there], kinds[there], kinds[there] < label.shape[1]

    def facts(self, state: State) -> dict[str, Any]:
        """Return numbers of clusters for the run's summary.

        Args:
            state: the coordinator's state after the last round.

        Returns:
            `clusters_of_sites`: the number of clusters into which the sites' styles were grouped. `clusters_of_images`:
            for each site, by name, the number of clusters into which its images were grouped. Empty if no style was
            shared.
        """
        if "n_clusters" not in state.memory:
            return {}
        sites = {site: int(entry) for site, entry in select_prefix(state.memory, CLUSTERS).items()}
        return {"clusters_of_sites": int(state.memory["n_clusters"]), "clusters_of_images": sites}

    def styles(self, state: State, image: Tensor) -> Tensors:
        """Return copies of images, redrawn in the interpolation style, the common style of all sites.

        Args:
            state: the coordinator's state, whose memory holds the interpolation style.
            image: (B, C, H, W), in [0, 1].

        Returns:
            {"all sites": (B, C, H, W) in [0, 1] on the CPU}. Empty if no site shared a style.
        """
        if STYLE + "mean" not in state.memory:
            return {}
        mean, std = (state.memory[STYLE + name][None] for name in ("mean", "std"))
        restyled = [self._style_transfer.restyle(single[None], mean, std) for single in image]  # eq. 4
        return {"all sites": torch.cat(restyled).cpu()}
