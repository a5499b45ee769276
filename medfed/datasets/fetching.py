"""Downloading a file, whole or not at all."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

from tqdm import tqdm

from medfed.core.errors import UserError

PATIENCE_S = 30


def fetch(address: str, target: Path, sha256: str | None, progress: Callable[[int, int], None] | None = None) -> str:
    """Download to `target` by way of a file beside it; returns the SHA-256 of what came.

    Args:
        address: what `urllib` understands.
        target: the file to make; its folder is made too.
        sha256: what the content must have; None accepts anything.
        progress: called with (bytes so far, bytes in all; 0 if the server does not say).

    Raises:
        UserError: if `target` is there already, the address does not answer, or something else came.
    """
    if target.exists():
        raise UserError(f"{target}: is there already; remove it to download it again")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        found = _download(address, unfinished, progress or (lambda done, total: None))
        if sha256 is not None and found != sha256.lower():
            raise UserError(f"{address}: what came has the SHA-256 {found}, expected {sha256}; not kept, try again")
        unfinished.replace(target)
    except (URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{address}: cannot be downloaded ({reason}); check the connection or get it by hand") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return found


def _download(address: str, path: Path, progress: Callable[[int, int], None]) -> str:
    whole, done = hashlib.sha256(), 0
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer, open(path, "wb") as file:
        total = int(answer.headers.get("Content-Length") or 0)
        while chunk := answer.read(1 << 16):
            file.write(chunk)
            whole.update(chunk)
            done += len(chunk)
            progress(done, total)
    if total and done < total:
        raise UserError(f"{address}: only {done:,} of {total:,} bytes came; try again")
    return whole.hexdigest()


def byte_counter(bar: tqdm) -> Callable[[int, int], None]:
    """What `fetch` calls with (bytes done, bytes in all) to move a progress bar."""

    def count(done: int, total: int) -> None:
        bar.total = total or None
        bar.update(done - bar.n)

    return count
