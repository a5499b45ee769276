"""Names of DICOM cases and patients that may leave a hospital: keyed hashes, whose key stays at the site.

A DICOM file holds the patient's name, identifier and birth date, and the names of its folders often do. A plain hash of
an identifier is no protection, because all identifiers can be tried; a keyed hash (HMAC-SHA256) is, as long as the key
(the salt) is secret. The salt lies beside the site's images, which hold the identifiers themselves.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from medfed.core.errors import Problem
from medfed.core.files import read_bounded
from medfed.datasets.case import Case

SALT_FILE = ".medfed_dicom_salt"  # beside the images; hidden, so that no search for images reads it
N_SALT_BYTES = 32
MAX_SALT_BYTES = 1 << 20
N_PATIENT_DIGITS = 12
N_CASE_DIGITS = 6


def hide_names(case: Case, salt: bytes) -> Case:
    """Return a DICOM case with names that tell nothing about its patient; `salt` is that of `read_salt`.

    Before, the case is named by its folder, and `patient` is PatientID, or the folder if PatientID is empty.
    """
    patient = f"p{_digits(salt, 'patient', case.patient)[:N_PATIENT_DIGITS]}"
    return replace(case, name=f"{patient}_{_digits(salt, 'case', case.name)[:N_CASE_DIGITS]}", patient=patient)


def read_salt(path: Path) -> bytes:
    """Return the secret of a site; create a random one that only its owner can read (mode 0600) if there is no file.

    Several processes may do this at the same time; all return the same secret.
    """
    try:
        if not path.exists():
            with suppress(FileExistsError), open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
                file.write(secrets.token_bytes(N_SALT_BYTES))
        for _ in range(20):
            if len(salt := read_bounded(path, MAX_SALT_BYTES)) >= N_SALT_BYTES:
                break
            time.sleep(0.05)  # another process has created the file and is about to write it
    except OSError as error:
        found = f"cannot create or read the file with the secret that hides patients' identifiers ({error.strerror})"
        cure = "make the folder writable, or set data.dicom_salt to a path where the file may lie"
        raise Problem("no secret for DICOM names", path, found, cure) from None
    if len(salt) < N_SALT_BYTES:
        found = f"the secret has {len(salt)} bytes; expected at least {N_SALT_BYTES}"
        cure = "restore the file, or delete it to give all patients new names"
        raise Problem("short secret for DICOM names", path, found, cure)
    return salt


def _digits(salt: bytes, purpose: str, text: str) -> str:
    """Return the HMAC-SHA256 of a text; names of patients and of cases (`purpose`) have different hashes."""
    return hmac.new(salt, f"{purpose}:{text}".encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
