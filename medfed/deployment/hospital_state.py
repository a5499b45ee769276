"""What a hospital keeps between restarts: the secret key of its noise, and the counts of what left.

The coordinator sends a hospital its folder, and may not know the key or reset the counts. The key is therefore not in
that folder, but in the folder of the user who runs medfed, and the counts are signed with the key.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from medfed.core.errors import UserError
from medfed.core.files import write_atomically

COUNTS, SECRET = "answered.json", "noise.key"
SIGNATURE = "signature"  # key in the file of the counts
N_BYTES = 32
ADVICE = "if it was sent to you, ask the coordinator why, and set `folder` in the site file to a new folder"


def secret_path() -> Path:
    """Return the path of the hospital's secret, one for all federations of this user, in $XDG_STATE_HOME.

    Without this variable, it is in `~/.local/state`.
    """
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".local" / "state") / "medfed" / SECRET


def hospital_secret() -> bytes:
    """Return 32 random bytes that never leave the hospital; created once, and the same after a restart."""
    path = secret_path()
    try:
        if not path.is_file():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished = path.with_name(f"{SECRET}.{os.getpid()}")
            unfinished.unlink(missing_ok=True)
            unfinished.touch(mode=0o600)  # readable by the owner only, before it holds the key
            unfinished.write_bytes(secrets.token_bytes(N_BYTES))
            with suppress(FileExistsError):  # another process was faster
                os.link(unfinished, path)
            unfinished.unlink()
        secret = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be used for this hospital's secret ({error.strerror}); set the environment "
            "variable XDG_STATE_HOME to a folder of yours that nobody else can read"
        ) from error
    if len(secret) != N_BYTES:
        raise UserError(f"{path}: is damaged: it has {len(secret)} bytes, but {N_BYTES} are expected; put back a copy")
    return secret


def read_counts(folder: Path) -> dict[str, Any] | None:
    """Read what a hospital has counted of the replies that left; None if nothing was counted yet.

    UserError if the signature does not fit this hospital's secret, or if the folder has a key, which others may know.
    """
    if (folder / SECRET).exists():
        raise UserError(
            f"{folder / SECRET}: is not the secret of this hospital, which is {secret_path()}; whoever "
            f"wrote the file could remove the noise, so it is not used; {ADVICE}"
        )
    file = folder / COUNTS
    if not file.is_file():
        return None
    try:
        counts = json.loads(file.read_text())
        signature = counts.pop(SIGNATURE)
        is_own = hmac.compare_digest(str(signature), _signature(counts))
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        is_own = False
    if not is_own:
        raise UserError(
            f"{file}: was not written by this hospital, as its signature does not fit {secret_path()}; the "
            f"counts of what left could be wrong, so nothing is sent; {ADVICE}"
        )
    return counts


def write_counts(folder: Path, counts: Mapping[str, Any]) -> None:
    """Write or replace the signed counts of the replies that left."""
    write_atomically(folder / COUNTS, json.dumps({**counts, SIGNATURE: _signature(counts)}, sort_keys=True))


def begin_folder(folder: Path) -> None:
    """Create a hospital's output folder, unless medfed created it at this hospital (`is_begun`)."""
    if not is_begun(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_counts(folder, {})


def is_begun(folder: Path) -> bool:
    """Return whether medfed created a hospital's output folder at this hospital; false if it is missing or empty.

    UserError if the folder has files, but not the signed counts with which medfed begins a folder.
    """
    if read_counts(folder) is not None:
        return True
    if folder.is_dir() and (names := sorted(path.name for path in folder.iterdir())):
        raise UserError(
            f"{folder}: has files ({', '.join(names[:5])}), but medfed did not create the folder at this "
            f"hospital, because {COUNTS} is missing; {ADVICE}"
        )
    return False


def _signature(counts: Mapping[str, Any]) -> str:
    """HMAC-SHA-256 of the counts with this hospital's secret, in hexadecimal."""
    text = json.dumps(counts, sort_keys=True)
    return hmac.new(hospital_secret(), f"{COUNTS} {text}".encode(), "sha256").hexdigest()
