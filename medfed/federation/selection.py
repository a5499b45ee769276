"""Which round is the result: a named rule, written beside every score, that never looks at the unseen site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

VALIDATION_SITE = "validation_site_score"  # a column of the history


def last(history: Sequence[Mapping[str, Any]]) -> int:
    """The last round."""
    return max(int(row["round"]) for row in history)


def source_validation(history: Sequence[Mapping[str, Any]]) -> int:
    """The round with the best mean validation score over the clients; the earliest of equals."""
    return _best(history, "validation_score")


def validation_site(history: Sequence[Mapping[str, Any]]) -> int:
    """The round with the best score on the validation site, which never trains; the earliest of equals."""
    return _best(history, VALIDATION_SITE)


def _best(history: Sequence[Mapping[str, Any]], score: str) -> int:
    """The last round where none has the score."""
    scored = [row for row in history if row.get(score) is not None]
    if not scored:
        return last(history)
    return int(min(scored, key=lambda row: (-float(row[score]), int(row["round"])))["round"])


RULES = {"last": last, "source_validation": source_validation, "validation_site": validation_site}
