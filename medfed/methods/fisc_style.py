"""The styles of FISC: the style of a site, the common style of all sites, and images in the common style."""

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
    """The hooks of `FISC` that share, combine and apply styles; `FISC` describes the settings."""

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
        """The transfer with which images are redrawn, as the settings say."""
        return StyleTransfer(self.transfer, self.codec, self.alpha, self.transfer_size)

    @property
    def files(self) -> tuple[str, ...]:
        return self._style_transfer.files

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Check the codec, and warn that the paper expects no gain for greyscale images."""
        self._style_transfer.check(image_size, channels)
        if channels == 1:
            warnings.warn("FISC on greyscale images: the paper expects no gain there (appendix C)", stacklevel=2)

    @property
    def share_reads_network(self) -> bool:
        return False

    @property
    def statistic_ranges(self) -> Mapping[str, tuple[float, float]]:
        """The ranges of the means and standard deviations that a site sends."""
        return {STYLE + name: limits for name, limits in STYLE_RANGES.items()}

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return the style, `style/mean` and `style/std`, (C,), and its `n_clusters`, (1,) (eq. 1-2).

        C counts feature channels, or image channels for `transfer: moments`. Each cluster counts alike.
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
        common = {f"{STYLE}mean": mean.float(), f"{STYLE}std": std.float()}
        return {**common, "n_clusters": torch.tensor([n_clusters]), **counts}

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send the interpolation style, `style/mean` and `style/std`, to every site."""
        return {name: entry for name, entry in state.memory.items() if name.startswith(STYLE)}

    def summarise(self, state: State) -> dict[str, Any]:
        """Return the number of clusters of the sites, and of the images of each site."""
        if "n_clusters" not in state.memory:
            return {}
        sites = {site: int(entry) for site, entry in select_prefix(state.memory, CLUSTERS).items()}
        return {"clusters_of_sites": int(state.memory["n_clusters"]), "clusters_of_images": sites}

    def styles(self, state: State, image: Tensor) -> Tensors:
        """Redraw images in the interpolation style, under the name "all sites"."""
        match = self.matcher(state, "style", self.alpha)
        return {"all sites": match(image).cpu()} if match else {}  # eq. 4

    def matcher(self, state: State, kind: str, ratio: float) -> Matcher | None:
        """Redraw images in the interpolation style; with a codec, ratio 0 still encodes and decodes them."""
        if STYLE + "mean" not in state.memory:
            return None
        mean, std = (state.memory[STYLE + name][None] for name in ("mean", "std"))
        return replace(self._style_transfer, alpha=ratio).to_style(mean, std)
