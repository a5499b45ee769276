"""Refuse masks that a pattern of images in folders of classes matches, because they would be images of the class."""

from __future__ import annotations

import re
from pathlib import Path

from medfed.core.errors import Problem
from medfed.datasets.base import Contents
from medfed.datasets.usual_layouts import IMAGE_WORDS, MASK_WORDS
from medfed.images.file_names import folded, stem_of


def refuse_masks(contents: Contents) -> None:
    """Add a problem for each image whose name has a word for masks, and else begins as that of another image."""
    for site, cases in contents.cases.items():
        words = {case.image: _words(case.image) for case in cases}
        images = {(path.parent, core) for path, (is_mask, core) in words.items() if not is_mask and core}
        for path, (is_mask, core) in words.items():
            if is_mask and any((path.parent, core[:n]) in images for n in range(1, len(core) + 1)):
                found = f"the name says that it is a mask of {' '.join(core)}; it would be an image of the class"
                cure = "set data.ignored_names, such as ['*_mask*'], or set data.mask instead of the field {class}"
                contents.problems[site].append(Problem("mask among images of a class", path, found, cure))


def _words(path: Path) -> tuple[bool, tuple[str, ...]]:
    """Return whether a file's name has a word for masks, and its words without those for images and masks."""
    words = re.split(r"[_\-. ]+", folded(stem_of(path)))
    return not {*MASK_WORDS}.isdisjoint(words), tuple(word for word in words if word not in {*IMAGE_WORDS, *MASK_WORDS})
