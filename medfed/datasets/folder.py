"""Your own images with masks: one folder per site, files in NIfTI, MHA, NRRD, PNG, JPEG or TIFF format."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from monai.data import MetaTensor

from medfed.core.bounds import PositiveFloat, PositiveInt
from medfed.core.errors import UserError
from medfed.datasets import (
    check_names,
    datalists,
    dicom,
    dicom_files,
    dicom_names,
    dicom_patients,
    dicom_search,
    dicom_seg,
    file_names,
    image_files,
    nesting,
    reading,
)
from medfed.datasets.base import Dataset
from medfed.datasets.card import Card
from medfed.datasets.case import Case
from medfed.datasets.mask_colours import ColourEntry, read_coloured_mask, structures_by_colour
from medfed.datasets.pairing import (
    Found,
    NameSettings,
    find_case_files,
    guess_image_and_mask_names,
    pair_case_folders,
)
from medfed.datasets.part_names import is_part
from medfed.datasets.root_search import find_site_folders, pair_inner_folder
from medfed.datasets.site_search import Roles, find_pairs

_RESAMPLE = ", or set data.resample_masks: true"
CHANNEL_SAMPLES = 4  # images of each site that are read before the number of channels is decided


@dataclass(frozen=True)
class Folder(Dataset):
    """Your own images with masks for segmentation, found by the names of the files.

    These layouts are found without a setting:

    - `ROOT/SITE/images/NAME.ext` with `ROOT/SITE/masks/NAME.ext2`. The folders may have other usual names (`img`,
      `labels`, `gt`, ...), and the names of all files may differ in the same way (`im0001` and `im0001ah`, `Image_1`
      and `mask_1`). `ROOT/images/SITE` with `ROOT/masks/SITE` is the same.
    - nnU-Net's `ROOT/SITE/imagesTr/NAME_0000.ext` with `ROOT/SITE/labelsTr/NAME.ext`, and MSD's `dataset.json`
    - `ROOT/SITE/NAME.ext` with `ROOT/SITE/NAME_mask.ext2` (or `_segmentation`, `_seg`, `_label`, `mask_NAME`, ...)
    - `ROOT/SITE/CASE/NAME_T2.ext` with `ROOT/SITE/CASE/NAME_seg.ext`: one folder per case

    A folder of DICOM files is an image, too, as in `ROOT/SITE/CASE/*.dcm` with `ROOT/SITE/CASE/mask.nii.gz`. Its case
    and its patient get names that tell nothing about the patient (`dicom_names`).

    For other layouts, set the names of the folders and files, or write the pairs into a table (`datalist`).
    docs/real_hospitals.md has examples.

    The fields that are not explained here are explained at `Dataset`.

    Args:
        image_channels: number of image channels, at least 1: 1 for grey images, 3 for colour, more for volumes with a
            fourth axis.
        structure_names: names of the structures that the masks show, at least one.
        mask_values: the values in the mask file that belong to each structure, such as {disc: [0, 128], cup: [0]}. If
            it is empty, a single structure is the one value other than the background (1 or 255, for example), and
            several structures have the values 1, 2, ... in their order.
        mask_colours: the colours of each structure, if the masks show structures in colours, such as
            {disc: ["#808080", "#000000"], cup: 0} or {lesion: [255, 0, 0]}: a grey value, a text in quotes with red,
            green and blue in hexadecimal, the three numbers, or a list of colours with such texts. The background is
            the grey value `background_value`, or the entry `background`. All other colours are refused. A mask with a
            single structure in one colour on black needs no entry.
        background_value: the value in the mask file that belongs to no structure.
        mask_threshold: for a single structure whose mask has soft edges or is stored as JPEG: all values above this
            threshold are the structure. null expects exactly one value other than the background.
        intensity_max: the stored value that means white, above 0; 0 means black. 8-bit image files do not need it
            (255), image files with more bits do. For volumes, null maps the percentiles 0.5 and 99.5 to 0 and 1.
        grey_to_rgb: true repeats the channel of a grey image three times if `image_channels` is 3; false refuses grey
            images.
        patient_pattern: regular expression that is searched in the name of the image file or case folder; its first
            group is the patient. All images of a patient (two eyes, two visits) then stay in the same part of a split.
            null treats every image as a patient of its own, or every case folder if it holds several images.
        image_folders: names of folders with images, such as [scans]. They come before the usual names (images, imgs,
            img, image, imagesTr). Upper and lower case are not distinguished, and a `*` stands for any characters.
        mask_folders: names of folders with masks, such as [expert_1] or ["*_lesion"]. They come before the usual names
            (masks, mask, labels, label, labelsTr, seg, segmentations, gt, annotations, ...). If a folder of masks holds
            only folders, the one with such a name is taken: [expert_1] for `masks/expert_1`.
        image_name: name of the image files, without suffix. A `*` stands for the name of the case: "*_T2", or "*.jpg"
            with a suffix. A name without `*`, such as "t2", is the same in every case folder. null finds it out.
        mask_name: name of the mask files, as for `image_name`.
        ignored_names: names of files and folders that are not read, such as ["*_2nd", preview]. A `*` stands for any
            characters.
        datalist: a CSV or JSON file in `root` that lists the cases, with the columns site, image, mask, and optionally
            patient and split; paths are relative to it. null searches the folders.
        merge_masks: true joins several masks of an image, such as `a_mask.png` and `a_mask_1.png` with one lesion each:
            a pixel belongs to a structure if it does so in one of them; false refuses an image with several masks.
        resample_masks: true resamples a mask of another size to the size of its image, by nearest neighbour; false
            refuses such a mask.
        dicom_series: the SeriesDescription of the DICOM series to read, if a case has several. A `*` stands for any
            characters; upper and lower case are not distinguished. null expects one series per case.
        dicom_salt: path of the file with the secret that hides the identifiers of DICOM patients; it is created if it
            does not exist. null is the file `.medfed_dicom_salt` in the folder of each site, or in `root` if
            there is a datalist.
        one_site_per_case: true if the case folders lie directly in `root` and each is a site of its own; needs
            `image_name` and `mask_name`.
    """

    image_channels: PositiveInt = 1
    structure_names: tuple[str, ...] = ("foreground",)
    mask_values: dict[str, tuple[int, ...]] = field(default_factory=dict)
    mask_colours: dict[str, ColourEntry] = field(default_factory=dict)
    background_value: int = 0
    mask_threshold: float | None = None
    intensity_max: PositiveFloat | None = None
    grey_to_rgb: bool = False
    patient_pattern: str | None = None
    image_folders: tuple[str, ...] = ()
    mask_folders: tuple[str, ...] = ()
    image_name: str | None = None
    mask_name: str | None = None
    ignored_names: tuple[str, ...] = ()
    datalist: str | None = None
    merge_masks: bool = False
    resample_masks: bool = False
    dicom_series: str | None = None
    dicom_salt: str | None = None
    one_site_per_case: bool = False

    generality: ClassVar[int] = 2
    card: ClassVar[Card] = Card(
        title="Your own sites",
        description="Any images with masks, one folder per site.",
        licence="Yours.",
        citation="Yours.",
        how_to_get="Arrange the files in this layout, then run `python -m medfed.data check ROOT`.",
        layout="ROOT/SITE/images/NAME.png with ROOT/SITE/masks/NAME.png, or ROOT/SITE/NAME.nii.gz with "
        "ROOT/SITE/NAME_mask.nii.gz, or one folder per case; for other names, set data.image_folders, "
        "data.mask_folders, data.image_name and data.mask_name, or list the files in a table (data.datalist)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [name for name in (self.image_name, self.mask_name) if name is not None]
        fixed = [name for name in names if "*" not in name]
        if (fixed and len(names) == 1) or (self.one_site_per_case and len(fixed) < 2):
            raise ValueError(
                "set both image_name and mask_name or neither, unless they have a '*'; one_site_per_case needs both "
                "without '*'"
            )
        if any(name.count("*") > 1 for name in names):
            raise ValueError("image_name and mask_name may have one '*', which stands for the name of the case")
        self._check_structures()
        file_names.check_patient_pattern(self.patient_pattern)

    @classmethod
    def recognise(cls, root: Path) -> Dataset:
        """Return this dataset for any folder, with settings that follow from its files.

        A single table of images and masks becomes the `datalist`. If the first folder in `root`, or the first folder
        inside that one, holds exactly one image and one mask with usual names, these become `image_name` and
        `mask_name`, and `one_site_per_case` is true if that folder lies directly in `root`. UserError if several tables
        could be the datalist, or if a table names no sites and the names of the files give no pairs.
        """
        lists = [name for name, has_masks in datalists.find_datalists(root).items() if has_masks]
        if len(lists) > 1:
            raise UserError(
                f"{root}: the tables {' and '.join(lists)} both list images and masks; expected one; check the one "
                f"that you want: python -m medfed.data check {root / lists[0]}"
            )
        if lists:
            return cls(root=str(root), datalist=lists[0])
        dataset = cls(root=str(root))
        dataset._refuse_table_without_sites()
        first_site = next(iter(dataset.find_sites().values()), None)
        first_case = next(iter(file_names.subfolders(first_site).values()), None) if first_site else None
        for folder in filter(None, (first_site, first_case)):
            if names := guess_image_and_mask_names(folder):
                dataset = replace(
                    dataset, image_name=names[0], mask_name=names[1], one_site_per_case=folder == first_site
                )
                break
        return dataset

    def with_stored_channels(self) -> Folder:
        """Return this dataset with the number of image channels that a few 2-D image files of each site need: 1 if
        these are grey, however they are stored, or if there is none; 3 with `grey_to_rgb` if grey and colour are mixed.
        """
        paths = []
        for site, folder in self.find_sites().items():
            images = [case.image for case in self.find_cases(site, folder)[0] if reading.is_2d_image_file(case.image)]
            paths += images[:: max(1, len(images) // CHANNEL_SAMPLES)][:CHANNEL_SAMPLES]
        n_channels, has_grey = image_files.needed_channels(paths)
        return replace(self, image_channels=n_channels, grey_to_rgb=self.grey_to_rgb or has_grey)

    @property
    def channels(self) -> int:
        return self.image_channels

    @property
    def structures(self) -> tuple[str, ...]:
        return tuple(self.structure_names)

    @property
    def intensity_range(self) -> tuple[float, float] | None:
        """(0, 255) for 2-D image files; (0, `intensity_max`) for volumes, or None if it is not set. UserError for a
        mixture."""
        kinds = {
            reading.is_2d_image_file(case.image)
            for site in self.site_names()
            for case in self.cases_and_problems(site)[0]
        }
        if len(kinds) > 1:
            raise UserError(
                f"{self.root}: the folder contains 2-D image files and volumes; expected only one kind; put them into "
                "two folders"
            )
        if True in kinds:
            return 0.0, 255.0
        return None if self.intensity_max is None else (0.0, self.intensity_max)

    def find_sites(self) -> dict[str, Path]:
        """Find the sites: the folders in `root`, or in its folder `images`, or the sites that the datalist names.

        UserError if `root` looks like a single site, if its folders look like DICOM patients, or if the datalist is
        damaged. Sites that are listed in the field `sites` are not doubted.
        """
        root = Path(self.root)
        if self.datalist is not None:
            return dict.fromkeys(datalists.rows_by_site(self._own_table(root / self.datalist)), root)
        roles = Roles() if self._has_fixed_names() else find_site_folders(root, self._names(), not self.sites)
        folders: dict[str, Path] = {}
        for folder in (roles.masks, roles.images) if roles else (root,):
            folders |= file_names.list_folder(folder, self.ignored_names).folders if folder else {}
        if not self.sites and not self._has_fixed_names():
            dicom_patients.refuse_patients_as_sites(root, folders.values(), self.ignored_names)
        return dict(sorted(folders.items()))

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        """Return the cases of a site, and one sentence for each problem with its files."""
        if self.datalist is not None:
            cases, problems = datalists.site_cases(Path(self.root) / self.datalist, site, self.patient_pattern)
            return self._hide_names(folder, cases), problems
        found = self._pairs(folder)
        cases = []
        for name, (image, mask) in found.pairs.items():
            patient = file_names.extract_patient(name, self.patient_pattern, image, found.problems)
            if self.patient_pattern is None and image.is_dir():
                patient = dicom.patient_id(image, self.ignored_names)
            patient = patient or found.patients.get(name, "")
            cases.append(Case(site, name, image, mask, patient, more_masks=found.more_masks.get(name, ())))
        hidden = self._hide_names(folder, cases)
        return hidden, found.problems + check_names.year_problems(folder, hidden)

    def root_warnings(self) -> list[str]:
        """Warn if every site has a single case, and about columns of the datalist that are not read."""
        root = Path(self.root)
        if self.datalist is not None:
            columns = datalists.other_columns(root / self.datalist)
            return [f"{root / self.datalist}: not read: the columns {', '.join(columns)}"] if columns else []
        folders = self.find_sites()
        if len(folders) < 2 or any(len(self.find_cases(*site)[0]) != 1 for site in folders.items()):
            return []
        return [
            f"{root}: each of its {len(folders)} folders holds one image with its mask and counts as a site; if they "
            "are the cases of one site, put them into a folder for this site"
        ]

    def site_warnings(self, site: str) -> list[str]:
        """Warn about folders that count as patients, about parts of a split that are read together, and about a
        PatientID that is probably the same for several patients."""
        if self.datalist is not None:
            return []
        found = self._pairs(self._site_folders()[site])
        folders = sorted({name.partition("/")[0] for name in found.pairs if "/" in name})
        warnings = []
        if parts := [name for name in folders if is_part(name)]:
            warnings.append(
                f"{site}: the folders {' and '.join(parts)} are read together, and medfed splits the patients itself; "
                "to keep this split, list the images in a datalist with the column split"
            )
        is_dicom = {name: image.is_dir() for name, (image, _) in found.pairs.items()}
        by_folder = [
            name
            for name, patient in found.patients.items()
            if patient in name.split("/")[:-1]
            and not (is_dicom[name] and dicom.patient_id(found.pairs[name][0], self.ignored_names))
        ]
        if folders and by_folder and self.patient_pattern is None:
            named = [name for name in by_folder if not is_dicom[name]]  # other folders may have names of patients
            first = next((found.patients[name] for name in named if "/" in name), folders[0])
            example = f", such as those in {first}" if named else ""
            warnings.append(
                f"{site}: all images in a folder count as one patient{example}; if they are not, set "
                "data.patient_pattern"
            )
        if self.patient_pattern is None:
            cases = self.cases_and_problems(site)[0]
            warnings += dicom_patients.shared_patient_warnings(site, cases, self.ignored_names)
        return warnings

    def lists_in_root(self) -> tuple[str, ...]:
        """The datalists that are read, relative to `root`."""
        if self.datalist is not None:
            return (self.datalist,)
        root = Path(self.root)
        return tuple(str(path.relative_to(root) / datalists.MSD_LIST) for path in self.find_sites().values())

    def names_to_ignore(self) -> tuple[str, ...]:
        return self.ignored_names

    def check_sizes(self, case: Case) -> None:
        if not self.resample_masks:
            reading.check_stored_sizes(case.image, case.mask_path, _RESAMPLE)

    def fit_mask(self, case: Case, image: MetaTensor, mask: MetaTensor, notices: list[str]) -> MetaTensor:
        """As in `Dataset`, after reordering the axes of a volume's mask and, with `resample_masks`, resampling a mask
        of another size."""
        if case.image.is_dir() or not (self.ignore_mask_geometry or reading.is_2d_image_file(case.image)):
            mask = reading.reorder_mask(image, mask, notices)
        if self.resample_masks and image.shape[1:] != mask.shape[1:]:
            mask = reading.resample_mask(case.image, image, case.mask_path, mask)
            notices.append("mask resampled to the size of its image")
        reading.check_pair(case.image, image, case.mask_path, mask, self.ignore_mask_geometry, _RESAMPLE)
        return mask

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        if case.image.is_dir():
            image = dicom.read_series(case.image, self.dicom_series, self.ignored_names)
            return reading.check_image(case.image, image, self.channels, notices, suggest_keys=True)
        return reading.read_image(
            case.image,
            self.channels,
            notices,
            intensity_max=self.intensity_max,
            grey_to_rgb=self.grey_to_rgb,
            suggest_keys=True,
        )

    def read_mask(self, case: Case, notices: list[str]) -> MetaTensor:
        mask = self._read_mask_file(case, case.mask_path, notices)
        for path in case.more_masks:
            more: list[str] = []
            mask = reading.join_masks(case.mask_path, mask, path, self._read_mask_file(case, path, more))
            notices += [notice for notice in more if notice not in notices]
        return mask

    def _read_mask_file(self, case: Case, path: Path, notices: list[str]) -> MetaTensor:
        """Read a DICOM SEG object, or a mask whose values or colours mean structures, as (S, H, W, D)."""
        if dicom_files.kind_of(path) == "segmentation":
            grid = self._grid(case)
            return dicom_seg.read_segmentation(path, grid, self.structures, self.mask_values, notices)
        if self.mask_colours:
            return self._read_colours(path, notices)
        is_single = len(self.structures) == 1 and not self.mask_values and self.background_value == 0
        mask = reading.read_labels(
            path, notices, self.mask_threshold, is_single, ", or name the colours in data.mask_colours:"
        )
        if self.mask_values or len(self.structures) > 1:
            hint = "assign the values to structures with data.mask_values"
            channels = reading.to_structures(path, mask, self._labels(), self.structures, hint)
            notices += nesting.nesting_notices(channels.as_tensor(), self._labels(), self.structures)
            return channels
        others = [value for value in reading.label_values(mask) if value != self.background_value]
        if len(others) > 1:
            soft = "for soft edges or JPEG files, set data.mask_threshold: 128"
            exact = "assign the values to structures with data.mask_values"
            raise UserError(
                f"{path}: the mask has the values {reading.format_values(others)}, and the background value "
                f"{self.background_value}; expected exactly one value in addition to the background value; "
                f"{soft if len(others) > 8 else exact}"
            )
        labels = {self.background_value: (), **dict.fromkeys(others, self.structures)}
        return reading.to_structures(path, mask, labels, self.structures)

    def _read_colours(self, path: Path, notices: list[str]) -> MetaTensor:
        """Read a mask whose colours mean structures, as (S, H, W, D)."""
        by_colour = structures_by_colour(self.mask_colours, self.structures, self.background_value)
        mask = read_coloured_mask(path, by_colour, self.structures, notices)
        notices += nesting.nesting_notices(mask.as_tensor(), by_colour, self.structures)
        return mask

    def _names(self) -> NameSettings:
        """The settings that say how files are found and paired."""
        return NameSettings(
            self.image_folders,
            self.mask_folders,
            self.image_name,
            self.mask_name,
            self.ignored_names,
            self.merge_masks,
            None if self.follow_symlinks else Path(self.root),
        )

    def _has_fixed_names(self) -> bool:
        """Return whether the files have the same two names in every case folder."""
        return bool(self.image_name and self.mask_name and "*" not in self.image_name + self.mask_name)

    def _pairs(self, folder: Path) -> Found:
        """Pair the images and masks of one site, in the layout that its folder has."""
        if not self._has_fixed_names():
            roles = find_site_folders(Path(self.root), self._names())
            if roles.images and roles.masks:
                inner = roles.images / folder.name, roles.masks / folder.name
                if all(map(Path.is_dir, inner)) and dicom_files.holds_dicom(inner[0], self.ignored_names):
                    return dicom_search.pair_dicom_folders(*inner, self._names())
                return pair_inner_folder(roles.images, roles.masks, folder.name, self._names())
            if dicom_files.holds_dicom(folder, self.ignored_names):
                return dicom_search.find_dicom_pairs(folder, self._names())
            return find_pairs(folder, self._names())
        if not self.one_site_per_case:
            return pair_case_folders(folder, self._names())
        assert self.image_name and self.mask_name
        try:
            image, mask = find_case_files(folder, self.image_name, self.mask_name, self.ignored_names)
        except UserError as error:
            return Found({}, [str(error)])
        if image and mask:
            return Found({folder.name: (image, mask)})
        missing = self.mask_name if image else self.image_name
        return Found(
            {},
            [f"{folder}: the folder has no file named {missing}; add it, or list only the other sites in data.sites"],
        )

    def _refuse_table_without_sites(self) -> None:
        """Raise UserError if a table in `root` lists images and masks, but no sites, and the names make no pairs."""
        root = Path(self.root)
        tables = [name for name, columns in datalists.tables(root).items() if {"image", "mask"} <= columns]
        if tables and not any(self._pairs(folder).pairs for folder in self.find_sites().values()):
            datalists.read_datalist(root / tables[0])

    def _grid(self, case: Case) -> dicom_seg.Grid:
        """Return the voxel grid of the image of a case, on which a DICOM SEG mask is placed."""
        if case.image.is_dir():
            stack = dicom.find_stack(case.image, self.dicom_series, self.ignored_names)
            return dicom_seg.Grid(case.image, stack.shape, stack.affine, stack.slices[0].frame_of_reference)
        image = self.read_image(case, [])
        return dicom_seg.Grid(case.image, tuple(image.shape[1:]), image.affine.numpy())

    def _hide_names(self, folder: Path, cases: list[Case]) -> list[Case]:
        """Replace the names of the DICOM cases of a site by names that tell nothing about the patients."""
        if not any(case.image.is_dir() for case in cases):
            return cases
        salt = dicom_names.read_salt(Path(self.dicom_salt) if self.dicom_salt else folder / dicom_names.SALT_FILE)
        return [dicom_names.hide_names(case, salt) if case.image.is_dir() else case for case in cases]

    def _labels(self) -> dict[int, tuple[str, ...]]:
        """Return the structures that each mask value belongs to; none for the background."""
        values = self.mask_values or {name: (index,) for index, name in enumerate(self.structures, 1)}
        labels: dict[int, tuple[str, ...]] = {self.background_value: ()}
        for name in self.structures:
            for value in values[name]:
                labels[value] = (*labels.get(value, ()), name)
        return labels

    def _check_structures(self) -> None:
        names = self.structures
        if not names or len(set(names)) < len(names):
            raise ValueError(f"structure_names must be one or more different names, got {list(names)}")
        if self.mask_values and (set(self.mask_values) != set(names) or not all(self.mask_values.values())):
            raise ValueError(f"mask_values must assign values to each of {list(names)}, got {dict(self.mask_values)}")
        if any(self.background_value in values for values in self.mask_values.values()):
            raise ValueError(
                f"background_value {self.background_value} also belongs to a structure in mask_values; change one of "
                "them"
            )
        if self.mask_colours and (self.mask_values or self.mask_threshold is not None):
            raise ValueError("mask_colours replaces mask_values and mask_threshold; remove them, or mask_colours")
        if self.mask_colours:
            structures_by_colour(self.mask_colours, names, self.background_value)
        if self.mask_threshold is not None and (self.mask_values or len(names) > 1):
            raise ValueError("mask_threshold needs a single structure without mask_values; remove one of the settings")
