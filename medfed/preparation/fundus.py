"""The original collections of fundus photographs, and how a case is written for the dataset `fundus`.

Layouts, by https://github.com/bioidiap/bob.ip.binseg (bob/ip/binseg/data: drishtigs1, rimoner3, refuge):

DRISHTI-GS1 (Sivaswamy et al., 2014): Drishti-GS1_files/Training/Images/NAME.png with
Training/GT/NAME/SoftMap/NAME_ODsegSoftmap.png and NAME_cupsegSoftmap.png, and for the 51 test images
Test/Images/NAME.png with Test/Test_GT/NAME/SoftMap. A soft map is the fraction of the four experts who marked a pixel,
times 255. Here a pixel belongs to a structure if more than half of the experts marked it; the rule of the collection of
DoFE is not published.

RIM-ONE release 3 (Fumero et al., 2015): the folders Healthy and "Glaucoma and suspects", each with "Stereo
Images"/NAME.jpg and Average_masks/NAME-Disc-Avg.png and NAME-Cup-Avg.png, the average of two experts. A photograph is a
stereo pair of 2144 x 1424 pixels, of which the left half is annotated. Only this half is kept, so that no second,
unmarked disc remains. A name such as N-43-L ends with the eye; the dataset `fundus` keeps both eyes of a patient
together in a split.

REFUGE (Orlando et al., 2020): photographs Training400/Glaucoma/g0001.jpg and Training400/Non-Glaucoma/n0001.jpg with
masks Annotation-Training400/Disc_Cup_Masks/.../g0001.bmp, and REFUGE-Validation400/V0001.jpg with
REFUGE-Validation400-GT/Disc_Cup_Masks/V0001.bmp (also https://github.com/HzFu/MNet_DeepCDR). In a mask, 0 is the cup,
128 the rim of the disc and 255 the background. Copies with renumbered files (0001.jpg) do not say to which camera a
photograph belongs, and are not read.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.collections.fundus import MAX_CUP_GREY, MAX_RIM_GREY
from medfed.images import reading, two_dimensional
from medfed.preparation.prepare import Collection

SIDE = 800  # pixels; the collection of DoFE has squares of this size around the disc
CUP, RIM, BACKGROUND = 0, 128, 255
MAJORITY = 127  # an average over experts above it: more than half of them marked the pixel
REFUGE_SITES = {"g": "REFUGE-train", "n": "REFUGE-train", "v": "REFUGE-val"}
NOTE = (
    f"photographs are cut to {SIDE} x {SIDE} pixels around the middle of the disc, as its mask marks it, without a "
    "change of scale; the squares of the collection of DoFE may lie elsewhere by some pixels"
)


def _drishti_gs_files(site: str, name: str, image: Path, disc: Path, cup: Path) -> dict[str, bytes]:
    masks = [two_dimensional.read_label_file(path, []) > MAJORITY for path in (disc, cup)]
    return pair_as_png(site, image.stem, _photograph(image), *masks)


def _rim_one_files(site: str, name: str, image: Path, disc: Path, cup: Path) -> dict[str, bytes]:
    photo = _photograph(image)
    height, width = photo.shape[:2]
    left = slice(width // 2 if width > height else width)  # one of a pair is upright
    masks = [two_dimensional.read_label_file(path, [])[:, left] > MAJORITY for path in (disc, cup)]
    return pair_as_png(site, image.stem, photo[:, left], *masks)


def _refuge_files(site: str, name: str, image: Path, mask: Path) -> dict[str, bytes]:
    grey = two_dimensional.read_label_file(mask, [])
    if grey[[0, 0, -1, -1], [0, -1, 0, -1]].min() <= MAX_RIM_GREY:
        values = reading.format_values(sorted({int(value) for value in np.unique(grey)}))
        raise UserError(f"the mask has the values {values}; expected 0 in the cup, 128 in the rim and 255 outside")
    return pair_as_png(site, name.lower(), _photograph(image), grey <= MAX_RIM_GREY, grey <= MAX_CUP_GREY)


def _photograph(path: Path) -> np.ndarray:
    """Return (H, W, 3) uint8; UserError if the file is damaged or not an RGB image with 8 bits."""
    photo = two_dimensional.read_image_file(path, None, [])
    if len(photo) != 3:
        raise UserError("the photograph is grey; expected colour")
    return np.moveaxis(photo, 0, -1).astype(np.uint8)


def pair_as_png(site: str, name: str, photo: np.ndarray, disc: np.ndarray, cup: np.ndarray) -> dict[str, bytes]:
    """Return photograph and mask as files, cut to a square around the disc, which includes the cup, (H, W) bool."""
    for structure, mask in (("disc", disc), ("cup", cup)):
        if mask.shape != photo.shape[:2]:
            raise UserError(
                f"the mask of the {structure} has {mask.shape[1]} x {mask.shape[0]} pixels, the photograph "
                f"{photo.shape[1]} x {photo.shape[0]}"
            )
        if not mask.any():
            raise UserError(f"the mask of the {structure} marks nothing")
    if 2 * (cup & ~disc).sum() > cup.sum():
        raise UserError("most of the cup lies outside the disc; the masks may belong to different images")
    region = tuple(_range_around(np.flatnonzero((disc | cup).any(axis=1 - axis)), disc.shape[axis]) for axis in (0, 1))
    mask = np.where(cup, CUP, np.where(disc, RIM, BACKGROUND)).astype(np.uint8)
    return {f"{site}/images/{name}.png": _png(photo[region]), f"{site}/masks/{name}.png": _png(mask[region])}


def _range_around(marked: np.ndarray, length: int) -> slice:
    """`SIDE` pixels, or all if there are fewer, around the middle of the marked ones, inside the image."""
    side = min(SIDE, length)
    extent = int(marked[-1] - marked[0]) + 1
    if extent > side - 2:
        raise UserError(f"the disc has an extent of {extent} pixels; expected less than {side}")
    start = (int(marked[0]) + int(marked[-1]) + 1) // 2 - side // 2
    start = min(max(start, 0), length - side)
    return slice(start, start + side)


def _png(pixels: np.ndarray) -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


COLLECTIONS = (
    Collection(
        title="DRISHTI-GS1",
        layout="Training/Images/NAME.png with Training/GT/NAME/SoftMap/NAME_ODsegSoftmap.png and "
        "NAME_cupsegSoftmap.png",
        parts={
            "photograph": r"images/(.*/)?(?P<name>drishtigs_\d+)\.png",
            "soft map of the disc": r"(?P<name>drishtigs_\d+)_odsegsoftmap\.png",
            "soft map of the cup": r"(?P<name>drishtigs_\d+)_cupsegsoftmap\.png",
        },
        site=lambda name: "DRISHTI-GS",
        convert=_drishti_gs_files,
        notes=(
            NOTE,
            "soft maps of DRISHTI-GS1 become masks where more than half of the experts agree; the published rule is "
            "not known",
        ),
    ),
    Collection(
        title="RIM-ONE r3",
        layout="Healthy/Stereo Images/NAME.jpg with Healthy/Average_masks/NAME-Disc-Avg.png and NAME-Cup-Avg.png, and "
        "the same in Glaucoma and suspects",
        parts={
            "photograph": r"stereo images/(?P<name>[^/]+)\.jpg",
            "average mask of the disc": r"average_masks/(?P<name>[^/]+)-disc-avg\.png",
            "average mask of the cup": r"average_masks/(?P<name>[^/]+)-cup-avg\.png",
        },
        site=lambda name: "RIM-ONE-r3",
        convert=_rim_one_files,
        notes=(
            NOTE,
            "RIM-ONE r3 contains stereo pairs: the left image is used, with the average mask of the two experts",
        ),
    ),
    Collection(
        title="REFUGE",
        layout="Training400/.../g0001.jpg and n0001.jpg, REFUGE-Validation400/V0001.jpg, and masks of the same names "
        "(.bmp) in folders called Disc_Cup_Masks",
        parts={
            "photograph": r"(?P<name>[gnv]\d{4})\.jpg",
            "mask": r"disc_cup_masks/(.*/)?(?P<name>[gnv]\d{4})\.bmp",
        },
        site=lambda name: REFUGE_SITES[name[0].lower()],
        convert=_refuge_files,
        notes=(NOTE, "the test photographs of REFUGE (T0001 ...) belong to no site of the collection of DoFE"),
    ),
)
