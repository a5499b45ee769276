"""Optic disc and cup in colour fundus photographs of four cameras: the collection of DoFE (Wang et al., 2020)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import torch
from monai.data import MetaTensor

from medfed.core.errors import UserError
from medfed.datasets import file_names, nesting, reading
from medfed.datasets.base import PHANTOM_MARK, Card, Case, Dataset

SITES = {  # the name here, and what the folder may be called
    "DRISHTI-GS": ("Domain1", "DRISHTI-GS"),
    "RIM-ONE-r3": ("Domain2", "RIM-ONE-r3"),
    "REFUGE-train": ("Domain3", "REFUGE-train"),
    "REFUGE-val": ("Domain4", "REFUGE-val"),
}
PARTS = ("train", "test")
LABELS = {0: ("disc", "cup"), 128: ("disc",), 255: ()}
CUP_UP_TO, RIM_UP_TO = 50, 200  # grey values; above: background
# RIM-ONE names both eyes of a patient, such as N-43-L; copies add test- or train- before it, and sizes behind.
_EYE = re.compile(r"(?:(?:train|test)-)?(.*-\d+)-[LR](?![A-Za-z0-9]).*", re.IGNORECASE)


@dataclass(frozen=True)
class Fundus(Dataset):
    """Colour crops around the optic disc, with disc and cup, the cup within the disc; see `Dataset` for the arguments.

    Args:
        published_split: keep the published training and test folders apart, as they are; false pools both and splits
            by patient with `validation_ratio` and `test_ratio`.
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
        "Domain4 lie in data/fundus; then run `python -m medfed.data check data/fundus`. Without it, "
        "`if_missing: phantom` makes a synthetic twin.",
        layout="ROOT/DomainK/train/ROIs/image/NAME.png with ROOT/DomainK/train/ROIs/mask/NAME.png, and the same in "
        "test, K from 1 to 4; or ROOT/SITE/images/NAME.png with ROOT/SITE/masks/NAME.png, SITE one of "
        + ", ".join(SITES),
    )
    published_counts = {"DRISHTI-GS": 101, "RIM-ONE-r3": 159, "REFUGE-train": 400, "REFUGE-val": 400}

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
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
        """The structures of which clinicians compare the heights: the vertical cup-to-disc ratio."""
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
        found: dict[str, Case] = {}
        problems = []
        for part, images, masks in self._folders(folder):
            if not (images and masks):
                only = images or masks or folder
                kind = "images" if images else "masks"
                problems.append(f"{only.parent}: has a folder of {kind} alone; copy the other too")
                continue
            pairs, wrong = file_names.two_folders(images, masks)
            problems += wrong
            for name, (image, mask) in pairs.items():
                if other := found.get(name.casefold()):
                    problems.append(f"{image}: has the name of {other.image}; expected every name once, so rename one")
                    continue
                found[name.casefold()] = Case(site, name, image, mask, _patient(site, name), part=part)
        if self.published_split and any(not case.part for case in found.values()):
            problems.append(f"{folder}: has no folders train and test; set data.published_split: false")
        return list(found.values()), problems

    def read_mask(self, case: Case, notices: list[str]) -> MetaTensor:
        grey = reading.read_labels(case.mask_path, notices)
        corners = grey[0][:: max(grey.shape[1] - 1, 1), :: max(grey.shape[2] - 1, 1)]
        if corners.max() <= RIM_UP_TO or grey.max() > 255:
            raise UserError(
                f"{case.mask}: has the grey values {reading.few(reading.label_values(grey))}, "
                f"{reading.few(reading.label_values(corners))} in its corners; expected 0 in the cup, 128 in the rim "
                "and 255 outside, so write the mask again"
            )
        if any(value not in LABELS for value in reading.label_values(grey)):
            notices.append(f"soft mask cut at {CUP_UP_TO} and {RIM_UP_TO}")
        hard = torch.full_like(grey, 255.0)
        hard[grey <= RIM_UP_TO] = 128
        hard[grey <= CUP_UP_TO] = 0
        mask = reading.to_structures(case.mask_path, cast(MetaTensor, hard), LABELS, self.structures)
        notices += nesting.notices(mask.as_tensor(), LABELS, self.structures)
        return mask

    def _folders(self, folder: Path) -> list[tuple[str, Path | None, Path | None]]:
        """(part, images, masks) of one site, in either layout; what has neither images nor masks is left out."""
        places: list[tuple[str, Path, str, str]] = [("", folder, "images", "masks")]
        for part in PARTS:
            place = file_names.subfolder(folder, part)
            rois = file_names.subfolder(place, "rois") if place else None
            places += [(part if self.published_split else "", rois, "image", "mask")] if rois else []
        pairs = [
            (part, file_names.subfolder(place, image_name), file_names.subfolder(place, mask_name))
            for part, place, image_name, mask_name in places
        ]
        return [(part, images, masks) for part, images, masks in pairs if images or masks]


def _patient(site: str, name: str) -> str:
    """The patient that both eyes belong to, where the name of the image has it; else ""."""
    match = _EYE.fullmatch(name) if site == "RIM-ONE-r3" else None
    return match[1] if match else ""
