"""The CSV file of cases that any task writes: sorted, the same bytes for the same rows, errors with the line."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from medfed.core.errors import UserError
from medfed.core.files import write_atomically


def write_rows(
    path: str | Path, rows: Sequence[dict], columns: Sequence[str], keys: Sequence[str],
    written: Callable[[object, str], str],
) -> None:  # fmt: skip
    """Write the columns of the rows, sorted by `keys`; `written` turns a value of a column to text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in sorted(rows, key=lambda row: [row[key] for key in keys]):
        writer.writerow([written(row[column], column) for column in columns])
    write_atomically(Path(path), text.getvalue())


def read_csv(path: str | Path) -> list[list[str]]:
    """Its lines as texts, the header first; empty for an empty file."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def parse_row(
    path: str | Path, number: int, columns: Sequence[str], line: Sequence[str], numbers: Sequence[str]
) -> dict:
    """One line as a row; `numbers` are the columns that hold a number, or nothing for None.

    Raises:
        UserError: for another count of values, or a value that is no number.
    """
    if len(line) != len(columns):
        raise UserError(f"{path}, line {number}: {len(line)} values, expected {len(columns)}; was it cut off?")
    row: dict = dict(zip(columns, line))
    for name in numbers:
        try:
            row[name] = float(row[name]) if row[name] else None
        except ValueError:
            found = f"{name} is {row[name]!r}"
            raise UserError(f"{path}, line {number}: {found}, expected a number or nothing; write it again") from None
    return row
