"""The maps of styles: the description of images, the separability of sites, and the figures."""

import numpy as np
import pytest

from medfed.outputs.figures.figure import png_bytes
from medfed.outputs.figures.styles import describe_style, interpolation_map, site_separability, style_map

PATIENTS = [k // 2 for k in range(12)]


def images(brightness, n=12, seed=0, size=24):
    return (brightness + 0.1 * np.random.default_rng(seed).random((n, 1, size, size))).astype(np.float32)


def sites(shift=0.6):
    """Two sites of six patients each, one dark, one bright; with 0.6, restyled images are as bright as the other's."""
    dark, bright = images(0.1), images(0.7, seed=1)
    return {
        "dark": (dark, dark + shift, [("dark", patient) for patient in PATIENTS]),
        "bright": (bright, bright - shift, [("bright", patient) for patient in PATIENTS]),
    }


def test_a_style_does_not_depend_on_position_but_on_brightness_contrast_and_sharpness():
    """Moving an image around its borders changes no amplitude, mean or percentile."""
    image = np.random.default_rng(0).random((2, 3, 16, 20))
    moved = np.roll(image, (5, 3), axis=(2, 3))
    assert describe_style(moved) == pytest.approx(describe_style(image))
    image = np.random.default_rng(0).random((1, 1, 32, 32))
    smooth = (image + np.roll(image, 1, axis=2) + np.roll(image, 1, axis=3)) / 3
    for other in (image + 0.1, 0.5 + 0.5 * (image - 0.5), smooth):
        assert np.abs(describe_style(other) - describe_style(image)).max() > 0.05


def test_nearest_neighbours_are_of_other_patients():
    """The nearest point is of the same patient; among other patients, the nearest is of the other site."""
    points = np.array([[0.0], [0.01], [1.0], [1.01], [2.0], [2.01], [3.0], [3.01]])
    labels = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    patients = [("A", 1)] * 2 + [("B", 1)] * 2 + [("A", 2)] * 2 + [("B", 2)] * 2
    assert site_separability(points, labels, patients) == 0
    assert site_separability(points, labels, list(range(8))) == 1


@pytest.mark.parametrize("shift", [0.6, 0.0])
def test_the_titles_have_the_separability_of_the_sites_and_every_image_and_copy_is_a_point(shift):
    """Such different sites are always separable, until the copies lie among the images of the other site."""
    figure = style_map(sites(shift), "synthetic phantom data")
    left, right = figure.axes
    assert left.get_title().endswith("100 % (chance 50 %)")
    assert right.get_title().endswith("100 % (chance 50 %)") is (shift == 0)
    assert "synthetic phantom data" in figure.get_suptitle()
    assert [len(points.get_offsets()) for points in left.collections] == [12, 12]
    assert [len(points.get_offsets()) for points in right.collections] == [12] * 4
    assert png_bytes(figure) == png_bytes(style_map(sites(shift), "synthetic phantom data"))


def test_the_map_of_interpolation_has_a_panel_for_each_ratio_with_the_same_originals():
    """Dark originals of six patients, and copies that are brighter by 0.3 and by 0.6: every nearest neighbour has the
    same colour. With copies that equal the originals, the nearest image of another patient has any of the three."""
    dark = images(0.1)
    panels = {"fixed": {"b": dark + 0.3, "c": dark + 0.6}, "zero": {"b": dark, "c": dark}}
    figure = interpolation_map("a", dark, PATIENTS, panels, "real data")
    left, right = figure.axes
    assert left.get_title() == "fixed\nnearest neighbour of the same colour: 100 % (chance 33 %)"
    assert right.get_title().startswith("zero\n") and "100 %" not in right.get_title()
    offsets = [[points.get_offsets() for points in axes.collections] for axes in (left, right)]
    assert [len(points) for points in offsets[0] + offsets[1]] == [12] * 6
    assert np.array_equal(offsets[0][2], offsets[1][2])
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[:3] == ["images of a", "as at b", "as at c"]
