"""The scores of a bundle as one HTML page, in the style of the report about runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medfed.core.files import write_atomically
from medfed.metrics.mask_metric import ABSENT, OK
from medfed.outputs.figures.figure import NO_ROLE, TRAINED_HERE
from medfed.outputs.report.html import EmbeddedFigure, embed_png, render_page
from medfed.outputs.report.page import CAPTIONS, REAL
from medfed.outputs.report.tables import PageTable, site_table
from medfed.outputs.run_folder import FIGURES
from medfed.results.notes import PHANTOM
from medfed.results.scores import is_probability, predictions
from medfed.results.text_tables import text_table

PAGE = "scores.html"
ROLE = "unseen"  # of every site: whether the model was trained there is not known
SITES, MEANS = {ROLE: "{}"}, {ROLE: "mean over sites"}
TEMPLATES = Path(__file__).with_name("templates")
OWN_CAPTIONS = CAPTIONS | {"examples": "Images with the most confident right and wrong predictions"}
MAX_FAILURES = 200  # rows of the table of failures
OF_SITE = "cases_"  # beginning of the name of a figure with cases of one site


def write_page(folder: Path, summary: Mapping[str, Any], table: pd.DataFrame) -> None:
    """Write the HTML page about the scores of a bundle into the folder with its figures, which it embeds."""
    is_phantom = summary["data"] == "phantom"
    page = render_page(
        "scores.html.jinja",
        folder=TEMPLATES,
        kind="medfed score",
        title=f"{summary['bundle']['name']} on {summary['dataset']}",
        banner=PHANTOM if is_phantom else REAL,
        is_phantom=is_phantom,
        label="PHANTOM data" if is_phantom else "REAL data",
        about_bundle=_about_bundle(summary),
        scores=site_table(summary, SITES, MEANS),
        figures=_figures(folder),
        failures=failures(table),
    )
    write_atomically(folder / PAGE, page)


def with_known_roles(scores: pd.DataFrame, trained_at: Collection[str]) -> pd.DataFrame:
    """Return the scores with the role TRAINED_HERE at these sites and NO_ROLE at others, for figures."""
    return scores.assign(role=np.where(scores.site.isin(list(trained_at)), TRAINED_HERE, NO_ROLE))


def _about_bundle(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of what the reader should know of the bundle and the scored images."""
    bundle, images, patients = summary["bundle"], summary["images"], summary["patients"]
    counted = ", ".join(f"{site}: {images[site]} images of {patients[site]} patients" for site in images)
    rows = [
        ("Bundle", f"{bundle['name']} {bundle['version']}".strip()),
        ("Network", bundle["network"]),
        ("SHA-256 of the weights", bundle["weights_sha256"]),
        ("SHA-256 of inference.json", bundle["inference_sha256"]),
        ("Trained at", ", ".join(bundle["trained_at"]) or "not stated"),
        ("Images", counted),
        ("Labels and outputs", ", ".join(f"{own}: {other}" for own, other in summary["compared_with"].items())),
        ("Versions", ", ".join(f"{name} {number}" for name, number in summary["versions"].items())),
    ]
    return rows + [("Note", notice) for notice in summary["notices"]]


def _figures(folder: Path) -> list[EmbeddedFigure]:
    figures = []
    for path in sorted((folder / FIGURES).glob("*.png")):
        of_site = f"Best, median and worst case of {path.stem.removeprefix(OF_SITE)}: reference and prediction"
        is_of_site = path.stem.startswith(OF_SITE)
        caption = of_site if is_of_site else OWN_CAPTIONS.get(path.stem, path.stem)
        figures.append(embed_png(caption, path.read_bytes()))
    return figures


def failures(scores: pd.DataFrame) -> PageTable | str:
    """Return the table of missed structures and false alarms, or of wrongly classified images; a sentence if none."""
    if is_probability(scores).any():
        head = ("site", "image", "class", "predicted")
        images = predictions(scores)
        entries = images.loc[~images.correct, ["site", "image", "label", "predicted"]]
        caption, none = "Wrongly classified images", "Every image was classified correctly."
    else:
        head = ("site", "image", "structure", "failure")
        dice = scores[(scores.metric == "dice") & (scores.status != ABSENT) & (scores.value == 0)]
        words = np.where(dice.status == OK, "no overlap", dice.status.str.replace("_", " "))
        entries = dice[["site", "image", "structure"]].assign(failure=words)
        caption = "Missed structures, false alarms, and masks that do not overlap"
        none = "No structure was missed, there is no false alarm, and every mask overlaps with its reference."
    if entries.empty:
        return none
    more = f"{len(entries) - MAX_FAILURES} more are in cases.csv."
    notes = [more] * (len(entries) > MAX_FAILURES)
    rows = sorted(entries.itertuples(index=False, name=None))[:MAX_FAILURES]
    return PageTable(text_table(caption, head, rows, n_words=len(head)), notes)
