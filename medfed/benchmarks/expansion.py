"""Time and memory to compute each training image in several styles (CCST), compared with the least computation.

The least computation encodes each image once, decodes it once in each style, and keeps nothing. The expansion also
reads the images in a random order, as training does. It rounds and stores the restyled images, and verifies checksums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from medfed.benchmarks.timing import time_alternating
from medfed.core.seeds import stream
from medfed.federation.settings import Cache
from medfed.functional.style import adain
from medfed.networks.adain import load_codec
from medfed.networks.style_transfer import StyleTransfer
from medfed.tasks.slices import Slices
from medfed.transforms.image_store import ImageStore
from medfed.transforms.style_expansion import StyleExpansion

Numbers = dict[str, float | int | None]
BATCH_SIZE = 16


def time_expansion(size: int = 96, n_images: int = 32, n_styles: int = 3, repeats: int = 3) -> Numbers:
    """Time one epoch over RGB images in several styles: with an empty store, with a full store, and without a store.

    A store keeps restyled images, so that later epochs read them instead of computing them again. An epoch computes or
    reads each image in each style once, in a random order. Nothing is trained.

    Args:
        size: height and width of the images in pixels.
        n_images: number n of images.
        n_styles: number K of styles of each image.
        repeats: how often each time is measured.

    Returns:
        A dict with these entries:

        - the four arguments, and `threads`, the number of CPU threads;
        - median times in milliseconds: `first_ms` (an epoch that fills an empty store), `later_ms` (an epoch that reads
          a full store), `unstored_ms` (an epoch without a store), `minimum_ms` (n encodings and n K decodings) and
          `unstored_minimum_ms` (n K encodings and n K decodings);
        - `first_ratio`, `later_ratio`, `unstored_ratio` and `unstored_minimum_ratio`: these times divided by
          `minimum_ms`;
        - `restyled_mib`: the size of all restyled images in MiB;
        - `peak_mib`: how much the memory of the process grows at most during an epoch that fills an empty store, in
          MiB. None where the system does not measure it.
    """
    images = torch.rand(n_images, 3, size, size, generator=stream(0, "images"))
    samples = Slices(images, torch.zeros(n_images, dtype=torch.int64), torch.arange(n_images))
    codec = load_codec("small")
    mean, std = torch.rand(2, n_styles, codec.channels, generator=stream(0, "styles"))
    order = torch.randperm(n_images * n_styles, generator=stream(0, "order"))
    full = _expansion(samples, mean, std, Cache())
    implementations = {
        "minimum": lambda: _minimum(samples.images, mean, std),
        "first": lambda: _epoch(_expansion(samples, mean, std, Cache()), order),
        "later": lambda: _epoch(full, order),
        "unstored": lambda: _epoch(_expansion(samples, mean, std, Cache(max_gb=0)), order),
        "unstored_minimum": lambda: _minimum(samples.images.repeat_interleave(n_styles, 0), mean[:1], std[:1]),
    }
    for _ in implementations["later"]():
        pass  # fills the store
    before = _reset_peak_bytes()
    for _ in implementations["first"]():
        pass
    after = _peak_bytes()
    peak_mib = None if before is None or after is None else (after - before) / 2**20
    median_ms = time_alternating(implementations, repeats)
    return {
        **{"size": size, "n_images": n_images, "n_styles": n_styles, "repeats": repeats},
        "threads": torch.get_num_threads(),
        **{f"{name}_ms": value for name, value in median_ms.items()},
        **{f"{name}_ratio": value / median_ms["minimum"] for name, value in median_ms.items() if name != "minimum"},
        "restyled_mib": 2 * n_styles * samples.images.numel() / 2**20,
        "peak_mib": peak_mib,
    }


def expansion_table(result: Numbers) -> str:
    """Format the times of one epoch over images in several styles as a text table for the terminal.

    Args:
        result: the result of `time_expansion`.

    Returns:
        Several lines of text, without a line break at the end.
    """
    n, k = int(result["n_images"] or 0), int(result["n_styles"] or 0)
    rows = [
        (f"minimum: {n} encodings, {n * k} decodings", "minimum", 1.0),
        ("first epoch, which fills the store", "first", result["first_ratio"]),
        ("later epoch, from the store", "later", result["later_ratio"]),
        (f"minimum: {n * k} encodings, {n * k} decodings", "unstored_minimum", result["unstored_minimum_ratio"]),
        ("epoch without a store", "unstored", result["unstored_ratio"]),
    ]
    peak = "not measured" if result["peak_mib"] is None else f"{result['peak_mib']:.1f} MiB above the start"
    return "\n".join(
        [
            f"expansion: {n} images x {k} styles, 3 x {result['size']} x {result['size']}, {result['threads']} "
            f"threads, median of {result['repeats']}",
            f"  {'implementation':<44}{'ms':>9}{'ratio':>8}",
            *(f"  {name:<44}{result[f'{key}_ms']:>9.1f}{ratio:>8.2f}" for name, key, ratio in rows),
            f"  largest memory in the first epoch: {peak}; restyled images: {result['restyled_mib']:.1f} MiB",
        ]
    )


def _expansion(samples: Slices, mean: Tensor, std: Tensor, cache: Cache) -> StyleExpansion:
    transfer = StyleTransfer("codec", "small", 1.0, 0)

    def restyle(image: Tensor, styles: Sequence[int], n_styles: int) -> Tensor:
        return transfer.restyle(image, mean[styles], std[styles], n_styles)

    return StyleExpansion(samples, torch.arange(len(mean)).expand(len(samples), -1), restyle, ImageStore(cache))


def _epoch(samples: StyleExpansion, order: Tensor) -> Iterator[Tensor]:
    for indices in order.split(BATCH_SIZE):
        yield samples.batch(indices.tolist()).image


def _minimum(images: Tensor, mean: Tensor, std: Tensor) -> Iterator[Tensor]:
    codec = load_codec("small")
    for image in images:
        features = codec.encode(image[None])
        styled = adain(features.expand(len(mean), -1, -1, -1), mean, std, 1.0)
        yield codec.decode(styled, image.shape[1:])


def _reset_peak_bytes() -> int | None:
    """Set the recorded largest memory of this process to its present memory, and return it; None if not on Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _peak_bytes()


def _peak_bytes() -> int | None:
    """Return the largest memory of this process since the last reset; None if not on Linux."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
