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
    """Print each warning of medfed, and PyTorch's about determinism, once as a note; yield the growing list of notes.
    While the folder holds an unfinished run, they are saved in `notices.json`, with which a resumed run starts. A note
    that ends with `expected` is collected, but not printed."""
    has_begun, has_notices = ((folder.path / name).is_file() for name in ("config.yaml", "notices.json"))
    notices: list[str] = folder.read_json("notices.json") if has_begun and has_notices else []
    shown: set[str] = set()

    def show(text: str) -> None:
        if text in shown:
            return
        shown.add(text)
        if text not in notices:
            notices.append(text)
            if (folder.path / "config.yaml").is_file() and not folder.is_finished():
                folder.write_json("notices.json", notices)
        if not quiet and not (expected and text.endswith(expected)):
            tqdm.write(f"note: {text}", file=sys.stderr)

    def show_determinism(message: Warning | str, *_: object) -> None:
        """Record PyTorch's warnings about operations that are not deterministic; ignore its others."""
        if "deterministic" in str(message):
            show(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show_notes_by(show, show_determinism)
        yield notices


@contextmanager
def name_folder_of_full_disk(folder: RunFolder) -> Iterator[None]:
    """Add the run's folder to the OSError of a full disk or an exceeded quota if the system names no file."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            error.filename = error.filename or str(folder.path)
        raise
