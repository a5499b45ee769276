"""Notices of a run: shown as one line each and kept in `notices.json`."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from medfed.outputs.run_folder import RunFolder


@contextmanager
def record_notices(folder: RunFolder, quiet: bool) -> Iterator[list[str]]:
    """Show medfed's own warnings as one-line notes among the progress bars, once each, and keep their texts.

    Those of a run that has begun are kept on disk too: what was said in round 1 is not said again on resume.
    """
    begun, kept = ((folder.path / name).is_file() for name in ("config.yaml", "notices.json"))
    said: list[str] = folder.read_json("notices.json") if begun and kept else []
    shown: set[str] = set()

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = str(message)
        ours = category is UserWarning and "medfed" in Path(filename).parts
        if text in shown or not (ours or "deterministic" in text):
            return
        shown.add(text)
        if text not in said:
            said.append(text)
            if (folder.path / "config.yaml").is_file():
                folder.write_json("notices.json", said)
        if not quiet:
            tqdm.write(f"note: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield said


@contextmanager
def name_folder_of_full_disk(folder: RunFolder) -> Iterator[None]:
    """Name the run's folder in the error of a full disk, as the system does not say which disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = error.filename or str(folder.path)
        raise
