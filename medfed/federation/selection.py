"""Rules that select a round; the weights of this round are the result of a run (`federation.selection`).

No rule reads a score of the unseen site. The name of the rule is stored with every score (`summary.json`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

VALIDATION_SITE = "validation_site_score"  # a column of the history


def last_round(history: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of the last round: the rule "last" of the setting `federation.selection`.

    Args:
        history: the rows of `history.csv`: one dict for each finished round, with its number under "round"; at least
            one.
    """
    return max(int(row["round"]) for row in history)


def best_source_round(history: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of the round with the highest mean validation score over the sites that train.

    This is the rule "source_validation" of the setting `federation.selection`.

    Args:
        history: the rows of `history.csv`: one dict for each finished round, with its number under "round" and the mean
            score under "validation_score"; at least one.

    Returns:
        The number of the round. If several rounds have the same score, it is the earliest of them. If no round has a
        score, it is the last round.
    """
    return _best_round(history, "validation_score")


def best_validation_site_round(history: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of the round with the highest score at the validation site, a site that never trains.

    This is the rule "validation_site" of the setting `federation.selection`.

    Args:
        history: the rows of `history.csv`: one dict for each finished round, with its number under "round" and the
            score under "validation_site_score"; at least one.

    Returns:
        The number of the round. If several rounds have the same score, it is the earliest of them. If no round has a
        score, it is the last round.
    """
    return _best_round(history, VALIDATION_SITE)


def _best_round(history: Sequence[Mapping[str, Any]], column: str) -> int:
    scored = [row for row in history if row.get(column) is not None]
    if not scored:
        return last_round(history)
    return int(min(scored, key=lambda row: (-float(row[column]), int(row["round"])))["round"])


RULES = {  # by the values of `federation.selection`
    "last": last_round,
    "source_validation": best_source_round,
    "validation_site": best_validation_site_round,
}
