"""What a dataset is: sites, each with cases on disk, each loaded as one volume with its reference masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

from monai.data import MetaTensor

from medfed.core import bounds, registry, site_names
from medfed.core.bounds import PositiveInt, RatioBelowOne
from medfed.core.errors import UserError
from medfed.core.files import has_utf8_name, printable_path
from medfed.datasets import reading, volumes

PHANTOM_MARK = "PHANTOM.json"  # a file in the folder of every phantom
Progress = Callable[[Iterable], Iterable]  # wraps what is walked through, as tqdm does


@dataclass(frozen=True)
class Case:
    """One examination of one patient, on disk.

    patient: unique within its site, and the name of the case in every table.
    mask: the reference of a segmentation; None for classification.
    subject: the patient across cases. Cases with the same subject (two eyes, two visits) stay together in the splits.
    label: the number of its class, for classification.
    part: "train", "validation" or "test" where a published split says so; "" leaves it to `splits.split`.
    """

    site: str
    patient: str
    image: Path
    mask: Path | None = None
    subject: str = ""
    label: int | None = None
    part: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "subject", self.subject or self.patient)

    @property
    def mask_path(self) -> Path:
        """The reference; TypeError for a case of classification."""
        if self.mask is None:
            raise TypeError(f"{self.image}: has a class and no mask; read it with read_image")
        return self.mask


@dataclass(frozen=True)
class Volume:
    """One loaded case, in the geometry of its file.

    image: (C, H, W, D) float32, finite, as stored (pictures: from 0 to 255); a 2-D picture has D = 1.
    mask: (S, H, W, D) uint8 of 0 and 1, one channel a structure, in the order of the dataset's `structures`; the labels
        of the file are in `mask.meta["label_values"]`.
    spacing_mm: voxel size along H, W, D; None where the file does not tell (PNG), so that nobody reports millimetres.
    notices: what was changed or looks odd, a clause each, without the file's name.
    """

    image: MetaTensor
    mask: MetaTensor
    spacing_mm: tuple[float, float, float] | None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """What to know before using a dataset; `python -m medfed.data` prints it."""

    title: str
    description: str
    licence: str
    citation: str
    how_to_get: str  # how to get it, in a sentence
    layout: str  # folders and file names, as published
    url: str | None = None  # a plain download address, where one exists
    sha256: str | None = None  # of what lies there


@dataclass(frozen=True)
class Dataset:
    """Base of every dataset, and the `data` block of a config. A subclass is one file in `medfed/datasets`.

    A subclass says where its files are (`find_sites`, `find_cases`) and how one is read (`read_image`, `read_mask`);
    every check that all share is here.

    Args:
        root: the folder that holds the sites; relative to the working directory.
        image_size: side in pixels of the square slices that the network sees.
        sites: the sites to use; empty means every site found.
        validation_ratio, test_ratio: shares of each source site's *patients* kept for selection and for the seen-site
            score. The unseen site is not split: all of it is tested.
        standardise: give the network each image with zero mean and unit variance; false leaves it in [0, 1].
        if_missing: "error", or "phantom" to make the synthetic phantom (and say so on every result).
        follow_symlinks: read files that a link places outside `root`.
        ignore_mask_geometry: trust that voxels of a mask correspond one to one to those of its image, whatever its
            affine says.
        allow_duplicates: train although the same image file is there more than once, in one site or in two.
    """

    root: str
    image_size: PositiveInt = 384
    sites: tuple[str, ...] = ()
    validation_ratio: RatioBelowOne = 0.1
    test_ratio: RatioBelowOne = 0.2
    standardise: bool = True
    if_missing: Literal["error", "phantom"] = "error"
    follow_symlinks: bool = False
    ignore_mask_geometry: bool = False
    allow_duplicates: bool = False

    card: ClassVar[Card]
    published_counts: ClassVar[Mapping[str, int]] = {}  # cases of each site, where a publication has them
    generality: ClassVar[int] = 0  # of `recognise`: 0 one published collection, 1 any data in one layout, 2 any folder

    def __post_init__(self) -> None:
        bounds.check(self)
        if self.validation_ratio + self.test_ratio >= 1:
            raise ValueError(
                "validation_ratio and test_ratio must sum to less than 1, "
                f"got {self.validation_ratio} and {self.test_ratio}"
            )

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """This dataset, with settings that fit the files, if an existing folder has its layout; None otherwise.

        `python -m medfed.data check FOLDER` asks every dataset, those of the lowest `generality` first.
        """
        return None

    @property
    def channels(self) -> int:
        """Image channels: 1 for MRI, 3 for colour."""
        raise TypeError(f"{type(self).__name__} must say how many channels its images have")

    @property
    def structures(self) -> tuple[str, ...]:
        """Names of the structures, in the order of the mask's channels; none where images are classified."""
        return ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their numbers; none where images are segmented."""
        return ()

    @property
    def ratio_structures(self) -> tuple[str, str] | None:
        """(inner, outer) structures whose vertical-diameter ratio is reported, e.g. (cup, disc); None without one."""
        return None

    @property
    def intensity_range(self) -> tuple[float, float] | None:
        """(lowest, highest) intensity where the format fixes it (pictures: 0, 255); None for MRI: by percentile."""
        return None

    @property
    def is_phantom(self) -> bool:
        """Whether the images are synthetic. Written on every result."""
        return False

    def find_sites(self) -> dict[str, Path]:
        """The folder of every site under `root`."""
        raise TypeError(f"{type(self).__name__} must find its sites")

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        """The cases of one site, and a sentence for each file that has no partner or is there twice."""
        raise TypeError(f"{type(self).__name__} must find the cases of a site")

    def has_cases(self) -> bool:
        """Whether any site under `root` has a case."""
        return any(self.find_cases(site, folder)[0] for site, folder in self.find_sites().items())

    def site_warnings(self, site: str) -> list[str]:
        """A sentence for everything about a site that is allowed and yet worth knowing."""
        return []

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        """(C, H, W, D), as `Volume` has it; UserError where the file is wrong."""
        return reading.read_image(case.image, self.channels, notices)

    def read_mask(self, case: Case, notices: list[str]) -> MetaTensor:
        """(S, H, W, D), as `Volume` has it; UserError where the file is wrong."""
        raise TypeError(f"{type(self).__name__} must read a mask")

    def phantom(self) -> Dataset:
        """The synthetic dataset to use where this one is missing: `NAME_phantom`, in the folder `ROOT_phantom`.

        It has the same settings as this one.

        Raises:
            UserError: if there is no phantom of this dataset.
        """
        name = f"{registry.name_of('datasets', type(self))}_phantom"
        if name not in registry.known_names("datasets"):
            raise UserError(
                f"data.if_missing: {type(self).__name__} has no phantom; set it to error and give real images"
            )
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return registry.resolve("datasets", name)(**{**settings, "root": f"{Path(self.root)}_phantom"})

    def ensure_available(self, progress: Progress | None = None) -> Dataset:
        """This dataset if its folder is there, or else its phantom if `if_missing` allows it.

        Args:
            progress: wraps the cases that are made, to draw a bar.
        """
        if Path(self.root).is_dir():
            return self
        if self.if_missing == "phantom":
            return self.phantom().ensure_available(progress)
        raise UserError(f"data.root: no folder '{self.root}' here; expected {self._layout_and_help()}")

    def site_names(self) -> list[str]:
        """The sites found under `root` (restricted to `sites` where given), sorted."""
        found = sorted(self._site_folders())
        if missing := [site for site in self.sites if site not in found]:
            known = registry.suggestion(missing[0], found)
            raise UserError(f"data.sites: no site '{missing[0]}' in {self.root}. {known}")
        return sorted(self.sites) or found

    def cases_and_problems(self, site: str) -> tuple[list[Case], list[str]]:
        """The cases of one site, sorted by patient, and a sentence for everything wrong with their names and places."""
        folder = self._site_folders()[site]
        cases, problems = self.find_cases(site, folder)
        paths = dict.fromkeys(path for case in cases for path in (case.image, case.mask) if path)
        outside = {path for path in paths if not self._is_inside(path)}
        unspeakable = {path for path in paths if not has_utf8_name(path)}
        problems += [
            f"{path}: is, or has its voxels, behind a link out of {self.root}; put the file there, or set "
            "data.follow_symlinks: true"
            for path in paths if path in outside
        ]
        problems += [
            f"{printable_path(path)}: has a name that is no UTF-8, which no table can hold; rename it"
            for path in paths if path in unspeakable
        ]
        counts = Counter(case.patient for case in cases)
        problems += [f"{site}: has {n} cases called '{name}'; rename them" for name, n in counts.items() if n > 1]
        if not cases and not problems:
            problems = [
                f"{folder}: the site {site} has no images; expected {self.card.layout}; add some, or leave it out in "
                "data.sites"
            ]
        wrong = outside | unspeakable
        kept = [case for case in cases if case.image not in wrong and case.mask not in wrong]
        return sorted(kept, key=lambda case: case.patient), problems

    def cases(self, site: str) -> list[Case]:
        """The cases of one site, as `cases_by_site`."""
        return self.cases_by_site([site])[site]

    def cases_by_site(self, sites: Iterable[str]) -> dict[str, list[Case]]:
        """The cases of each site, sorted by patient; one UserError with all that is wrong with the files of any."""
        surveys = {site: self.cases_and_problems(site) for site in sites}
        problems = [problem for _, found in surveys.values() for problem in found]
        if problems:
            more = f" (and {len(problems) - 1} more: {'; '.join(problems[1:])})" if len(problems) > 1 else ""
            raise UserError(problems[0] + more)
        return {site: cases for site, (cases, _) in surveys.items()}

    def load(self, case: Case) -> Volume:
        """Read one case, checked; raises UserError with a sentence that names the file."""
        notices: list[str] = []
        image = self.read_image(case, notices)
        mask = self.read_mask(case, notices)
        reading.check_pair(case.image, image, case.mask_path, mask, self.ignore_mask_geometry)
        notices += [f"no {name} in the mask" for name in self.missing(mask)]
        return Volume(image, mask, reading.spacing_mm(case.image, image), tuple(notices))

    def missing(self, mask: MetaTensor) -> list[str]:
        """The structures that a mask (S, H, W, D) does not show."""
        return [name for name, channel in zip(self.structures, mask, strict=True) if not channel.any()]

    def _site_folders(self) -> dict[str, Path]:
        folders = self.find_sites()
        if not folders:
            raise UserError(f"data.root: no sites in '{self.root}'; expected {self._layout_and_help()}")
        try:
            site_names.check(folders)
        except ValueError as error:
            raise UserError(f"{self.root}: {error}") from None
        return folders

    def _layout_and_help(self) -> str:
        name = registry.name_of("datasets", type(self))
        return f"{self.card.layout}; `python -m medfed.data card {name}` tells how to get it"

    def _is_inside(self, path: Path) -> bool:
        try:
            files = {path, volumes.data_file(path)}
        except (OSError, UserError):  # damaged: reading it will say so
            files = {path}
        root = Path(self.root).resolve()
        return self.follow_symlinks or all(file.resolve().is_relative_to(root) for file in files)
