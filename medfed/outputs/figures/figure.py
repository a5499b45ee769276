"""The style of all figures: colours, axes, legends, images, and PNG files.

A figure is a function of the table of scores, or of arrays, that returns a matplotlib Figure. `data_label`, for example
"synthetic phantom data", is part of its title. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Text
from PIL import Image

from medfed.core.files import write_atomically

DPI = 130
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"  # Okabe and Ito: distinct for any colour vision
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#555555", "#DDDDDD"  # of the labels of axes; of grid lines
LINES = [(colour, dash) for dash in ("-", "--", ":") for colour in (ORANGE, SKY, GREEN, PURPLE, VERMILION, BLUE)]
TRAINED_HERE, NO_ROLE = "trained here", ""  # roles of sites at which a bundle is scored
ROLE_COLOURS = {"seen": BLUE, TRAINED_HERE: BLUE, "validation": PURPLE, "unseen": VERMILION, NO_ROLE: VERMILION}
MAX_COLUMNS = 5
TITLE_CHARACTERS_PER_IN = 10  # a longer title has several lines
MAX_NAME = 26  # characters of a name above an image
PANEL_PX = 480  # side of the largest image that is drawn


class NotebookFigure(Figure):
    """A figure that a notebook shows, without pyplot."""

    def _repr_png_(self) -> bytes:
        return png_bytes(self)


def new_figure(width_in: float, height_in: float, title: str) -> Figure:
    """An empty figure that leaves room for titles and legends; it changes no global setting of matplotlib."""
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.08)
    figure = NotebookFigure(figsize=(width_in, height_in), dpi=DPI, layout=layout)
    lines = textwrap.wrap(title, max(20, int(width_in * TITLE_CHARACTERS_PER_IN)))
    figure.suptitle("\n".join(lines), fontsize=11, fontweight="bold")
    return figure


def save_png(figure: Figure, path: Path) -> None:
    write_atomically(path, png_bytes(figure))


def png_bytes(figure: Figure) -> bytes:
    """The figure as an opaque PNG file; a "$" in a text begins no formula."""
    drawing, file = FigureCanvasAgg(figure), io.BytesIO()
    for axes in figure.axes:
        if not axes.axison:
            axes.set(xticks=[], yticks=[])  # not drawn, and `findobj` would create them, which takes long
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with rc_context({"text.parse_math": False}):  # for the tick labels that matplotlib creates later
        drawing.draw()  # `savefig` would draw twice
    Image.fromarray(np.asarray(drawing.buffer_rgba())).convert("RGB").save(
        file, "PNG", dpi=(DPI, DPI), compress_level=1
    )
    return file.getvalue()


def style_axes(axes: Axes, grid: Literal["x", "y"] = "y") -> None:
    """The style of all axes: no upper and right frame, no ticks, small grey labels, pale grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10, length=0, labelcolor=GREY)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=GREY, fontsize=10)


def add_legend(figure: Figure, entries: Sequence[tuple[str, str, str]], dark: bool = False) -> None:
    """Add a legend below the panels, of (line style or marker, colour, text); `dark` is for colours pale on white."""
    handles = []
    for kind, colour, text in entries:
        style: dict[str, Any] = {"linestyle": kind} if "-" in kind else {"linestyle": "", "marker": kind}
        handles.append(Line2D([], [], color=colour, label=text, linewidth=2, **style))
    ground = {"facecolor": "#444444", "labelcolor": "white"} if dark else {}
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, **ground)


def show_image(axes: Axes, image: np.ndarray) -> None:
    axes.imshow(to_pixels(image), interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def to_pixels(image: np.ndarray) -> np.ndarray:
    """(C, rows, columns) in [0, 1] as uint8 (rows, columns, 3): three channels in colour, else the first in grey."""
    colours = image if len(image) == 3 else image[:1].repeat(3, axis=0)
    return np.moveaxis((255 * colours.clip(0, 1)).round().astype(np.uint8), 0, -1)


def tiled(lines: Sequence[Sequence[np.ndarray | None]], gap: tuple[int, int]) -> tuple[np.ndarray, list, list]:
    """Join lines of images to one with white gaps; also return the top of each line and the middle of each column."""
    images = [image for line in lines for image in line if image is not None]
    height, width = (max(image.shape[axis] for image in images) + gap[axis] for axis in (0, 1))
    shape = (height * len(lines), width * max(map(len, lines)), *images[0].shape[2:])
    joined = np.full(shape, 255 if images[0].dtype == np.uint8 else np.nan, images[0].dtype)
    tops, lefts = range(0, shape[0], height), range(0, shape[1], width)
    for top, line in zip(tops, lines):
        for left, image in zip(lefts, line):
            if image is not None:
                left += (width - gap[1] - image.shape[1]) // 2
                joined[top : top + image.shape[0], left : left + image.shape[1]] = image
    shown = joined[: shape[0] - gap[0], : shape[1] - gap[1]]
    return shown, list(tops), [left + (width - gap[1] - 1) / 2 for left in lefts]


def as_array(values: Any) -> np.ndarray:
    """Convert a tensor on any device, an array or a nested list; the result may share memory."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def reduced(image: Any, side: int = PANEL_PX) -> np.ndarray:
    """The image (C, rows, columns), with area means if it is larger than `side` pixels."""
    array = as_array(image)
    factor = side / max(array.shape[1:])
    return array if factor >= 1 else resized(array, *(max(1, round(n * factor)) for n in array.shape[1:]))


def resized(image: Any, rows: int, columns: int) -> np.ndarray:
    """Resize (C, rows, columns) to another size: means over areas, and linear between pixels."""
    values = torch.from_numpy(np.array(as_array(image), dtype=np.float32))[None]
    return F.interpolate(values, (rows, columns), mode="bilinear", antialias=True)[0].numpy()


def to_display_orientation(array: np.ndarray, axes: Sequence[str] | None) -> np.ndarray:
    """Turn (C, H, W, ...) so that the patient's front is up; `axes` are letters of `nibabel.aff2axcodes`, or None."""
    if axes is None:
        return array
    flipped = tuple(place for place, towards in enumerate(axes, start=1) if towards in "RAS")
    return np.flip(array, flipped).swapaxes(1, 2)


def figure_with_panels(n: int, size_in: float, title: str) -> tuple[Figure, list[Axes]]:
    """A figure with `n` square panels, at most five in a line."""
    n_columns = min(MAX_COLUMNS, max(n, 1))
    n_lines = max(math.ceil(n / n_columns), 1)
    figure = new_figure(max(6.0, size_in * n_columns), (size_in + 0.5) * n_lines + 0.5, title)
    panels = list(figure.subplots(n_lines, n_columns, squeeze=False).flat)
    for axes in panels[n:]:
        axes.set_visible(False)
    return figure, panels[:n]


def site_label(site: str, role: str) -> str:
    """The name of a site with its role, such as "Mars (seen)"; for `NO_ROLE` only the name."""
    return f"{site} ({role})" if role else site


def shorten_name(name: str) -> str:
    """Keep the end of a long name, because names of images differ at the end."""
    return name if len(name) <= MAX_NAME else f"…{name[-MAX_NAME:]}"
