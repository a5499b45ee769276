"""List the files below the folder of a dataset once: images, DICOM series and segmentations, and what else is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from medfed.core.errors import Problem
from medfed.images.dicom_files import kind_of
from medfed.images.file_names import (
    DOCUMENT_SUFFIXES,
    HEADER_SUFFIXES,
    VOXEL_SUFFIXES,
    is_ignored,
    leads_back,
    leads_out,
)
from medfed.images.reading import suffix

MAX_DEPTH = 100  # folders inside each other


@dataclass(frozen=True)
class Files:
    """Files below a folder, by their paths relative to it, with `/` and in alphabetical order.

    Hidden files, those of operating systems, text files and tables are left out.

    Args:
        root: the folder.
        images: image files by their suffix, DICOM SEG objects, and files of unknown formats.
        series: folders that hold DICOM images, in them or in folders inside them.
        slices: number of DICOM images directly in each of the folders that hold some.
        outside: files and folders behind a symbolic link that leads out of `root`; they are in no other field.
    """

    root: Path
    images: tuple[str, ...]
    series: tuple[str, ...]
    slices: dict[str, int]
    outside: tuple[str, ...]

    def where(self, is_read: Callable[[str], bool]) -> Files:
        """Return the files and folders whose paths fulfil a condition."""
        return Files(
            self.root,
            tuple(filter(is_read, self.images)),
            tuple(filter(is_read, self.series)),
            {path: n for path, n in self.slices.items() if is_read(path)},
            tuple(filter(is_read, self.outside)),
        )

    def without(self, ignored_names: Sequence[str]) -> Files:
        """Return these files without those of which a part of the path has an ignored name."""
        if not ignored_names:
            return self
        return self.where(lambda path: not any(is_ignored(part, ignored_names) for part in path.split("/")))

    def inside(self, folder: str) -> Files:
        """Return the files in one folder of the root, and this folder."""
        return self.where(lambda path: f"{path}/".startswith(f"{folder}/"))


def walk(root: Path, ignored_names: Sequence[str] = (), follow_symlinks: bool = False) -> Files:
    """List all files below a folder; no image is opened, except to read the first bytes of files without a suffix.

    Raises a Problem if folders lie more than 100 levels inside each other.
    """
    images: list[str] = []
    slices: dict[str, int] = {}
    outside: list[str] = []
    pending = [""]
    while pending:
        inner = pending.pop()
        if inner.count("/") > MAX_DEPTH:
            found = f"{MAX_DEPTH} or more folders lie inside each other; expected a folder for each site"
            raise Problem("too deep", root / inner.split("/")[0], found, "remove or move the inner folders")
        with os.scandir(root / inner) as entries:
            for entry in entries:
                if is_ignored(entry.name, ignored_names) or entry.name.lower().endswith(DOCUMENT_SUFFIXES):
                    continue
                place = inner + entry.name
                may_lead_out = entry.is_symlink() or entry.name.lower().endswith(HEADER_SUFFIXES)
                if may_lead_out and not follow_symlinks and leads_out(root, Path(entry.path), {}):
                    outside.append(place)
                elif Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir():  # a loop is no folder
                    pending += [] if entry.is_symlink() and leads_back(Path(entry.path)) else [f"{place}/"]
                elif suffix(entry.name):
                    images.append(place)
                elif entry.name.lower().endswith(VOXEL_SUFFIXES):  # the header beside it is the image
                    continue
                elif (kind := kind_of(Path(entry.path))) == "image":
                    slices[inner[:-1]] = slices.get(inner[:-1], 0) + 1
                elif kind != "other":
                    images.append(place)
    series = {str(folder) for place in slices for folder in (PurePosixPath(place), *PurePosixPath(place).parents)}
    return Files(root, tuple(sorted(images)), tuple(sorted(series - {"."})), slices, tuple(sorted(outside)))
