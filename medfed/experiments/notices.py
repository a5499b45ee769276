"""Notices of a run: printed as one line each, and saved in `notices.json`."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from medfed.cli.notes import show_notes_by
from medfed.outputs.run_folder import RunFolder


@contextmanager
def record_notices(folder: RunFolder, quiet: bool, expected: str = "") -> Iterator[list[str]]:
    """Context manager that prints and collects the warnings of medfed, and PyTorch's warnings about determinism.

    Each warning is printed as a note of one line, and each text only once. As soon as the run's folder contains a
    `config.yaml`, the notes are also saved in the folder's file `notices.json`. A resumed run starts with the saved
    notes.

    Args:
        folder: the run's folder.
        quiet: True prints nothing; the notes are still collected.
        expected: the end of a note that is collected but not printed; "" prints all notes.

    Yields:
        The list of the notes. New notes are added to this list while the context is active.
    """
    has_begun, has_notices = ((folder.path / name).is_file() for name in ("config.yaml", "notices.json"))
    notices: list[str] = folder.read_json("notices.json") if has_begun and has_notices else []
    shown: set[str] = set()

    def show(text: str) -> None:
        if text in shown:
            return
        shown.add(text)
        if text not in notices:
            notices.append(text)
            if (folder.path / "config.yaml").is_file():
                folder.write_json("notices.json", notices)
        if not quiet and not (expected and text.endswith(expected)):
            tqdm.write(f"note: {text}", file=sys.stderr)

    def show_determinism(message: Warning | str, *_: object) -> None:
        if "deterministic" in str(message):
            show(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show_notes_by(show, show_determinism)
        yield notices


@contextmanager
def name_folder_of_full_disk(folder: RunFolder) -> Iterator[None]:
    """Context manager that adds the path of the run's folder to the error that a full disk causes.

    The operating system's error may not name a file. Only an OSError for a full disk or an exceeded quota is changed,
    and only if the error names no file. Every error is raised again.

    Args:
        folder: the run's folder.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = error.filename or str(folder.path)
        raise
