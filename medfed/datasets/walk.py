"""List the files below the folder of a dataset once: images, DICOM series and segmentations, and what else is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from medfed.images.dicom_files import kind_of
from medfed.images.file_names import DOCUMENT_SUFFIXES, VOXEL_SUFFIXES, is_ignored, leads_back
from medfed.images.reading import suffix


@dataclass(frozen=True)
class Files:
    """Files below a folder, by their paths relative to it, with `/` and in alphabetical order.

    Hidden files, those of operating systems, text files and tables are left out. Symbolic links are followed.
    """

    root: Path
    images: tuple[str, ...]  # image files by their suffix, DICOM SEG objects, and files of unknown formats
    series: tuple[str, ...]  # folders that hold DICOM images, in them or in folders inside them
    slices: tuple[str, ...]  # folders with DICOM images directly in them

    def without(self, ignored_names: Sequence[str]) -> Files:
        """Return these files without those of which a part of the path has an ignored name."""
        if not ignored_names:
            return self
        return self._where(lambda path: not any(is_ignored(part, ignored_names) for part in path.split("/")))

    def below(self, folder: str) -> Files:
        """Return the files in one folder directly in the root; their paths stay relative to the root."""
        return self._where(lambda path: path.partition("/")[0] == folder)

    def _where(self, is_kept: Callable[[str], bool]) -> Files:
        return Files(self.root, *(tuple(filter(is_kept, paths)) for paths in (self.images, self.series, self.slices)))


def walk(root: Path, ignored_names: Sequence[str] = ()) -> Files:
    """List all files below a folder; only of files without a known suffix, the first bytes are read."""
    images: list[str] = []
    slices: set[str] = set()
    pending = [""]
    while pending:
        inner = pending.pop()
        with os.scandir(root / inner) as entries:
            for entry in entries:
                if is_ignored(entry.name, ignored_names):
                    continue
                place = inner + entry.name
                path = Path(entry.path)
                if path.is_dir() if entry.is_symlink() else entry.is_dir():  # a link to itself is no folder
                    pending += [] if leads_back(path) else [f"{place}/"]
                elif suffix(entry.name):
                    images.append(place)
                elif entry.name.lower().endswith((*DOCUMENT_SUFFIXES, *VOXEL_SUFFIXES)):
                    continue  # the header beside voxels is the image
                elif (kind := kind_of(path)) == "image":
                    slices.add(inner[:-1])
                elif kind != "other":
                    images.append(place)
    series = {str(folder) for place in slices for folder in (PurePosixPath(place), *PurePosixPath(place).parents)}
    return Files(root, tuple(sorted(images)), tuple(sorted(series - {"."})), tuple(sorted(slices)))
