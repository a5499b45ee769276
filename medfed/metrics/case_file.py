"""Read and write CSV files with one row per case: sorted, and byte-identical for equal rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from medfed.core.errors import UserError
from medfed.core.files import write_atomically


def write_rows(
    path: str | Path,
    rows: Sequence[dict],
    columns: Sequence[str],
    keys: Sequence[str],
    format_value: Callable[[object, str], str],
) -> None:
    """Replace a CSV file by rows sorted by the entries `keys`; entries that are not in `columns` are ignored.

    `format_value` returns the text of a value in the column of the given name.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in sorted(rows, key=lambda row: [row[key] for key in keys]):
        writer.writerow([format_value(row[column], column) for column in columns])
    write_atomically(Path(path), text.getvalue())


def read_csv(path: str | Path) -> list[list[str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def parse_row(
    path: str | Path, number: int, columns: Sequence[str], line: Sequence[str], numbers: Sequence[str]
) -> dict:
    """Convert a line to a dict by column name, with a float, or None for an empty text, in the columns `numbers`."""
    if len(line) != len(columns):
        raise UserError(
            f"{path}, line {number}: has {len(line)} values, expected {len(columns)}; is the file cut off? Copy it "
            "again"
        )
    row: dict = dict(zip(columns, line))
    for name in numbers:
        try:
            row[name] = float(row[name]) if row[name] else None
        except ValueError:
            raise UserError(
                f"{path}, line {number}: {name} is {row[name]!r}, expected a number or nothing; copy the file "
                "again from the run"
            ) from None
    return row
