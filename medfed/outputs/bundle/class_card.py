"""What the card and the metadata of a bundle say of a model that classifies pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from medfed.metrics.classification_summary import ALL
from medfed.outputs.bundle.check import PREDICTIONS
from medfed.outputs.tables import class_table
from medfed.tasks.classification import AT_ONCE, COLOUR_MEAN, COLOUR_STD, GREY_MEAN, GREY_STD, Classification

PICTURES = (
    "8-bit {} as PNG, JPEG or BMP, turned as a note in the file says (EXIF); another kind, such as grey of more than 8 "
    "bits, stops with its mode as a KeyError"
)
TOGETHER = (
    "\n- Its batch normalisation takes the statistics of the batch: what it says of a picture depends on the others of "
    f"its {AT_ONCE}, in the order of their names."
)


def values(task: Classification, summary: Mapping[str, Any], module: nn.Module) -> dict[str, object]:
    """For the {placeholders} of the template's text."""
    mean, std = (COLOUR_MEAN, COLOUR_STD) if task.channels == 3 else (GREY_MEAN, GREY_STD)
    numbers = f"less {', '.join(map(str, mean))} and divided by {', '.join(map(str, std))} (fixed numbers)"
    batch = [part for part in module.modules() if isinstance(part, _BatchNorm) and not part.track_running_stats]
    return {
        "classes": ", ".join(task.classes),
        "columns": ", ".join(f"`{name}`" for name in task.classes),
        "predictions": PREDICTIONS,
        "scores": scores_table(summary),
        "standardised": f"; {numbers}" if task.standardised else "",
        "kind": kind(task.channels),
        "together": TOGETHER if batch else "",
    }


def kind(channels: int) -> str:
    """Which files a bundle of pictures understands."""
    colour = "pictures in colour (RGB, palette, CMYK, without alpha)"
    return PICTURES.format(colour if channels == 3 else "grey pictures")


def scores(summary: Mapping[str, Any]) -> dict[str, float]:
    """Means over sites by role and score, for `eval_metrics`; what is unknown is left out."""
    means = {role: summary.get(role, {}).get("mean", {}).get(ALL, {}) for role in ("unseen", "seen")}
    return {
        f"{role}_{name}": round(group[name]["mean"], 6)
        for role, group in means.items()
        for name, _ in class_table.COLUMNS
        if group.get(name, {}).get("mean") is not None
    }


def scores_table(summary: Mapping[str, Any]) -> str:
    """The table that closed the run, and what its columns are."""
    if not all("sites" in summary.get(role, {}) for role in ("seen", "unseen")):
        return "No scores were kept with this run."
    head, *rows = class_table.lines(dict(summary))
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows]
    written = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([*written, "", f"{class_table.SPREAD}. {' '.join(class_table.NOTES)}"])
