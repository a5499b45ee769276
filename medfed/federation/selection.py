"""Which round is the result: a named rule, written beside every score, that never looks at the unseen site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def last(history: Sequence[Mapping[str, object]]) -> int:
    """The last round."""
    return max(int(row["round"]) for row in history)


def source_validation(history: Sequence[Mapping[str, object]]) -> int:
    """The round with the best mean validation score over the source sites; the earliest of equals."""
    scored = [row for row in history if row.get("validation_score") is not None]
    if not scored:
        return last(history)
    return int(min(scored, key=lambda row: (-float(row["validation_score"]), int(row["round"])))["round"])


RULES = {"last": last, "source_validation": source_validation}
