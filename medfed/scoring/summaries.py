"""One table of the `summary.json` files that hospitals wrote with `medfed score` and sent to the coordinator."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medfed.core.errors import UserError
from medfed.core.files import read_text
from medfed.outputs.tables import run_table
from medfed.results.notes import data_label
from medfed.results.run_scores import run_scores_of
from medfed.results.statistics import AVERAGE
from medfed.results.text_tables import aligned
from medfed.scoring.page import ROLE, SITES
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import SHARES, Scoring

MAX_BYTES = 1 << 24
READING_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def print_summaries(args: argparse.Namespace) -> int:
    """Run `python -m medfed.coordinator summaries`; return the exit code 0."""
    print(summaries_text(args.files, args.min_patients))
    return 0


def summaries_text(paths: Sequence[Path], min_patients: int) -> str:
    """Return a table with one row for each site and structure, without scores of fewer than `min_patients` patients;
    UserError if a file is no summary of `medfed score`, or of another model, other metrics or another kind of data."""
    if min_patients < 1:
        raise UserError(f"--min-patients: expected a whole number above 0, got {min_patients}")
    heads, lines = [], []
    file_of: dict[str, Path] = {}
    for path in paths:
        try:
            summary = json.loads(read_text(path, MAX_BYTES))
            scoring = scoring_of(summary, path)
            head, *rows = _rows(scoring, summary, min_patients)
            label = data_label(summary["data"])
            heads.append((summary["bundle"]["name"], summary["bundle"]["weights_sha256"], label, head))
            if not "".join([*map(str, heads[-1][:3]), *head, *sum(rows, ())]).isprintable():
                raise ValueError("control characters")
        except UserError:
            raise
        except FileNotFoundError:
            raise UserError(f"{path}: not found; expected a summary.json of python -m medfed.score") from None
        except READING_ERRORS as error:
            raise UserError(f"{path}: is not a summary.json of python -m medfed.score ({error!r})") from error
        if heads[-1] != heads[0]:
            raise UserError(
                f"{path}: has another model, other metrics or another kind of data (phantom or real) than {paths[0]}; "
                "print it alone"
            )
        for site in sorted({line["site"] for line in summary["scores"]} - {AVERAGE}):
            if site in file_of:
                raise UserError(f"{path}: {file_of[site]} has scores of '{site}' too; name each hospital's file once")
            file_of[site] = path
        lines += rows
    text = aligned([heads[0][3], *lines], 1 + scoring.has_structures)
    return "\n".join([heads[0][2], heads[0][0], "", text, "", f"{run_table.INTERVAL_NOTE}."])


def _rows(scoring: Scoring, summary: Mapping[str, Any], min_patients: int) -> list[tuple[str, ...]]:
    """Return the header row and the rows of one summary, without the scores of fewer than `min_patients` patients."""
    table = run_scores_of(summary)
    if not (table.role == ROLE).all():
        raise ValueError(f"scores: expected the role {ROLE} only")
    groups = [table.site, table.structure]
    n_scored = table.n_patients.where(~table.metric.isin(SHARES)).groupby(groups).transform("max")
    is_shown = (n_scored >= min_patients) & (table.n_patients >= min_patients)
    known = [line for line, shown in zip(summary["scores"], is_shown, strict=True) if shown]
    few = set(zip(table.site, table.structure)) - {(line["site"], line["structure"]) for line in known}
    few = {names for names in few if names[0] != AVERAGE}
    shown = run_table.score_table(scoring, {"scores": known}, SITES, {})
    rows = [tuple(cell.text for cell in row) for row in shown.rows]
    unknown = ["-"] * (len(rows[0]) - shown.n_words - 2)
    hidden = [(*names[: shown.n_words], *unknown, f"fewer than {min_patients}", "") for names in sorted(few)]
    return [*rows, *hidden]
