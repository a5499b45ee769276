"""What makers of synthetic collections share: named random streams, and a folder written whole or not at all."""

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
    """A generator named by what it is for, so that adding a case or a site moves nobody else's numbers."""
    name = "/".join(map(str, (seed, *purpose))).encode()
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "big"))


@contextmanager
def atomic_collection(root: Path, **facts: object) -> Iterator[Path]:
    """Give a draft folder to fill; it becomes `root`, with the mark in it, when all went well, and else it goes.

    Args:
        root: a folder that does not exist yet, or is empty.
        facts: what the mark says, beside that this is synthetic.

    Raises:
        UserError: if `root` holds something already.
    """
    root = Path(root)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UserError(f"{root}: holds something already, and the phantom needs a new or empty folder; name another")
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}.", dir=root.parent))
    try:
        yield draft
        (draft / PHANTOM_MARK).write_text(json.dumps({"synthetic": True, **facts}, indent=2) + "\n")
        draft.chmod(0o755)
        os.replace(draft, root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
