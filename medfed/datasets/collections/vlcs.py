"""VLCS: photographs of five kinds of objects from four older collections (Fang et al., ICCV 2013)."""

from __future__ import annotations

from dataclasses import dataclass

from medfed.datasets.base import Card
from medfed.datasets.objects import _Objects


@dataclass(frozen=True)
class VLCS(_Objects):
    """VLCS: five classes of objects in four collections of photographs, which are the sites. No image shows a patient.

    `python -m medfed.keys vlcs` explains the fields.
    """

    published_counts = {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376}
    published_n_classes = 5
    card = Card(
        title="VLCS, four collections of photographs",
        description="10,729 images of five classes (bird, car, chair, dog, person) from Caltech101, LabelMe, SUN09 and "
        "PASCAL VOC 2007.",
        licence="None is published for the collection; the terms of the four source collections apply.",
        citation="Fang et al., 'Unbiased Metric Learning: On the Utilization of Multiple Datasets and Web Images for "
        "Softening Bias', ICCV 2013.",
        how_to_get="Download it with the script domainbed/scripts/download.py of "
        "https://github.com/facebookresearch/DomainBed, and rename the folder (VLCS) to data/vlcs. Copies with the "
        "folders full and test in each domain divide the images in another way and are not read.",
        layout="ROOT/DOMAIN/CLASS/NAME.jpg, DOMAIN: Caltech101, LabelMe, SUN09, VOC2007",
    )
