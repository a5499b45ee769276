"""What all figures share: a sheet, its title and legend, colours, an image, and saving; matplotlib when needed.

Each function of this package writes one PNG, the same bytes for the same input; `data_label` says in every title what
the data are.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfed.core.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 130
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (  # Okabe and Ito: told apart with any colour vision
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
LINES = [(colour, dash) for dash in ("-", "--", ":") for colour in (ORANGE, SKY, GREEN, PURPLE, VERMILION, BLUE)]
SEEN, UNSEEN = BLUE, VERMILION
N_COLUMNS = 5
Site = tuple[str, str]  # (role, name)


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure that makes room for its titles and legends. It opens no window and changes no global setting."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width_in, height_in), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.08))


def save_png(figure: Figure, path: str | Path, title: str) -> None:
    """Write a PNG: the same bytes for the same figure."""
    figure.suptitle(title, fontsize=11, fontweight="bold")
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": None})
    write_atomically(Path(path), png.getvalue())


def style_axes(axes: Axes) -> None:
    """No frame where there is no scale, and a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def add_legend(figure: Figure, entries: Sequence[tuple[str, str, str]], dark: bool = False) -> None:
    """Below the panels: (line style or marker, colour, text); on dark ground for colours that are pale on white."""
    from matplotlib.lines import Line2D

    handles = []
    for kind, colour, text in entries:
        style: dict[str, Any] = {"linestyle": kind, "marker": ""} if "-" in kind else {"linestyle": "", "marker": kind}
        handles.append(Line2D([], [], color=colour, label=text, linewidth=2, **style))
    ground = {"facecolor": "#444444", "labelcolor": "white"} if dark else {}
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, **ground)


def show_image(axes: Axes, image: np.ndarray, aspect: float = 1.0) -> None:
    """(C, rows, columns) in [0, 1]: three channels in colour, else the first in grey."""
    pixels = np.moveaxis(image, 0, -1).clip(0, 1) if len(image) == 3 else image[0]
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, aspect=aspect, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def as_array(values: Any) -> np.ndarray:
    """A tensor, of any device, or what numpy takes, as an array."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def to_display_orientation(array: np.ndarray, axes: Sequence[str] | None) -> np.ndarray:
    """(C, H, W, ...) to (C, rows, columns, ...): W downwards to the back, H rightwards to the patient's left."""
    if axes is None:
        return array
    flipped = tuple(place for place, towards in enumerate(axes, start=1) if towards in "RAS")
    return np.flip(array, flipped).swapaxes(1, 2)


def rows_by_site(rows: Sequence[Mapping]) -> dict[Site, list[Mapping]]:
    """The rows of each site, seen sites first."""
    sites: dict[Site, list[Mapping]] = {}
    for row in sorted(rows, key=lambda row: (row["role"], row["site"])):
        sites.setdefault((row["role"], row["site"]), []).append(row)
    return sites


def figure_with_panels(n: int, size_in: float) -> tuple[Figure, list[Axes]]:
    """A figure with `n` panels in lines of five, and those panels."""
    n_columns = min(N_COLUMNS, max(n, 1))
    n_lines = max(math.ceil(n / n_columns), 1)
    figure = new_figure(max(6.0, size_in * n_columns), (size_in + 0.5) * n_lines + 0.5)
    panels = list(figure.subplots(n_lines, n_columns, squeeze=False).flat)
    for axes in panels[n:]:
        axes.set_visible(False)
    return figure, panels[:n]


def role_colour(role: str) -> str:
    return UNSEEN if role == "unseen" else SEEN
