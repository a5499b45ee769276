"""Read a datalist: a table (CSV) or a JSON file that names the site, the patient, the image and the mask of each case.

MSD's `dataset.json`, which lists the pairs of a single site, is read here, too.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.files import read_bounded, read_text
from medfed.datasets import dicom, dicom_files, file_names
from medfed.datasets.case import Case
from medfed.datasets.file_names import stem_of
from medfed.datasets.pairing import Found

COLUMNS = ("site", "patient", "image", "mask", "class", "split")
MSD_LIST = "dataset.json"
SUFFIXES = (".csv", ".tsv", ".json")
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
MAX_BYTES = 100_000_000  # of a datalist; 455,954 images need 60 MB
MAX_LISTED = 3  # files or rows of one kind that an error message names


@dataclass(frozen=True)
class Row:
    """One case of a datalist.

    Args:
        place: where the row is, for messages, such as "line 7".
        patient, class_name: "" if the list does not name them.
        part: "train", "validation" or "test"; "" if `splits.split` decides.
    """

    place: str
    site: str
    patient: str
    image: Path
    mask: Path | None
    class_name: str
    part: str


def read_datalist(path: Path) -> tuple[Row, ...]:
    """Read a datalist: a CSV, TSV or JSON file.

    A table has a header with the columns site, image, and mask or class, and optionally patient and split; a JSON file
    is a list of objects with these keys. Other columns are not read. Columns are separated by commas, semicolons or
    tabs; text is in UTF-8, or in UTF-16 as Excel writes "Unicode text". Paths are relative to the folder of the
    datalist.

    UserError if the file is missing or damaged, lacks a column, or if a row lacks a value.
    """
    return _versions(path)[0]


def rows_by_site(path: Path) -> Mapping[str, Sequence[Row]]:
    """The rows of a datalist of each site, from a cache while the file does not change."""
    return _versions(path)[1]


def _versions(path: Path) -> tuple[tuple[Row, ...], Mapping[str, Sequence[Row]]]:
    """Return the rows of a datalist, and those of each site, from the cache if the file has not changed."""
    try:
        return _read_version(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise UserError(
            f"data.datalist: the file {path} cannot be read ({error.strerror}); expected a CSV or JSON file; its path "
            "starts at data.root"
        ) from None


def other_columns(path: Path) -> list[str]:
    """Return the names of the columns of a datalist that are not read."""
    return [name for name in _columns(_records(path)) if name not in COLUMNS]


def find_datalists(folder: Path) -> dict[str, bool]:
    """Return the names of the files with the columns site and image in a folder, each with whether it has masks."""
    columns = tables(folder)
    return {name: "mask" in found for name, found in columns.items() if {"site", "image"} <= found}


def tables(folder: Path) -> dict[str, set[str]]:
    """Return the columns of each table (CSV or JSON) in a folder; files that are no table are left out."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in SUFFIXES and path.is_file() and path.name != MSD_LIST:
            try:
                found[path.name] = set(_columns(_records(path)))
            except OSError:
                continue
            except UserError:  # another kind of file, or a table in another encoding, whose header has no accents
                header = path.read_bytes().partition(b"\n")[0].decode("utf-8", "replace") + "\n-"
                found[path.name] = (
                    set() if path.suffix.lower() == ".json" else set(_columns(_csv_records(header, path)))
                )
    return found


def table_of_classes(folder: Path) -> str:
    """Return what to do with a table in a site's folder that names the class of each image, as a clause; or ""."""
    names = [name for name, columns in tables(folder).items() if columns & {"class", "label", "diagnosis", "target"}]
    if not names:
        return ""
    return (
        f"; if {names[0]} names the class of each image, write one table for all sites, beside their folders, with "
        "the columns site, image and class (data.datalist)"
    )


def site_cases(
    path: Path, site: str, patient_pattern: str | None, classes: Sequence[str] | None = None
) -> tuple[list[Case], list[str]]:
    """Return the cases of one site that a datalist names, and the problems with its rows and files.

    A case has the name of its image file; if several files of the site have this name, their folders come before it.
    `patient_pattern` finds the patient for rows without one. `classes` is None for segmentation.
    """
    rows = rows_by_site(path).get(site, ())
    # One query for each file: a query takes long on a network drive, and a list may have a million rows.
    files = (file for row in rows for file in (row.image, None if classes else row.mask) if file)
    missing = {file for file in files if not _exists(file)}
    problems = _row_problems(path, site, rows, classes, missing)
    stems = Counter(stem_of(row.image) for row in rows)
    cases = []
    for row in rows:
        name = stem_of(row.image)
        if stems[name] > 1:
            name = str(
                PurePosixPath(
                    row.image.relative_to(path.parent) if row.image.is_relative_to(path.parent) else row.image
                ).with_name(name)
            )
        usable = row.image not in missing and (
            row.class_name in classes if classes else row.mask and row.mask not in missing
        )
        label = classes.index(row.class_name) if classes and usable else None
        if usable:
            mask = None if classes else row.mask
            patient = row.patient or file_names.extract_patient(name, patient_pattern, row.image, problems)
            if not patient and row.image.is_dir():
                patient = dicom.patient_id(row.image)
            cases.append(Case(site, name, row.image, mask, patient, label, row.part))
    return cases, problems + _part_problems(path, site, cases)


def read_msd(folder: Path, ignored_names: Sequence[str] = (), links_inside: Path | None = None) -> Found | None:
    """Return the pairs of the `dataset.json` of a Medical Segmentation Decathlon task, by the names of the images.

    If several images have the same name, their folders come before it. None if there is no such list, or if its images
    have other names on the disk (nnU-Net adds _0000 to them): then the folders are searched. The list may not lead out
    of the folder `links_inside` by a symbolic link; None follows all links.
    """
    path = folder / MSD_LIST
    if links_inside is not None and path.is_symlink() and not file_names.lies_inside(links_inside, path):
        raise file_names.table_outside(path, links_inside)
    try:
        content = _json(path, read_text(path, MAX_BYTES))
        listed = [
            (_in_folder(folder, entry["image"]), _in_folder(folder, entry["label"])) for entry in content["training"]
        ]
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):  # a path that is no text
        return None
    if not any(image.is_file() for image, _ in listed):
        return None
    outside = [str(file) for pair in listed for file in pair if _leaves(folder, file)]
    inside = {
        f"entry {number}": pair
        for number, pair in enumerate(listed, 1)
        if not any(_leaves(folder, file) for file in pair)
    }
    by_place = {
        place: pair
        for place, pair in inside.items()
        if not any(
            file_names.is_ignored(Path(part), ignored_names) for file in pair for part in file.relative_to(folder).parts
        )
    }
    entries = list(by_place.values())
    problems = _missing(path, [file for pair in entries for file in pair if not file.is_file()])
    if outside:
        problems.append(
            f"{path}: {len(outside)} of the listed files lie outside the folder {folder}: "
            f"{_listed(outside)}; expected paths inside it; move the files there and correct the paths"
        )
    problems += _repeated(path, entries, list(by_place))
    stems = Counter(stem_of(image) for image, _ in entries)
    pairs = {
        stem_of(image)
        if stems[stem_of(image)] == 1
        else image.relative_to(folder).with_name(stem_of(image)).as_posix(): (image, mask)
        for image, mask in entries
        if image.is_file() and mask.is_file()
    }
    return Found(pairs, problems)


def _in_folder(folder: Path, listed: str) -> Path:
    """Return the path of a listed file, without steps such as `a/..` in it, and in the Unicode form of the file."""
    return file_names.existing_form(folder / os.path.normpath(listed.replace("\\", "/")), folder)


def _leaves(folder: Path, file: Path) -> bool:
    """Return whether the path of a file leads out of a folder; `data.follow_symlinks` decides about links."""
    return not file.is_relative_to(folder) or ".." in file.relative_to(folder).parts


@lru_cache(maxsize=8)
def _read_version(path: Path, changed_ns: int) -> tuple[tuple[Row, ...], Mapping[str, Sequence[Row]]]:
    """Read a datalist once per version of the file, because each site asks; return all rows and those of each site."""
    records = _records(path)
    if not records:
        raise UserError(f"{path}: the datalist has no rows; expected one row for each image")
    columns = _columns(records)
    for needed in (("site",), ("image",), ("mask", "class")):
        if not set(needed) & set(columns):
            wanted = " or ".join(f"'{name}'" for name in needed)
            near = next((name for name in columns if name not in COLUMNS and registry.nearest(name, needed)), None)
            hint = f"did you mean '{near}'? " if near else "" if "label" not in columns else "is it 'label'? "
            raise UserError(
                f"{path}: there is no column {wanted}; {hint}expected site, image, and mask or class, and optionally "
                f"patient and split; found {', '.join(columns) or 'none'}"
            )
    rows = tuple(_row(path, place, record) for place, record in records)
    by_site: dict[str, list[Row]] = {}
    for row in rows:
        by_site.setdefault(row.site, []).append(row)
    return rows, by_site


def _records(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rows of a CSV file or the objects of a JSON file, each with its place in the file."""
    text = _decoded(path)
    try:
        if path.suffix.lower() != ".json":
            return _csv_records(text, path)
        content = _json(path, text)
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"{path}: the lists are nested too deeply to be read; expected a list of objects") from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path}: not a JSON or CSV file ({error}); expected a datalist") from None
    if isinstance(content, dict) and isinstance(content.get("training"), list):
        content = [
            {"mask": entry.get("label"), **entry} if isinstance(entry, dict) else entry for entry in content["training"]
        ]
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise UserError(f'{path}: expected a list of objects such as {{"site": ..., "image": ..., "mask": ...}}')
    return [(f"entry {index}", entry) for index, entry in enumerate(content, 1)]


def _json(path: Path, text: str) -> Any:
    """Return JSON text as values; UserError if an object has the same key twice, of which programs read one."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Build a dictionary; UserError if a key comes twice."""
        if repeated := [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]:
            raise UserError(
                f"{path}: an object has the key {ascii(repeated[0])} twice; expected each key once; remove one of them"
            )
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


def _decoded(path: Path) -> str:
    """Return the text of a table in UTF-8, or in UTF-16 if it begins with the mark of this encoding.

    UserError for another encoding, such as that of an older Excel; accents in it would be guessed.
    """
    content = read_bounded(path, MAX_BYTES)
    try:
        return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}: line {line} is not in the encoding UTF-8 (byte 0x{content[error.start]:02x}, an accent in an "
            "older encoding such as Windows-1252); expected a table in UTF-8; save it again: in Excel with 'Save as', "
            "file type 'CSV UTF-8', in LibreOffice with 'Edit filter settings', character set 'Unicode (UTF-8)'"
        ) from None


def _csv_records(text: str, path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rows of a CSV file; UserError if two of its columns that are read have the same name."""
    header = text.partition("\n")[0]
    delimiter = max(",;\t", key=header.count)
    reader = csv.DictReader(text.splitlines(), delimiter=delimiter, restkey="")
    names = reader.fieldnames = [name.strip().casefold() for name in reader.fieldnames or ()]
    if repeated := [name for name in COLUMNS if names.count(name) > 1]:
        raise UserError(
            f"{path}: there are {names.count(repeated[0])} columns '{repeated[0]}'; expected one; rename or remove the "
            "others"
        )
    return [(f"line {reader.line_num}", record) for record in reader]


def _columns(records: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    return list(dict.fromkeys(name for _, record in records[:1000] for name in record if name))


def _row(path: Path, place: str, record: Mapping[str, Any]) -> Row:
    """Convert one record of a datalist; UserError, which begins with `place`, such as "line 3", if a value is wrong."""
    values = {name: "" if record.get(name) is None else str(record[name]).strip() for name in COLUMNS}
    for name in ("site", "image"):
        if not values[name]:
            raise UserError(f"{path}: {place}: the column '{name}' is empty; expected a value in every row")
    part = _PARTS.get(values["split"].casefold())
    if part is None:
        raise UserError(
            f"{path}: {place}: the column 'split' has the value '{values['split']}'; expected train, validation or test"
        )
    image, mask = (_in_folder(path.parent, values[name]) if values[name] else None for name in ("image", "mask"))
    assert image is not None
    return Row(place, values["site"], values["patient"], image, mask, values["class"], part)


def _exists(path: Path) -> bool:
    """Return whether a file of an image exists, or a folder with DICOM images."""
    try:
        return path.is_file() or (path.is_dir() and dicom_files.holds_dicom(path))
    except OSError:  # such as a name of more than 255 bytes
        return False


def _row_problems(
    path: Path, site: str, rows: Sequence[Row], classes: Sequence[str] | None, missing: Collection[Path]
) -> list[str]:
    """Return one sentence for each kind of mistake in a site's rows; `missing` are the files that do not exist."""
    problems = _missing(
        path,
        [
            file
            for row in rows
            for file in (row.image, None if classes else row.mask)
            if file is not None and file in missing
        ],
    )
    column, allowed = ("class", classes) if classes else ("mask", None)
    empty = [row.place for row in rows if not (row.class_name in allowed if allowed else row.mask)]
    if empty:
        expected = f"expected one of {', '.join(allowed)}" if allowed else "expected the path of a mask"
        problems.append(
            f"{path}: the column '{column}' of the site {site} is empty or unknown in {_listed(empty)}; "
            f"{expected}; correct or remove the rows"
        )
    pairs = [(row.image, None if classes else row.mask) for row in rows]
    problems += _repeated(path, pairs, [row.place for row in rows])
    filled = {row.part != "" for row in rows}
    if len(filled) > 1:
        problems.append(f"{path}: the column 'split' of the site {site} is empty in some rows; fill it in all or none")
    return problems


def _part_problems(path: Path, site: str, cases: Sequence[Case]) -> list[str]:
    """Return the problem that patients of a site are in two parts of the split, or an empty list."""
    parts: dict[str, set[str]] = {}
    for case in cases:
        parts.setdefault(case.patient, set()).add(case.part)
    in_two = [patient for patient, both in parts.items() if len(both) > 1]
    if not in_two:
        return []
    return [
        f"{path}: at the site {site}, {_listed(in_two)} have rows with different values in the column 'split'; "
        "expected one part of the split per patient; correct the column"
    ]


def _repeated(path: Path, pairs: Sequence[tuple[Path, Path | None]], places: Sequence[str]) -> list[str]:
    """Return one sentence for each image or mask that a list names twice, and for each mask that is also an image."""
    problems = list[str]()
    files: tuple[dict[str, tuple[Path, list[str]]], ...] = ({}, {})  # images and masks, with the places of each
    for pair, place in zip(pairs, places):
        for of_kind, file in zip(files, pair):
            if file is not None:
                of_kind.setdefault(os.path.abspath(file), (file, []))[1].append(place)
    for kind, of_kind in zip(("image", "mask"), files):
        problems += [
            f"{file}: the datalist {path.name} names this {kind} in {_listed(lines)}; expected every {kind} once; "
            "remove all rows but one"
            for file, lines in of_kind.values()
            if len(lines) > 1
        ]
    problems += [
        f"{file}: the datalist {path.name} names this file as an image and as a mask ({_listed(lines)}); expected "
        "another file for the mask; correct the path"
        for key, (file, lines) in files[1].items()
        if key in files[0]
    ]
    return problems


def _missing(path: Path, files: Sequence[Path]) -> list[str]:
    """Return the problem that files in the list at `path` do not exist; an empty list if there are no such files."""
    if not files:
        return []
    return [
        f"{path}: {len(files)} of the listed files do not exist: {_listed(map(str, files))}; correct the paths, "
        f"which start at the folder {path.parent}, or add the files"
    ]


def _listed(items: Iterable[str]) -> str:
    """Return up to three items, and the number of the others."""
    items = list(items)
    more = f" and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""
    return ", ".join(items[:MAX_LISTED]) + more
