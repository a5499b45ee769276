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
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.datasets.collections.folder import Folder
from medfed.datasets.recognition import recognise, recognise_layout


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8), 7).save(file, kind)
    return file.getvalue()


FORMATS = {".png": "PNG", ".jpg": "JPEG", ".tif": "TIFF", ".bmp": "BMP", ".gif": "GIF"}
CONTENT = {suffix: encoded(kind) for suffix, kind in FORMATS.items()}


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
    """Patterns of files below the root; what is expected of them; settings of the dataset."""

    files: str
    expected: str
    settings: dict

    def dataset(self, root: Path) -> Dataset:
        settings = dict(self.settings)
        if settings.keys() & {"image", "mask", "by_site"}:
            return Folder(root=str(root), **settings)
        return recognise_layout(root, None, settings)


def refusal(root: Path, layout: Layout | None = None) -> str:
    """Return the message, or all problems, with which a folder is refused; "" if it is read."""
    try:
        dataset = layout.dataset(root) if layout else recognise(root)
        dataset.cases_by_site(dataset.site_names())
    except UserError as error:
        return str(error)
    return ""


def triples(dataset: Dataset, site: str = "n") -> list[tuple[str, ...]]:
    """Return (case, image, mask) of each mask of a site, or (case, image) for classes; paths begin at the root."""
    root = Path(dataset.root)
    found = [(case.name, [path.relative_to(root).as_posix() for path in case.files]) for case in dataset.cases(site)]
    return sorted(
        (name, image, *mask) for name, (image, *masks) in found for mask in ([[path] for path in masks] or [[]])
    )


def expected_triples(text: str) -> list[tuple[str, ...]]:
    """Read `CASES IMAGES MASKS`, each a path in braces, such as `{a,b} images/{a,b}.png masks/{a,b}.png`."""
    names, *paths = map(expand, text.split())
    at_site = [[path[1:] if path[0] == "/" else f"n/{path}" for path in column] for column in paths]
    return sorted(zip(names, *at_site, strict=True))


def layouts(table: str) -> list:
    """Read entries `NAME: FILES -> EXPECTED --set SETTING=VALUE`; without a leading `/`, files lie at both sites."""
    entries = []
    for entry in re.sub(r"\n +", " ", table.strip()).splitlines():
        name, layout = entry.split(": ", 1)
        layout, *options = layout.split(" --set ")
        files, _, expected = layout.partition(" -> ")
        files = " ".join(file[1:] if file[0] == "/" else f"{{n,s}}/{file}" for file in files.split())
        settings = {override.key: override.value for override in map(Override.parse, options)}
        entries.append(pytest.param(Layout(files, expected, settings), id=name))
    return entries
