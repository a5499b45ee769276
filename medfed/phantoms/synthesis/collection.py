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
    """Create a NumPy random generator whose seed depends on a number and a name.

    Each purpose has its own stream, so adding a case or a site does not change the random numbers of the others.

    Args:
        seed: the phantom's seed.
        purpose: words and numbers that name the purpose, for example "eye", the site's name and the case number.
    """
    name = "/".join(map(str, (seed, *purpose))).encode()
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "big"))


@contextmanager
def atomic_collection(root: Path, **facts: object) -> Iterator[Path]:
    """Write a phantom's folder completely or not at all.

    A context manager. It yields a temporary folder for the caller to fill. If the block succeeds, `PHANTOM.json` is
    added and the folder is renamed to `root`. If the block raises, the temporary folder is deleted.

    Args:
        root: path of the folder to create; it must not exist, or must be empty.
        facts: entries of `PHANTOM.json` besides `"synthetic": true`, as plain JSON values.

    Raises:
        UserError: if `root` is a file or a folder that is not empty.
    """
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
