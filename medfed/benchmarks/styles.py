"""Time to redraw images in the styles of several sites: encoded once for all styles, or again for each style.

The implementations are timed in turn, and the median is reported. The speed does not depend on the weights, so the
codec is not trained.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from medfed.benchmarks.timing import time_alternating
from medfed.core.seeds import seeded_layers
from medfed.functional.style import adain
from medfed.networks.adain import StyleCodec, build_codec

Styles = list[tuple[Tensor, Tensor]]


def time_styles(
    architecture: str = "small", size: int = 128, n_images: int = 4, n_styles: int = 4, repeats: int = 5
) -> dict[str, float | int | str]:
    """Time two ways to redraw one batch of RGB images in several styles with a style codec.

    A style codec encodes an image as features, gives the features the mean and standard deviation of a style, and
    decodes them. The first way encodes the batch again for each style; the second way encodes it only once.

    Args:
        architecture: network of the codec: "small", "vgg19" or "vgg16".
        size: side of the images in pixels.
        n_images: number of images in the batch.
        n_styles: number of styles.
        repeats: how often each of the two ways is timed.

    Returns:
        A dictionary with the arguments by name, and with: `threads`, the number of threads; `again_ms` and `once_ms`,
        the median times in milliseconds of the first and of the second way, for all restyled images; `times_faster`,
        `again_ms` divided by `once_ms`; `pictures_a_second`, the number of restyled images per second with the second
        way; and `max_difference`, the largest difference between a pixel of the two ways, for intensities in [0, 1].
    """
    with seeded_layers(0, "timed codec"):
        codec = build_codec({"architecture": architecture})
    images, *donors = torch.rand(n_styles + 1, n_images, 3, size, size, generator=torch.Generator().manual_seed(0))
    styles = [codec.style(donor) for donor in donors]
    implementations = {
        "again": lambda: encode_per_style(codec, images, styles),
        "once": lambda: encode_once(codec, images, styles),
    }
    pairs = zip(implementations["again"](), implementations["once"](), strict=True)
    difference = max(float((a - b).abs().max()) for a, b in pairs)
    median_ms = time_alternating(implementations, repeats)
    return {
        **{"architecture": architecture, "size": size, "n_images": n_images, "n_styles": n_styles, "repeats": repeats},
        "threads": torch.get_num_threads(),
        **{f"{name}_ms": value for name, value in median_ms.items()},
        "times_faster": median_ms["again"] / median_ms["once"],
        "pictures_a_second": 1e3 * n_images * n_styles / median_ms["once"],
        "max_difference": difference,
    }


def encode_per_style(codec: StyleCodec, images: Tensor, styles: Styles) -> Iterator[Tensor]:
    """Redraw a batch of images in several styles. The batch is encoded again for each style.

    The benchmark compares this slow way with `encode_once`.

    Args:
        codec: encoder and decoder. An image is redrawn by giving its features the mean and standard deviation of a
            style.
        images: (B, 3, H, W) in [0, 1].
        styles: for each style, the mean and the standard deviation of the C feature channels, each (C,) or (B, C).

    Yields:
        For each style in turn, the batch in this style, (B, 3, H, W).
    """
    for mean, std in styles:
        yield codec.stylise(images, mean, std)


def encode_once(codec: StyleCodec, images: Tensor, styles: Styles) -> Iterator[Tensor]:
    """Redraw a batch of images in several styles. The batch is encoded only once, before the first style.

    Args:
        codec: encoder and decoder. An image is redrawn by giving its features the mean and standard deviation of a
            style.
        images: (B, 3, H, W) in [0, 1].
        styles: for each style, the mean and the standard deviation of the C feature channels, each (C,) or (B, C).

    Yields:
        For each style in turn, the batch in this style, (B, 3, H, W).
    """
    features, size = codec.encode(images), tuple(images.shape[2:])
    for mean, std in styles:
        yield codec.decode(adain(features, mean, std), size)


def styles_table(result: dict[str, float | int | str]) -> str:
    """Format the times of the two ways to redraw images in several styles as a text table for the terminal.

    Args:
        result: the result of `time_styles`.

    Returns:
        Several lines of text, without a line break at the end.
    """
    rows = [
        ("encoded for every style", result["again_ms"], result["times_faster"]),
        ("encoded once", result["once_ms"], 1.0),
    ]
    return "\n".join(
        [
            f"style codec '{result['architecture']}': {result['n_images']} images x {result['n_styles']} styles, 3 x "
            f"{result['size']} x {result['size']}, {result['threads']} threads, median of {result['repeats']}",
            f"  {'implementation':<30}{'ms':>9}{'times ours':>13}",
            *(f"  {name:<30}{ms:>9.1f}{times:>13.2f}" for name, ms, times in rows),
            f"  {result['pictures_a_second']:.1f} images per second; largest difference {result['max_difference']:.1e}",
        ]
    )
