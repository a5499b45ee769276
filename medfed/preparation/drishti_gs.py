"""DRISHTI-GS1 (Sivaswamy et al., 2014): 101 fundus photographs with soft maps of disc and cup by four experts.

Layout, by https://github.com/bioidiap/bob.ip.binseg (bob/ip/binseg/data/drishtigs1):
Drishti-GS1_files/Training/Images/NAME.png with Training/GT/NAME/SoftMap/NAME_ODsegSoftmap.png and
NAME_cupsegSoftmap.png, and for the 51 test images Test/Images/NAME.png with Test/Test_GT/NAME/SoftMap.

A soft map is the fraction of the experts who marked a pixel, times 255. Here a pixel belongs to a structure if more
than half of the experts marked it; the rule of the collection of DoFE is not published.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from medfed.images import two_dimensional
from medfed.preparation import fundus_case
from medfed.preparation.entry import Download, Entry, files_in, walk

TITLE = "DRISHTI-GS1"
LAYOUT = "Training/Images/NAME.png with Training/GT/NAME/SoftMap/NAME_ODsegSoftmap.png and NAME_cupsegSoftmap.png"
SITE = "DRISHTI-GS"
MAJORITY = 127  # soft maps above it: more than half of the experts
_MAPS = {"disc": "_odsegsoftmap.png", "cup": "_cupsegsoftmap.png"}
NOTES = (
    *fundus_case.NOTES,
    "soft maps of DRISHTI-GS1 become masks where more than half of the experts agree; the published rule is not known",
)


def find(source: Path) -> Download | None:
    """The cases of the training and the test part; None if a source has no soft map."""
    images: dict[str, Path] = {}
    maps: dict[str, Path] = {}
    for folder in walk(source):
        for path in files_in(folder):
            name = path.name.lower()
            if name.startswith("drishtigs_") and name.endswith(tuple(_MAPS.values())):
                maps.setdefault(name, path)
            elif name.startswith("drishtigs_") and name.endswith(".png") and "images" in folder.as_posix().lower():
                images.setdefault(path.stem, path)
    if not maps:
        return None
    return Download(TITLE, tuple(_entry(name, path, maps) for name, path in sorted(images.items())), NOTES)


def _entry(name: str, image: Path, maps: Mapping[str, Path]) -> Entry:
    """One case of the download; without its soft maps it is left out with a reason."""
    missing = [part for part, ending in _MAPS.items() if name.lower() + ending not in maps]
    if missing:
        return Entry(SITE, name, None, f"no soft map of the {' and the '.join(missing)}")
    disc, cup = (maps[name.lower() + ending] for ending in _MAPS.values())
    return Entry(SITE, name, partial(_files, name, image, disc, cup))


def _files(name: str, image: Path, disc: Path, cup: Path) -> Mapping[str, bytes]:
    """The content of the case's PNG files, by path; the masks are where most experts agree."""
    masks = [two_dimensional.read_label_file(path, []) > MAJORITY for path in (disc, cup)]
    return fundus_case.pair_as_png(SITE, name, fundus_case.read_photograph(image), *masks)
