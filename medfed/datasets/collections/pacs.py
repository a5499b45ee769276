"""PACS: photographs, paintings, cartoons and sketches of seven kinds of objects (Li et al., ICCV 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from medfed.datasets.base import Card
from medfed.datasets.objects import _Objects


@dataclass(frozen=True)
class PACS(_Objects):
    """PACS: seven classes of objects in four domains, which are the sites. No image shows a patient.

    `python -m medfed.keys pacs` explains the fields that are not explained here.
    """

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
