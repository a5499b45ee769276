"""Sentences about single runs: synthetic data, how they computed, and models that did not learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from medfed.tasks.factory import scoring_of

PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"


def data_label(data: str) -> str:
    """First line of every table of results: whether the images are synthetic ("phantom") or "real"."""
    return PHANTOM if data == "phantom" else f"{data} data"


def computation_notes(summary: Mapping[str, Any]) -> list[str]:
    """Clauses for a run that was not deterministic, or whose network computed in bfloat16; else empty."""
    notes = ["NOT DETERMINISTIC: the same config and seed give other weights each time"]
    return notes * (summary.get("deterministic") is False) + ["trained in bf16"] * (summary.get("precision") == "bf16")


def did_not_learn(summary: Mapping[str, Any]) -> str:
    """Why the model of a run did not learn, as a clause without full stop; "" if it learned or the summary does not say
    it, as for real sites, whose coordinator has no images."""
    learning = summary.get("learning") or {}
    if learning.get("learned", True):
        return ""
    metric = scoring_of(summary).metrics[0].label
    images = f"on the {learning['images']} images of the source sites"
    if learning["score"] is None or math.isnan(learning["score"]):
        return f"DID NOT LEARN: {images}, the {metric} of the model is not a number; train with a lower learning rate"
    others = {"trivial": f"a trivial prediction ({learning['trivial_prediction']})", "start": "its initial weights"}
    better = [
        f"{what} {100 * learning[key]:.2f} %" for key, what in others.items() if learning[key] >= learning["score"]
    ]
    return (
        f"DID NOT LEARN: {images}, the model has {metric} "
        f"{100 * learning['score']:.2f} %, {' and '.join(better)}; train for more rounds or on more images"
    )
