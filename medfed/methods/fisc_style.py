"""The styles of FISC: the style of a site, the common style of all sites, and images in the common style.

`medfed.methods.fisc` names the paper, describes the settings and contains the training with restyled images. Equation
numbers are those of the paper's first version.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from medfed.federation.local_round import SiteData, count_patients
from medfed.federation.message import State
from medfed.federation.method import STYLE_RANGES, Matcher, Tensors, has_too_few_patients
from medfed.functional.style import channel_mean_std
from medfed.functional.style_clusters import Median, Partition, Spread, clustered_site_style, interpolation_style
from medfed.functional.weights import select_prefix
from medfed.networks.style_transfer import StyleTransfer, Transfer, shows_something

STYLE, CLUSTERS = "style/", "clusters/"  # prefixes of tensor names
MAX_BATCH = 32  # largest number of images that are encoded together


class CommonStyle:
    """The hooks of the method FISC that share, combine and apply styles.

    `FISC` inherits from this class, and describes the settings that it reads.
    """

    site_clusters: Partition
    common_clusters: Partition
    spread: Spread
    median: Median
    noise: float
    noise_scale: float
    transfer: Transfer
    codec: str
    alpha: float
    transfer_size: int
    min_patients: int

    @property
    def _style_transfer(self) -> StyleTransfer:
        """The restyling function that these settings describe."""
        return StyleTransfer(self.transfer, self.codec, self.alpha, self.transfer_size)

    @property
    def files(self) -> tuple[str, ...]:
        """The path of the style codec (an encoder and a decoder that redraw images) that the sites read, in a tuple.

        The tuple is empty for the codec that comes with medfed, and for `transfer: moments` and `positives: augmented`,
        which need no codec.
        """
        return self._style_transfer.files

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Raise UserError if the style codec (encoder and decoder) does not accept this image size or channel number.

        For greyscale images, a warning says that the FISC paper expects no gain. With `transfer: moments` and with
        `positives: augmented`, which need no codec, all images are accepted.

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

    @property
    def statistic_ranges(self) -> Mapping[str, tuple[float, float]]:
        """Ranges that hold for the features of any codec."""
        return {STYLE + name: limits for name, limits in STYLE_RANGES.items()}

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
        device = next(network.parameters()).device
        styles: list[list[Tensor]] = []
        used: list[Tensor] = []
        for indices in torch.arange(len(site.samples)).split(MAX_BATCH):
            images = site.samples.batch(indices.tolist()).image
            chosen = shows_something(images)
            if chosen.any():
                used.append(indices[chosen])
                parts = self._style_transfer.features(images[chosen].to(device))
                styles += [[moment.cpu() for moment in channel_mean_std(features)] for features in parts]
        if not styles:
            warnings.warn(f"{site.name}: all training images are blank, so the site shares no style", stacklevel=2)
            return {}
        mean, std = (torch.cat(moment) for moment in zip(*styles, strict=True))
        mean, std, label = clustered_site_style(mean, std, self.site_clusters, self.spread)  # eq. 1-2
        n_clusters, images = int(label.max()) + 1, torch.cat(used)
        # A cluster counts as much as any other, so that the site's style is as close to the patients of the smallest.
        n_patients = min(count_patients(site.samples, images[label == k]) for k in range(n_clusters))
        site.n_patients.update({f"{STYLE}mean": n_patients, f"{STYLE}std": n_patients})
        site.n_patients["n_clusters"] = count_patients(site.samples, images)
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
        match = self.matcher(state, "style", self.alpha)
        return {"all sites": match(image).cpu()} if match else {}  # eq. 4

    def matcher(self, state: State, kind: str, ratio: float) -> Matcher | None:
        """Return a function that redraws images in the interpolation style, the common style of all sites.

        Args:
            state: the coordinator's state, whose memory holds the interpolation style.
            kind: not used; it is "style".
            ratio: strength of the style, in [0, 1], in place of the setting `alpha`. With a codec, 0 still encodes and
                decodes the image.

        Returns:
            A function from images (B, C, H, W) in [0, 1] to the changed images. None if no site shared a style.
        """
        if STYLE + "mean" not in state.memory:
            return None
        mean, std = (state.memory[STYLE + name][None] for name in ("mean", "std"))
        return replace(self._style_transfer, alpha=ratio).to_style(mean, std)
