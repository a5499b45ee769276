"""Base class of the datasets for classification with one folder per site and, in it, one folder per class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from monai.data import MetaTensor

from medfed.core import registry
from medfed.core.bounds import PositiveFloat, PositiveInt
from medfed.core.errors import UserError
from medfed.datasets import datalists, file_names, image_files, reading
from medfed.datasets.base import Dataset, Standardise
from medfed.datasets.case import Case, Volume
from medfed.datasets.folder_questions import share_names
from medfed.datasets.pairing import NameSettings, guess_image_and_mask_names, pair_in_one_folder
from medfed.datasets.root_search import refuse_parts
from medfed.datasets.site_search import IMAGE_FOLDERS, MASK_FOLDERS, find_roles

EXTREME_LEVELS = 16  # of 255, by which nearly black and nearly white differ from black and white
MIN_MASK_RATIO = 0.95  # pixels that are nearly black or nearly white in a mask that was stored as JPEG
MAX_IMAGE_RATIO = 0.5  # the same in a photograph
N_MASKS = 5  # images that must look like masks

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

    image_size: PositiveInt = 224
    standardise: Standardise = "imagenet"
    image_channels: Literal[1, 3] = 3
    grey_to_rgb: bool = True
    intensity_max: PositiveFloat | None = None
    class_names: tuple[str, ...] = ()
    patient_pattern: str | None = None

    published_n_classes: ClassVar[int] = 0  # number of classes of a published collection; 0 for any
    split_folders: ClassVar[Mapping[str, str]] = {}  # part of the split by the name of its folder in a site's folder
    renamed_values: ClassVar[Mapping[str, Mapping[object, object]]] = {"standardise": {True: "imagenet", False: "none"}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.class_names)) < len(self.class_names) or len(self.class_names) == 1:
            raise ValueError(f"class_names must be empty or at least two different names, got {list(self.class_names)}")
        file_names.check_patient_pattern(self.patient_pattern)

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """Return this dataset for a folder with the layout ROOT/SITE/CLASS/NAME.png.

        SITE must contain only folders. Each of these folders is a class and must contain no other folder. At least one
        of them must contain a 2-D image file (PNG, JPEG, BMP, TIFF), and there must be at least two different class
        names. The folder is refused if it looks like one with masks: if a class is called "images", "masks" or "gt",
        for example, if a class folder contains an image with its mask, if two class folders (of one site or of two)
        contain files of the same names, if only the images in some class folders are two-valued, as masks are (or
        nearly, as JPEG files are, beside photographs of the same site), or if a table in `root` lists images and masks.

        A subclass for a published collection only asks for the folders of all its sites, each with the published number
        of classes.

        Args:
            root: an existing folder.

        Returns:
            The dataset with default settings; None if the folder has another layout.
        """
        if cls.published_counts:
            folders = file_names.subfolders(root)
            if not folders.keys() >= cls.published_counts.keys():
                return None
            holders = [path for site in cls.published_counts for path in cls._class_holders(folders[site])]
            classes = [set(file_names.subfolders(path)) if path.is_dir() else set() for path in holders]
            is_whole = all(names == classes[0] for names in classes) and len(classes[0]) == cls.published_n_classes
            return cls(root=str(root)) if is_whole else None
        inside = [path for site in file_names.subfolders(root).values() for path in sorted(site.iterdir())]
        inside = [path for path in inside if path.name[0] != "."]
        names = {path.name.lower() for path in inside}
        if len(names) < 2 or names & {*IMAGE_FOLDERS, *MASK_FOLDERS}:
            return None
        if not all(path.is_dir() for path in inside) or any(map(guess_image_and_mask_names, inside)):
            return None
        if find_roles(file_names.list_folder(root), NameSettings()) or share_names(inside):
            return None
        if any(pair_in_one_folder(path, NameSettings()).pairs for path in inside):
            return None
        if len({_has_two_values(path) for path in inside} - {None}) > 1 or _some_are_jpeg_masks(inside):
            return None
        if any(columns >= {"image", "mask"} for columns in datalists.tables(root).values()):
            return None
        files = [path for folder in inside for path in folder.iterdir()]
        is_classes = any(map(reading.is_2d_image_file, files)) and not any(path.is_dir() for path in files)
        return cls(root=str(root)) if is_classes else None

    @property
    def channels(self) -> int:
        """Number of image channels: 1 for grey, 3 for colour. The field `image_channels` sets it."""
        return self.image_channels

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the class numbers, which start at 0.

        These are the names in the field `class_names`. If this field is empty, the classes are all class folders, in
        alphabetical order.

        Raises:
            UserError: if a site has no folder for one of the classes or for a part of the published split, or if there
                are fewer than two classes.
        """
        site_folders = self._site_folders()
        holders = {path: site for site in self.site_names() for path in self._class_holders(site_folders[site])}
        if missing := [path for path in holders if not path.is_dir()]:
            raise UserError(
                f"{missing[0]}: this folder of the site {holders[missing[0]]} does not exist; expected "
                f"{self._layout_and_help()}"
            )
        folders = {path: file_names.subfolders(path) for path in holders}
        names = self.class_names or tuple(sorted(set[str]().union(*folders.values())))
        for path, class_folders in folders.items():
            for name in names:
                if name not in class_folders:
                    raise UserError(
                        f"{path}: the site {holders[path]} has no folder for the class '{name}'; expected "
                        "the same classes at every site; create the folder (empty if the site has no such image), or "
                        f"set data.class_names. {registry.suggestion(name, class_folders)}"
                    )
        if len(names) < 2:
            count = f"only the class '{names[0]}'" if names else "no class"
            raise UserError(f"{self.root}: found {count}; expected at least two classes, as {self.card.layout}")
        return names

    @property
    def intensity_range(self) -> tuple[float, float]:
        """Intensities (low, high) that are mapped to 0 and 1 for the network: (0, 255).

        All 2-D image files are scaled to [0, 255] when they are read.
        """
        return 0.0, 255.0

    def find_sites(self) -> dict[str, Path]:
        """Return the folder of each site by the name of the site.

        Each folder in `root` is a site, except hidden folders. For a published collection, only its sites are returned.

        Raises:
            UserError: if the folders in `root` are called as the parts of a split, such as "train" and "test".
        """
        folders = file_names.subfolders(Path(self.root))
        if not self.published_counts and not self.sites:
            refuse_parts(Path(self.root), folders)
        return {name: folders[name] for name in folders if name in (self.published_counts or folders)}

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        """Find the images of all classes of one site by the names of the files, without opening the files.

        Args:
            site: name of the site.
            folder: folder of the site, which contains one folder per class, or one folder per part of a published split
                that contains one folder per class. The name of a case then begins with the name of its part's folder.

        Returns:
            Two lists. The first contains the images, one `Case` each, with their class numbers. The second contains the
            problems, one sentence each, such as a file that is not a 2-D image file or that exists twice.
        """
        cases, problems = [], []
        classes = self.classes
        for holder, part in self._class_holders(folder).items():
            for label, name in enumerate(classes):
                by_stem, class_problems = _image_files(holder / name)
                prefix = (holder / name).relative_to(folder).as_posix()
                for stem, path in by_stem.items():
                    subject = file_names.extract_patient(stem, self.patient_pattern, path, class_problems)
                    cases.append(Case(site, f"{prefix}/{stem}", path, None, subject, label, part))
                problems += class_problems
        return cases, problems

    def site_warnings(self, site: str) -> list[str]:
        """Return a warning for every class of which a site has no image. This is allowed, but may be a mistake.

        Args:
            site: name of the site.

        Returns:
            One sentence for each such class.
        """
        holders = self._class_holders(self._site_folders()[site])
        empty = [name for name in self.classes if not any(_image_files(path / name)[0] for path in holders)]
        return [f"{site}: no images of the class '{name}'" for name in empty]

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        """Read the image of a case.

        Args:
            case: a case of this dataset: one image with its class.
            notices: short descriptions of conversions and unusual properties are appended to this list.

        Returns:
            (C, H, W, 1) float32 in [0, 255], with C = `image_channels`.

        Raises:
            UserError: if the file is missing, damaged or not as the settings of the dataset say.
        """
        return reading.read_image(
            case.image, self.channels, notices,
            intensity_max=self.intensity_max, grey_to_rgb=self.grey_to_rgb, suggest_keys=True,
        )  # fmt: skip

    def load(self, case: Case) -> Volume:
        """Always raise an error, because this dataset has classes and no masks. Use `read_image` to read an image.

        For datasets with masks, `load` reads the image and the mask of a case.

        Args:
            case: a case of this dataset, which the error message names.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{case.image}: this case has a class and no mask; read it with read_image")

    @classmethod
    def _class_holders(cls, folder: Path) -> dict[Path, str]:
        """Return the folders in which a site has its class folders, each with its part of the published split.

        Without a published split this is the site's folder itself, with the part "".
        """
        return {folder / name: part for name, part in cls.split_folders.items()} or {folder: ""}


def _has_two_values(folder: Path) -> bool | None:
    """Return whether the first image in a folder has two or three different values, as masks have.

    None if the folder has no image, or if its first image cannot be read.
    """
    return next((len(np.unique(pixels)) <= 3 for pixels in _first_images(folder, 1)), None)


def _some_are_jpeg_masks(folders: Sequence[Path]) -> bool:
    """Return whether a folder of a site holds masks stored as JPEG, and another folder of the same site photographs.

    Nearly all pixels of such a mask, but not all, are nearly black or nearly white; some drawings on white are so, too,
    so that five images are looked at, and photographs in the same site are needed.
    """
    first = {path: next((_extreme_ratio(pixels) for pixels in _first_images(path, 1)), None) for path in folders}
    photographs = {path.parent for path, ratio in first.items() if ratio is not None and ratio < MAX_IMAGE_RATIO}
    return any(
        all(_extreme_ratio(pixels) > MIN_MASK_RATIO for pixels in _first_images(path, N_MASKS))
        for path, ratio in first.items() if ratio is not None and ratio > MIN_MASK_RATIO and path.parent in photographs
    )  # fmt: skip


def _first_images(folder: Path, n: int) -> Iterator[np.ndarray]:
    """Yield the values of the first n images in a folder, (C, H, W) in [0, 255]; it ends at a damaged file."""
    with suppress(UserError):
        for path in file_names.list_folder(folder).files[:n]:
            yield image_files.read_image_file(path, None, [])


def _extreme_ratio(pixels: np.ndarray) -> float:
    """Return the part of an image that is nearly black or nearly white; 0 if it has only one of the two."""
    black, white = np.mean(pixels <= EXTREME_LEVELS), np.mean(pixels >= 255 - EXTREME_LEVELS)
    return float(black + white) if black and white else 0.0


def _image_files(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Return the 2-D image files in a folder by their names without suffixes, and the problems.

    A file that exists twice with different suffixes, and anything that is not an image file, gives a problem.
    """
    by_stem: dict[str, Path] = {}
    problems = []
    for path in sorted(folder.iterdir()):
        if path.name[0] == "." or (path.name.lower().endswith(file_names.NON_IMAGE_SUFFIXES) and path.is_file()):
            continue
        if path.is_dir() or not reading.is_2d_image_file(path):
            kind = "a folder" if path.is_dir() else "not a 2-D image file"
            expected = ", ".join(image_files.SUFFIXES)
            problems.append(f"{path}: this is {kind}; expected files of the types {expected}; move or convert it")
        elif path.stem in by_stem:
            other = by_stem[path.stem].name
            problems.append(f"{path}: another image has the same name: {other}; remove or rename one of them")
        else:
            by_stem[path.stem] = path
    return by_stem, problems
