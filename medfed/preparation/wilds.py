"""Camelyon17-WILDS (Koh et al., 2021): patches of lymph node slides from five hospitals.

Layout, by https://github.com/p-lambda/wilds (wilds/datasets/camelyon17_dataset.py): camelyon17_v1.0/metadata.csv and
camelyon17_v1.0/patches/patient_PPP_node_N/patch_patient_PPP_node_N_x_X_y_Y.png.

Known traps: an interrupted unpacking leaves patches out, so the written metadata.csv lists only those that exist. The
column `split` was sampled by patch; patches of one slide are in both parts, and medfed splits by patient unless
`data.splits` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets import camelyon17_metadata as metadata
from medfed.datasets.camelyon17 import FOLDER, TABLE
from medfed.preparation.entry import Content, Download, Entry, walk

TITLE = "Camelyon17-WILDS"
LAYOUT = f"{FOLDER}/{TABLE} with {FOLDER}/patches/patient_PPP_node_N/patch_patient_PPP_node_N_x_X_y_Y.png"
_MISSING = "listed in metadata.csv, but the file is missing or empty"
NOTES = (
    "the column `split` of metadata.csv was sampled by patch, so that patches of one slide are in both parts; medfed "
    "splits by patient (data.splits)",
    "patches are hard links to the files of the download where the file system allows it, and take no space; do not "
    "edit them",
)


def find(source: Path) -> Download | None:
    """Return one entry for every patch in metadata.csv, and one for the table itself; None if there is no such table.

    Raises:
        UserError: if metadata.csv is not the published table.
    """
    for folder in walk(source):
        if (folder / TABLE).is_file() and (folder / "patches").is_dir():
            return Download(TITLE, tuple(_entries(folder)), NOTES)
        if folder.name == "patches":
            return None
    return None


def _entries(folder: Path) -> list[Entry]:
    table = folder / TABLE
    rows = metadata.read(table).tolist()
    lines = table.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    kept, entries = {0}, []
    listed: dict[str, frozenset[str]] = {}
    for row in rows:
        slide = f"patient_{row[metadata.PATIENT]:03d}_node_{row[metadata.NODE]}"
        name = f"patches/{slide}/patch_{slide}_x_{row[metadata.X]}_y_{row[metadata.Y]}.png"
        if slide not in listed:
            inner = folder / "patches" / slide
            listed[slide] = _names(inner) if inner.is_dir() else frozenset()
        exists = name.rpartition("/")[2] in listed[slide]
        files = partial(_patch, folder / name, name) if exists else None
        site = f"hospital_{row[metadata.CENTRE] + 1}"
        entries.append(Entry(site, name, files, "" if exists else _MISSING))
        if exists:
            kept.add(row[metadata.LINE] - 1)
    if len(kept) == 1:
        raise UserError(f"{table}: none of its patches is in {folder / 'patches'}; unpack the download completely")
    text = "".join(line for index, line in enumerate(lines) if index in kept)
    return [*entries, Entry("all", TABLE, lambda: {f"{FOLDER}/{TABLE}": text.encode()})]


def _names(folder: Path) -> frozenset[str]:
    """Return the names of the files in a folder that are not empty."""
    with os.scandir(folder) as listing:
        return frozenset(item.name for item in listing if item.is_file() and item.stat().st_size)


def _patch(path: Path, name: str) -> Mapping[str, Content]:
    return {f"{FOLDER}/{name}": path}
