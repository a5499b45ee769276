"""The audit as one self-contained HTML page; the prose is in `templates/audit.html.jinja`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from medfed.auditing import inversion, membership, perturbations, reconstruction, updates
from medfed.auditing.audit import Audit
from medfed.auditing.image_scores import Attempt
from medfed.auditing.measures import CAUTION, KIND_LABELS, case_label, describe_sent, describe_update, measures, rounded
from medfed.outputs.figures.figure import as_array, to_display_orientation
from medfed.outputs.report.html import EmbeddedFigure, embed, render_page
from medfed.outputs.report.tables import PageTable
from medfed.results.notes import PHANTOM
from medfed.results.text_tables import text_table

AUDIT_STYLE = Path(__file__).with_name("audit.css")
TEMPLATES = Path(__file__).with_name("templates")
REAL = "REAL data: the images below show patients. Protect this page as you protect these images."
CONSTANTS = (inversion, membership, perturbations, reconstruction, updates)  # modules whose numbers the page states


def build_page(audit: Audit) -> str:
    """The report of a privacy audit as one HTML page; equal audits give an equal text."""
    is_phantom = audit.result["data"] == "phantom"
    head = ("Tensor", "Shape", "Type", "One row for", "Bytes")
    entries = [
        (
            entry["name"],
            " x ".join(map(str, entry["shape"])),
            entry["type"],
            "each image" if entry["row_for_each_image"] else "the site",
            str(entry["bytes"]),
        )
        for entry in audit.result["sent"]["entries"]
    ]
    return render_page(
        "audit.html.jinja",
        AUDIT_STYLE.read_text(encoding="utf-8"),
        TEMPLATES,
        kind="medfed audit",
        title=f"{audit.result['method']} at {audit.result['site']}, {audit.result['dataset']}",
        banner=PHANTOM if is_phantom else REAL,
        is_phantom=is_phantom,
        label=PHANTOM if is_phantom else "Real data",
        result=audit.result,
        versions=", ".join(f"{name} {number}" for name, number in audit.result["versions"].items()),
        before_training=describe_sent(audit.result),
        in_every_round=describe_update(audit.result),
        sent=PageTable(text_table("What would leave before training", head, entries, n_words=4)),
        measures=PageTable(measures(audit.result)),
        caution=CAUTION,
        rounded=rounded,
        from_statistics=[_shown([attempt], audit.axes) for attempt in audit.from_statistics],
        from_updates=[
            (case_label(update), update["verdict"], _shown(attempts, audit.axes))
            for update, attempts in audit.from_updates
        ],
        **{module.__name__.rpartition(".")[2]: module for module in CONSTANTS},
    )


def _shown(attempts: Sequence[Attempt], axes: str | None) -> list[tuple[EmbeddedFigure, str, dict[str, float]]]:
    """Each original followed by what was found for it: the image, its label, and its scores (none of an original)."""
    shown: list[tuple[EmbeddedFigure, str, dict[str, float]]] = []
    for attempt in attempts:
        shown.append((_embed(attempt.original, "original", axes), "original", {}))
        for kind, label in KIND_LABELS.items():
            if kind in attempt.images:
                shown.append((_embed(attempt.images[kind], label, axes), label, attempt.scores[kind]))
    return shown


def _embed(image: Tensor, caption: str, axes: str | None) -> EmbeddedFigure:
    """An image (C, H, W) in [0, 1] as a PNG inside the page, in the orientation for display."""
    pixels = to_display_orientation(as_array(image)[None], axes)[0]
    png = io.BytesIO()
    Image.fromarray(np.round(pixels.clip(0, 1) * 255).astype(np.uint8)).save(png, "PNG")
    return embed(caption, png.getvalue(), "image/png")
