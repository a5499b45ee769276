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
    """Write sorted rows to a CSV file. The file is replaced in one step, so it is never half written.

    Args:
        path: the file to write.
        rows: one dict per line of the file, with values by column name. Entries that are not in `columns` are ignored.
        columns: names of the columns, in the order of the file.
        keys: names of the entries by which the rows are sorted, the most important name first.
        format_value: function from a value and its column's name to the text in the file.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in sorted(rows, key=lambda row: [row[key] for key in keys]):
        writer.writerow([format_value(row[column], column) for column in columns])
    write_atomically(Path(path), text.getvalue())


def read_csv(path: str | Path) -> list[list[str]]:
    """Read a CSV file.

    Args:
        path: the file, in UTF-8.

    Returns:
        The values of each line as strings, the header line first; [] for an empty file.
    """
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def parse_row(
    path: str | Path, number: int, columns: Sequence[str], line: Sequence[str], numbers: Sequence[str]
) -> dict:
    """Convert one line of a CSV file to a dict of values by column name.

    Args:
        path: the file, for error messages.
        number: the line's number in the file, counted from 1, for error messages.
        columns: the names of the columns.
        line: the values of the line as strings, in the order of the columns.
        numbers: names of the columns that hold numbers; an empty value becomes None.

    Returns:
        Values by column name: a float or None in the number columns, else a string.

    Raises:
        UserError: if the number of values differs from the number of columns, or a value in a number column is not a
            number.
    """
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
