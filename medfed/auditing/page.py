"""The audit as one self-contained HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
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
from medfed.outputs.report.elements import EmbeddedImage, Section, Table, rows_of_cells
from medfed.outputs.report.html import STYLE, render_page
from medfed.results.notes import PHANTOM

AUDIT_STYLE = Path(__file__).with_name("audit.css")
TEMPLATES = Path(__file__).with_name("templates")
REAL = "REAL data: the images below show patients. Protect this page as you protect these images."


@dataclass(frozen=True)
class Leaving:
    """What the site would send: facts as (name, value), and a table with one row per tensor."""

    facts: list[tuple[str, str]]
    tensors: Table


@dataclass(frozen=True)
class Measures:
    """What the shared statistics and the weights reveal.

    Attributes:
        table: one row for each measure: its name, its value, and a value to compare with.
        caution: a sentence that says what a value near chance does not mean.
    """

    table: Table
    caution: str


@dataclass(frozen=True)
class Attempt:
    """One attacked image of the site and its reconstructions. `images` are (image, text below it): first the original,
    then each reconstruction and control."""

    caption: str
    data_label: str
    images: list[tuple[EmbeddedImage, str]]


def build_page(result: Mapping[str, Any], figures: Figures, axes: str | None) -> str:
    """The report of a privacy audit as one HTML page; equal arguments give an equal text. `result` and `figures` are
    what `audit` returns; `axes` as in `medfed.outputs.figures.figure.to_display_orientation`."""
    is_phantom = result["data"] == "phantom"
    label = PHANTOM if is_phantom else "Real data"
    reconstructions, cases = figures
    n, of_attacker = len(reconstructions), "reconstructions from what an attacker would have"
    attempts = [
        _attempt(image, f"Image {place} of {n}, and {of_attacker}", label, axes)
        for place, image in enumerate(reconstructions, start=1)
    ]
    of_updates = [_of_update(case, facts, label, axes) for case, facts in zip(cases, result["update"], strict=True)]
    sections = [
        Section("sent", "What would leave the site", "sent.html.jinja", _leaving(result, label)),
        Section("measures", "What it reveals", "measures.html.jinja", _measures(result, label)),
        *(
            [Section("attempts", "Images reconstructed from statistics", "attempts.html.jinja", attempts)]
            if result["sent"]["entries"]
            else []
        ),
        *(
            [Section("updates", "Images reconstructed from updates", "attempts.html.jinja", of_updates)]
            if of_updates
            else []
        ),
        Section("methods", "How the numbers were computed", "sentences.html.jinja", result["how"]),
        Section("not-tried", "What was not tried", "sentences.html.jinja", result["not_tried"]),
    ]
    style = STYLE.read_text(encoding="utf-8") + AUDIT_STYLE.read_text(encoding="utf-8")
    return render_page(
        "frame.html.jinja",
        style,
        folders=[TEMPLATES],
        kind="medfed audit",
        sections=sections,
        title=f"{result['method']} at {result['site']}, {result['dataset']}",
        banner=PHANTOM if is_phantom else REAL,
        is_phantom=is_phantom,
    )


def _leaving(result: Mapping[str, Any], label: str) -> Leaving:
    """The part of the page about the tensors that would leave the site before training."""
    facts = [
        ("Site", result["site"]),
        ("Images and patients in training", f"{result['n_images']} images of {result['n_patients']} patients"),
        ("Method", result["method"]),
        ("Before training", describe_sent(result).removeprefix("before training ")),
        ("In every round", describe_update(result).removeprefix("in every round ")),
        ("Seed", result["seed"]),
        ("Versions", ", ".join(f"{name} {number}" for name, number in result["versions"].items())),
    ]
    rows = [
        (
            entry["name"],
            " x ".join(map(str, entry["shape"])),
            entry["type"],
            entry["bytes"],
            "each image" if entry["row_for_each_image"] else "the site",
        )
        for entry in result["sent"]["entries"]
    ]
    head = ("Tensor", "Shape", "Type", "Bytes", "One row for")
    return Leaving(
        facts, Table("What would leave before training", label, head, rows_of_cells(rows), text_columns=(0, 1, 2, 4))
    )


def _measures(result: Mapping[str, Any], label: str) -> Measures:
    """The table of all measures of the audit, with the numbers to compare them with."""
    head = ("Measure", "Number", "Compare with")
    rows = rows_of_cells(table_rows(result))
    table = Table("What the statistics and the weights reveal", label, head, rows, text_columns=(0, 2))
    return Measures(table, CAUTION)


def _attempt(image: Reconstruction, caption: str, label: str, axes: str | None) -> Attempt:
    """An original image and its reconstructions, with the correlations of each."""
    images = [(_embed(image.original, "original", label, axes), "Original")]
    for kind, kind_label in KIND_LABELS.items():
        if kind in image.images:
            scores = image.scores[kind]
            text = f"{kind_label[0].upper()}{kind_label[1:]}: detail {scores['detail_correlation']:.3f}, "
            text += f"whole image {scores['correlation']:.3f}"
            images.append((_embed(image.images[kind], kind_label, label, axes), text))
    return Attempt(caption, label, images)


def _of_update(case: Case, facts: Mapping[str, Any], label: str, axes: str | None) -> Attempt:
    """The originals of a case, each followed by its reconstruction and its negative control."""
    shown = []
    for k, original in enumerate(case.originals):
        shown += [
            (_embed(original, "original", label, axes), "Original"),
            (
                _embed(case.estimates[k], "from the update", label, axes),
                f"From the update: {mean_scores(case.scores[k : k + 1])}",
            ),
            (
                _embed(case.controls[k], "negative control", label, axes),
                f"Negative control, an update without this image: {mean_scores(case.control_scores[k : k + 1])}",
            ),
        ]
    description = case_label(facts)
    return Attempt(f"{description[0].upper()}{description[1:]}: {facts['verdict']}", label, shown)


def _embed(image: Tensor, caption: str, label: str, axes: str | None) -> EmbeddedImage:
    """An image (C, H, W) in [0, 1] as a PNG inside the page, in the orientation for display."""
    pixels = to_display_orientation(as_array(image)[None], axes)[0]
    png = io.BytesIO()
    Image.fromarray(np.round(pixels.clip(0, 1) * 255).astype(np.uint8)).save(png, "PNG")
    source = "data:image/png;base64," + base64.b64encode(png.getvalue()).decode()
    height, width = pixels.shape
    return EmbeddedImage(caption, label, source, width, height)
