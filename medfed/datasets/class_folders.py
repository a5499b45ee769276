"""Base class of the datasets for classification with one folder per site and, in it, one folder per class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from monai.data import MetaTensor

from medfed.core import registry
from medfed.core.bounds import ImageSize, PositiveFloat
from medfed.core.errors import UserError
from medfed.datasets import check_names, file_names, image_files, reading
from medfed.datasets.base import Dataset, Standardise
from medfed.datasets.case import Case
from medfed.datasets.class_search import class_holders, class_key, holds_classes
from medfed.datasets.root_search import refuse_parts


@dataclass(frozen=True)
class _ClassFolders(Dataset):  # private, so that the registry lists no dataset of this name
    """Images for classification, found as `ROOT/SITE/CLASS/NAME.png`.

    Every site has a folder for every class; the folder may be empty. The fields that are not explained here are
    explained at `Dataset`.

    A dataset for a published collection in this layout is a subclass that names the sites in `published_counts`, and
    gives the number of classes in `published_n_classes`. Other folders in `root` are then ignored. If the collection
    comes with a split in folders, as `ROOT/SITE/train/CLASS/NAME.png`, the subclass names them in `split_folders`.

    Args:
        image_size: side length in pixels, at least 1, of the images that the network receives; images are resized to
            it.
        image_channels: number of image channels: 1 for grey images, 3 for colour.
        grey_to_rgb: true repeats the channel of a grey image three times if `image_channels` is 3; false refuses grey
            images.
        intensity_max: the stored value that means white, above 0, in image files with more than 8 bits; null refuses
            such files.
        class_names: names of the classes to use, at least two, in the order of the class numbers; an empty list uses
            every class folder, in alphabetical order.
        patient_pattern: regular expression that is searched in the name of the image file; its first group is the
            patient. All images of a patient then stay in the same part of a split. null treats every image as a patient
            of its own.
    """

    image_size: ImageSize = 224
    standardise: Standardise = "imagenet"
    image_channels: Literal[1, 3] = 3
    grey_to_rgb: bool = True
    intensity_max: PositiveFloat | None = None
    class_names: tuple[str, ...] = ()
    patient_pattern: str | None = None

    published_n_classes: ClassVar[int] = 0  # number of classes of a published collection; 0 for any
    split_folders: ClassVar[Mapping[str, str]] = {}  # part of the split by the name of its folder in a site's folder

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(map(class_key, self.class_names))) < len(self.class_names) or len(self.class_names) == 1:
            raise ValueError(f"class_names must be empty or at least two different names, got {list(self.class_names)}")
        file_names.check_patient_pattern(self.patient_pattern)

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return this dataset if `class_search.holds_classes` finds folders of classes.

        A published collection needs the folders of all its sites, each with the published number of classes.
        """
        if cls.published_counts:
            folders = file_names.subfolders(root)
            if not folders.keys() >= cls.published_counts.keys():
                return None
            holders = [path for site in cls.published_counts for path in cls._class_holders(folders[site])]
            classes = [set(file_names.subfolders(path)) if path.is_dir() else set() for path in holders]
            is_whole = all(names == classes[0] for names in classes) and len(classes[0]) == cls.published_n_classes
            return cls(root=str(root)) if is_whole else None
        return cls(root=str(root)) if holds_classes(root) else None

    @property
    def channels(self) -> int:
        return self.image_channels

    @property
    def classes(self) -> tuple[str, ...]:
        """The field `class_names`; if it is empty, all class folders, in alphabetical order.

        UserError if a site lacks a folder for a class or a part of the published split, or if there are fewer than two
        classes.
        """
        site_folders = self._site_folders()
        holders = {path: site for site in self.site_names() for path in self._class_holders(site_folders[site])}
        if missing := [path for path in holders if not path.is_dir()]:
            raise UserError(
                f"{missing[0]}: this folder of the site {holders[missing[0]]} does not exist; expected "
                f"{self._layout_and_help()}"
            )
        at_site = {site: self._class_keys(site_folders[site]) for site in self.site_names()}
        spelling: dict[str, str] = {}
        for keys in at_site.values():
            spelling = {key: next(iter(paths)).name for key, paths in keys.items()} | spelling
        names = self.class_names or tuple(sorted(spelling.values()))
        for site, keys in at_site.items():
            for name in names:
                if class_key(name) not in keys:
                    known = [path.name for paths in keys.values() for path in paths]
                    raise UserError(
                        f"{site_folders[site]}: the site {site} has no folder for the class '{name}'; expected the "
                        f"same classes at every site; if a folder has another name for this class, rename it to {name};"
                        " if the site has no such image, create an empty folder, or set data.class_names to the classes"
                        f" of all sites. {registry.suggestion(name, known)}"
                    )
        if len(names) < 2:
            count = f"only the class '{names[0]}'" if names else "no class"
            raise UserError(f"{self.root}: found {count}; expected at least two classes, as {self.card.layout}")
        return names

    @property
    def intensity_range(self) -> tuple[float, float]:
        """(0, 255), to which all 2-D image files are scaled when they are read."""
        return 0.0, 255.0

    def find_sites(self) -> dict[str, Path]:
        """Return the folders in `root` that are not hidden; for a published collection, only those of its sites.

        UserError if they are called as the parts of a split, such as "train" and "test".
        """
        folders = file_names.subfolders(Path(self.root))
        if not self.published_counts and not self.sites:
            refuse_parts(Path(self.root), folders)
        return {name: folders[name] for name in folders if name in (self.published_counts or folders)}

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        """Find the images of all classes; a case is named by its path in the site's folder, as train/CLASS/NAME."""
        cases, problems = [], []
        keys = self._class_keys(folder)
        for label, name in enumerate(self.classes):
            for path, part in keys[class_key(name)].items():
                by_stem, class_problems = _image_files(path)
                prefix = path.relative_to(folder).as_posix()
                for stem, file in by_stem.items():
                    patient = file_names.extract_patient(stem, self.patient_pattern, file, class_problems)
                    cases.append(Case(site, f"{prefix}/{stem}", file, None, patient, label, part))
                problems += class_problems
        return cases, problems + check_names.year_problems(folder, cases)

    def site_warnings(self, site: str) -> list[str]:
        """Warn about classes without images, about parts of a split that are read together, and about class folders
        that other sites write in other upper and lower case."""
        folder = self._site_folders()[site]
        keys = self._class_keys(folder)
        empty = [name for name in self.classes if not any(_image_files(path)[0] for path in keys[class_key(name)])]
        warnings = [f"{site}: no images of the class '{name}'" for name in empty]
        holders = self._class_holders(folder)
        if folder not in holders and not any(holders.values()):
            warnings.append(
                f"{site}: the folders {' and '.join(path.name for path in holders)} are read together, and medfed "
                "splits the patients itself; to keep this split, list the images in a datalist with the column split"
            )
        other = sorted({path.name for name in self.classes for path in keys[class_key(name)] if path.name != name})
        if other:
            warnings.append(
                f"{site}: the names of folders differ from those of the classes in upper and lower case, and are read "
                f"as these: {', '.join(other)}"
            )
        return warnings

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        return reading.read_image(
            case.image,
            self.channels,
            notices,
            intensity_max=self.intensity_max,
            grey_to_rgb=self.grey_to_rgb,
            suggest_keys=True,
        )

    @classmethod
    def _class_holders(cls, folder: Path) -> dict[Path, str]:
        """Return the folders in which a site has its class folders, each with its part of the published split or "":
        the site's folder, or those of the split, such as "train" and "test"."""
        published = {folder / name: part for name, part in cls.split_folders.items()}
        return published or dict.fromkeys([folder] if cls.published_counts else class_holders(folder), "")

    def _class_keys(self, folder: Path) -> dict[str, dict[Path, str]]:
        """Return the class folders of a site, each with its part of the published split, by `class_key`; UserError if
        two in the same folder differ only in upper and lower case."""
        keys: dict[str, dict[Path, str]] = {}
        for holder, part in self._class_holders(folder).items():
            for path in file_names.subfolders(holder).values() if holder.is_dir() else ():
                others = keys.setdefault(class_key(path.name), {})
                if same := next((other for other in others if other.parent == holder), None):
                    raise UserError(
                        f"{holder}: the folders {same.name} and {path.name} differ only in upper and lower case; "
                        "expected one folder for each class; move the images of the same class into one folder, or "
                        "list the images in a table (data.datalist) with the columns site, image and class"
                    )
                others[path] = part
        return keys


def _image_files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the 2-D image files in a folder by their names without suffixes; and the problems: names that exist twice,
    and anything else in the folder that is no text file."""
    by_stem: dict[str, Path] = {}
    problems = []
    for path in sorted(folder.iterdir()):
        if path.name[0] == "." or (path.name.lower().endswith(file_names.NON_IMAGE_SUFFIXES) and path.is_file()):
            continue
        if path.is_dir() or not reading.is_2d_image_file(path):
            problems.append(
                f"{path}: this is a folder in the folder of a class; expected image files; if it is the folder of a "
                "patient or of a kind of this class, list all images in a table (data.datalist) with the columns site, "
                "patient, image and class; if not, move its images into the folder of the class"
                if path.is_dir()
                else f"{path}: this is not a 2-D image file; expected files of the types "
                f"{', '.join(image_files.SUFFIXES)}; move or convert it"
            )
        elif path.stem in by_stem:
            other = by_stem[path.stem].name
            problems.append(f"{path}: another image has the same name: {other}; remove or rename one of them")
        else:
            by_stem[path.stem] = path
    return by_stem, problems
