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
    """Create a NumPy random generator whose seed is computed from a number and some words.

    Equal arguments give equal random numbers. Each case and each site uses its own words, so that adding a case or a
    site does not change the random numbers of the other cases and sites.

    Args:
        seed: seed of the whole collection of synthetic images.
        purpose: words and numbers that describe the use of the generator, for example "eye", the site's name and the
            case number.
    """
    name = "/".join(map(str, (seed, *purpose))).encode()
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "big"))


@contextmanager
def atomic_collection(root: Path, **facts: object) -> Iterator[Path]:
    """Context manager that writes a folder of synthetic images completely or not at all.

    It yields the path of a temporary folder, which the caller fills. If the `with` block succeeds, the file
    `PHANTOM.json` is added and the temporary folder is renamed to `root`. If the block raises an exception, the
    temporary folder is deleted.

    Args:
        root: path of the folder to create; it must not exist, or must be empty.
        facts: entries of `PHANTOM.json`, as plain JSON values. The entry `"synthetic": true` is added to them.

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
