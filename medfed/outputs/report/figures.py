"""The figures (PNG) of a run put into the page as they are, and those of several methods one over the other."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, field
from pathlib import Path

from medfed.outputs.report.blocks import figure_block
from medfed.outputs.report.markup import Markup, lines, tag
from medfed.outputs.report.run_data import Comparison, Run
from medfed.outputs.run_folder import FIGURES

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_BYTES = 32 << 20  # of all figures of a page; a browser opens that at once
DRAWN = ("training_curves", "site_boxes")  # the page draws these itself
SAME, TELLING = ("same_cases", "same_examples"), ("unseen_cases", "examples")
CAPTIONS = {
    "same_cases": "Unseen cases that no score chose: reference and prediction as contours",
    "same_examples": "Unseen images that no score chose and what the network said",
    "unseen_cases": "Best, median and worst unseen case: reference and prediction as contours",
    "examples": "Telling unseen images and what the network said",
    "attention": "Where the network looked in unseen images",
    "roc": "Receiver operating characteristic by site",
    "reliability": "Reliability: how often the network is right by how sure it is",
    "confusion": "Confusion: true class by predicted class",
    "tsne": "Styles of the sites' training images before and after restyling, by t-SNE",
    "histograms": "Grey levels of the sites before and after restyling",
    "style_gallery": "A training image in the styles of the other sites",
    "style_grid": "An image of each site in the style of each other site",
}


@dataclass
class Budget:
    """How many bytes of figures the page may still take, which it shows already, and which were left out and why."""

    left: int = MAX_BYTES
    shown: set[Path] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    def read(self, path: Path) -> bytes | None:
        """A PNG's bytes, or None where it is none or does not fit."""
        size = path.stat().st_size
        data = path.read_bytes() if size <= self.left else b""
        if not data.startswith(SIGNATURE) or len(data) < 24:
            self.left_out.append(f"{path}: {'is no PNG' if data else 'the page has no room for it'}")
            return None
        self.left -= size
        self.shown.add(path)
        return data


def of_run(run: Run, budget: Budget) -> list[Markup]:
    """Each figure of the run that the page neither draws itself nor shows already, the known ones first."""
    if (older := run.path / "pictures").is_dir() and not (run.path / FIGURES).is_dir():
        budget.left_out.append(f"{older}: an older version of medfed drew these; rename the folder to {FIGURES}")
    paths = [path for path in sorted((run.path / FIGURES).glob("*.png")) if path not in budget.shown]
    found = {path.stem: path for path in paths if path.stem not in DRAWN}
    shown = []
    for name in [*(name for name in CAPTIONS if name in found), *(name for name in found if name not in CAPTIONS)]:
        if data := budget.read(found[name]):
            caption = f"{CAPTIONS.get(name, name.replace('_', ' '))}: {run.method}, unseen {run.unseen}"
            frame = tag("div", _image(data, caption), class_="scroll", tabindex="0", role="region", aria_label=caption)
            shown.append(figure_block(caption, run.data_label, frame))
    return shown


def side_by_side(comparison: Comparison, budget: Budget) -> list[Markup]:
    """For each unseen site the overlays of its methods, of one seed; a slider where there is script.

    First those of the same cases, then each method's best, median and worst.
    """
    stacks: dict[str, list[Markup]] = {site: [] for site in sorted({run.unseen for run in comparison.runs})}
    for name in (*SAME, *TELLING):  # where there is no room for all, the same cases of every site
        for site, drawn in stacks.items():
            paths = _of_first_seed([run for run in comparison.runs if run.unseen == site], name)
            images = [(method, data) for method, path in paths.items() if (data := budget.read(path))]
            if len(images) > 1:
                caption = f"{CAPTIONS[name]}, at {site}"
                drawn.append(_stack(caption, images, comparison.runs[0].data_label, name in SAME))
    found = [(site, drawn) for site, drawn in stacks.items() if drawn]
    return [tag("details", tag("summary", site), *drawn, open=not k) for k, (site, drawn) in enumerate(found)]


def _of_first_seed(runs: list[Run], name: str) -> dict[str, Path]:
    """By method, of the smallest seed with which most methods have this figure."""
    by_seed: dict[int, dict[str, Path]] = {}
    for run in runs:
        path = run.path / FIGURES / f"{name}.png"
        if path.is_file():
            by_seed.setdefault(run.summary["seed"], {})[run.method] = path
    return max(sorted(by_seed.items()), key=lambda found: len(found[1]))[1] if by_seed else {}


def _stack(caption: str, images: list[tuple[str, bytes]], data_label: str, same: bool) -> Markup:
    layers = []
    for method, data in images:
        content = tag("p", method, class_="method"), _image(data, f"{caption}: {method}")
        layers.append(tag("div", *content, class_="layer", data_method=method))
    own = "Each method shows its own best, median and worst, so the titles above the images may differ"
    told = f"{caption}. {'All methods show the same, pixel on pixel' if same else own}"
    return figure_block(told, data_label, tag("div", "\n", lines(*layers), class_="layers"), class_="compare")


def _image(data: bytes, alt: str) -> Markup:
    width, height = struct.unpack(">II", data[16:24])
    source = "data:image/png;base64," + base64.b64encode(data).decode()
    return tag("img", src=source, alt=alt, width=width, height=height)
