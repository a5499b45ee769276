"""The table of Camelyon17-WILDS, half a million rows, checked and kept as whole numbers."""

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
PATIENT, NODE, X, Y, TUMOUR, CENTRE, SPLIT, LINE = range(8)
N_CENTRES = 5
if TYPE_CHECKING:
    from _csv import Reader as TableReader  # the type of csv.reader(...), which only stubs name

_HELP = "copy the file again from its source"


def read(path: Path, with_split: bool = False) -> np.ndarray:
    """(N, 8) int64: patient, node, x, y, tumour, centre, split (-1 without `with_split`), line in the file.

    The last tables read are kept, and read again where the file has changed.

    Raises:
        UserError: if the file cannot be read, lacks a column, or has a row that is wrong or there twice.
    """
    state = path.stat()
    return _read(path, with_split, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2)
def _read(path: Path, with_split: bool, changed_ns: int, size: int) -> np.ndarray:
    numbers = _numbers(path, (*COLUMNS, *(("split",) if with_split else ())))
    if not with_split:
        numbers = np.insert(numbers, SPLIT, -1, axis=1)
    if not len(numbers):
        raise UserError(f"{path}: has no rows below its header; expected one for each patch; {_HELP}")
    _check_values(path, numbers, "center", CENTRE, f"0 to {N_CENTRES - 1}", range(N_CENTRES))
    _check_values(path, numbers, "tumor", TUMOUR, "0 or 1", range(2))
    if with_split:
        _check_values(path, numbers, "split", SPLIT, "0 (training) or 1 (validation)", range(2))
    _check_repeats(path, numbers)
    _check_patients(path, numbers)
    numbers.setflags(write=False)
    return numbers


def _numbers(path: Path, columns: tuple[str, ...]) -> np.ndarray:
    """(N, columns and one): the columns asked for, in that order, then the line."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            pick = itemgetter(*_places(path, next(reader, []), columns))
            return _rows(path, reader, pick, columns)
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text in UTF-8; expected the table that was published; {_HELP}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be opened ({error.strerror}); check who may read it") from None


def _rows(path: Path, reader: TableReader, pick: Callable[[list], tuple], columns: tuple[str, ...]) -> np.ndarray:
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


def _places(path: Path, header: list[str], columns: tuple[str, ...]) -> list[int]:
    missing = [name for name in columns if name not in header]
    if missing:
        found = ", ".join(name for name in header if name) or "nothing"
        raise UserError(
            f"{path}: line 1: has no column '{missing[0]}', found {found[:200]}; expected {', '.join(columns)}; {_HELP}"
        )
    return [header.index(name) for name in columns]


def _check_values(path: Path, numbers: np.ndarray, name: str, column: int, expected: str, allowed: range) -> None:
    wrong = (numbers[:, column] < allowed.start) | (numbers[:, column] >= allowed.stop)
    if wrong.any():
        row = numbers[wrong.argmax()]
        raise UserError(
            f"{path}: line {row[LINE]}: {name} is {row[column]}, expected {expected} ({int(wrong.sum()):,} such rows); "
            f"correct it, or {_HELP}"
        )


def _check_repeats(path: Path, numbers: np.ndarray) -> None:
    """Raise UserError where two rows name the same patch."""
    names = numbers[:, [PATIENT, NODE, X, Y]]
    order = np.lexsort((*names.T[::-1],))  # stable: of two alike, the earlier line comes first
    alike = (names[order[1:]] == names[order[:-1]]).all(axis=1)
    if alike.any():
        at = int(alike.argmax())
        first, second = numbers[order[at]], numbers[order[at + 1]]
        raise UserError(
            f"{path}: line {second[LINE]}: patient {second[PATIENT]:03d}, node {second[NODE]}, x {second[X]}, "
            f"y {second[Y]} is there already in line {first[LINE]} ({int(alike.sum()):,} such rows); expected every "
            "patch once, so remove one"
        )


def _check_patients(path: Path, numbers: np.ndarray) -> None:
    """Raise UserError where a patient is at two hospitals: a test at one would see the patients of another."""
    pairs, first = np.unique(numbers[:, [PATIENT, CENTRE]] @ (N_CENTRES, 1), return_index=True)
    twice = np.flatnonzero(np.diff(pairs // N_CENTRES) == 0)
    if len(twice):
        one, other = sorted((numbers[first[twice[0]]], numbers[first[twice[0] + 1]]), key=lambda row: row[LINE])
        raise UserError(
            f"{path}: line {other[LINE]}: patient {other[PATIENT]:03d} is at center {other[CENTRE]}, but at "
            f"{one[CENTRE]} in line {one[LINE]}; expected one center a patient; correct it, or {_HELP}"
        )
