"""The figures of runs inside the page: of one run in a row, of several methods one above the other.

The page shows a figure at most 60 rem wide (960 pixels on a usual screen), so it contains a smaller copy of the file.
"""

from __future__ import annotations

import base64
import warnings
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from PIL import Image

from medfed.outputs.report.elements import EmbeddedImage
from medfed.outputs.report.run_data import Comparison, Run
from medfed.outputs.run_folder import FIGURES

MAX_WIDTH, WEBP_QUALITY = 1200, 80  # pixels, enough for a screen with small pixels; 0 to 100
MAX_BYTES = 32 << 20  # of all figures of a page; a browser opens a page of this size at once
DRAWN_BY_PAGE = ("training_curves", "site_boxes")  # the page has these as SVG
COMMON, OWN = ("same_cases", "same_examples"), ("unseen_cases", "examples")
CAPTIONS = {  # by file name
    "same_cases": "Unseen cases, chosen without regard to scores: contours of reference and prediction",
    "same_examples": "Unseen images, chosen without regard to scores, with their class and the predicted class",
    "unseen_cases": "Best, median and worst unseen case: contours of reference and prediction",
    "examples": "Unseen images with the most confident right and wrong predictions",
    "attention": "Where the network's attention lies in unseen images",
    "roc": "Receiver operating characteristic by site",
    "reliability": "Reliability by site: accuracy by confidence. On the diagonal, the confidence is right",
    "confusion": "Confusion matrix by site: true class by predicted class",
    "unseen_rounds": "The unseen site by round, measured after training; a look at the target that must not choose "
    "anything",
    "tsne": "Styles of the sites' training images before and after the exchange of styles, by t-SNE",
    "interpolation_tsne": "Restyled copies of one site's images with a fixed and with a random mixing ratio, by t-SNE",
    "histograms": "Intensities of the sites' training images before and after the exchange of styles",
    "style_gallery": "A training image in the styles of the other sites",
    "style_grid": "One image of each site in the style of each site",
}


@dataclass
class FigureBudget:
    """The limit for the size of all PNG figures in the report, and why the report leaves some out."""

    bytes_left: int = MAX_BYTES
    embedded: set[Path] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    def read(self, path: Path) -> bytes | None:
        """Return a smaller copy of a PNG file (`to_webp`); None, with the reason in `left_out`, if there is none or no
        space."""
        try:
            data = to_webp(path)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning):
            self.left_out.append(f"{path}: is not a PNG file")
            return None
        if len(data) > self.bytes_left:
            self.left_out.append(f"{path}: the page has no room for this figure")
            return None
        self.bytes_left -= len(data)
        self.embedded.add(path)
        return data


def to_webp(path: Path) -> bytes:
    """A PNG file as WebP, at most `MAX_WIDTH` pixels wide; PIL's errors for a damaged or too large file are raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=["PNG"]) as image:
            figure = image.convert("RGB")
    figure.thumbnail((MAX_WIDTH, figure.height), Image.Resampling.LANCZOS)  # keeps the ratio of the sides
    buffer = BytesIO()
    figure.save(buffer, "WEBP", quality=WEBP_QUALITY)
    return buffer.getvalue()


@dataclass(frozen=True)
class MethodStack:
    """(method, figure) pairs of the same kind, shown one above the other with a slider between two of them."""

    caption: str
    data_label: str
    layers: list[tuple[str, EmbeddedImage]]


def run_figures(run: Run, budget: FigureBudget) -> list[EmbeddedImage]:
    """The PNG figures of a run that the page does not draw itself, as far as the budget lasts; those of medfed come
    first."""
    paths = {path.stem: path for path in sorted((run.path / FIGURES).glob("*.png")) if path not in budget.embedded}
    known = [name for name in CAPTIONS if name in paths]
    images = []
    for name in [*known, *(name for name in paths if name not in (*CAPTIONS, *DRAWN_BY_PAGE))]:
        if data := budget.read(paths[name]):
            caption = f"{CAPTIONS.get(name, name.replace('_', ' '))}: {run.method}, unseen {run.unseen}"
            images.append(embed(data, caption, run.data_label))
    return images


def figures_by_method(comparison: Comparison, budget: FigureBudget) -> dict[str, list[MethodStack]]:
    """Figures of predictions by unseen site, one stack of all methods of one seed for each kind, as far as the budget
    lasts. First come figures with the same cases for every method, then those whose cases each method chose."""
    stacks: dict[str, list[MethodStack]] = {site: [] for site in sorted({run.unseen for run in comparison.runs})}
    label = comparison.runs[0].data_label
    for name in (*COMMON, *OWN):
        for site, of_site in stacks.items():
            paths = _paths_of_one_seed([run for run in comparison.drawn if run.unseen == site], name)
            images = [(method, data) for method, path in paths.items() if (data := budget.read(path))]
            if len(images) > 1:
                caption = f"{CAPTIONS[name]}, at {site}"
                layers = [(method, embed(data, f"{caption}: {method}", label)) for method, data in images]
                same = "All methods show the same cases at the same pixels"
                own = "Each method shows its own choice of cases, so the titles above the images may differ"
                stacks[site] = [*of_site, MethodStack(f"{caption}. {same if name in COMMON else own}", label, layers)]
    return {site: of_site for site, of_site in stacks.items() if of_site}


def _paths_of_one_seed(runs: list[Run], name: str) -> dict[str, Path]:
    """File by method, for the smallest of the seeds for which the most methods have this figure."""
    by_seed: dict[int, dict[str, Path]] = {}
    for run in runs:
        path = run.path / FIGURES / f"{name}.png"
        if path.is_file():
            by_seed.setdefault(run.summary["seed"], {})[run.method] = path
    return max(sorted(by_seed.items()), key=lambda entry: len(entry[1]))[1] if by_seed else {}


def embed(data: bytes, caption: str, data_label: str) -> EmbeddedImage:
    """`data` is a WebP file from `FigureBudget.read`."""
    width, height = Image.open(BytesIO(data)).size
    source = "data:image/webp;base64," + base64.b64encode(data).decode()
    return EmbeddedImage(caption, data_label, source, width, height)
