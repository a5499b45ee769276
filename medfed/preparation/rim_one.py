"""RIM-ONE release 3 (Fumero et al., 2015): 159 stereo fundus photographs with disc and cup by two experts.

Layout, by its own readme and by https://github.com/bioidiap/bob.ip.binseg (bob/ip/binseg/data/rimoner3): the folders
Healthy and "Glaucoma and suspects", each with "Stereo Images"/NAME.jpg and Average_masks/NAME-Disc-Avg.png and
NAME-Cup-Avg.png; Expert1_masks and Expert2_masks hold the masks of the single experts.

Known traps: a photograph is a stereo pair of 2144 x 1424 pixels, of which the left half is annotated (same source).
Only the left half is kept, so that no second, unmarked disc remains. A name such as N-43-L ends with the eye; both eyes
of a patient stay together in a split, because `medfed.datasets.collections.fundus` reads the patient from the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from medfed.images import two_dimensional
from medfed.preparation import fundus_case
from medfed.preparation.entry import Download, Entry, files_in, walk

TITLE = "RIM-ONE r3"
LAYOUT = (
    "Healthy/Stereo Images/NAME.jpg with Healthy/Average_masks/NAME-Disc-Avg.png and NAME-Cup-Avg.png, and the same in "
    "Glaucoma and suspects"
)
SITE = "RIM-ONE-r3"
THRESHOLD = 127
_ENDINGS = ("-disc-avg.png", "-cup-avg.png")
NOTES = (
    *fundus_case.NOTES,
    "RIM-ONE r3 contains stereo pairs: the left image is used, with the average mask of the two experts",
)


def find(source: Path) -> Download | None:
    """The cases of both groups; None if a source has no folder with average masks."""
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    for folder in walk(source):
        if folder.name.casefold() == "stereo images":
            images |= {path.stem: path for path in files_in(folder) if path.suffix.lower() == ".jpg"}
        elif folder.name.casefold() == "average_masks":
            masks |= {path.name.lower(): path for path in files_in(folder)}
    if not images or not masks:
        return None
    return Download(TITLE, tuple(_entry(name, path, masks) for name, path in sorted(images.items())), NOTES)


def _entry(name: str, image: Path, masks: Mapping[str, Path]) -> Entry:
    """One photograph of the download; without both average masks it is left out."""
    paths = [masks.get(name.lower() + ending) for ending in _ENDINGS]
    disc, cup = paths
    if disc is None or cup is None:
        return Entry(SITE, name, None, "no average mask of disc and cup")
    return Entry(SITE, name, partial(_files, name, image, disc, cup))


def _files(name: str, image: Path, disc: Path, cup: Path) -> Mapping[str, bytes]:
    """The content of the case's PNG files, by path; of a stereo photograph, the left half."""
    photo = fundus_case.read_photograph(image)
    half = photo.shape[1] // 2 if photo.shape[1] > photo.shape[0] else photo.shape[1]  # one of a pair is upright
    masks = [_left(two_dimensional.read_label_file(path, []), half) > THRESHOLD for path in (disc, cup)]
    return fundus_case.pair_as_png(SITE, name, _left(photo, half), *masks)


def _left(pixels: np.ndarray, width: int) -> np.ndarray:
    return np.ascontiguousarray(pixels[:, :width])
