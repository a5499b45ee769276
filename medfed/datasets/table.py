"""Read a table (CSV) that names the site, the patient, the image and the mask or class of each case."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from unicodedata import normalize

from medfed.core.errors import Problem, UserError
from medfed.core.files import read_bounded
from medfed.datasets.base import Contents
from medfed.datasets.case import Case, MaskFile
from medfed.datasets.check_groups import as_problem
from medfed.images import dicom, dicom_files
from medfed.images.file_names import folded, stem_of

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("site", "patient", "image", "mask", "class", "split")
SUFFIXES = (".csv", ".tsv")
MAX_BYTES = 100_000_000  # 455,954 images need 60 MB
MAX_LISTED = 3  # rows that an error message names
_PARTS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
    "": "",
}


def read_table(path: Path) -> DataFrame:
    """Read a table as text: `COLUMNS`, and `place`, such as "line 7"; UserError if a column or a value is missing."""
    rows = _rows(path)
    names = [str(name) for name in rows.columns]
    if repeated := [name for name in COLUMNS if names.count(name) > 1]:
        raise UserError(f"{path}: there are {names.count(repeated[0])} columns '{repeated[0]}'; expected one")
    rows = rows.loc[:, ~rows.columns.duplicated()]
    _check_columns(path, [name for name in rows.columns if name != "place"])
    if rows.empty:
        raise UserError(f"{path}: the table has no rows; expected one row for each image")
    rows = rows.reindex(columns=[*COLUMNS, "place"], fill_value="").astype(str).apply(lambda column: column.str.strip())
    parts = rows["split"].str.casefold()
    for name, is_wrong, expected in (
        ("site", rows["site"] == "", "a name"),
        ("image", rows["image"] == "", "a path"),
        ("split", ~parts.isin(_PARTS), "train, validation or test"),
    ):
        if is_wrong.any():
            place, value = rows.loc[is_wrong, ["place", name]].iloc[0]
            found = f"{place}: the column '{name}' has the value '{value}'; expected {expected}"
            raise Problem("wrong value in a table", path, found, "correct the row")
    if not rows["class"].str.fullmatch(r"-?\d*\.\d*[1-9]\d*").any():  # pandas writes 3 as 3.0 beside an empty cell
        rows["class"] = rows["class"].str.replace(r"^(-?\d+)\.0$", r"\1", regex=True)
    return rows.assign(split=parts.map(_PARTS))


def columns_of(path: Path) -> set[str]:
    """Return the names of the columns of a table; an empty set for any other file."""
    try:
        return {str(name) for name in _rows(path, 2, "replace")} - {"place"}  # reading the rows refuses the encoding
    except UserError:
        return set()


def find_table_cases(
    path: Path,
    rows: DataFrame,
    class_names: Sequence[str],
    contents: Contents,
    patient_in_name: Callable[[str, str, Path], str],
) -> None:
    """Add the cases that a table names, and the problems with its rows and files, to `contents`.

    `class_names` is empty for segmentation. `patient_in_name` returns the patient of (site, name, image), or "".
    """
    root = path.parent
    listed = dict.fromkeys(name for name in (*rows["image"], *(() if class_names else rows["mask"])) if name)
    existing = {name: _existing(root, name) for name in listed}
    numbers = {folded(name): number for number, name in enumerate(class_names)}
    for site, of_site in rows.groupby("site", sort=True):
        problems = contents.problems[site]
        problems += _problems(path, of_site, existing, numbers)
        stems = Counter(stem_of(file) for name in of_site["image"].unique() if (file := existing[name]))
        cases, without_patient = contents.cases.setdefault(site, []), list[str]()
        for row in of_site.rename(columns={"class": "label"}).itertuples():
            file, mask_file, label = existing[row.image], existing.get(row.mask), numbers.get(folded(row.label))
            if not file or (label if class_names else mask_file) is None:
                continue
            name = stem_of(file)
            if stems[name] > 1:
                inner = file.relative_to(root) if file.is_relative_to(root) else file
                name = PurePosixPath(inner).with_name(name).as_posix()
            masks = (MaskFile(mask_file),) if mask_file and not class_names else ()
            try:
                patient = row.patient or patient_in_name(site, name, file)
            except UserError as error:
                problems.append(as_problem(error, file))
                continue
            if not patient and file.is_dir():
                patient = dicom.patient_id(file)
            without_patient += [] if patient else [row.place]
            cases.append(Case(site, name, file, masks, patient, label, row.split))
        if 0 < len(without_patient) < len(cases):
            found = f"{without_patient[0]}: the column 'patient' is empty, but not in all rows of the site {site}"
            problems.append(Problem("row without a patient", path, found, "fill the column, or remove it"))
        names = {folded(case.patient): case.patient for case in cases}
        parts = Counter(patient for patient, _ in dict.fromkeys((folded(case.patient), case.part) for case in cases))
        for patient in (names[patient] for patient, n in parts.items() if n > 1):
            found = f"{patient} of {site} has rows with different values in the column 'split'; expected one"
            problems.append(Problem("patient in two parts of the split", path, found, "correct the column"))


def _rows(path: Path, n_rows: int | None = None, errors: str = "strict") -> DataFrame:
    """Return the first rows of a table as text, with its header in lower case as columns, and the column `place`."""
    import pandas as pd

    try:
        if path.suffix.lower() == ".json":
            raise ValueError("a JSON file")
        text = read_bounded(path, MAX_BYTES).decode("utf-8-sig", errors)
        rows = pd.read_csv(
            io.StringIO(text),
            sep=max(",;\t", key=text.partition("\n")[0].count),
            dtype=str,
            keep_default_na=False,
            header=None,
            skip_blank_lines=False,  # so that the numbers of the lines are right
            nrows=n_rows,
        )
        header = [str(name).strip().casefold() for name in rows.iloc[0]]
        rows = rows[(rows != "").any(axis="columns")].iloc[1:].set_axis(header, axis="columns")
        rows["place"] = [f"line {index + 1}" for index in rows.index]
        return rows
    except OSError as error:
        found = f"the file {path} cannot be read ({error.strerror}); expected a CSV file"
        raise UserError(f"data.table: {found}; its path starts at data.root") from None
    except (ValueError, IndexError) as error:  # those of pandas are ValueErrors
        raise UserError(
            f"{path}: not a table of images ({' '.join(str(error).split())}); expected a CSV file in UTF-8 (in Excel, "
            "the file type 'CSV UTF-8')"
        ) from None


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raise UserError if a column is missing."""
    for needed in (("site",), ("image",), ("mask", "class")):
        if not set(needed) & set(columns):
            wanted = " or ".join(f"'{name}'" for name in needed)
            raise UserError(
                f"{path}: there is no column {wanted}; expected site, image, and mask or class, and optionally "
                f"patient and split; found {', '.join(columns) or 'none'}"
            )


def _existing(root: Path, listed: str) -> Path | None:
    """Return the path of a listed file, or folder of DICOM images, in the Unicode form of the disk; or None."""
    name = os.path.normpath(listed.replace("\\", "/"))
    for path in (root / name, root / normalize("NFC", name), root / normalize("NFD", name)):
        with suppress(OSError):  # such as a name of more than 255 bytes
            if path.is_file() or (path.is_dir() and dicom_files.files_of_kind(path, "image")):
                return path
    return None


def _problems(
    path: Path, rows: DataFrame, existing: Mapping[str, Path | None], numbers: Mapping[str, int]
) -> list[Problem]:
    """Return the mistakes in a site's rows; `numbers` has the classes, if there are any."""
    column, expected = ("class", f"one of {', '.join(numbers)}") if numbers else ("mask", "the path of a mask")
    files = {name: os.path.abspath(file) for name, file in existing.items() if file}
    images = rows["image"].map(lambda name: files.get(name, name))
    masks = rows["mask"].map(lambda name: files.get(name, "")) if not numbers else images[:0]
    problems = [
        Problem(
            "listed file that does not exist",
            path.parent / name,
            f"there is no such file, but {path.name} lists it",
            "correct its path, which starts at the folder of the table",
        )
        for name in dict.fromkeys((*rows["image"], *rows["mask"]))
        if existing.get(name, path) is None
    ]
    is_wrong = ~rows["class"].map(folded).isin(numbers) if numbers else rows["mask"] == ""
    problems += [
        Problem(
            "wrong value in a table",
            path,
            f"{place}: the column '{column}' is empty or unknown; expected {expected}",
            "correct or remove the row",
        )
        for place in rows["place"][is_wrong]
    ]
    for kind, paths in (("image", images), ("mask", masks)):
        for file, places in rows["place"].groupby(paths[paths != ""]):
            if len(places) > 1:
                found = f"{path.name} names this {kind} in {', '.join(places[:MAX_LISTED])}; expected it once"
                problems.append(Problem(f"repeated {kind} in a table", file, found, "remove the other rows"))
    if len({part != "" for part in rows["split"]}) > 1:
        found = (
            f"the column 'split' of the site {rows['site'].iloc[0]} is empty in some rows; expected it in all or none"
        )
        problems.append(Problem("incomplete split", path, found, "fill the column, or remove it"))
    return problems
