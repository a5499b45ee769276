"""Optic disc and cup in colour fundus photographs from four cameras: the collection of DoFE (Wang et al., 2020)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from monai.data import MetaTensor

from medfed.core.errors import Problem, UserError
from medfed.datasets.base import Card, Contents, Dataset
from medfed.datasets.case import Case
from medfed.datasets.pairing import Match
from medfed.images import reading

SITES = {  # name of the site: possible names of its folder
    "DRISHTI-GS": ("Domain1", "DRISHTI-GS"),
    "RIM-ONE-r3": ("Domain2", "RIM-ONE-r3"),
    "REFUGE-train": ("Domain3", "REFUGE-train"),
    "REFUGE-val": ("Domain4", "REFUGE-val"),
}
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

    card = Card(
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

    image_patterns = ("{site}/images/{case}.*", "{site}/{part:train|test}/rois/image/{case}.*")
    mask_patterns = ("{site}/masks/{case}.*", "{site}/{part:train|test}/rois/mask/{case}.*")
    site_folders = SITES
    channels = 3
    structures = ("disc", "cup")
    ratio_structures = ("cup", "disc")
    intensity_range = (0.0, 255.0)

    def scan(self) -> Contents:
        """As in `Dataset`; the published split needs the folders train and test at each site."""
        contents = super().scan()
        for site, cases in contents.cases.items():
            if self.published_split and any(not case.part for case in cases):
                found = f"the folders train and test of the published split are missing at the site {site}"
                cure = "add them, or set data.published_split: false"
                contents.problems[site].append(Problem("no published split", self.root, found, cure))
        return contents

    def case_name(self, site: str, values: Mapping[str, str]) -> str:
        """Return the name of the image file, which is unique within its site."""
        return values["case"]

    def patient_name(self, site: str, one: Match) -> str:
        """Return the patient, which the names of RIM-ONE contain; "" at other sites."""
        match = _EYE.fullmatch(one.fields["case"]) if site == "RIM-ONE-r3" else None
        return match[1] if match else ""

    def part_name(self, values: Mapping[str, str]) -> str:
        """Return the folder, train or test, with `published_split`."""
        return values.get("part", "").lower() if self.published_split else ""

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
                f"{case.mask_path}: the mask has the grey values {reading.format_values(reading.label_values(grey))}, "
                f"and {reading.format_values(reading.label_values(corners))} in its corners; expected 0 in the cup, "
                "128 in the rim of the disc and 255 outside; write the mask again with these values"
            )
        if any(value not in LABELS for value in reading.label_values(grey)):
            notices.append(f"grey values of the mask thresholded at {MAX_CUP_GREY} and {MAX_RIM_GREY}")
        hard = torch.full_like(grey, 255.0)
        hard[grey <= MAX_RIM_GREY] = 128
        hard[grey <= MAX_CUP_GREY] = 0
        return reading.to_structures(case.mask_path, cast(MetaTensor, hard), LABELS, self.structures)
