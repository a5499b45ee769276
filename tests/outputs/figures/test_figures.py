"""Figures of scores and curves: their content, their titles, and the same bytes each time."""

import io

import numpy as np
import pandas as pd
import pytest
from made_runs import CLASSES, MASKS, class_rows, mask_row
from PIL import Image

from medfed.outputs.figures import boxes, curves, styles
from medfed.outputs.figures.figure import png_bytes, reduced, save_png
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


def texts(things):
    return [text.get_text() for text in things]


def points(line):
    return [list(point) for point in zip(line.get_xdata(), line.get_ydata())]


def test_a_figure_is_an_opaque_png_with_the_same_bytes_each_time_and_a_name_with_dollar_signs_is_no_formula(tmp_path):
    for name in "ab":
        save_png(boxes.site_boxes(SCORES.assign(site=r"$\foo$"), MASKS, "real data"), tmp_path / name)
    with Image.open(tmp_path / "a") as png:
        assert png.format == "PNG" and png.mode == "RGB" and min(png.size) > 300
        assert np.asarray(png.convert("L")).std() > 5
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_notebook_shows_a_figure_whose_title_says_what_the_data_are():
    figure = boxes.site_boxes(SCORES, MASKS, "synthetic phantom data")
    assert figure.get_suptitle() == "Scores of each case by site (synthetic phantom data)"
    assert Image.open(io.BytesIO(figure._repr_png_())).format == "PNG"


def test_a_large_image_is_drawn_by_the_means_of_its_areas():
    image = np.zeros((1, 3000, 2000))
    image[:, ::2] = 1
    small = reduced(image)
    assert small.shape == (1, 480, 320) and small[:, 1:-1] == pytest.approx(0.5, abs=0.1)


def test_curves_skip_rounds_without_validation_and_have_a_line_per_site():
    loss, dice = curves.training_curves(HISTORY, "real data").axes
    assert [line.get_label() for line in loss.lines] == ["mean over sites"]
    lines = {line.get_label(): points(line) for line in dice.lines}
    assert lines["mean over sites"] == [[2, 0.2], [4, 0.4], [6, 0.6]]
    assert len(lines["A"]) == 6
    empty = curves.training_curves([{"round": 1, "train_loss": 0.5, "validation_score": None}], "real data")
    assert texts(empty.axes[1].texts) == ["none recorded"]


def test_a_comparison_has_one_curve_for_each_row_the_mean_over_its_runs():
    runs = [[{"round": n, "train_loss": float(n * k)} for n in (1, 2)] for k in (1, 3)]
    loss, _ = curves.comparison_curves({"fedavg": runs, "elcfs": runs[:1]}, "real data").axes
    lines = {line.get_label(): points(line) for line in loss.lines}
    assert lines == {"fedavg": [[1, 2.0], [2, 4.0]], "elcfs": [[1, 1.0], [2, 2.0]]}


def test_the_legend_names_a_method_of_a_notebook_and_a_site_that_begins_with_an_underscore():
    rows = dict.fromkeys(("__main__.Mine", "_a", "fedavg"), [[{"round": 1, "train_loss": 1.0}]])
    loss, _ = curves.comparison_curves(rows, "real data").axes
    assert [text.strip() for text in texts(loss.get_legend().get_texts())] == [*rows]


def test_sites_that_did_not_train_have_their_own_curves_by_round():
    history = [row | {"boundary_distance": 0.1 * row["round"]} for row in HISTORY]
    scores = [{"round": n, "site": "U", "score": 0.05 * n, "boundary_distance": 0.01 * n} for n in (3, 6)]
    figure = curves.unseen_curves(history, scores, "real data")
    for panel, unseen in zip(figure.axes, ([0.15, 0.3], [0.03, 0.06]), strict=True):
        lines = {line.get_label(): line.get_xydata() for line in panel.lines}
        assert list(lines) == ["mean over sites that train", "U, unseen, after training"]
        assert lines["U, unseen, after training"][:, 0].tolist() == [3, 6]
        assert lines["U, unseen, after training"][:, 1].tolist() == pytest.approx(unseen)
    assert "must not choose anything (real data)" in figure.get_suptitle()
    panel = curves.training_curves(history, "real data").axes[2]
    assert points(panel.lines[-1]) == [[row["round"], pytest.approx(0.1 * row["round"])] for row in HISTORY]


def test_live_triplets_are_drawn_as_a_share_of_all_triplets():
    history = []
    for number, (total, live) in enumerate([(20, 10), (20, 5), (0, 0)], 1):
        of_all = {"triplets": total, "live_triplets": live}
        of_site = {f"{name}/A": count for name, count in of_all.items()}
        history.append({"round": number, "train_loss": 0.5} | of_all | of_site)
    panel = curves.training_curves(history, "real data").axes[2]
    assert panel.get_ylabel() == "share of live triplets"
    assert [points(line) for line in panel.lines] == [[[1, 0.5], [2, 0.25]]] * 2


def test_boxes_have_seen_sites_first_and_a_cross_for_a_failure_and_those_of_a_scored_bundle_no_role():
    left, right = boxes.site_boxes(SCORES, MASKS, "real data").axes
    assert texts(left.texts) == ["Z (seen), n=2", "A (unseen), n=2"]
    assert left.get_xlabel() == "Dice (%)"
    crosses = [x for line in left.lines if line.get_marker() == "x" for x in line.get_xdata()]
    assert crosses == [0.0]
    assert right.get_xlabel() == "HD95 (% of diagonal) (logarithmic)"
    assert right.get_xlim()[1] > 90
    figure = boxes.site_boxes(with_known_roles(SCORES.assign(role="unseen"), ["Z"]), MASKS, "real data")
    assert texts(figure.axes[0].texts) == ["Z (trained here), n=2", "A, n=2"]
    assert texts(figure.legends[0].get_texts()) == ["trained here", "missed or false alarm"]


def test_distances_of_cases_in_different_units_have_no_boxes():
    rows = [r | {"hd95_pooled_vx": 4.0} for r in ROWS[:3]]
    rows[0] |= {"hd95_percent_of_diagonal": None, "hd95_mm": 2.0}
    figure = boxes.site_boxes(table_of(rows, MASKS.metrics), MASKS, "real data")
    assert [axes.get_xlabel() for axes in figure.axes] == ["Dice (%)"]


def test_a_comparison_has_a_line_for_each_unseen_site_and_a_box_for_each_row_on_the_same_axis():
    tables = [SCORES.assign(row="fedavg"), SCORES.assign(row="elcfs", site=SCORES.site.replace({"A": "B"}))]
    figure = boxes.comparison_figure(pd.concat(tables), MASKS, "real data")
    assert [axes.get_title() for axes in figure.axes] == ["A, disc", "B, disc"]
    assert [texts(axes.texts) for axes in figure.axes] == [["fedavg, n=2", "elcfs, n=0"], ["fedavg, n=0", "elcfs, n=2"]]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    classes = table_of(class_rows(["A"], "B"), CLASSES.metrics)
    figure = boxes.comparison_figure(classes.assign(row="fedavg"), CLASSES, "real data")
    assert [axes.get_xlabel() for axes in figure.axes] == ["predicted probability of the true class"]


def test_the_middle_of_each_image_of_a_grid_is_below_its_style_and_beside_its_site():
    """Images of 5 x 9 pixels with one grey level each; site B has no image in the style of A, which stays white."""
    grey = {level: np.full((1, 5, 9), level / 5) for level in range(5)}
    rows = {"A": (grey[0], {"A": grey[1], "B": grey[2]}), "B": (grey[3], {"B": grey[4]})}
    (panel,) = styles.style_grid(rows, "real data", None).axes
    assert texts(panel.get_xticklabels()) == ["original", "as at A", "as at B"]
    assert texts(panel.get_yticklabels()) == ["A", "B"]
    shown = np.asarray(panel.images[0].get_array())[..., 0]
    middles = [[shown[int(y), int(x)] for x in panel.get_xticks()] for y in panel.get_yticks()]
    assert middles == [[0, 51, 102], [153, 255, 204]]
    assert shown.shape == (2 * 5 + 1, 3 * 9 + 2) and (shown[5] == 255).all()


@pytest.mark.parametrize("n_styles", [1, 4])
def test_a_title_that_is_wider_than_its_figure_has_several_lines_and_is_shown_in_full(n_styles):
    image = np.random.default_rng(0).random((1, 8, 8))
    rows = {"A": (image, {f"site {k}": image for k in range(n_styles)})}
    figure = styles.style_grid(rows, "synthetic phantom data, an image of a hospital", None)
    png_bytes(figure)  # draws
    extent = figure._suptitle.get_window_extent()
    assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width
    assert figure.get_suptitle().replace("\n", " ").endswith("(synthetic phantom data, an image of a hospital)")
