"""Find images that exist more than once, by the hash of their files."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from medfed.core.errors import Problem, UserError
from medfed.datasets.case import Case
from medfed.images import dicom, mha_nrrd

MAX_HASHED_CASES = 20_000  # a run hashes the files of at most this many cases; more would take too long


def file_sha256(path: Path) -> str:
    """Return the SHA-256 (64 hexadecimal digits) of the file with an image's voxels, or of a folder of DICOM slices."""
    if path.is_dir():
        return dicom.folder_sha256(path)
    sha256 = hashlib.sha256()
    with open(mha_nrrd.data_file(path), "rb") as file:
        while chunk := file.read(1 << 20):  # hashlib.file_digest needs Python 3.11
            sha256.update(chunk)
    return sha256.hexdigest()


def find_duplicates(cases: Iterable[Case]) -> list[Problem]:
    """Return a problem for each image that exists more than once, first those that exist in several sites.

    Only files of equal size are read and compared. Damaged files are skipped.
    """
    by_size: dict[int, list[Case]] = defaultdict(list)
    for case in cases:
        try:
            is_series, voxels = case.image.is_dir(), mha_nrrd.data_file(case.image)
            by_size[dicom.folder_size(case.image) if is_series else voxels.stat().st_size].append(case)
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
