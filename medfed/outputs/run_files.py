"""Files of a run: one sentence for every way in which a file is damaged, and CSV files, whose rows are appended."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from medfed.core.errors import UserError


@contextmanager
def damaged_file(path: Path) -> Iterator[Path]:
    """Context manager: turn the errors of reading a missing or damaged file of a run into a UserError with its path."""
    try:
        yield path
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: the file is missing; copy the whole folder of the run again") from error
    except Exception as error:  # of any library
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        raise UserError(f"{path}: the file cannot be read ({why}); copy the whole folder of the run again") from error


def check_may_start(path: Path, *, resume: bool) -> None:
    """Raise UserError if a new run would start in a folder with one, or if there is none to resume."""
    holds_run = (path / "config.yaml").is_file()
    if resume and not holds_run:
        raise UserError(
            f"{path}: no run to resume here; remove --resume to start one, or name the run's folder with --out"
        )
    if holds_run and not resume:
        content = "a finished run" if (path / "summary.json").is_file() else "a run that is not finished"
        raise UserError(f"{path}: holds {content}; continue it with --resume, or choose another folder with --out")


def append_rows(path: Path, columns: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a CSV file (created with a header) and wait until they are on the disk; None is an empty field."""
    append_text(path, format_rows(columns, rows, header=not path.is_file()))


def append_text(path: Path, text: str) -> None:
    """Append text, with its own line ends, and wait until it is on the disk."""
    with open(path, "a", newline="", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the complete rows, without those that were cut off; UserError without a `needed` column."""
    if not path.is_file():
        return
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            if missing := [column for column in needed if column not in row]:
                raise UserError(f"{path}: the column '{missing[0]}' is missing; copy the whole folder of the run again")
            if None not in row.values() and None not in row:
                yield row


def format_rows(columns: Iterable[str], rows: Iterable[Mapping[str, Any]], header: bool = True) -> str:
    """Format rows as CSV; floats are written without loss, None and missing keys as empty fields."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({key: repr(v) if isinstance(v, float) else v for key, v in row.items()} for row in rows)
    return text.getvalue()


def parse_field(text: str) -> Any:
    """Convert a CSV field to int or float if possible; "" becomes None."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text or None
