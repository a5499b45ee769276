"""What a hospital keeps between restarts: the secret key of its noise, and the list of the replies that left.

The coordinator sends a hospital the folder in which it works, so the key is in the folder of the user who runs medfed.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.federation.message import digest
from medfed.federation.privacy_accounting import Releases

REPLIES, SECRET = "answered.json", "noise.key"
N_BYTES = 32
ADVICE = "if it was sent to you, ask the coordinator why, and set `folder` in the site file to a new folder"


class SentReply(NamedTuple):
    """A reply that left."""

    round: int
    kind: str  # what was asked
    checksum: str  # of request and reply
    n_bytes: int
    noise: float | None  # the plan's `Privacy.noise` with which the weights left; None without weights
    statistics_noise: float | None  # the same of the statistics


def count_releases(replies: Iterable[SentReply]) -> Releases:
    """Count the different replies with weights and with statistics, by their noise."""
    different = {reply.checksum: reply for reply in replies}.values()
    return Releases(
        (key, noise)
        for reply in different
        for key in ("noise", "statistics_noise")
        if (noise := getattr(reply, key)) is not None
    )


def secret_path() -> Path:
    """Return the path of the hospital's secret, in $XDG_STATE_HOME or in `~/.local/state`."""
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (folder if folder.is_absolute() else Path.home() / ".local" / "state") / "medfed" / SECRET


def hospital_secret() -> bytes:
    """Return 32 random bytes that never leave the hospital; created once, and the same after a restart."""
    path = secret_path()
    try:
        if not path.is_file():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            complete = path.with_name(f"{SECRET}.{os.getpid()}")
            with open(complete, "wb", opener=partial(os.open, mode=0o600)) as file:
                file.write(secrets.token_bytes(N_BYTES))
            with suppress(FileExistsError):  # another process was faster
                os.link(complete, path)
            complete.unlink()
        secret = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be used for this hospital's secret ({error.strerror}); set the environment "
            "variable XDG_STATE_HOME to a folder of yours that nobody else can read"
        ) from error
    if len(secret) != N_BYTES:
        raise UserError(f"{path}: is damaged: it has {len(secret)} bytes, but {N_BYTES} are expected; put back a copy")
    return secret


def read_replies(folder: Path) -> list[SentReply] | None:
    """Read the list of the replies that left; None without a file, UserError if it is not of this hospital."""
    file = folder / REPLIES
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text())
        if content["hospital"] == _hospital():
            return [SentReply(*reply) for reply in content["sent"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise UserError(
        f"{file}: is damaged, or was not written by this hospital, whose secret is {secret_path()}, so that it is "
        f"not known what has left, and nothing is sent; {ADVICE}"
    )


def write_replies(folder: Path, replies: Sequence[SentReply]) -> None:
    write_atomically(folder / REPLIES, json.dumps({"hospital": _hospital(), "sent": replies}))


def begin_folder(folder: Path) -> None:
    """Create a hospital's output folder, unless medfed created it at this hospital (`is_begun`)."""
    if not is_begun(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_replies(folder, [])


def is_begun(folder: Path) -> bool:
    """Return whether medfed created a hospital's output folder; UserError if it has files, but not of medfed."""
    if read_replies(folder) is not None:
        return True
    if folder.is_dir() and (names := sorted(path.name for path in folder.iterdir())):
        raise UserError(
            f"{folder}: has files ({', '.join(names[:5])}), but medfed did not create the folder at this "
            f"hospital, because {REPLIES} is missing; {ADVICE}"
        )
    return False


def _hospital() -> str:
    """A text that nobody else can write without this hospital's secret, and that does not reveal the secret."""
    return digest(b"hospital", hospital_secret())
