"""Shared tools of the phantom generators: named random streams, and writing a folder completely or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from medfed.core.errors import UserError
from medfed.datasets.base import PHANTOM_MARK


def stream(seed: int, *purpose: object) -> np.random.Generator:
    """Return a generator with a seed of its own for each purpose: another case or site changes no other draws."""
    name = "/".join(map(str, (seed, *purpose))).encode()
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "big"))


@contextmanager
def atomic_collection(root: Path, **facts: object) -> Iterator[Path]:
    """Yield a folder to fill; only if no exception is raised, it becomes `root`, with `facts` in `PHANTOM.json`."""
    root = Path(root)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UserError(f"{root}: is not empty; a phantom needs a new or empty folder, choose another one")
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        yield draft
        (draft / PHANTOM_MARK).write_text(json.dumps({"synthetic": True, **facts}, indent=2) + "\n")
        draft.chmod(0o755)
        os.replace(draft, root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
