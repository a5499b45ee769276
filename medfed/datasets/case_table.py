"""The table of a site's own cases: which file each name in a table of scores means. It never leaves the site."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.base import Dataset

COLUMNS = ("site", "patient", "case", "image", "mask")


def write_case_table(dataset: Dataset, path: Path) -> None:
    """Write a CSV file with a line for each case, which only its owner can read; UserError if it exists.

    It tells which patients the hashes of DICOM names mean, so it is refused in a run folder, which is passed on.
    """
    if any((folder / "environment.json").is_file() for folder in path.absolute().parents):
        raise UserError(f"{path}: lies in a run folder, whose files may leave the site; name a file elsewhere")
    rows = [
        [site, case.patient, case.name, case.image, ";".join(map(str, case.files[1:]))]
        for site in dataset.site_names()
        for case in dataset.cases_and_problems(site)[0]
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    except FileExistsError:
        raise UserError(f"{path}: exists already and is not overwritten; name another file, or delete it") from None
