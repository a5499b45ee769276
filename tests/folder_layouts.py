"""Folders of tiny files, made from patterns of names, and what medfed must find in them."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from medfed.core.errors import UserError
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


class Found(NamedTuple):
    """The files, and the pairs of the site n as `CASE IMAGE MASK`; the site s has the same number of cases."""

    files: str
    pairs: str
    settings: dict = {}


class Refused(NamedTuple):
    """The files, and the words of the message: what was found, and the setting or step that helps."""

    files: str
    words: tuple[str, ...]
    settings: dict = {}


def two(images: str, masks: str) -> str:
    """Both sites with the same names of folders and files."""
    return f"{{n,s}}/{images} {{n,s}}/{masks}"


def dataset_of(root: Path, settings: dict) -> Dataset:
    return Folder(root=str(root), **settings) if settings else recognise(root)


def check_found(layout: Found, root: Path) -> None:
    """Make the files, and compare the pairs of the site n; no file may be in two pairs."""
    dataset = dataset_of(make(root, layout.files), layout.settings)
    cases, problems = dataset.cases_and_problems("n")
    pairs = [(case.name, *(path.relative_to(root).as_posix() for path in (case.image, case.mask))) for case in cases]
    assert problems == [] and tuple(layout.pairs.split(" ")) in pairs
    assert len(dataset.cases("s")) == len(pairs) >= 1
    n_images = len({image for _, image, _ in pairs})
    assert n_images == len({mask for *_, mask in pairs}) == len(pairs)


def check_refused(layout: Refused, root: Path) -> None:
    """Make the files, and search the words in the message or in the problems of all sites."""
    make(root, layout.files)
    try:
        dataset = dataset_of(root, layout.settings)
        message = "\n".join(text for site in dataset.site_names() for text in dataset.cases_and_problems(site)[1])
    except UserError as error:
        message = str(error)
    assert str(root) in message
    for words in layout.words:
        assert words in message, message
