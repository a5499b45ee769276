"""The audit as one self-contained HTML page."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from medfed.auditing.audit import Figures
from medfed.auditing.inversion_cases import Case
from medfed.auditing.reconstruction import Reconstruction
from medfed.auditing.report_text import CAUTION, KIND_LABELS, describe_sent, table_rows
from medfed.auditing.weights_text import case_label, describe_update, mean_scores
from medfed.outputs.figures.figure import as_array, to_display_orientation
from medfed.outputs.report.html import EmbeddedFigure, embed, render_page
from medfed.outputs.report.tables import PageTable
from medfed.results.notes import PHANTOM
from medfed.results.text_tables import text_table

AUDIT_STYLE = Path(__file__).with_name("audit.css")
TEMPLATES = Path(__file__).with_name("templates")
REAL = "REAL data: the images below show patients. Protect this page as you protect these images."
Attempt = tuple[str, list[tuple[EmbeddedFigure, str]]]  # caption; (image, text below it), first the original


def build_page(result: Mapping[str, Any], figures: Figures, axes: str | None) -> str:
    """The report of a privacy audit as one HTML page; equal arguments give an equal text. `result` and `figures` are
    what `audit` returns; `axes` as in `medfed.outputs.figures.figure.to_display_orientation`."""
    is_phantom = result["data"] == "phantom"
    reconstructions, cases = figures
    n, of_attacker = len(reconstructions), "reconstructions from what an attacker would have"
    measures = text_table(
        "What the statistics and the weights reveal",
        ("Measure", "Number", "Compare with"),
        table_rows(result),
        n_words=3,
    )
    return render_page(
        "audit.html.jinja",
        AUDIT_STYLE.read_text(encoding="utf-8"),
        TEMPLATES,
        kind="medfed audit",
        title=f"{result['method']} at {result['site']}, {result['dataset']}",
        banner=PHANTOM if is_phantom else REAL,
        is_phantom=is_phantom,
        label=PHANTOM if is_phantom else "Real data",
        about_site=_about_site(result),
        sent=_sent(result),
        measures=PageTable(measures),
        caution=CAUTION,
        shares=bool(result["sent"]["entries"]),
        from_statistics=[
            _attempt(image, f"Image {place} of {n}, and {of_attacker}", axes)
            for place, image in enumerate(reconstructions, start=1)
        ],
        from_updates=[_of_update(case, update, axes) for case, update in zip(cases, result["update"], strict=True)],
        how=result["how"],
        not_tried=result["not_tried"],
    )


def _about_site(result: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [
        ("Site", result["site"]),
        ("Images and patients in training", f"{result['n_images']} images of {result['n_patients']} patients"),
        ("Method", result["method"]),
        ("Before training", describe_sent(result).removeprefix("before training ")),
        ("In every round", describe_update(result).removeprefix("in every round ")),
        ("Seed", result["seed"]),
        ("Versions", ", ".join(f"{name} {number}" for name, number in result["versions"].items())),
    ]


def _sent(result: Mapping[str, Any]) -> PageTable:
    """One row per tensor that would leave the site before training."""
    rows = [
        (
            entry["name"],
            " x ".join(map(str, entry["shape"])),
            entry["type"],
            "each image" if entry["row_for_each_image"] else "the site",
            str(entry["bytes"]),
        )
        for entry in result["sent"]["entries"]
    ]
    head = ("Tensor", "Shape", "Type", "One row for", "Bytes")
    return PageTable(text_table("What would leave before training", head, rows, n_words=4))


def _attempt(image: Reconstruction, caption: str, axes: str | None) -> Attempt:
    """An original image and its reconstructions, with the correlations of each."""
    images = [(_embed(image.original, "original", axes), "Original")]
    for kind, kind_label in KIND_LABELS.items():
        if kind in image.images:
            scores = image.scores[kind]
            text = f"{kind_label[0].upper()}{kind_label[1:]}: detail {scores['detail_correlation']:.3f}, "
            text += f"whole image {scores['correlation']:.3f}"
            images.append((_embed(image.images[kind], kind_label, axes), text))
    return caption, images


def _of_update(case: Case, update: Mapping[str, Any], axes: str | None) -> Attempt:
    """The originals of a case, each followed by its reconstruction and its negative control."""
    shown = []
    for k, original in enumerate(case.originals):
        shown += [
            (_embed(original, "original", axes), "Original"),
            (
                _embed(case.estimates[k], "from the update", axes),
                f"From the update: {mean_scores(case.scores[k : k + 1])}",
            ),
            (
                _embed(case.controls[k], "negative control", axes),
                f"Negative control, an update without this image: {mean_scores(case.control_scores[k : k + 1])}",
            ),
        ]
    description = case_label(update)
    return f"{description[0].upper()}{description[1:]}: {update['verdict']}", shown


def _embed(image: Tensor, caption: str, axes: str | None) -> EmbeddedFigure:
    """An image (C, H, W) in [0, 1] as a PNG inside the page, in the orientation for display."""
    pixels = to_display_orientation(as_array(image)[None], axes)[0]
    png = io.BytesIO()
    Image.fromarray(np.round(pixels.clip(0, 1) * 255).astype(np.uint8)).save(png, "PNG")
    return embed(caption, png.getvalue(), "image/png")
