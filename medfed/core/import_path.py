"""Where Python looks for modules: a module in the current folder never takes the place of an installed one.

`python -m` puts the current folder in front of all other folders; `medfed/__init__.py` takes it away again. The current
folder may be one that somebody else has sent, such as the folder of a hospital in a federation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from medfed.core.registry import PACKAGE


@contextmanager
def import_from_current_folder(allowed: bool) -> Iterator[None]:
    """Let Python look in the current folder, too, after all others, if allowed; else in no case."""
    before, here = list(sys.path), os.path.realpath(os.getcwd())
    if not allowed:
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != here]
    elif os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


def child_import_path() -> str:
    """Return the PYTHONPATH with which a child process finds the same modules as this process, and this medfed."""
    entries = [entry or os.getcwd() for entry in sys.path]
    root = str(PACKAGE.parent)
    if root not in entries or root == os.getcwd():
        entries.insert(0, root)
    return os.pathsep.join(dict.fromkeys(entries))
