"""Optic disc and cup in colour fundus photographs from four cameras: the collection of DoFE (Wang et al., 2020)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import torch
from monai.data import MetaTensor

from medfed.core.errors import UserError
from medfed.datasets import file_names, nesting, reading
from medfed.datasets.base import PHANTOM_MARK, Dataset
from medfed.datasets.card import Card
from medfed.datasets.case import Case
from medfed.datasets.pairing import pair_two_folders

SITES = {  # name of the site: possible names of its folder
    "DRISHTI-GS": ("Domain1", "DRISHTI-GS"),
    "RIM-ONE-r3": ("Domain2", "RIM-ONE-r3"),
    "REFUGE-train": ("Domain3", "REFUGE-train"),
    "REFUGE-val": ("Domain4", "REFUGE-val"),
}
PARTS = ("train", "test")
LABELS = {0: ("disc", "cup"), 128: ("disc",), 255: ()}
MAX_CUP_GREY, MAX_RIM_GREY = 50, 200  # largest grey values of cup and rim; higher values are background
# RIM-ONE file names contain patient and eye, such as N-43-L. Copies add test- or train- before them, and sizes after.
_EYE = re.compile(r"(?:(?:train|test)-)?(.*-\d+)-[LR](?![A-Za-z0-9]).*", re.IGNORECASE)


@dataclass(frozen=True)
class Fundus(Dataset):
    """Fundus photographs cropped around the optic disc, with masks of disc and cup; the cup lies inside the disc.

    The fields that are not explained here are explained at `Dataset`.

    Args:
        published_split: true uses the published training and test folders as training and test parts; false merges
            both and splits by patient with `validation_ratio` and `test_ratio`.
    """

    published_split: bool = False

    card: ClassVar[Card] = Card(
        title="Optic disc and cup, four cameras",
        description="Colour fundus photographs cut to 800 x 800 pixels around the optic disc, with masks of disc and "
        "cup: DRISHTI-GS 101, RIM-ONE r3 159, REFUGE training (Zeiss Visucam 500) 400, REFUGE validation (Canon CR-2) "
        "400.",
        licence="Each source has its own terms for research use (Drishti-GS, RIM-ONE, REFUGE); read them before you "
        "share anything.",
        citation="Wang, Yu, Li, Yang, Fu, Heng, 'DoFE: Domain-oriented feature embedding for generalizable fundus "
        "image segmentation on unseen datasets', IEEE TMI 2020; and the three sources: Sivaswamy et al., ISBI 2014 "
        "(Drishti-GS); Fumero et al., CBMS 2011 (RIM-ONE; release 3); Orlando et al., Medical Image Analysis 2020 "
        "(REFUGE).",
        how_to_get="Follow the download link on https://github.com/emma-sjwang/Dofe and unpack it so that Domain1 to "
        "Domain4 lie in data/fundus; then run `python -m medfed.data check data/fundus`. `python -m medfed.data "
        "prepare fundus SOURCE... data/fundus` makes such folders from the downloads of the three sources. Without it, "
        "`if_missing: phantom` makes a synthetic phantom.",
        layout="ROOT/DomainK/train/ROIs/image/NAME.png with ROOT/DomainK/train/ROIs/mask/NAME.png, and the same in "
        "test, K from 1 to 4; or ROOT/SITE/images/NAME.png with ROOT/SITE/masks/NAME.png, SITE one of "
        + ", ".join(SITES),
    )
    published_counts = {"DRISHTI-GS": 101, "RIM-ONE-r3": 159, "REFUGE-train": 400, "REFUGE-val": 400}

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return this dataset if the folder has images of at least one of the published sites, else None."""
        dataset = cls(root=str(root))
        return dataset if dataset.has_cases() else None

    @property
    def channels(self) -> int:
        return 3

    @property
    def structures(self) -> tuple[str, ...]:
        return ("disc", "cup")

    @property
    def ratio_structures(self) -> tuple[str, str]:
        """The inner and the outer structure of the cup-to-disc ratio."""
        return ("cup", "disc")

    @property
    def intensity_range(self) -> tuple[float, float]:
        return 0.0, 255.0

    @property
    def is_phantom(self) -> bool:
        return (Path(self.root) / PHANTOM_MARK).is_file()

    def find_sites(self) -> dict[str, Path]:
        return file_names.site_folders(Path(self.root), SITES)

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        """Find the pairs of image and mask of one site; the published folders `train` and `test` are both searched."""
        by_name: dict[str, Case] = {}
        problems = []
        for part, images, masks in self._folders(folder):
            if not (images and masks):
                existing = images or masks or folder
                missing = "masks" if images else "images"
                problems.append(
                    f"{existing.parent}: found only the folder '{existing.name}'; expected a folder of images and one "
                    f"of masks; add the folder of {missing}"
                )
                continue
            found = pair_two_folders(images, masks)
            problems += found.problems
            for name, (image, mask) in found.pairs.items():
                if other := by_name.get(name.casefold()):
                    problems.append(
                        f"{image}: this image has the same name as {other.image}; expected every name once; rename "
                        "one of them"
                    )
                    continue
                by_name[name.casefold()] = Case(site, name, image, mask, _patient(site, name), part=part)
        if self.published_split and any(not case.part for case in by_name.values()):
            problems.append(
                f"{folder}: the folders train and test of the published split are missing; add them, or set "
                "data.published_split: false"
            )
        return list(by_name.values()), problems

    def read_mask(self, case: Case, notices: list[str]) -> MetaTensor:
        """Return the channels disc and cup, (2, H, W, 1); the disc includes the cup.

        In the file, 0 is the cup, 128 the rim of the disc, and 255 the background. Other grey values, as in smoothed
        masks, are thresholded with a notice: up to 50 is the cup, up to 200 the rim. UserError if no corner is
        background.
        """
        grey = reading.read_labels(case.mask_path, notices)
        corners = grey[0][:: max(grey.shape[1] - 1, 1), :: max(grey.shape[2] - 1, 1)]
        if corners.max() <= MAX_RIM_GREY or grey.max() > 255:
            raise UserError(
                f"{case.mask}: the mask has the grey values {reading.format_values(reading.label_values(grey))}, and "
                f"{reading.format_values(reading.label_values(corners))} in its corners; expected 0 in the cup, 128 in "
                "the rim of the disc and 255 outside; write the mask again with these values"
            )
        if any(value not in LABELS for value in reading.label_values(grey)):
            notices.append(f"grey values of the mask thresholded at {MAX_CUP_GREY} and {MAX_RIM_GREY}")
        hard = torch.full_like(grey, 255.0)
        hard[grey <= MAX_RIM_GREY] = 128
        hard[grey <= MAX_CUP_GREY] = 0
        mask = reading.to_structures(case.mask_path, cast(MetaTensor, hard), LABELS, self.structures)
        notices += nesting.nesting_notices(mask.as_tensor(), LABELS, self.structures)
        return mask

    def _folders(self, folder: Path) -> list[tuple[str, Path | None, Path | None]]:
        """Return (part, folder of images, folder of masks) for each part of one site, in either layout; a missing
        folder is None."""
        candidates: list[tuple[str, Path, str, str]] = [("", folder, "images", "masks")]
        for part in PARTS:
            part_folder = file_names.find_subfolder(folder, part)
            rois = file_names.find_subfolder(part_folder, "rois") if part_folder else None
            candidates += [(part if self.published_split else "", rois, "image", "mask")] if rois else []
        pairs = [
            (part, file_names.find_subfolder(parent, image_name), file_names.find_subfolder(parent, mask_name))
            for part, parent, image_name, mask_name in candidates
        ]
        return [(part, images, masks) for part, images, masks in pairs if images or masks]


def _patient(site: str, name: str) -> str:
    """Return the identifier of the patient if the name of the image contains it (RIM-ONE), or ""."""
    match = _EYE.fullmatch(name) if site == "RIM-ONE-r3" else None
    return match[1] if match else ""
