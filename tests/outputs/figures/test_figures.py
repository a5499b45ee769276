"""Figures: their content, the orientation of images, and the same bytes each time."""

import numpy as np
import pytest
import torch
from fresh_imports import run_without
from made_runs import MASKS, mask_row
from PIL import Image

from medfed.outputs.figures import boxes, curves, overlays, styles
from medfed.results.scores import table_of
from medfed.scoring.page import with_known_roles

HISTORY = [
    {"round": k, "train_loss": 1 / k, "validation_score": None if k % 2 else k / 10, "validation_score/A": k / 11}
    for k in range(1, 7)
]


ROWS = [
    mask_row("Z", "1", 0.9, role="seen", hd95_percent_of_diagonal=3.0),
    mask_row("Z", "2", 0.8, role="seen", hd95_percent_of_diagonal=5.0),
    mask_row("A", "1", 0.7, hd95_percent_of_diagonal=7.0),
    mask_row("A", "2", 0.0, "missed", hd95_percent_of_diagonal=90.0),
    mask_row("A", "3", None, "absent"),
]
SCORES = table_of(ROWS, MASKS.metrics)


def volume_case(**others):
    """12 x 8 x 6 voxels; the marked voxel of each slice is at i = 2, j = 5, the reference in slices 1 to 5."""
    image, reference = torch.zeros(1, 12, 8, 6), torch.zeros(1, 12, 8, 6, dtype=torch.uint8)
    image[0, 2, 5] = 1
    reference[0, 2, 5, 1:] = 1
    case = {"title": "worst", "image": image, "reference": reference, "prediction": reference.clone()}
    return case | {"spacing": (0.5, 1.5, 3.0)} | others


def photograph_case():
    image, reference = torch.zeros(3, 10, 14, 1), torch.zeros(2, 10, 14, 1, dtype=torch.uint8)
    image[:, 3, 9] = 1
    reference[:, 3, 9] = 1
    return {"title": "best", "image": image, "reference": reference, "prediction": 0 * reference, "spacing": None}


@pytest.fixture
def saved_figure(monkeypatch):
    """The figure and its title, instead of a file."""
    saved = {}
    for module in (boxes, curves, overlays, styles):
        monkeypatch.setattr(module, "save_png", lambda figure, path, title: saved.update(figure=figure, title=title))
    return saved


def bright(axes):
    """(row, column) of the brightest pixel shown."""
    pixels = np.asarray(axes.images[0].get_array())
    pixels = pixels if pixels.ndim == 2 else pixels.sum(-1)
    return tuple(int(place) for place in np.unravel_index(pixels.argmax(), pixels.shape))


def contour_centre(axes, which=0):
    """(row, column) of the middle of a contour."""
    points = np.concatenate([path.vertices for path in axes.collections[which].get_paths()])
    column, row_ = (points.min(0) + points.max(0)) / 2
    return (row_, column)


def draw_each(folder, label="real data"):
    folder.mkdir()
    curves.save_training_curves(HISTORY, folder / "curves.png", label)
    boxes.save_site_boxes(SCORES, MASKS, folder / "boxes.png", label)
    overlays.save_overlays([volume_case(), volume_case()], folder / "overlays.png", label)
    image = torch.rand(3, 16, 12, generator=torch.Generator().manual_seed(0))
    styles.save_style_gallery(image, {"as at B": image / 2}, folder / "gallery.png", label)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_each_figure_is_an_opaque_png_with_the_same_bytes_each_time(tmp_path):
    once = draw_each(tmp_path / "once")
    assert sorted(once) == ["boxes.png", "curves.png", "gallery.png", "overlays.png"]
    for name in once:
        with Image.open(tmp_path / "once" / name) as png:
            assert png.format == "PNG" and png.mode == "RGB"
            assert min(png.size) > 300
            assert np.asarray(png.convert("L")).std() > 5
    assert draw_each(tmp_path / "again") == once


def test_each_title_says_what_the_data_are(monkeypatch, tmp_path):
    titles = []
    for module in (boxes, curves, overlays, styles):
        monkeypatch.setattr(module, "save_png", lambda figure, path, title: (titles.append(title), path.touch()))
    draw_each(tmp_path / "x", "synthetic phantom data")
    assert len(titles) == 4
    assert all("synthetic phantom data" in title for title in titles)
    overlays.save_overlays([photograph_case()], path := tmp_path / "x" / "common.png", "real data", common_cases=True)
    assert path.is_file() and titles[-1] == "Cases chosen without regard to scores (real data)"


def test_curves_skip_rounds_without_validation_and_have_a_line_per_site(saved_figure):
    curves.save_training_curves(HISTORY, "x.png", "real data")
    loss, dice = saved_figure["figure"].axes
    assert [line.get_label() for line in loss.lines] == ["mean over sites"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in dice.lines}
    assert lines["mean over sites"] == [[2, 0.2], [4, 0.4], [6, 0.6]]
    assert len(lines["A"]) == 6
    curves.save_training_curves([{"round": 1, "train_loss": 0.5, "validation_score": None}], "x.png", "real data")
    assert saved_figure["figure"].axes[1].texts[0].get_text() == "none recorded"


def test_boxes_have_seen_sites_first_and_a_cross_for_a_failure_and_those_of_a_scored_bundle_no_role(
    saved_figure,
):
    boxes.save_site_boxes(SCORES, MASKS, "x.png", "real data")
    left, right = saved_figure["figure"].axes
    assert [text.get_text() for text in left.texts] == ["Z (seen), n=2", "A (unseen), n=2"]
    assert left.get_xlabel() == "Dice (%)"
    crosses = [x for line in left.lines if line.get_marker() == "x" for x in line.get_xdata()]
    assert crosses == [0.0]
    assert right.get_xlabel() == "HD95 (% of diagonal) (logarithmic)"
    assert right.get_xlim()[1] > 90
    boxes.save_site_boxes(with_known_roles(SCORES.assign(role="unseen"), ["Z"]), MASKS, "x.png", "real data")
    figure = saved_figure["figure"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["Z (trained here), n=2", "A, n=2"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["trained here", "missed or false alarm"]


def test_distances_of_cases_in_different_units_have_no_boxes(saved_figure):
    rows = [r | {"hd95_pooled_vx": 4.0} for r in ROWS[:3]]
    boxes.save_site_boxes(table_of(rows, MASKS.metrics), MASKS, "x.png", "real data")
    assert [axes.get_xlabel() for axes in saved_figure["figure"].axes] == ["Dice (%)", "HD95 (% of diagonal)"]
    rows[0] |= {"hd95_percent_of_diagonal": None, "hd95_mm": 2.0}
    boxes.save_site_boxes(table_of(rows, MASKS.metrics), MASKS, "x.png", "real data")
    assert [axes.get_xlabel() for axes in saved_figure["figure"].axes] == ["Dice (%)"]


def test_a_volume_shows_three_slices_of_its_reference_with_rows_along_w(saved_figure):
    """The reference is in slices 1 to 5 of 0 to 5: near its ends and in its middle are 1, 3 and 5."""
    overlays.save_overlays([volume_case()], "x.png", "real data")
    panels = saved_figure["figure"].axes
    assert [axes.get_xlabel() for axes in panels] == ["slice 2 of 6", "slice 4 of 6", "slice 6 of 6"]
    for axes in panels:
        assert bright(axes) == (5, 2)
        assert contour_centre(axes, 0) == contour_centre(axes, 1) == (5, 2)
        assert axes.get_aspect() == 3.0  # a row is 1.5 mm, a column 0.5 mm


def test_with_an_affine_the_front_is_up_and_the_right_side_is_on_the_left(saved_figure):
    """With axes that increase to the right and to the front, both are flipped: row 7 - 5, column 11 - 2."""
    overlays.save_overlays([volume_case(affine=torch.diag(torch.tensor([0.5, 1.5, 3, 1])))], "x.png", "real data")
    assert bright(saved_figure["figure"].axes[0]) == (2, 9)
    assert contour_centre(saved_figure["figure"].axes[0]) == (2, 9)
    overlays.save_overlays([volume_case(affine=np.diag([-0.5, -1.5, 3, 1]))], "x.png", "real data")
    assert bright(saved_figure["figure"].axes[0]) == (5, 2)


def test_photographs_keep_their_rows_stand_side_by_side_and_name_a_missing_mask(saved_figure):
    overlays.save_overlays([photograph_case(), photograph_case()], "x.png", "real data")
    first, second = saved_figure["figure"].axes
    assert bright(first) == (3, 9)
    assert first.get_xlabel() == "no prediction"
    assert first.get_position().y0 == second.get_position().y0
    assert first.get_title() == "best"


def test_a_case_without_any_mask_is_not_cropped_and_a_far_false_positive_is_inside_the_shown_region(saved_figure):
    empty = torch.zeros(1, 12, 8, 6, dtype=torch.uint8)
    overlays.save_overlays([volume_case(reference=empty, prediction=empty)], "x.png", "real data")
    axes = saved_figure["figure"].axes[1]
    assert (axes.get_xlim(), axes.get_ylim()) == ((-0.5, 11.5), (7.5, -0.5))
    assert axes.get_xlabel() == "slice 3 of 6, no reference, no prediction"
    case = volume_case()
    case["prediction"][0, 11, 0, 0] = 1
    overlays.save_overlays([case], "x.png", "real data")
    assert saved_figure["figure"].axes[0].get_xlim()[1] >= 11


def test_a_common_case_has_the_same_pixels_whatever_was_predicted(tmp_path):
    """Figures of two methods agree except at the contours; the slice is the one with the largest reference area."""
    case = volume_case()
    case["reference"][0, 2:5, 4:7, 2] = 1
    far = torch.zeros_like(case["reference"])
    far[0, 0, 0, 2] = 1
    shown = []
    for name, prediction in (("a", case["reference"]), ("b", far), ("c", 0 * far)):
        others = {"title": "A 1\nDice 50.0 %", "prediction": prediction}
        overlays.save_overlays(
            [volume_case() | case | others, photograph_case()], tmp_path / name, "real data", common_cases=True
        )
        shown.append(np.asarray(Image.open(tmp_path / name).convert("RGB")).astype(int))
    for other in shown[1:]:
        assert other.shape == shown[0].shape
        assert 0 < (np.abs(other - shown[0]).sum(axis=2) > 0).mean() < 0.1


def test_of_a_common_case_the_slice_with_the_largest_reference_area_is_shown(saved_figure):
    case = volume_case()
    case["reference"][0, 2:5, 4:7, 2] = 1
    case["prediction"] = torch.zeros_like(case["reference"])
    case["prediction"][0, 0, 0, 2] = 1
    overlays.save_overlays([case, photograph_case()], "x.png", "real data", common_cases=True)
    volume, photograph = saved_figure["figure"].axes
    assert volume.get_xlabel() == "slice 3 of 6" and photograph.get_xlabel() == "no prediction"
    wide = volume_case(**{key: torch.zeros(1, 60, 60, 6) for key in ("image", "reference", "prediction")})
    wide["reference"][0, 30, 30, 2] = 1
    wide["prediction"][0, 1, 1, 2] = 1
    overlays.save_overlays([wide], "x.png", "real data", common_cases=True)
    assert saved_figure["figure"].axes[0].get_xlabel() == "slice 3 of 6, prediction continues outside"
    assert saved_figure["figure"].axes[0].get_xlim()[0] > 20


def test_flat_images_have_a_figure_without_a_gap_above_the_legend(saved_figure):
    """A panel is 3.5 inches wide: an image of 10 x 35 pixels is 1 inch high, with 0.7 inches of texts."""

    def blank(n_rows):
        return photograph_case() | dict.fromkeys(("image", "reference", "prediction"), torch.zeros(1, n_rows, 35, 1))

    for rows, image_in in (((10, 10), 1), ((10, 25), 2.5), ((10, 70), 3.1)):
        overlays.save_overlays(list(map(blank, rows)), "x.png", "real data")
        title_and_legend_in = 0.9
        assert saved_figure["figure"].get_figheight() == pytest.approx(image_in + 0.7 + title_and_legend_in)


def test_sites_that_did_not_train_have_their_own_curves_by_round_and_a_point_at_the_end(saved_figure):
    history = [row | {"boundary_distance": 0.1 * row["round"]} for row in HISTORY]
    scores = [{"round": n, "site": "U", "score": 0.05 * n, "boundary_distance": 0.01 * n} for n in (3, 6)]
    curves.save_unseen_curves(history, scores, "x.png", "real data")
    score, distance = saved_figure["figure"].axes
    for panel, mean, unseen in ((score, [[2, 0.2], [4, 0.4], [6, 0.6]], [0.15, 0.3]), (distance, None, [0.03, 0.06])):
        lines = {line.get_label(): line.get_xydata() for line in panel.lines}
        assert list(lines) == ["mean over sites that train", "U, unseen, after training"]
        assert lines["U, unseen, after training"][:, 0].tolist() == [3, 6]
        assert lines["U, unseen, after training"][:, 1].tolist() == pytest.approx(unseen)
        assert mean is None or lines["mean over sites that train"].tolist() == mean
    assert saved_figure["title"] == (
        "The unseen site by round, measured after training:\nmust not choose anything (real data)"
    )
    curves.save_training_curves(history, "x.png", "real data", {"U": (6, 0.3)})
    panel = saved_figure["figure"].axes[2]
    assert [line.get_label() for line in panel.lines] == ["U, did not train", "mean over sites"]
    assert panel.lines[0].get_xydata().tolist() == [[6, 0.3]]


def test_live_triplets_are_drawn_as_a_share_of_all_triplets(saved_figure):
    counts = [(20, 10), (20, 5), (0, 0)]
    history = []
    for number, (total, live) in enumerate(counts, 1):
        of_all = {"triplets": total, "live_triplets": live}
        of_site = {f"{name}/A": count for name, count in of_all.items()}
        history.append({"round": number, "train_loss": 0.5, "validation_score": None} | of_all | of_site)
    curves.save_training_curves(history, "x.png", "real data")
    panel = saved_figure["figure"].axes[2]
    assert panel.get_ylabel() == "share of live triplets"
    assert [line.get_xydata().tolist() for line in panel.lines] == [[[1, 0.5], [2, 0.25]]] * 2


def test_the_gallery_shows_every_style_and_the_differences(saved_figure):
    """Half the intensity of an image of 0.8 is a change of -0.4 everywhere."""
    image = torch.full((1, 6, 4), 0.8)
    image[0, 1, 3] = 1
    styles.save_style_gallery(image, {"B": image - 0.4, "C": image}, "x.png", "real data")
    panels = saved_figure["figure"].axes
    assert [axes.get_title() for axes in panels[:3]] == ["original", "B", "C"]
    changes = [np.asarray(axes.images[0].get_array()) for axes in panels[4:6]]
    assert changes[0] == pytest.approx(np.full((6, 4), -0.4), abs=1e-6)
    assert not changes[1].any()
    assert bright(panels[0]) == (1, 3)
    styles.save_style_gallery(image, {"B": image}, "x.png", "real data", axes="RA")
    assert bright(saved_figure["figure"].axes[0]) == (0, 4), "as a slice of a volume is displayed"
    for channels, name in ((1, "difference"), (3, "difference,\nmean over channels")):
        styles.save_style_gallery(torch.ones(channels, 8, 8), {"B": torch.zeros(channels, 8, 8)}, "x.png", "real data")
        assert name in [text.get_text() for axes in saved_figure["figure"].axes for text in axes.texts]


def test_importing_the_module_does_not_import_matplotlib():
    names = ("boxes", "curves", "svg", "overlays", "calibration")
    modules = ", ".join(f"medfed.outputs.figures.{name}" for name in names)
    code = f"import sys, {modules}; print('matplotlib' in sys.modules)"
    assert run_without(("medfed", "matplotlib"), code) == "False\n"


def test_the_middle_of_each_image_of_a_grid_is_below_its_style_and_beside_its_site(saved_figure):
    """Images of 5 x 9 pixels with one grey level each; site B has no image in the style of A, which stays white."""
    grey = {level: np.full((1, 5, 9), level / 10) for level in range(1, 6)}
    rows = {"A": (grey[1], {"A": grey[2], "B": grey[3]}), "B": (grey[4], {"B": grey[5]})}
    styles.save_style_grid(rows, "x.png", "real data")
    (panel,) = saved_figure["figure"].axes
    assert [text.get_text() for text in panel.get_xticklabels()] == ["original", "as at A", "as at B"]
    assert [text.get_text() for text in panel.get_yticklabels()] == ["A", "B"]
    shown = np.asarray(panel.images[0].get_array())
    middles = [[shown[int(y), int(x)] for x in panel.get_xticks()] for y in panel.get_yticks()]
    assert middles == [pytest.approx([0.1, 0.2, 0.3]), pytest.approx([0.4, 1, 0.5])]
    assert shown.shape == (2 * 5 + 1, 3 * 9 + 2) and (shown[5] == 1).all()


def test_a_name_with_dollar_signs_is_no_formula(tmp_path):
    boxes.save_site_boxes(SCORES.assign(site=r"$\foo$"), MASKS, tmp_path / "boxes.png", "real data")
    history = [{"round": 1, "train_loss": 1.0, r"train_loss/$\foo$": 1.0}]
    curves.save_training_curves(history, tmp_path / "curves.png", "real data")
    image = np.random.default_rng(0).random((1, 8, 8))
    grid = {r"$\foo$": (image, {"A": image, "B": image}), "B": (image, {"B": image})}
    styles.save_style_grid(grid, tmp_path / "grid.png", "real data", axes="RA")
    assert all(path.stat().st_size > 5000 for path in tmp_path.iterdir()) and len(list(tmp_path.iterdir())) == 3
