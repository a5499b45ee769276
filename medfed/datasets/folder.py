"""Your own sites: a folder for each, with images and masks in NIfTI, MHA, NRRD, PNG, JPEG or TIFF."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from monai.data import MetaTensor

from medfed.core.bounds import PositiveFloat, PositiveInt
from medfed.core.errors import UserError
from medfed.datasets import file_names, image_files, nesting, reading
from medfed.datasets.base import Card, Case, Dataset


@dataclass(frozen=True)
class Folder(Dataset):
    """Images and masks found by their names. Three layouts are understood:

    - `ROOT/SITE/images/NAME.ext` with `ROOT/SITE/masks/NAME.ext2`
    - `ROOT/SITE/NAME.ext` with `ROOT/SITE/NAME_mask.ext2` (or `_segmentation`, `_seg`)
    - `ROOT/SITE/CASE/t2.nii.gz` with `ROOT/SITE/CASE/segmentation.nii.gz`, once `image_name` and `mask_name` say so

    Args:
        image_channels: 1 for grey, 3 for colour; more for volumes with a fourth axis.
        structure_names: what the masks show.
        mask_values: the values of each structure in the mask, such as {disc: [0, 128], cup: [0]}. Without it, a single
            structure is the one value that is not the background (1 or 255, say); several are 1, 2, ... in order.
        background_value: the value in the mask that is no structure.
        mask_threshold: for masks with soft edges or stored as JPEG: values above it are the (single) structure.
        intensity_max: the stored value that means white, with 0 for black. 8-bit pictures need none (255); pictures of
            more bits must have it; volumes without it are scaled by percentiles.
        grey_to_rgb: repeat the channel of grey pictures where `image_channels` is 3.
        patient_pattern: a regular expression; its first group, searched in the name of the image (or case folder), is
            the patient. Two eyes or two visits of a patient then stay together in the splits.
        image_name, mask_name: the files in a case folder, without their endings.
        one_site_per_case: the case folders lie in ROOT, and each is a site of its own.
    """

    image_channels: PositiveInt = 1
    structure_names: tuple[str, ...] = ("foreground",)
    mask_values: dict[str, tuple[int, ...]] = field(default_factory=dict)
    background_value: int = 0
    mask_threshold: float | None = None
    intensity_max: PositiveFloat | None = None
    grey_to_rgb: bool = False
    patient_pattern: str | None = None
    image_name: str | None = None
    mask_name: str | None = None
    one_site_per_case: bool = False

    generality: ClassVar[int] = 2
    card: ClassVar[Card] = Card(
        title="Your own sites",
        description="Any images with masks, one folder a site.",
        licence="Yours.",
        citation="Yours.",
        how_to_get="Put the files as the layout says, then run `python -m medfed.data check ROOT`.",
        layout="ROOT/SITE/images/NAME.png with ROOT/SITE/masks/NAME.png, or ROOT/SITE/NAME.nii.gz with "
        "ROOT/SITE/NAME_mask.nii.gz, or a folder for each case with data.image_name and data.mask_name",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.image_name is None) != (self.mask_name is None) or (self.one_site_per_case and not self.image_name):
            raise ValueError("image_name and mask_name belong together, and one_site_per_case needs both")
        self._check_structures()
        file_names.check_patient_pattern(self.patient_pattern)

    @classmethod
    def recognise(cls, root: Path) -> Dataset:
        """Any folder, with the settings for case folders and for the channels of the images where these are found."""
        dataset = cls(root=str(root))
        first_site = next(iter(dataset.find_sites().values()), None)
        first_case = next(iter(file_names.folders(first_site).values()), None) if first_site else None
        for folder in filter(None, (first_site, first_case)):
            if names := file_names.image_and_mask_names(folder):
                dataset = replace(
                    dataset, image_name=names[0], mask_name=names[1], one_site_per_case=folder == first_site
                )
                break
        return replace(dataset, image_channels=dataset._stored_channels())

    @property
    def channels(self) -> int:
        return self.image_channels

    @property
    def structures(self) -> tuple[str, ...]:
        return tuple(self.structure_names)

    @property
    def intensity_range(self) -> tuple[float, float] | None:
        kinds = {
            reading.is_2d_image_file(case.image)
            for site in self.site_names()
            for case in self.cases_and_problems(site)[0]
        }
        if len(kinds) > 1:
            raise UserError(f"{self.root}: holds pictures and volumes; expected one kind, so keep them in two folders")
        if True in kinds:
            return 0.0, 255.0
        return None if self.intensity_max is None else (0.0, self.intensity_max)

    def find_sites(self) -> dict[str, Path]:
        return file_names.folders(Path(self.root))

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        pairs, problems = self._pairs(folder)
        cases = []
        for name, (image, mask) in pairs.items():
            subject = file_names.patient_in(name, self.patient_pattern, image, problems)
            cases.append(Case(site, name, image, mask, subject))
        return cases, problems

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        return reading.read_image(
            case.image, self.channels, notices,
            intensity_max=self.intensity_max, grey_to_rgb=self.grey_to_rgb, declared=True,
        )  # fmt: skip

    def read_mask(self, case: Case, notices: list[str]) -> MetaTensor:
        mask = reading.read_labels(case.mask_path, notices, self.mask_threshold)
        if self.mask_values or len(self.structures) > 1:
            hint = "say which values are which structure with data.mask_values"
            channels = reading.to_structures(case.mask_path, mask, self._labels(), self.structures, hint)
            notices += nesting.notices(channels.as_tensor(), self._labels(), self.structures)
            return channels
        others = [value for value in reading.label_values(mask) if value != self.background_value]
        if len(others) > 1:
            soft = "data.mask_threshold: 128, as soft edges or JPEG make such values"
            exact = "data.mask_values, to say which of them are which structure"
            raise UserError(
                f"{case.mask}: has the values {reading.few(others)} beside the background {self.background_value}; "
                f"expected one; set {soft if len(others) > 8 else exact}"
            )
        labels = {self.background_value: (), **dict.fromkeys(others, self.structures)}
        return reading.to_structures(case.mask_path, mask, labels, self.structures)

    def _stored_channels(self) -> int:
        """Those of the first picture whose header can be read; 1 if there is none."""
        for site, folder in self.find_sites().items():
            for case in self.find_cases(site, folder)[0]:
                if reading.is_2d_image_file(case.image) and (n_channels := image_files.count_channels(case.image)):
                    return n_channels
        return 1

    def _pairs(self, folder: Path) -> tuple[file_names.Pairs, file_names.Problems]:
        if self.image_name and self.mask_name:
            if not self.one_site_per_case:
                return file_names.case_folders(folder, self.image_name, self.mask_name)
            image, mask = file_names.case_folder(folder, self.image_name, self.mask_name)
            if image and mask:
                return {folder.name: (image, mask)}, []
            missing = self.mask_name if image else self.image_name
            return {}, [f"{folder}: has no file called {missing}; add it, or name the other sites in data.sites"]
        images, masks = (file_names.subfolder(folder, name) for name in ("images", "masks"))
        if images and masks:
            return file_names.two_folders(images, masks)
        return file_names.side_by_side(folder)

    def _labels(self) -> dict[int, tuple[str, ...]]:
        values = self.mask_values or {name: (index,) for index, name in enumerate(self.structures, 1)}
        labels: dict[int, tuple[str, ...]] = {self.background_value: ()}
        for name in self.structures:
            for value in values[name]:
                labels[value] = (*labels.get(value, ()), name)
        return labels

    def _check_structures(self) -> None:
        names = self.structures
        if not names or len(set(names)) < len(names):
            raise ValueError(f"structure_names must be different names, at least one, got {list(names)}")
        if self.mask_values and (set(self.mask_values) != set(names) or not all(self.mask_values.values())):
            raise ValueError(f"mask_values must give values to each of {list(names)}, got {dict(self.mask_values)}")
        if any(self.background_value in values for values in self.mask_values.values()):
            raise ValueError(f"background_value {self.background_value} is also a structure in mask_values; change one")
        if self.mask_threshold is not None and (self.mask_values or len(names) > 1):
            raise ValueError("mask_threshold is for a single structure without mask_values; leave one of them out")
