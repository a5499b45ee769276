"""Base class of all datasets: sites with cases on disk; each case is loaded as one image volume with its masks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from monai.data import MetaTensor

from medfed.core import bounds, registry, site_names
from medfed.core.bounds import ImageSize, PositiveFloat, PositiveInt, RatioBelowOne
from medfed.core.errors import Problem, UserError
from medfed.core.files import has_utf8_name, note_absolute, printable_path
from medfed.datasets.case import Case, MaskFile, Volume
from medfed.datasets.check_groups import as_problem, join_problems
from medfed.datasets.pairing import Layout, Match, pair, parents
from medfed.datasets.patterns import compile_patterns
from medfed.datasets.walk import Files, walk
from medfed.images import dicom_files, pairs, reading
from medfed.images.file_names import folded

PHANTOM_MARK = "PHANTOM.json"  # this file in a folder marks its images as synthetic
Standardise = Literal["none", "slice", "volume", "dataset", "imagenet"]  # see `Dataset`
Progress = Callable[[Iterable], Iterable]  # wraps an iterable to show a progress bar, as tqdm does


@dataclass(frozen=True)
class Card:
    """Description of a dataset for its users; `python -m medfed.data card NAME` prints it.

    Args:
        title: short title.
        description: what the images show, how many there are, and from which sites.
        licence: licence or terms of use.
        citation: publications to cite.
        how_to_get: how to obtain the files and where to put them.
        layout: names of the folders and files that the dataset expects.
    """

    title: str
    description: str
    licence: str
    citation: str
    how_to_get: str
    layout: str


@dataclass
class Contents:
    """What the folder of a dataset holds, from one scan, by site; what concerns all sites is under ""."""

    cases: dict[str, list[Case]] = field(default_factory=dict)  # in any order; a site may have none
    # What must be corrected before training.
    problems: defaultdict[str, list[Problem]] = field(default_factory=lambda: defaultdict(list))
    classes: tuple[str, ...] = ()  # in the order of the class numbers; empty for segmentation
    # What is allowed, but may be a mistake.
    warnings: defaultdict[str, list[Problem]] = field(default_factory=lambda: defaultdict(list))
    unread: list[Problem] = field(default_factory=list)  # folders that hold files which are not read


@dataclass(frozen=True)
class Dataset:
    """Base class of all datasets. Its fields are the keys of the block `data` in a config.

    A dataset is a list of cases: images with masks (segmentation) or a class (classification). A subclass says by
    patterns (`medfed.datasets.patterns`) where the files are, `image_patterns` and `mask_patterns`, and how masks are
    read (`read_mask`). The folder is scanned once for each dataset object; files that are added later are not seen.

    Args:
        root: folder that contains the sites, relative to the working directory.
        image_size: side length in pixels, from 1 to 4096, of the square images that the network receives. Slices are
            resized to it.
        patch_size: null trains a 2-D network on slices. Three numbers of voxels, along the axes right, anterior and
            superior, train a 3-D network on patches of this size; `image_size` then has no effect.
        spacing_mm: with `patch_size`, the voxel size in mm, along the same axes, to which volumes are resampled. null
            keeps the voxel size of each file.
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
            share once. "imagenet" uses the fixed numbers of ImageNet, and is the default of the published collections
            for classification.
        min_patients: with `standardise: dataset`, a site with fewer training patients than this does not share the
            moments of its images, because they would describe single patients. Such a site trains as usual. At least 1.
            What a method shares has its own minimum, `method.min_patients`.
        if_missing: "error" stops if `root` does not exist; "phantom" creates and uses a synthetic phantom instead, and
            every result states that the data are synthetic.
        ignore_mask_geometry: true accepts a mask whose header places it elsewhere than its image (another voxel size,
            orientation or position) and assumes that their voxels correspond one to one. No axis of a mask is then
            reversed or exchanged.
        allow_duplicates: true allows the same image file to occur more than once, in one site or in several.
    """

    root: str
    image_size: ImageSize = 384
    patch_size: tuple[ImageSize, ImageSize, ImageSize] | None = None
    spacing_mm: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None
    sites: tuple[str, ...] = ()
    validation_ratio: RatioBelowOne = 0.1
    test_ratio: RatioBelowOne = 0.2
    standardise: Standardise = "none"
    min_patients: PositiveInt = 3
    if_missing: Literal["error", "phantom"] = "error"
    ignore_mask_geometry: bool = False
    allow_duplicates: bool = False

    card: ClassVar[Card]
    published_counts: ClassVar[Mapping[str, int]] = {}  # number of cases per site, if published
    published_n_classes: ClassVar[int] = 0  # number of classes, if published
    image_patterns: ClassVar[tuple[str, ...]] = ()
    mask_patterns: ClassVar[tuple[str, ...]] = ()  # empty for classification
    site_folders: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # possible names of each site's folder; {}: any folder

    def __post_init__(self) -> None:
        bounds.check(self)
        if self.validation_ratio + self.test_ratio >= 1:
            sizes = f"{self.validation_ratio} and {self.test_ratio}"
            raise ValueError(f"validation_ratio and test_ratio must sum to less than 1, got {sizes}")
        if self.spacing_mm and not self.patch_size:
            raise ValueError("spacing_mm has no effect without patch_size; set patch_size too, or remove spacing_mm")
        if self.patch_size and self.standardise == "slice":
            raise ValueError("standardise: slice needs slices; choose none, volume or dataset, or remove patch_size")

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return this dataset if an existing folder holds the published collection, or None.

        For segmentation, one case is enough; for classification, the folder has all sites, and at each the published
        number of classes.
        """
        known = {folded(name) for folders in cls.site_folders.values() for name in folders}
        known |= set(map(folded, cls.published_counts))
        if not any(folded(path.name) in known for path in root.iterdir()):
            return None
        dataset = cls(root=str(root))
        contents = dataset.scan()
        if not cls.published_n_classes:
            return dataset if any(contents.cases.values()) else None
        labels = [{case.label for case in contents.cases.get(site, ())} for site in cls.published_counts]
        is_whole = all(len(at_site) == len(contents.classes) == cls.published_n_classes for at_site in labels)
        return dataset if is_whole else None

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
        return self.contents.classes

    @property
    def ratio_structures(self) -> tuple[str, str] | None:
        """(inner, outer) structures whose ratio of vertical diameters is reported, such as ("cup", "disc"), or None."""
        return None

    @property
    def intensity_range(self) -> tuple[float, float] | None:
        """Stored intensities (low, high) that are mapped to 0 and 1 for the network; (0, 255) for 2-D image files.

        None, as here and for MRI, maps the percentiles 0.5 and 99.5 of each volume to 0 and 1.
        """
        return None

    @property
    def is_phantom(self) -> bool:
        """Whether the images are synthetic, by a mark in their folder; every result of a run then says so."""
        return (Path(self.root) / PHANTOM_MARK).is_file()

    def with_stored_channels(self, cases: Iterable[Case] | None = None) -> Dataset:
        """Return this dataset with the number of image channels that the files of these cases, or of a few of each
        site, have. The base class returns itself."""
        return self

    @cached_property
    def contents(self) -> Contents:
        """What the only scan of the folder has found. UserError for no site or an invalid name."""
        contents = self.scan()
        if not contents.cases:
            found = f"the folder '{self.root}' contains no site; expected {self.card.layout}"
            nothing = Problem("folder without a site", "data.root", found, self._help())
            raise join_problems(contents.problems[""] or [nothing, *contents.unread])
        try:
            site_names.check(contents.cases)
        except ValueError as error:
            raise UserError(f"{self.root}: {error}") from None
        for site in contents.cases:
            self._check_site(site, contents)
        return contents

    def _check_site(self, site: str, contents: Contents) -> None:
        """Sort the cases of a site by their names, and add the problems with the names and the missing classes.

        Patients whose names differ only in upper and lower case, or in the Unicode form, are one patient.
        """
        cases = contents.cases[site]
        problems = contents.problems[site]
        for path in dict.fromkeys(path for case in cases for path in case.files if not has_utf8_name(path)):
            found = "the file name is not valid UTF-8, so tables cannot contain it"
            problems.append(Problem("name that is not UTF-8", printable_path(path), found, "rename the file"))
        problems.extend(
            Problem("repeated name", site, f"{n} cases have the name '{name}'; expected one", "rename the files")
            for name, n in Counter(case.name for case in cases).items()
            if n > 1
        )
        if not cases and not problems:
            found = f"the site {site} has no images; expected {self.card.layout}"
            problems.append(Problem("site without images", self.root, found, self._help()))
        usable = sorted((case for case in cases if all(map(has_utf8_name, case.files))), key=lambda case: case.name)
        first: dict[str, str] = {}
        patients = [first.setdefault(folded(case.patient), case.patient) for case in usable]
        contents.warnings[site].extend(
            Problem("one patient", site, f"{other} and {patient} count as one patient", "rename one if they are two")
            for other, patient in dict.fromkeys((case.patient, patient) for case, patient in zip(usable, patients))
            if other != patient
        )
        contents.cases[site] = [
            case if case.patient == patient else replace(case, patient=patient)
            for case, patient in zip(usable, patients)
        ]
        labels = {case.label for case in cases}
        contents.warnings[site].extend(
            Problem("no images of a class", site, f"no images of the class '{name}'", "check the names of the folders")
            for number, name in enumerate(contents.classes)
            if cases and number not in labels
        )

    def scan(self) -> Contents:
        """Find all cases by the names of the files, without opening them. A subclass may find them in another way."""
        files = walk(Path(self.root))
        masks = tuple(("", pattern) for pattern in compile_patterns(self.mask_patterns))
        return self.scan_layouts(files, [Layout(compile_patterns(self.image_patterns), masks)])

    def scan_layouts(self, files: Files, layouts: Sequence[Layout]) -> Contents:
        """Match files with the general layout, and with those of single sites, which replace it for these sites."""
        own = {layout.site for layout in layouts[1:]}
        contents, pairs, seen = Contents(), list[tuple[str, Match]](), set[str]()
        for number, layout in enumerate(layouts):
            read = files.without(layout.ignored_names)
            seen |= {*files.images, *files.slices} - {*read.images, *read.slices}
            result = pair(read, layout)
            found: list[tuple[str, Match | Problem]] = [(one.fields["site"], one) for one in result.pairs]
            for name, one in [*found, *result.problems]:
                site = self.site_name(name) if name else layout.site
                if site is None or (site != layout.site if number else site in own):
                    continue  # no site, or another layout decides
                if isinstance(one, Match):
                    pairs.append((site, one))
                    seen |= {one.path, *(path for _, path in one.masks)}
                else:
                    problem = Problem(one.kind, files.root / one.place, one.found, one.cure)
                    contents.problems[site].append(problem)
                    seen.add(one.place)
        contents.classes = self.class_names_of((site, one.fields.get("class", "")) for site, one in pairs)
        numbers = {folded(name): number for number, name in enumerate(contents.classes)}
        for site, one in pairs:
            label = numbers.get(folded(one.fields.get("class", "")))
            if contents.classes and label is None:  # a class that `class_names` leaves out
                continue
            image = files.root / one.path
            masks = tuple(MaskFile(files.root / path, structure) for structure, path in one.masks)
            try:
                name, patient = self.case_name(site, one.fields), self.patient_name(site, one)
            except UserError as error:
                contents.problems[site].append(as_problem(error, image))
                continue
            case = Case(site, name, image, masks, patient, label, self.part_name(one.fields))
            contents.cases.setdefault(site, []).append(case)
        for site in contents.problems:
            if site:
                contents.cases.setdefault(site, [])
        left = [path for path in files.images if path not in seen]
        left += [path for path in files.slices if not seen.intersection(parents(path))]
        contents.unread = describe_unread(files.root, left)
        return contents

    def site_name(self, folder: str) -> str | None:
        """Return the name of the site to which a folder of a published collection belongs; None if it is no site."""
        if not self.site_folders:
            return folder
        names = {folded(name): site for site, folders in self.site_folders.items() for name in folders}
        return names.get(folded(folder))

    def class_names_of(self, classes: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """Return the classes of the sites in use in alphabetical order, given the site and class ("") of each image."""
        spelling: dict[str, str] = {}
        for site, name in classes:
            if name and (not self.sites or site in self.sites):
                spelling.setdefault(folded(name), name)
        return tuple(sorted(spelling.values()))

    def case_name(self, site: str, values: Mapping[str, str]) -> str:
        """Return the name of a case: the values of the fields of its pattern, except the site, joined by `/`."""
        return "/".join(value for name, value in values.items() if name != "site" and value) or site

    def patient_name(self, site: str, one: Match) -> str:
        """Return the patient, the value of the field `patient`; "" makes each case a patient of its own."""
        return one.fields.get("patient", "")

    def part_name(self, values: Mapping[str, str]) -> str:
        """Return the part of a published split that a case belongs to; "" lets `splits.split` decide."""
        return ""

    def fit_mask(self, case: Case, image: MetaTensor, mask: MetaTensor, notices: list[str]) -> MetaTensor:
        """Check that a mask (S, H, W, D) has the voxel grid of its image (C, H, W, D), and return the mask.

        A subclass may resample it first, and then appends a short description to `notices`. UserError if image and mask
        differ in shape or position.
        """
        pairs.check_pair(case.image, image, case.mask_path, mask, self.ignore_mask_geometry)
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
        """
        name = f"{registry.name_of('datasets', type(self))}_phantom"
        if name not in registry.known_names("datasets"):
            cure = "set data.if_missing: error, and the folder of your images in data.root"
            raise UserError(f"data.if_missing: the dataset {type(self).__name__} has no phantom; {cure}")
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return registry.resolve("datasets", name)(**{**settings, "root": f"{Path(self.root)}_phantom"})

    def ensure_available(self, progress: Progress | None = None) -> Dataset:
        """Return this dataset, or create and return its phantom if `root` is missing and `if_missing` is "phantom".

        A phantom that exists with the same settings is used again. `progress` shows a progress bar of its cases.
        """
        if Path(self.root).is_dir():
            return self
        if self.if_missing == "phantom":
            return self.phantom().ensure_available(progress)
        found = f"the folder '{self.root}' does not exist{note_absolute(Path(self.root))}; expected {self.card.layout}"
        raise Problem("missing folder", "data.root", found, self._help())

    def site_names(self) -> list[str]:
        """Return the sorted names of the sites in use: those in the field `sites`, or all in `root` if it is empty."""
        names = sorted(self.contents.cases)
        if missing := [site for site in self.sites if site not in names]:
            if (folder := Path(self.root) / missing[0]).is_dir():
                found = f"the site {missing[0]} has no images; expected {self.card.layout}"
                cure = "add its images, or list only the other sites in data.sites"
                raise Problem("site without images", folder, found, cure)
            suggestion = registry.suggestion(missing[0], names)
            raise UserError(f"data.sites: there is no site '{missing[0]}' in {self.root}. {suggestion}")
        return sorted(self.sites) or names

    def cases_and_problems(self, site: str) -> tuple[list[Case], list[Problem]]:
        """Return the cases of one site, sorted by `Case.name`, and the problems with the names and places of files."""
        contents = self.contents
        return list(contents.cases[site]), contents.problems[""] + contents.problems[site]

    def cases(self, site: str) -> list[Case]:
        """Return the cases of one site, sorted by `Case.name`; UserError as in `cases_by_site`."""
        return self.cases_by_site([site])[site]

    def cases_by_site(self, sites: Iterable[str]) -> dict[str, list[Case]]:
        """Return the cases of each of the sites, sorted by `Case.name`; UserError with all problems of their files."""
        by_site = {site: self.cases_and_problems(site) for site in sites}
        if problems := [problem for _, of_site in by_site.values() for problem in of_site]:
            raise join_problems(problems)
        return {site: cases for site, (cases, _) in by_site.items()}

    def load(self, case: Case) -> Volume:
        """Read image and mask of a case; UserError if a file is damaged, or if their voxel grids differ."""
        notices: list[str] = []
        _ = case.mask_path  # TypeError if the case has a class instead
        image = self.read_image(case, notices)
        mask = self.fit_mask(case, image, self.read_mask(case, notices), notices)
        notices += [f"no {name} in the mask" for name, shown in zip(self.structures, mask) if not shown.any()]
        return Volume(image, mask, reading.spacing_mm(case.image, image), tuple(notices))

    def _help(self) -> str:
        """Return where to read how to get the dataset."""
        name = registry.name_of("datasets", type(self))
        return f"`python -m medfed.data card {name}` explains how to get the dataset"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what the scan has found, of which a process that receives this dataset needs no copy."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


def describe_unread(root: Path, paths: Iterable[str], reason: str = "no pattern matches them") -> list[Problem]:
    """Return a problem for each folder directly in `root` with files that are not read, with an example."""
    by_folder: dict[tuple[str, bool], list[str]] = {}
    for path in sorted(paths):
        is_series = (root / path).is_dir()
        is_known = bool(is_series or reading.suffix(path) or dicom_files.kind_of(root / path))
        by_folder.setdefault((path.partition("/")[0] if "/" in path else "", is_known), []).append(path)
    return [
        Problem(
            "folder with files that are not read",
            printable_path(root / folder),
            f"not read, because {reason if is_known else 'their format is not supported'}: {len(inside)} "
            f"file{'' if len(inside) == 1 else 's'}, such as {printable_path(Path(inside[0]))}",
            "" if is_known else "convert them, or leave them out with data.ignored_names",
        )
        for (folder, is_known), inside in by_folder.items()
    ]
