"""CSV files of a run: rows are appended, read back without those that were cut off, and lose no digit."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from medfed.core.errors import UserError


def append_rows(path: Path, columns: Iterable[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a CSV file and wait until they are on the disk.

    Args:
        path: path of the CSV file. If it does not exist, it is created with a header line.
        columns: names of the columns, in their order.
        rows: one dict per row, with the names of the columns as keys. A missing key or None gives an empty field.
    """
    append_text(path, format_rows(columns, rows, header=not path.is_file()))


def append_text(path: Path, text: str) -> None:
    """Append text to a file and wait until it is on the disk.

    Args:
        path: path of the file, which is created if it does not exist.
        text: the text, with the line ends that it shall have in the file.
    """
    with open(path, "a", newline="", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path, needed: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the complete rows of a CSV file, without rows that were cut off; nothing if there is no file.

    Args:
        path: path of the CSV file.
        needed: names of the columns that the file must have.

    Raises:
        UserError: if a column is missing.
    """
    if not path.is_file():
        return
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            if missing := [column for column in needed if column not in row]:
                raise UserError(f"{path}: the column '{missing[0]}' is missing; copy the whole folder of the run again")
            if None not in row.values() and None not in row:
                yield row


def format_rows(columns: Iterable[str], rows: Iterable[Mapping[str, Any]], header: bool = True) -> str:
    """Format rows as CSV; floats are written without loss.

    Args:
        columns: names of the columns, in their order.
        rows: one dict per row, with the names of the columns as keys. A missing key or None gives an empty field.
        header: whether the first line has the names of the columns.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({key: repr(v) if isinstance(v, float) else v for key, v in row.items()} for row in rows)
    return text.getvalue()


def parse_field(text: str) -> Any:
    """Convert a CSV field to int or float if possible; "" becomes None.

    Args:
        text: the field, as it is in the file.
    """
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
