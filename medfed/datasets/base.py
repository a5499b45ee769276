"""Base class of all datasets: sites with cases on disk; each case is loaded as one image volume with its masks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from monai.data import MetaTensor

from medfed.core import bounds, registry, site_names
from medfed.core.bounds import ImageSize, PositiveInt, RatioBelowOne
from medfed.core.errors import UserError
from medfed.core.files import has_utf8_name, note_absolute, printable_path
from medfed.datasets import dicom_files, reading, unread, volume_headers
from medfed.datasets.card import Card
from medfed.datasets.case import Case, Volume
from medfed.datasets.check_groups import join_problems
from medfed.datasets.file_names import lies_inside, table_outside

MAX_SITES = 1000
PHANTOM_MARK = "PHANTOM.json"  # this file in a folder marks its images as synthetic
Standardise = Literal["none", "slice", "volume", "dataset", "imagenet"]  # see `Dataset`
Progress = Callable[[Iterable], Iterable]  # wraps an iterable to show a progress bar, as tqdm does


@dataclass(frozen=True)
class Dataset:
    """Base class of all datasets. Its fields are the keys of the block `data` in a config.

    A subclass defines where its files are (`find_sites`, `find_cases`) and how they are read (`read_image`,
    `read_mask`); this class makes the checks that all datasets share. A case is one image with its mask (segmentation)
    or its class (classification).

    Args:
        root: folder that contains the sites, relative to the working directory.
        image_size: side length in pixels, from 1 to 4096, of the square images that the network receives. Slices are
            resized to it.
        sites: names of the sites to use; an empty list uses every site that is found in `root`.
        validation_ratio: fraction of each source site's patients, in [0, 1), that is used to select the best round. The
            unseen site is not split.
        test_ratio: fraction of each source site's patients, in [0, 1), that is used to compute the score on seen sites.
            validation_ratio + test_ratio must be below 1; the remaining patients are used for training.
        standardise: which mean and standard deviation each image channel is scaled by before the network, after
            augmentation and restyling. "none" leaves intensities in [0, 1], and is the default for segmentation.
            "slice" uses those of the image itself, so that a change of the image's brightness or contrast has no
            effect. "volume" uses those of the patient's whole volume before any change (for 2-D images: of the image
            before any change). "dataset" uses those of the training images of all sites that train, which the sites
            share once. "imagenet" uses the fixed numbers of ImageNet, and is the default for classification.
        min_patients: with `standardise: dataset`, a site with fewer training patients than this does not share the
            moments of its images, because they would describe single patients. Such a site trains as usual. At least 1.
            What a method shares has its own minimum, `method.min_patients`.
        if_missing: "error" stops if `root` does not exist; "phantom" creates and uses a synthetic phantom instead, and
            every result states that the data are synthetic.
        follow_symlinks: true also reads files outside `root`, if a symbolic link inside `root` points to them.
        ignore_mask_geometry: true accepts a mask whose header places it elsewhere than its image (another voxel size,
            orientation or position) and assumes that their voxels correspond one to one.
        allow_duplicates: true allows the same image file to occur more than once, in one site or in several.
    """

    root: str
    image_size: ImageSize = 384
    sites: tuple[str, ...] = ()
    validation_ratio: RatioBelowOne = 0.1
    test_ratio: RatioBelowOne = 0.2
    standardise: Standardise = "none"
    min_patients: PositiveInt = 3
    if_missing: Literal["error", "phantom"] = "error"
    follow_symlinks: bool = False
    ignore_mask_geometry: bool = False
    allow_duplicates: bool = False

    card: ClassVar[Card]
    published_counts: ClassVar[Mapping[str, int]] = {}  # number of cases per site, if published
    # Order in which `recognition.recognise` tries the datasets: 0 for one published collection, 1 for any images in a
    # particular layout, 2 for any folder.
    generality: ClassVar[int] = 0

    def __post_init__(self) -> None:
        bounds.check(self)
        if self.validation_ratio + self.test_ratio >= 1:
            raise ValueError(
                "validation_ratio and test_ratio must sum to less than 1, "
                f"got {self.validation_ratio} and {self.test_ratio}"
            )

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return a dataset with settings that fit the files of an existing folder, or None if it has another layout.

        `medfed.datasets.recognise` calls this method of all datasets, in the order of their `generality`.
        """
        return None

    @property
    def channels(self) -> int:
        """Number of image channels: 1 for MRI or grey images, 3 for colour images. A subclass must define it."""
        raise TypeError(f"{type(self).__name__} must define the property channels")

    @property
    def structures(self) -> tuple[str, ...]:
        """Names of the structures that the masks show, in the order of the mask channels. Empty for classification."""
        return ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the class numbers, which start at 0. Empty for segmentation."""
        return ()

    @property
    def ratio_structures(self) -> tuple[str, str] | None:
        """(inner, outer) structures whose ratio of vertical diameters is reported, such as ("cup", "disc"); None for
        none."""
        return None

    @property
    def intensity_range(self) -> tuple[float, float] | None:
        """Stored intensities (low, high) that are mapped to 0 and 1 for the network; (0, 255) for 2-D image files.

        None, as here and for MRI, maps the percentiles 0.5 and 99.5 of each volume to 0 and 1.
        """
        return None

    @property
    def is_phantom(self) -> bool:
        """Whether the images are synthetic; every result of a run then says so. False in the base class."""
        return False

    def with_stored_channels(self) -> Dataset:
        """Return this dataset with the number of image channels that its files have. The base class returns itself."""
        return self

    def find_sites(self) -> dict[str, Path]:
        """Return the folder in `root` of each site, by the name of the site. A subclass must define this method."""
        raise TypeError(f"{type(self).__name__} must define find_sites")

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        """Find the cases of one site by the names of its files, without opening them. A subclass must define it.

        Args:
            site: name of the site.
            folder: folder of the site, from `find_sites`.

        Returns:
            The cases, in any order; and the problems: one sentence for each image without a mask, for each mask without
            an image, and for each file that exists twice.
        """
        raise TypeError(f"{type(self).__name__} must define find_cases")

    def has_cases(self) -> bool:
        """Return whether at least one site in `root` has a case. No image file is opened."""
        return any(self.find_cases(site, folder)[0] for site, folder in self.find_sites().items())

    def site_warnings(self, site: str) -> list[str]:
        """Return one sentence for each property of a site that is allowed, but may be a mistake. Empty in the base
        class."""
        return []

    def root_warnings(self) -> list[str]:
        """Return one sentence for each property of `root` that is allowed, but may be a mistake. Empty in the base
        class."""
        return []

    def unread(self, cases: Iterable[Case], problems: Iterable[str]) -> list[str]:
        """Return one sentence for each folder that holds something that is not read, so that no image is missed.

        The folders of sites that the field `sites` leaves out are not described, nor are text files and tables in the
        folder of a published collection.

        Args:
            cases: all cases of the sites in use.
            problems: the problems with these sites. A file or folder with which a problem begins is not described.
        """
        folders = self._site_folders()
        known = {path for case in cases for path in case.files}
        known |= {Path(problem.partition(": ")[0]) for problem in problems}
        known |= {folder for name, folder in folders.items() if self.sites and name not in self.sites}
        known |= {Path(self.root) / name for name in (PHANTOM_MARK, *self.lists_in_root())}
        return unread.describe_unread(Path(self.root), known, self.names_to_ignore(), documents=self.generality > 0)

    def lists_in_root(self) -> tuple[str, ...]:
        """Return the files that the dataset reads in addition to images and masks, relative to `root`. Empty in the
        base class."""
        return ()

    def names_to_ignore(self) -> tuple[str, ...]:
        """Return patterns of names of files and folders that the user wants to leave out. Empty in the base class."""
        return ()

    def check_sizes(self, case: Case) -> None:
        """Raise UserError if image and mask differ in size by their headers, before their pixels are read.

        A subclass that accepts a mask of another size must override this method.
        """
        reading.check_stored_sizes(case.image, case.mask_path)

    def fit_mask(self, case: Case, image: MetaTensor, mask: MetaTensor, notices: list[str]) -> MetaTensor:
        """Check that a mask (S, H, W, D) has the voxel grid of its image (C, H, W, D), and return the mask.

        A subclass may resample it first, and then appends a short description to `notices`. UserError if image and mask
        differ in shape or position.
        """
        reading.check_pair(case.image, image, case.mask_path, mask, self.ignore_mask_geometry)
        return mask

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        """Read the image of a case: (C, H, W, D) float32, finite.

        Volumes keep their stored intensities; 2-D image files are scaled to [0, 255] and have D = 1. Short descriptions
        of conversions and unusual properties are appended to `notices`. UserError if the file is missing, damaged or
        not as the dataset expects.
        """
        return reading.read_image(case.image, self.channels, notices)

    def read_mask(self, case: Case, notices: list[str]) -> MetaTensor:
        """Read the mask of a case: (S, H, W, D) uint8 of 0 and 1, one channel for each of the S `structures`.

        `notices` and errors are as in `read_image`. A subclass for segmentation must define this method.
        """
        raise TypeError(f"{type(self).__name__} must define read_mask")

    def phantom(self) -> Dataset:
        """Return the synthetic dataset ("phantom") that replaces this dataset if its images are missing.

        Its name in a config and its `root` end with `_phantom`; all other settings are the same. No image is created.
        UserError if there is no phantom of this dataset.
        """
        name = f"{registry.name_of('datasets', type(self))}_phantom"
        if name not in registry.known_names("datasets"):
            raise UserError(
                f"data.if_missing: the dataset {type(self).__name__} has no phantom; set data.if_missing: error and "
                "give the folder of your images in data.root"
            )
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return registry.resolve("datasets", name)(**{**settings, "root": f"{Path(self.root)}_phantom"})

    def ensure_available(self, progress: Progress | None = None) -> Dataset:
        """Return this dataset, or create and return its phantom if `root` is missing and `if_missing` is "phantom".

        A phantom that exists with the same settings is used again. `progress` shows a progress bar of its cases.
        UserError if `root` does not exist and `if_missing` is "error", if this dataset has no phantom, or if the
        phantom's folder contains other files.
        """
        if Path(self.root).is_dir():
            return self
        if self.if_missing == "phantom":
            return self.phantom().ensure_available(progress)
        raise UserError(
            f"data.root: the folder '{self.root}' does not exist{note_absolute(Path(self.root))}; expected "
            f"{self._layout_and_help()}"
        )

    def site_names(self) -> list[str]:
        """Return the sorted names of the sites in use: those in the field `sites`, or all in `root` if it is empty.

        UserError if `root` contains no site or a site with an invalid name, or if a site in `sites` is missing.
        """
        names = sorted(self._site_folders())
        if missing := [site for site in self.sites if site not in names]:
            suggestion = registry.suggestion(missing[0], names)
            raise UserError(f"data.sites: there is no site '{missing[0]}' in {self.root}. {suggestion}")
        return sorted(self.sites) or names

    def cases_and_problems(self, site: str) -> tuple[list[Case], list[str]]:
        """Return the usable cases of one site, sorted by `Case.name`, and the problems with the names and locations of
        its files, one sentence each. No file is opened."""
        folder = self._site_folders()[site]
        cases, problems = self.find_cases(site, folder)
        # Only paths with a problem are put into a dict: each path that is hashed keeps 200 bytes more, of which a
        # collection of 455,954 patches would need 90 MB.
        paths = [path for case in cases for path in case.files]
        outside = dict.fromkeys(path for path in paths if not self._is_inside(path))
        not_utf8 = dict.fromkeys(path for path in paths if not has_utf8_name(path))
        problems += [
            f"{path}: this file, or the file with its voxels, lies outside {self.root}, behind a symbolic link "
            "or by a path in a datalist; move it into that folder, or set data.follow_symlinks: true"
            for path in outside
        ]
        problems += [
            f"{printable_path(path)}: the file name is not valid UTF-8, so tables cannot contain it; rename the file"
            for path in not_utf8
        ]
        counts = Counter(case.name for case in cases)
        problems += [
            f"{site}: {n} cases have the name '{name}'; expected every name once; rename the files"
            for name, n in counts.items()
            if n > 1
        ]
        if not cases and not problems:
            problems = [
                f"{folder}: the site {site} has no images; expected {self.card.layout}; add images, or list only the "
                "other sites in data.sites"
            ]
        if unusable := {**outside, **not_utf8}:
            cases = [case for case in cases if not unusable.keys() & set(case.files)]
        return sorted(cases, key=lambda case: case.name), problems

    def cases(self, site: str) -> list[Case]:
        """Return the cases of one site, sorted by `Case.name`; UserError as in `cases_by_site`."""
        return self.cases_by_site([site])[site]

    def cases_by_site(self, sites: Iterable[str]) -> dict[str, list[Case]]:
        """Return the cases of each of the sites, sorted by `Case.name`; UserError with all problems of their files, if
        any."""
        by_site = {site: self.cases_and_problems(site) for site in sites}
        problems = [problem for _, site_problems in by_site.values() for problem in site_problems]
        if problems:
            raise UserError(join_problems(problems, self.root))
        return {site: cases for site, (cases, _) in by_site.items()}

    def load(self, case: Case) -> Volume:
        """Read image and mask of a case that has a mask; UserError if a file is damaged, or if their voxel grids
        differ."""
        notices: list[str] = []
        self.check_sizes(case)
        image = self.read_image(case, notices)
        mask = self.fit_mask(case, image, self.read_mask(case, notices), notices)
        notices += [f"no {name} in the mask" for name in self.missing_structures(mask)]
        return Volume(image, mask, reading.spacing_mm(case.image, image), tuple(notices))

    def missing_structures(self, mask: MetaTensor) -> list[str]:
        """Return the names of the structures that a mask (S, H, W, D) does not contain: those whose channel is 0
        everywhere."""
        return [name for name, channel in zip(self.structures, mask, strict=True) if not channel.any()]

    def _site_folders(self) -> dict[str, Path]:
        """Find the sites, and raise UserError if there is none, if there are too many, or if a name is invalid."""
        folders = self.find_sites()
        if not folders:
            raise UserError(f"data.root: the folder '{self.root}' contains no site; expected {self._layout_and_help()}")
        if len(folders) > MAX_SITES:
            raise UserError(
                f"{self.root}: found {len(folders):,} sites, such as '{next(iter(folders))}'; expected at most "
                f"{MAX_SITES:,}; if these are patients or images, put them into one folder per site, or name the sites "
                "in the column site of the table"
            )
        try:
            site_names.check(folders)
        except ValueError as error:
            raise UserError(f"{self.root}: {error}") from None
        return folders

    def _layout_and_help(self) -> str:
        """The end of an error's text: the expected layout of the folder, and where to read how to get the dataset."""
        name = registry.name_of("datasets", type(self))
        return f"{self.card.layout}; `python -m medfed.data card {name}` explains how to get the dataset"

    def _is_inside(self, path: Path) -> bool:
        """Return whether links may be followed, or the file and the file with its voxels lie in `root`."""
        try:
            files = {path, *(dicom_files.all_files(path) if path.is_dir() else [volume_headers.data_file(path)])}
        except (OSError, UserError):  # damaged: reading the file will report it
            files = {path}
        return self.follow_symlinks or all(lies_inside(Path(self.root), file) for file in files)

    def _own_table(self, path: Path) -> Path:
        """Return the path of a table of images; UserError if it is named inside `root`, but a symbolic link leads
        outside."""
        is_named_inside = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(self.root))
        if is_named_inside and not (self.follow_symlinks or lies_inside(Path(self.root), path)):
            raise table_outside(path, Path(self.root))
        return path
