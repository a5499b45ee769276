"""`medfed.plot`: figures of runs and comparisons."""

import io

import numpy as np
import pytest
from made_runs import made_comparison, made_run
from PIL import Image

import medfed
from medfed.outputs.run_folder import FIGURES


@pytest.fixture
def run(tmp_path):
    return medfed.load_run(made_run(tmp_path / "run"))


def test_a_run_has_boxes_by_site_and_curves_with_the_label_of_its_data(run):
    boxes = medfed.plot.scores(run)
    assert [text.get_text() for text in boxes.axes[0].texts] == ["A (seen), n=7", "B (seen), n=7", "C (unseen), n=7"]
    curves = medfed.plot.curves(str(run.folder))
    assert [axes.get_ylabel() for axes in curves.axes[:2]] == ["training loss", "validation score"]
    assert all("phantom" in figure.get_suptitle() for figure in (boxes, curves))


def test_a_comparison_has_boxes_of_the_unseen_cases_by_row_and_the_mean_curve_of_each_row(tmp_path):
    folders = sorted(made_comparison(tmp_path).glob("*/unseen_*/seed_*"))
    comparison = medfed.Comparison.__new__(medfed.Comparison)
    comparison.runs = [medfed.load_run(folder) for folder in folders]
    axes, *others = medfed.plot.scores(comparison).axes
    assert [text.get_text() for text in axes.texts] == ["elcfs, n=14", "fedavg, n=14"]  # 7 cases, 2 seeds
    assert [panel.get_title() for panel in (axes, *others)] == ["A, disc", "B, disc", "C, disc"]
    loss = medfed.plot.curves(comparison).axes[0]
    assert [line.get_label() for line in loss.lines] == ["elcfs", "fedavg"]


def test_cases_and_styles_are_the_figures_of_the_run_or_named_as_missing(run):
    with pytest.raises(medfed.UserError, match=r"style_grid\.png: the run has no such figure"):
        medfed.plot.styles(run)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    for draw, name in ((medfed.plot.cases, "unseen_cases"), (medfed.plot.styles, "style_grid")):
        (run.folder / FIGURES).mkdir(exist_ok=True)
        Image.fromarray(pixels).save(run.folder / FIGURES / f"{name}.png")
        draw(run).savefig(run.folder / "again.png")
        with Image.open(run.folder / "again.png") as png:
            assert np.array_equal(np.asarray(png.convert("RGB")), pixels)


def test_a_notebook_shows_a_figure_with_images_as_jpeg_of_limited_width(run, monkeypatch):
    displayed = []
    monkeypatch.setattr("IPython.display.display", displayed.append)
    (run.folder / FIGURES).mkdir(exist_ok=True)
    Image.new("RGB", (1200, 600), "#0072B2").save(run.folder / FIGURES / "unseen_cases.png")
    medfed.plot.cases(run)._ipython_display_()
    (image,) = displayed
    shown = Image.open(io.BytesIO(image.data))
    assert (shown.format, shown.size) == ("JPEG", (840, 420))
    assert np.abs(np.asarray(shown).astype(int) - (0, 0x72, 0xB2)).max() <= 2
