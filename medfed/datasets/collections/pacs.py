"""PACS: photographs, paintings, cartoons and sketches of seven kinds of objects (Li et al., ICCV 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from medfed.core.errors import Problem, UserError
from medfed.core.files import read_text
from medfed.datasets.base import Card, Contents
from medfed.datasets.objects import _Objects

MAX_LIST_BYTES = 10_000_000
LISTS = {"train": "train", "validation": "crossval"}  # part of the split: its word in the name of the list


@dataclass(frozen=True)
class PACS(_Objects):
    """PACS: seven classes of objects in four domains, which are the sites. No image shows a patient.

    `python -m medfed.keys pacs` explains the fields that are not explained here.

    Args:
        lists: folder with the lists in which the authors of PACS divide each domain into 90 % for training and 10 % for
            validation: `DOMAIN_train_kfold.txt` and `DOMAIN_crossval_kfold.txt`, each line with DOMAIN/CLASS/NAME and a
            number. The ratios of the split are then not used. null splits at random with these ratios, as JiGen and the
            papers that follow it do (the lists of JiGen name all images).
    """

    lists: str | None = None

    published_counts = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    published_n_classes = 7
    card = Card(
        title="PACS, four domains",
        description="9,991 images (227 x 227 pixels) of seven classes (dog, elephant, giraffe, guitar, horse, house, "
        "person) in four domains: photographs, art paintings, cartoons and sketches.",
        licence="None is published. The images come from Caltech256, Sketchy, TU-Berlin and Google Images; use them "
        "for research only.",
        citation="Li et al., 'Deeper, Broader and Artier Domain Generalization', ICCV 2017, "
        "https://arxiv.org/abs/1710.03077.",
        how_to_get="Download PACS and its split lists from the page of its authors "
        "(http://www.eecs.qmul.ac.uk/~dl307/project_iccv2017), or with the script domainbed/scripts/download.py of "
        "https://github.com/facebookresearch/DomainBed, and rename the folder (kfold) to data/pacs.",
        layout="ROOT/DOMAIN/CLASS/NAME.jpg (or .png), DOMAIN: art_painting, cartoon, photo, sketch",
    )

    def scan(self) -> Contents:
        """As in `Dataset`; with `lists`, each image has its part of the published split."""
        contents = super().scan()
        if self.lists is None:
            return contents
        root = Path(self.root)
        for site, cases in contents.cases.items():
            if self.sites and site not in self.sites:
                continue
            parts = {name: part for part, word in LISTS.items() for name in _listed(Path(self.lists), site, word)}
            for number, case in enumerate(cases):
                name = case.image.relative_to(root).as_posix()
                cases[number] = replace(case, part=parts.get(name, ""))
                if name not in parts:
                    found = f"this image is in no list of {self.lists}; expected a line '{name} NUMBER' in one of them"
                    cure = "move the image, or set data.lists: null"
                    contents.problems[site].append(Problem("image in no list", case.image, found, cure))
        return contents


def _listed(folder: Path, site: str, word: str) -> list[str]:
    """Return the DOMAIN/CLASS/NAME of each line of the list of one domain; `word` is "train" or "crossval"."""
    path = folder / f"{site}_{word}_kfold.txt"
    try:
        lines = read_text(path, MAX_LIST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"data.lists: the list {path} cannot be read ({type(error).__name__}); expected the text files that come "
            "with PACS; correct the folder, or set data.lists: null"
        ) from error
    return [line.rpartition(" ")[0].strip() for line in lines if line.strip()]
