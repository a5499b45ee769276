"""What all figures share: creating a figure, its title and legend, colours, images, and saving it as PNG.

Each `save_...` function of this package writes one PNG file to `path`, with the same bytes for the same input. Its
`data_label`, for example "synthetic phantom data", is part of the title; `rows` are the rows of a run's `cases.csv`.
matplotlib is imported inside the functions, because the programs that draw nothing must start fast.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from PIL import Image

from medfed.core.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (  # Okabe and Ito: distinct for any colour vision
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY, PALE = "#555555", "#DDDDDD"  # of the labels of axes; of grid lines
LINES = [(colour, dash) for dash in ("-", "--", ":") for colour in (ORANGE, SKY, GREEN, PURPLE, VERMILION, BLUE)]
TRAINED_HERE, NO_ROLE = "trained here", ""  # roles of sites at which a bundle is scored
ROLE_COLOURS = {"seen": BLUE, TRAINED_HERE: BLUE, "validation": PURPLE, "unseen": VERMILION, NO_ROLE: VERMILION}
MAX_COLUMNS = 5
MAX_NAME = 26  # characters of a name above an image
Site = tuple[str, str]  # (role, name)


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure whose layout leaves room for titles and legends; it changes no global setting of matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width_in, height_in), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.08))


def save_png(figure: Figure, path: str | Path, title: str) -> None:
    """Add a title above all panels, in place, and write the figure; the same figure gives the same bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.suptitle(title, fontsize=11, fontweight="bold")
    drawing, file = FigureCanvasAgg(figure), io.BytesIO()
    with texts_are_plain(figure):
        drawing.draw()  # `savefig` would draw twice, and encode the figure with an alpha channel
    Image.fromarray(np.asarray(drawing.buffer_rgba())).convert("RGB").save(file, "PNG", dpi=(DPI, DPI))
    write_atomically(Path(path), file.getvalue())


@contextmanager
def texts_are_plain(figure: Figure) -> Iterator[None]:
    """Draw or save the figure without matplotlib's formulas, which it otherwise sees between two "$" of a text."""
    from matplotlib import rcParams
    from matplotlib.text import Text

    for axes in figure.axes:
        if not axes.axison:
            axes.set(xticks=[], yticks=[])  # not drawn, and `findobj` would create them, which takes long
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    before = rcParams["text.parse_math"]
    rcParams["text.parse_math"] = False  # for the tick labels that matplotlib creates later
    try:
        yield
    finally:
        rcParams["text.parse_math"] = before


def style_axes(axes: Axes, grid: Literal["x", "y"] = "y") -> None:
    """Give axes the common style of all figures: no upper and right frame, no ticks, small grey labels, pale grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10, length=0, labelcolor=GREY)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=GREY, fontsize=10)


def add_legend(figure: Figure, entries: Sequence[tuple[str, str, str]], dark: bool = False) -> None:
    """Add a legend in one line below the panels. `entries` are (line style or marker, colour, text); `dark` gives it a
    dark background, for colours that are pale on white."""
    from matplotlib.lines import Line2D

    handles = []
    for kind, colour, text in entries:
        style: dict[str, Any] = {"linestyle": kind, "marker": ""} if "-" in kind else {"linestyle": "", "marker": kind}
        handles.append(Line2D([], [], color=colour, label=text, linewidth=2, **style))
    ground = {"facecolor": "#444444", "labelcolor": "white"} if dark else {}
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, **ground)


def show_image(axes: Axes, image: np.ndarray, aspect: float = 1.0) -> None:
    """Draw (C, rows, columns) in [0, 1], three channels in colour, else the first in grey; `aspect` is a pixel's
    height."""
    pixels = np.moveaxis(image, 0, -1).clip(0, 1) if len(image) == 3 else image[0]
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, aspect=aspect, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def as_array(values: Any) -> np.ndarray:
    """Convert a tensor on any device, an array or a nested list; the result may share memory."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def to_display_orientation(array: np.ndarray, axes: Sequence[str] | None) -> np.ndarray:
    """Return a view (C, W, H, ...) of (C, H, W, ...) with the patient's front up and the patient's right side on the
    left. `axes` has two letters of `nibabel.aff2axcodes`, the directions in which H and W increase, for example "RA".
    None, for images that are not from a scanner, returns the array."""
    if axes is None:
        return array
    flipped = tuple(place for place, towards in enumerate(axes, start=1) if towards in "RAS")
    return np.flip(array, flipped).swapaxes(1, 2)


def scores_by_site(scores: pd.DataFrame) -> dict[Site, pd.DataFrame]:
    """Group scores by (role, site), sorted by role ("seen", "unseen", "validation") and then by name."""
    return {(str(role), str(site)): own for (role, site), own in scores.groupby(["role", "site"])}


def figure_with_panels(n: int, size_in: float) -> tuple[Figure, list[Axes]]:
    """A figure with `n` square panels, at most five in a line, and its panels."""
    n_columns = min(MAX_COLUMNS, max(n, 1))
    n_lines = max(math.ceil(n / n_columns), 1)
    figure = new_figure(max(6.0, size_in * n_columns), (size_in + 0.5) * n_lines + 0.5)
    panels = list(figure.subplots(n_lines, n_columns, squeeze=False).flat)
    for axes in panels[n:]:
        axes.set_visible(False)
    return figure, panels[:n]


def role_colour(role: str) -> str:
    """The colour, "#RRGGBB", of the sites of a role; for a bundle, the role is `TRAINED_HERE` or `NO_ROLE`."""
    return ROLE_COLOURS[role]


def site_label(site: str, role: str) -> str:
    """The name of a site with its role in brackets, such as "Mars (seen)"; for `NO_ROLE` only the name."""
    return f"{site} ({role})" if role else site


def shorten_name(name: str) -> str:
    """Keep the end of a long name, because names of images differ at the end."""
    return name if len(name) <= MAX_NAME else f"…{name[-MAX_NAME:]}"
