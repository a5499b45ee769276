"""Rules that select the round whose weights are the result of a run (`federation.selection`).

Each rule reads the rows of `history.csv`, at least one, and returns the number of a round. The earliest of equally good
rounds is selected, and the last round if no round has a score. No rule reads a score of the unseen site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

VALIDATION_SITE = "validation_site_score"  # a column of the history


def last_round(history: Sequence[Mapping[str, Any]]) -> int:
    return max(int(row["round"]) for row in history)


def best_round(history: Sequence[Mapping[str, Any]], column: str) -> int:
    """The round with the highest number in a column; the last round if none has a number."""
    scored = [row for row in history if row.get(column) is not None]
    if not scored:
        return last_round(history)
    return int(min(scored, key=lambda row: (-float(row[column]), int(row["round"])))["round"])


RULES: dict[str, Callable[[Sequence[Mapping[str, Any]]], int]] = {  # by the values of `federation.selection`
    "last": last_round,
    "source_validation": partial(best_round, column="validation_score"),  # the mean over the sites that train
    "validation_site": partial(best_round, column=VALIDATION_SITE),
}
