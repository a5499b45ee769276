"""Datasets, one file each: how the published folders of a collection are read, site by site.

`Prostate` (six sites, MRI), `Fundus` (four sites, optic disc and cup) and `Camelyon17` (five sites, histology) read
published collections; so do `PACS`, `OfficeHome`, `VLCS` and `DigitsDG`, whose images are not medical and with which
the papers compare methods. `Folder` reads your own images. `medfed.phantoms`
has synthetic versions that need no download. To write a dataset, inherit from `Dataset` in a file of your own, with the
patterns of its files.
`check_dataset` reads every file and reports all problems; `recognise` finds the dataset that a folder holds.

>>> from medfed.datasets import Prostate
>>> data = Prostate(root="data/prostate", image_size=128)
>>> data.structures, data.channels
(('prostate',), 1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfed.core.lazy import lazy_names

if TYPE_CHECKING:
    from medfed.datasets.base import Card as Card
    from medfed.datasets.base import Case as Case
    from medfed.datasets.base import Dataset as Dataset
    from medfed.datasets.base import Volume as Volume
    from medfed.datasets.checking import DatasetReport as DatasetReport
    from medfed.datasets.checking import check_dataset as check_dataset
    from medfed.datasets.collections.camelyon17 import Camelyon17 as Camelyon17
    from medfed.datasets.collections.digits_dg import DigitsDG as DigitsDG
    from medfed.datasets.collections.folder import Folder as Folder
    from medfed.datasets.collections.fundus import Fundus as Fundus
    from medfed.datasets.collections.officehome import OfficeHome as OfficeHome
    from medfed.datasets.collections.pacs import PACS as PACS
    from medfed.datasets.collections.prostate import Prostate as Prostate
    from medfed.datasets.collections.vlcs import VLCS as VLCS
    from medfed.datasets.recognition import recognise as recognise
    from medfed.datasets.splits import Split as Split

__getattr__, __dir__, __all__ = lazy_names(__name__)
