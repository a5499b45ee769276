"""Office-Home: objects in art, clip art, product images and photographs (Venkateswara et al., CVPR 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from medfed.datasets.base import Card
from medfed.datasets.objects import _Objects


@dataclass(frozen=True)
class OfficeHome(_Objects):
    """Office-Home: 65 classes of objects in four domains, which are the sites. No image shows a patient.

    `python -m medfed.keys officehome` explains the fields.
    """

    published_counts = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}
    published_n_classes = 65
    card = Card(
        title="Office-Home, four domains",
        description="15,588 images of 65 classes of objects in offices and homes, in four domains: art, clip art, "
        "product images without background, and photographs.",
        licence="Fair use notice of the authors: non-commercial research and education only; some images are "
        "copyrighted.",
        citation="Venkateswara et al., 'Deep Hashing Network for Unsupervised Domain Adaptation', CVPR 2017, "
        "https://arxiv.org/abs/1706.07522.",
        how_to_get="Follow the link on https://www.hemanthdv.org/officeHomeDataset.html, unpack the archive, and "
        "rename its folder (OfficeHomeDataset_10072016) to data/officehome.",
        layout="ROOT/DOMAIN/CLASS/NAME.jpg, DOMAIN: Art, Clipart, Product, Real World",
    )
