"""Find images that exist more than once, by the hash of their files."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from medfed.core.errors import Problem, UserError
from medfed.datasets.case import Case
from medfed.images import dicom_files, mha_nrrd

MAX_HASHED_CASES = 20_000  # a run hashes the files of at most this many cases; more would take too long


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of the file with an image's voxels, or of a folder of DICOM slices, whatever their names."""
    if path.is_dir():
        digests = sorted(hashlib.sha256(file.read_bytes()).digest() for file in _files(path))
        return hashlib.sha256(b"".join(digests)).hexdigest()
    sha256 = hashlib.sha256()
    with open(mha_nrrd.data_file(path), "rb") as file:
        while chunk := file.read(1 << 20):  # hashlib.file_digest needs Python 3.11
            sha256.update(chunk)
    return sha256.hexdigest()


def find_duplicates(cases: Iterable[Case]) -> list[Problem]:
    """Return a problem for each image that exists more than once, those in several sites first."""
    by_size: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        try:
            by_size[sum(path.stat().st_size for path in _files(case.image))].append(case)
        except (OSError, UserError):  # reading the file will report the problem
            continue
    by_sha256: dict[str, list[Case]] = defaultdict(list)
    for group in by_size.values():
        for case in group if len(group) > 1 else ():
            by_sha256[file_sha256(case.image)].append(case)
    problems = []
    for same in (same for same in by_sha256.values() if len(same) > 1):
        is_shared = len({case.site for case in same}) > 1
        kind = "image in several sites" if is_shared else "image that exists more than once"
        effect = ", so that an unseen site may have an image that was trained on" if is_shared else ""
        found = f"these files are the same image{effect}; expected every image once"
        cure = "remove all but one, or set data.allow_duplicates: true"
        problems.append(Problem(kind, " and ".join(str(case.image) for case in same), found, cure))
    return sorted(problems, key=lambda problem: problem.kind != "image in several sites")


def _files(image: Path) -> list[Path]:
    """Return the files with the voxels of an image: one, or those of a folder of DICOM slices."""
    return dicom_files.files_of_kind(image, "image") if image.is_dir() else [mha_nrrd.data_file(image)]
