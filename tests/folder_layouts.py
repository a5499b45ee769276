"""Folders of tiny files, made from patterns of names, and tables of what medfed must find in them."""

import io
import itertools
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from medfed.config.overrides import Override
from medfed.datasets.base import Dataset
from medfed.datasets.folder import Folder
from medfed.datasets.recognition import recognise


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8), 7).save(file, kind)
    return file.getvalue()


CONTENT = {".png": encoded("PNG"), ".jpg": encoded("JPEG"), ".tif": encoded("TIFF"), ".bmp": encoded("BMP")}


def expand(pattern: str) -> list[str]:
    """Return the paths for braces as in a shell: `{n,s}/a.png` is n/a.png and s/a.png."""
    parts = [part.split(",") if index % 2 else [part] for index, part in enumerate(re.split(r"[{}]", pattern))]
    return ["".join(choice) for choice in itertools.product(*parts)]


def make(root: Path, patterns: str) -> Path:
    for path in (root / name for pattern in patterns.split() for name in expand(pattern)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT.get(path.suffix, b"not opened"))
    return root


def save_pixels(path: Path, pixels: np.ndarray) -> None:
    """Save whole numbers from 0 to 255 as an image file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels).astype(np.uint8)).save(path)


class Layout(NamedTuple):
    """Patterns of files below the root; one pair of the site n, or words of the message; settings of the dataset."""

    files: str
    expected: str
    settings: dict

    def dataset(self, root: Path) -> Dataset:
        return Folder(root=str(root), **self.settings) if self.settings else recognise(root)


def layouts(table: str) -> list:
    """Read entries `NAME: FILES -> EXPECTED --set SETTING=VALUE`; without a leading `/`, files lie at both sites."""
    entries = []
    for entry in re.sub(r"\n +", " ", table.strip()).splitlines():
        name, layout = entry.split(": ", 1)
        layout, *options = layout.split(" --set ")
        files, expected = layout.split(" -> ")
        files = " ".join(file[1:] if file[0] == "/" else f"{{n,s}}/{file}" for file in files.split())
        settings = {override.key: override.value for override in map(Override.parse, options)}
        entries.append(pytest.param(Layout(files, expected, settings), id=name))
    return entries
