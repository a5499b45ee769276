"""Figures of runs and comparisons, as matplotlib Figures that a notebook shows and `figure.savefig` writes.

Each title says whether the data are real or synthetic phantoms. Example::

    run = medfed.run("prostate", {"federation.rounds": 2}, method="elcfs")
    medfed.plot.scores(run).savefig("scores.png")
    medfed.plot.styles(run)
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image

from medfed.api import Comparison, Run
from medfed.core.errors import UserError
from medfed.experiments.arguments import check_arguments
from medfed.outputs.figures import boxes
from medfed.outputs.figures import curves as curve_figures
from medfed.outputs.figures.figure import DPI, png_bytes
from medfed.outputs.run_folder import FIGURES
from medfed.results.row import read_row
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import Scoring

__all__ = ["cases", "curves", "scores", "styles"]
NOTEBOOK_WIDTH = 840  # pixels of a figure with images in a notebook, at most


def scores(result: Run | Comparison | str | Path) -> Figure:
    """Draw box plots of the scores of each test case.

    Args:
        result: a run or its folder, with one box for each site, or a comparison, with one line of panels for each
            unseen site and one box for the unseen cases of each row (all seeds).

    Returns:
        One panel for each structure and metric; of a comparison, only for the main metric and those of
        `evaluation.metrics`. A point is a case; a box with more than 60 cases shows only those outside the whiskers as
        points. A cross is a missed structure or a false alarm. For classification, the scores are the predicted
        probabilities of the true class.
    """
    if isinstance(result := _loaded(result), Run):
        if result.scores.empty:
            raise UserError(f"{result.folder}: the run has no scores; expected a run with test images")
        return boxes.site_boxes(result.scores, _scoring(result), _data_label(result))
    runs = _runs_by_row(result)
    table = pd.concat([run.scores.assign(row=row) for row, of_row in runs.items() for run in of_row])
    return boxes.comparison_figure(table, _scoring(result.runs[0]), _data_label(result.runs[0]))


def curves(result: Run | Comparison | str | Path) -> Figure:
    """Draw the training loss, the validation score, the boundary distance and the live triplets (FISC) by round.

    Args:
        result: a run or its folder, with one curve for each site and one for their mean, or a comparison, with one
            curve for each row: the mean over its runs.

    Returns:
        One panel for each value. For more than 12 sites or clients, one band, from the lowest to the highest value,
        replaces their curves.
    """
    if isinstance(result := _loaded(result), Run):
        return curve_figures.training_curves(result.history, _data_label(result))
    histories = {row: [run.history for run in runs] for row, runs in _runs_by_row(result).items()}
    return curve_figures.comparison_curves(histories, _data_label(result.runs[0]))


def cases(run: Run | str | Path) -> Figure:
    """Show unseen cases with their predictions, as the run has drawn them.

    Args:
        run: a finished run or its folder, which has its figures.

    Returns:
        For segmentation, the best, the median and the worst case with the reference and predicted masks
        (`figures/unseen_cases.png`); for classification, the most confident right and wrong predictions
        (`figures/examples.png`).

    Raises:
        UserError: if the run has no such figure.
    """
    finished = _loaded(run)
    return _stored(finished, "unseen_cases" if _scoring(finished).has_structures else "examples")


def styles(run: Run | str | Path) -> Figure:
    """Show one image of each source site in the style of every other site, as the run has drawn them.

    Args:
        run: a finished run, or its folder, of a method whose sites share their styles, such as `elcfs` or `ccst`.

    Returns:
        The figure `figures/style_grid.png`: one line for each site, the original on the left.

    Raises:
        UserError: if the run has no such figure, for example because the method shares no styles.
    """
    return _stored(_loaded(run), "style_grid")


def _loaded(result: Any) -> Any:
    """The run of a folder; a run or a comparison is returned as it is."""
    if isinstance(result, Run | Comparison):
        return result
    check_arguments(run=result)
    return Run(result)


class _ImageFigure(Figure):
    """A figure with images, which a notebook stores as JPEG: about a sixth of the bytes of a PNG file."""

    def _ipython_display_(self) -> None:
        """Show the figure; matplotlib's own formatter, which writes PNG, is not used then."""
        from IPython.display import Image as NotebookImage
        from IPython.display import display

        pixels, file = Image.open(io.BytesIO(png_bytes(self))), io.BytesIO()
        pixels.thumbnail((NOTEBOOK_WIDTH, pixels.height), Image.Resampling.LANCZOS)
        pixels.save(file, "JPEG", quality=80)
        display(NotebookImage(data=file.getvalue(), format="jpeg"))


def _stored(run: Run, name: str) -> Figure:
    """A PNG file of the run, pixel for pixel."""
    path = run.folder / FIGURES / f"{name}.png"
    if not path.is_file():
        raise UserError(f"{path}: the run has no such figure; its figures are in {path.parent}")
    pixels = imread(path)
    figure = _ImageFigure(figsize=(pixels.shape[1] / DPI, pixels.shape[0] / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(pixels, aspect="auto", interpolation="nearest")
    axes.set_axis_off()
    return figure


def _runs_by_row(comparison: Comparison) -> dict[str, list[Run]]:
    """The runs by the label of their row, without `local`, which has several models for each unseen site."""
    runs: dict[str, list[Run]] = {}
    for run in comparison.runs:
        row = read_row(run.folder, run.summary["method"])
        if not row.trained_at:
            runs.setdefault(row.label, []).append(run)
    return runs


def _scoring(run: Run) -> Scoring:
    return scoring_of(run.summary, run.folder / "summary.json")


def _data_label(run: Run) -> str:
    labels = {"phantom": "synthetic phantom data", "real": "real data"}
    return labels.get(run.summary["data"], "a federation of hospitals")
