"""Your own images to classify: a folder for each site, in it one for each class, with PNG, JPEG, BMP or TIFF."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from monai.data import MetaTensor

from medfed.core import registry
from medfed.core.bounds import PositiveFloat, PositiveInt
from medfed.core.errors import UserError
from medfed.datasets import file_names, image_files, reading
from medfed.datasets.base import Card, Case, Dataset, Volume


@dataclass(frozen=True)
class FolderClasses(Dataset):
    """Pictures found as `ROOT/SITE/CLASS/NAME.png`, as PACS is. A site may lack images of a class, but not its folder.

    Args:
        image_channels: 1 for grey, 3 for colour.
        grey_to_rgb: repeat the channel of grey pictures where `image_channels` is 3.
        intensity_max: the stored value that means white in pictures of more than 8 bits.
        class_names: the classes to use, in the order of their numbers; empty takes every folder, by the alphabet.
        patient_pattern: a regular expression; its first group, searched in the image's name, is the patient. Images
            of a patient then stay together in the splits. Without it, every image counts as a patient of its own.
    """

    image_size: PositiveInt = 224
    image_channels: Literal[1, 3] = 3
    grey_to_rgb: bool = True
    intensity_max: PositiveFloat | None = None
    class_names: tuple[str, ...] = ()
    patient_pattern: str | None = None

    generality: ClassVar[int] = 1
    card: ClassVar[Card] = Card(
        title="Your own images to classify",
        description="Any pictures of two classes or more, one folder a site and in it one a class; PACS and its like.",
        licence="Yours.",
        citation="Yours.",
        how_to_get="Put the files as the layout says; every site has the same class folders.",
        layout="ROOT/SITE/CLASS/NAME.png (or .jpg, .jpeg, .bmp, .tif)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.class_names)) < len(self.class_names) or len(self.class_names) == 1:
            raise ValueError(f"class_names must be two different names or more, or none, got {list(self.class_names)}")
        file_names.check_patient_pattern(self.patient_pattern)

    @classmethod
    def recognise(cls, root: Path) -> Dataset | None:
        """If its sites hold nothing but folders of pictures, more than one, and none that a mask would lie in."""
        inside = [path for site in file_names.folders(root).values() for path in sorted(site.iterdir())]
        inside = [path for path in inside if path.name[0] != "."]
        names = {path.name.lower() for path in inside}
        if len(names) < 2 or names & {"images", "masks", *file_names.MASK_NAMES}:
            return None
        if not all(path.is_dir() for path in inside) or any(map(file_names.image_and_mask_names, inside)):
            return None
        files = [path for folder in inside for path in folder.iterdir()]
        is_classes = any(map(reading.is_2d_image_file, files)) and not any(path.is_dir() for path in files)
        return cls(root=str(root)) if is_classes else None

    @property
    def channels(self) -> int:
        return self.image_channels

    @property
    def classes(self) -> tuple[str, ...]:
        """As `class_names`, or else the folders that the sites in use have; UserError where they differ."""
        folders = {site: file_names.folders(self._site_folders()[site]) for site in self.site_names()}
        names = self.class_names or tuple(sorted({name for found in folders.values() for name in found}))
        for site, inside in folders.items():
            for name in names:
                if name not in inside:
                    raise UserError(
                        f"{self._site_folders()[site]}: the site {site} has no folder for the class '{name}'; expected "
                        f"the same classes at every site, so make one (empty if it has none), or set data.class_names. "
                        f"{registry.suggestion(name, inside)}"
                    )
        if len(names) < 2:
            count = f"the one class '{names[0]}'" if names else "no class"
            raise UserError(f"{self.root}: has {count}; expected two or more, as {self.card.layout}")
        return names

    @property
    def intensity_range(self) -> tuple[float, float]:
        return 0.0, 255.0

    def find_sites(self) -> dict[str, Path]:
        return file_names.folders(Path(self.root))

    def find_cases(self, site: str, folder: Path) -> tuple[list[Case], list[str]]:
        cases, problems = [], []
        for label, name in enumerate(self.classes):
            found, wrong = _pictures(folder / name)
            for stem, path in found.items():
                subject = file_names.patient_in(stem, self.patient_pattern, path, wrong)
                cases.append(Case(site, f"{name}/{stem}", path, None, subject, label))
            problems += wrong
        return cases, problems

    def site_warnings(self, site: str) -> list[str]:
        """A sentence for every class of which a site has no image, which is allowed."""
        folder = self._site_folders()[site]
        return [f"{site}: no images of the class '{name}'" for name in self.classes if not _pictures(folder / name)[0]]

    def read_image(self, case: Case, notices: list[str]) -> MetaTensor:
        return reading.read_image(
            case.image, self.channels, notices,
            intensity_max=self.intensity_max, grey_to_rgb=self.grey_to_rgb, declared=True,
        )  # fmt: skip

    def load(self, case: Case) -> Volume:
        raise TypeError(f"{case.image}: has a class and no mask; read it with read_image")


def _pictures(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Pictures by their names without endings; a sentence for each that is there twice, or is no picture."""
    found: dict[str, Path] = {}
    problems = []
    for path in sorted(folder.iterdir()):
        if path.name[0] == "." or (path.name.lower().endswith(file_names.BESIDE) and path.is_file()):
            continue
        if path.is_dir() or not reading.is_2d_image_file(path):
            kind = "a folder" if path.is_dir() else "no picture"
            problems.append(f"{path}: is {kind}; expected {', '.join(image_files.SUFFIXES)}; move it or convert it")
        elif path.stem in found:
            problems.append(f"{path}: is there twice, also as {found[path.stem].name}; remove or rename one")
        else:
            found[path.stem] = path
    return found, problems
