"""The map of styles: the description of images, the separability of sites, and the figure."""

import numpy as np
import pytest
from fresh_imports import run_without

from medfed.outputs.figures import style_map
from medfed.outputs.figures.style_map import RestyledImages, describe_style, site_separability


def images(brightness, n=12, seed=0, size=24):
    return (brightness + 0.1 * np.random.default_rng(seed).random((n, 1, size, size))).astype(np.float32)


def sites(exchanged=True):
    """Two sites of six patients each, one dark, one bright; restyled images are as bright as the other's."""
    dark, bright = images(0.1), images(0.7, seed=1)
    shift = 0.6 if exchanged else 0.0
    patients = [k // 2 for k in range(12)]
    return {
        "dark": RestyledImages(dark, {"bright": dark + shift}, patients),
        "bright": RestyledImages(bright, {"dark": bright - shift}, patients),
    }


def test_a_style_does_not_depend_on_position_but_on_brightness_contrast_and_sharpness():
    """Moving an image around its borders changes no amplitude, mean or percentile."""
    image = np.random.default_rng(0).random((2, 3, 16, 20))
    moved = np.roll(image, (5, 3), axis=(2, 3))
    assert describe_style(moved) == pytest.approx(describe_style(image))
    assert not np.allclose(describe_style(image**2), describe_style(image))
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


def test_styles_are_assigned_in_turn():
    styled = {"a": np.ones((4, 1, 2, 2)), "b": 2 * np.ones((4, 1, 2, 2))}
    images = RestyledImages(np.zeros((4, 1, 2, 2)), styled, [1, 2, 3, 4])
    assert images.one_style_per_image()[:, 0, 0, 0].tolist() == [1, 2, 1, 2]


@pytest.fixture
def saved_figure(monkeypatch):
    saved = {}
    monkeypatch.setattr(style_map, "save_png", lambda figure, path, title: saved.update(figure=figure, title=title))
    return saved


@pytest.mark.parametrize("exchanged", [True, False])
def test_the_titles_have_the_separability_of_the_sites_and_every_image_and_copy_is_a_point(saved_figure, exchanged):
    """Such different sites are always separable, until the copies lie among the images of the other site."""
    style_map.save_style_map(sites(exchanged), "x.png", "synthetic phantom data")
    before, together = (axes.get_title() for axes in saved_figure["figure"].axes)
    assert before.endswith("100 % (chance 50 %)")
    assert together.endswith("100 % (chance 50 %)") is not exchanged
    assert "synthetic phantom data" in saved_figure["title"]
    left, right = saved_figure["figure"].axes
    assert [len(points.get_offsets()) for points in left.collections] == [12, 12]
    assert [len(points.get_offsets()) for points in right.collections] == [12] * 4
    assert left.collections[0].get_offsets().tolist() == right.collections[0].get_offsets().tolist()


def test_the_map_of_interpolation_has_a_panel_for_each_ratio_with_the_same_originals(saved_figure):
    """With a fixed ratio the copies are far from the originals; with ratio 0 they are the originals themselves.

    Dark originals of six patients, and copies that are brighter by 0.3 and by 0.6: every nearest neighbour has the same
    colour. With copies that equal the originals, the nearest image of another patient has any of the three colours.
    """
    dark, patients = images(0.1), [k // 2 for k in range(12)]
    panels = {
        "fixed": RestyledImages(dark, {"b": dark + 0.3, "c": dark + 0.6}, patients),
        "zero": RestyledImages(dark, {"b": dark, "c": dark}, patients),
    }
    style_map.save_interpolation_map("a", panels, "x.png", "real data")
    left, right = saved_figure["figure"].axes
    assert left.get_title() == "fixed\nnearest neighbour of the same colour: 100 % (chance 33 %)"
    assert right.get_title().startswith("zero\n") and "100 %" not in right.get_title()
    offsets = [[points.get_offsets() for points in axes.collections] for axes in (left, right)]
    assert [len(points) for points in offsets[0] + offsets[1]] == [12] * 6
    assert np.array_equal(offsets[0][2], offsets[1][2])
    (legend,) = saved_figure["figure"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["images of a", "as at b", "as at c"]


def test_the_figure_has_the_same_bytes_each_time_and_importing_the_module_does_not_import_scikit_learn(tmp_path):
    for name in ("a.png", "b.png"):
        style_map.save_style_map(sites(), tmp_path / name, "real data")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    code = "import sys, medfed.outputs.figures.style_map; print('sklearn' in sys.modules)"
    assert run_without(("medfed", "sklearn"), code) == "False\n"
