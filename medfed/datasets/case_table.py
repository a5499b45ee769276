"""The table of a site's own cases: which file each name in a table of scores means. It never leaves the site."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from medfed.core.errors import UserError
from medfed.datasets.base import Dataset

COLUMNS = ("site", "patient", "case", "image", "mask")


def write_case_table(dataset: Dataset, path: Path) -> None:
    """Write a CSV file with a line for each case: site, patient, case, and the paths of image and masks.

    For DICOM images, patient and case are keyed hashes, so that this file is what tells patients by their names: only
    its owner can read it (mode 0600), and it is refused in a run folder, whose files are meant to be passed on. Several
    masks of an image are separated by semicolons. UserError if the file exists or cannot be written.
    """
    if any((folder / "environment.json").is_file() for folder in path.absolute().parents):
        raise UserError(
            f"{path}: lies in a run folder, whose files may leave the site; expected a place that stays at the site; "
            "name another file"
        )
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for site in dataset.site_names():
        for case in dataset.cases_and_problems(site)[0]:
            writer.writerow([site, case.patient, case.name, case.image, ";".join(map(str, case.files[1:]))])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UserError(f"{path}: exists already and is not overwritten; name another file, or delete it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); name another file") from None
    with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
        file.write(table.getvalue())
