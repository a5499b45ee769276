"""REFUGE (Orlando et al., 2020): fundus photographs of two cameras with masks of disc and cup.

Layout, by https://github.com/HzFu/MNet_DeepCDR and https://github.com/bioidiap/bob.ip.binseg
(bob/ip/binseg/data/refuge): photographs Training400/Glaucoma/g0001.jpg and Training400/Non-Glaucoma/n0001.jpg with
masks Annotation-Training400/Disc_Cup_Masks/.../g0001.bmp, and REFUGE-Validation400/V0001.jpg with
REFUGE-Validation400-GT/Disc_Cup_Masks/V0001.bmp. In a mask, 0 is the cup, 128 the rim of the disc and 255 the
background.

The 400 test photographs (T0001 ...) are no domain of the collection of DoFE and are left out. Copies with renumbered
files (0001.jpg) do not say to which camera a photograph belongs, and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from medfed.core.errors import UserError
from medfed.datasets.collections.fundus import MAX_CUP_GREY, MAX_RIM_GREY
from medfed.images import reading, two_dimensional
from medfed.preparation import fundus_case
from medfed.preparation.entry import Download, Entry, files_in, walk

TITLE = "REFUGE"
LAYOUT = (
    "Training400/.../g0001.jpg and n0001.jpg, REFUGE-Validation400/V0001.jpg, and masks of the same names (.bmp) in "
    "folders called Disc_Cup_Masks"
)
SITES = {"g": "REFUGE-train", "n": "REFUGE-train", "v": "REFUGE-val", "t": "REFUGE-test"}
NOTES = (*fundus_case.NOTES, "the test photographs of REFUGE (T0001 ...) belong to no site of the collection of DoFE")
_IMAGE = re.compile(r"([gnvt]\d{4})\.jpg", re.IGNORECASE)
_MASK = re.compile(r"([gnvt]\d{4})\.bmp", re.IGNORECASE)


def find(source: Path) -> Download | None:
    """The photographs of the three parts; None if a source has no folder Disc_Cup_Masks with masks."""
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    for folder in walk(source):
        is_mask_folder = "disc_cup_masks" in folder.relative_to(source.parent).as_posix().lower()
        for path in files_in(folder):
            if match := (_MASK if is_mask_folder else _IMAGE).fullmatch(path.name):
                (masks if is_mask_folder else images).setdefault(match[1].lower(), path)
    if not images or not masks:
        return None
    return Download(TITLE, tuple(_entry(name, path, masks.get(name)) for name, path in sorted(images.items())), NOTES)


def _entry(name: str, image: Path, mask: Path | None) -> Entry:
    """One photograph of the download; those of the test part or without a mask are left out."""
    site = SITES[name[0]]
    if site == "REFUGE-test":
        return Entry(site, name, None, "the test part belongs to no site of the collection of DoFE")
    if mask is None:
        return Entry(site, name, None, "no mask in a folder Disc_Cup_Masks")
    return Entry(site, name, partial(_files, site, name, image, mask))


def _files(site: str, name: str, image: Path, mask: Path) -> Mapping[str, bytes]:
    """The content of the case's PNG files, by path; a mask's grey level gives disc and cup."""
    grey = two_dimensional.read_label_file(mask, [])
    corners = grey[:: grey.shape[0] - 1, :: grey.shape[1] - 1]
    if corners.min() <= MAX_RIM_GREY:
        values = reading.format_values(sorted({int(value) for value in np.unique(grey)}))
        raise UserError(f"the mask has the values {values}; expected 0 in the cup, 128 in the rim and 255 outside")
    photo = fundus_case.read_photograph(image)
    return fundus_case.pair_as_png(site, name, photo, grey <= MAX_RIM_GREY, grey <= MAX_CUP_GREY)
