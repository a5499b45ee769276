"""One case of a dataset: its files on disk, and its image and mask in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from monai.data import MetaTensor
from torch import Tensor


class MaskFile(NamedTuple):
    """A file with a mask; `structure` is the only structure that it shows, or "" if its values decide."""

    path: Path
    structure: str = ""


@dataclass(frozen=True, slots=True)  # slots, because a dataset may have half a million cases
class Case:
    """One image of one patient: the paths of the image and its masks, or the image's class.

    Args:
        site: name of the site that holds the case.
        name: name of the case, unique within its site; tables and file names show it.
        image: path of the image file, or of a folder with the slices of a DICOM series.
        masks: files with the masks, which are joined; empty for classification.
        patient: identifier of the patient. Cases of the same patient (two eyes, two visits) stay in the same part of a
            split, and results count them as one patient. "" takes `name`, so that every case is a patient of its own.
        label: class number, starting at 0, for classification; None for segmentation.
        part: "train", "validation" or "test" if a published split assigns the case; "" lets `splits.split` decide.
    """

    site: str
    name: str
    image: Path
    masks: tuple[MaskFile, ...] = ()
    patient: str = ""
    label: int | None = None
    part: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "patient", self.patient or self.name)

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths of the image and of all its masks."""
        return (self.image, *(mask.path for mask in self.masks))

    @property
    def mask_path(self) -> Path:
        """The path of the first mask; TypeError for a case with a class."""
        if not self.masks:
            raise TypeError(f"{self.image}: this case has a class and no mask; read it with read_image")
        return self.masks[0].path


@dataclass(frozen=True)
class Volume:
    """One loaded case: image and mask on the voxel grid of the image file.

    Args:
        image: (C, H, W, D) float32, finite. Volumes keep their stored intensities; 2-D image files are scaled to [0,
            255] and have D = 1.
        mask: (S, H, W, D) uint8 of 0 and 1, one channel per structure, in the order of the dataset's `structures`.
            `mask.meta["label_values"]` lists the values that the file contains.
        spacing_mm: voxel size along H, W, D in mm; None if the file does not store it (PNG, for example).
        notices: short descriptions of what was converted or looks unusual, without the file's name.
    """

    image: MetaTensor
    mask: MetaTensor
    spacing_mm: tuple[float, float, float] | None
    notices: tuple[str, ...] = ()


def numbered_patients(cases: Sequence[Case]) -> Tensor:
    """Return int64 (N,) for N cases: equal numbers mean the same patient. Equal names at two sites are two patients."""
    numbers: dict[tuple[str, str], int] = {}
    return torch.tensor([numbers.setdefault((case.site, case.patient), len(numbers)) for case in cases])
