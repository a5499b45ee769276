"""The map of restyled copies: the description of images, and the figure."""

import numpy as np
import pytest

from medfed.outputs.figures.figure import png_bytes
from medfed.outputs.figures.styles import describe_style, interpolation_map


def images(brightness, n=12, seed=0, size=24):
    return (brightness + 0.1 * np.random.default_rng(seed).random((n, 1, size, size))).astype(np.float32)


def test_a_style_does_not_depend_on_position_but_on_brightness_contrast_and_sharpness():
    """Moving an image around its borders changes no amplitude, mean or percentile."""
    image = np.random.default_rng(0).random((2, 3, 16, 20))
    moved = np.roll(image, (5, 3), axis=(2, 3))
    assert describe_style(moved) == pytest.approx(describe_style(image))
    image = np.random.default_rng(0).random((1, 1, 32, 32))
    smooth = (image + np.roll(image, 1, axis=2) + np.roll(image, 1, axis=3)) / 3
    for other in (image + 0.1, 0.5 + 0.5 * (image - 0.5), smooth):
        assert np.abs(describe_style(other) - describe_style(image)).max() > 0.05


def test_the_map_has_a_panel_for_each_ratio_with_the_same_originals_and_says_what_the_data_are():
    """Dark originals, and copies that are brighter by 0.3 and by 0.6, or equal to the originals."""
    dark = images(0.1)
    panels = {"fixed": {"b": dark + 0.3, "c": dark + 0.6}, "zero": {"b": dark, "c": dark}}
    figure = interpolation_map("a", dark, panels, "synthetic phantom data")
    assert "synthetic phantom data" in figure.get_suptitle()
    left, right = ([points.get_offsets() for points in axes.collections] for axes in figure.axes)
    assert [axes.get_title() for axes in figure.axes] == ["fixed", "zero"]
    assert [len(points) for points in left + right] == [12] * 6
    assert np.array_equal(left[2], right[2])
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["images of a", "as at b", "as at c"]
    assert png_bytes(figure) == png_bytes(interpolation_map("a", dark, panels, "synthetic phantom data"))
