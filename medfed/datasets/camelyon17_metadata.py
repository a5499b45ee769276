"""Read and check metadata.csv, the table of the half a million patches of Camelyon17-WILDS."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medfed.core.errors import UserError

COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")
PATIENT, NODE, X, Y, TUMOUR, CENTRE, SPLIT, LINE = range(8)  # columns of the array that `read` returns
N_CENTRES = 5
if TYPE_CHECKING:
    from _csv import Reader as TableReader  # the type of csv.reader(...), which exists only in type stubs

_HELP = "copy the file again from its source"


def read(path: Path, with_split: bool = False) -> np.ndarray:
    """Read and check metadata.csv; the array stays in memory until the file changes.

    Returns:
        (N, 8) int64, read-only, one row per patch: the numbers of the patient and of the lymph node (which together
        identify the slide), x and y of the patch in its slide, tumour (0 or 1), centre (0 to 4), the column `split` of
        the published split (0 training, 1 validation; -1 if `with_split` is False), and the number of the line in the
        file.

    Raises:
        UserError: if the file cannot be read, a column is missing, a value is invalid, a patch is listed twice, or a
            patient is at two centres.
    """
    status = path.stat()
    return _read(path, with_split, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _read(path: Path, with_split: bool, changed_ns: int, size: int) -> np.ndarray:
    """Read and check the table; time and size of the file are part of the key of the cache."""
    numbers = _numbers(path, (*COLUMNS, *(("split",) if with_split else ())))
    if not with_split:
        numbers = np.insert(numbers, SPLIT, -1, axis=1)
    if not len(numbers):
        raise UserError(f"{path}: the table has no rows below its header; expected one row per patch; {_HELP}")
    _check_values(path, numbers, "center", CENTRE, f"0 to {N_CENTRES - 1}", range(N_CENTRES))
    _check_values(path, numbers, "tumor", TUMOUR, "0 or 1", range(2))
    if with_split:
        _check_values(path, numbers, "split", SPLIT, "0 (training) or 1 (validation)", range(2))
    _check_repeats(path, numbers)
    _check_patients(path, numbers)
    numbers.setflags(write=False)
    return numbers


def _numbers(path: Path, columns: tuple[str, ...]) -> np.ndarray:
    """Return (N, len(columns) + 1) int64: the given columns in this order, then the line number."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            pick = itemgetter(*_column_indices(path, next(reader, []), columns))
            return _rows(path, reader, pick, columns)
    except UnicodeDecodeError:
        raise UserError(f"{path}: the file is not UTF-8 text; expected the published table; {_HELP}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot open the file ({error.strerror}); check its permissions") from None


def _rows(path: Path, reader: TableReader, pick: Callable[[list], tuple], columns: tuple[str, ...]) -> np.ndarray:
    """Return what `_numbers` returns; `pick` selects the columns of a row of text."""
    numbers, row = array("q"), []
    try:
        for row in reader:
            if row:
                numbers.extend(map(int, pick(row)))
                numbers.append(reader.line_num)
    except UnicodeDecodeError:
        raise
    except (ValueError, IndexError, OverflowError, csv.Error):
        raise UserError(
            f"{path}: line {reader.line_num}: found '{','.join(row)[:80]}'; expected whole numbers for "
            f"{', '.join(columns)}; {_HELP}"
        ) from None
    return np.frombuffer(numbers, dtype=np.int64).reshape(-1, len(columns) + 1)


def _column_indices(path: Path, header: list[str], columns: tuple[str, ...]) -> list[int]:
    """The position of each column in the header; UserError if one is missing."""
    missing = [name for name in columns if name not in header]
    if missing:
        present = ", ".join(name for name in header if name) or "none"
        raise UserError(
            f"{path}: line 1: the column '{missing[0]}' is missing: found the columns {present[:200]}, expected "
            f"{', '.join(columns)}; {_HELP}"
        )
    return [header.index(name) for name in columns]


def _check_values(path: Path, numbers: np.ndarray, name: str, column: int, expected: str, allowed: range) -> None:
    """Raise UserError if a value of the array's column is outside the range `allowed`."""
    is_invalid = (numbers[:, column] < allowed.start) | (numbers[:, column] >= allowed.stop)
    if is_invalid.any():
        row = numbers[is_invalid.argmax()]
        raise UserError(
            f"{path}: line {row[LINE]}: {name} is {row[column]}, expected {expected} ({int(is_invalid.sum()):,} such "
            f"rows); correct it, or {_HELP}"
        )


def _check_repeats(path: Path, numbers: np.ndarray) -> None:
    """Raise UserError if two rows describe the same patch."""
    names = numbers[:, [PATIENT, NODE, X, Y]]
    order = np.lexsort((*names.T[::-1],))  # stable: of two equal rows, the earlier line comes first
    repeated = (names[order[1:]] == names[order[:-1]]).all(axis=1)
    if repeated.any():
        index = int(repeated.argmax())
        first, second = numbers[order[index]], numbers[order[index + 1]]
        raise UserError(
            f"{path}: line {second[LINE]}: patient {second[PATIENT]:03d}, node {second[NODE]}, x {second[X]}, "
            f"y {second[Y]} is already in line {first[LINE]} ({int(repeated.sum()):,} repeated rows in all); expected "
            "every patch once; remove one of the rows"
        )


def _check_patients(path: Path, numbers: np.ndarray) -> None:
    """Raise UserError if a patient is at two hospitals: the test at one would show training patients of the other."""
    pairs, first = np.unique(numbers[:, [PATIENT, CENTRE]] @ (N_CENTRES, 1), return_index=True)
    repeated = np.flatnonzero(np.diff(pairs // N_CENTRES) == 0)
    if len(repeated):
        rows = numbers[first[repeated[0]]], numbers[first[repeated[0] + 1]]
        earlier, later = sorted(rows, key=lambda row: row[LINE])
        raise UserError(
            f"{path}: line {later[LINE]}: patient {later[PATIENT]:03d} is at center {later[CENTRE]}, but at center "
            f"{earlier[CENTRE]} in line {earlier[LINE]}; expected one center per patient; correct it, or {_HELP}"
        )
