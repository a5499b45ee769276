"""Refuse masks that a pattern of images in folders of classes matches, because they would be images of the class."""

from __future__ import annotations

import re

from medfed.core.errors import Problem
from medfed.datasets.base import Contents
from medfed.datasets.usual_layouts import MASK_WORDS
from medfed.images.file_names import folded, stem_of

_MASK = re.compile(rf"(.+?)[_\-. ](?:{'|'.join(MASK_WORDS)})(?:[_\-. ]?\d+)?")  # 7_mask, 7_mask_1


def refuse_masks(contents: Contents) -> None:
    """Add a problem for each image whose name is that of another one and a word for masks."""
    for site, cases in contents.cases.items():
        names = {(case.image.parent, folded(stem_of(case.image))) for case in cases}
        for case in cases:
            match = _MASK.fullmatch(folded(stem_of(case.image)))
            if match and (case.image.parent, match[1]) in names:
                found = f"the name says that it is a mask of {match[1]}; it would be an image of the class"
                cure = "set data.ignored_names, such as ['*_mask*'], or set data.mask instead of the field {class}"
                contents.problems[site].append(Problem("mask among images of a class", case.image, found, cure))
