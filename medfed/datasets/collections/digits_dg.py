"""Digits-DG: digits from four older collections, with a published split (Zhou et al., AAAI 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from medfed.datasets.base import Card
from medfed.datasets.objects import _Objects


@dataclass(frozen=True)
class DigitsDG(_Objects):
    """Digits-DG: the digits 0 to 9 in four collections, which are the sites. No image shows a patient.

    The published split has a training part and a validation part, so the ratios of the split are not used. The unseen
    site is tested on both parts. `python -m medfed.keys digits_dg` explains the fields.
    """

    published_counts = {"mnist": 6000, "mnist_m": 6000, "svhn": 6000, "syn": 6000}
    published_n_classes = 10
    image_patterns = ("{site}/{part:train|val}/{class}/{case}.*",)
    card = Card(
        title="Digits-DG, four collections of digits",
        description="24,000 images (32 x 32 pixels) of the digits 0 to 9, 600 of each digit from each of MNIST "
        "(written by hand), MNIST-M (the digits of MNIST blended with photographs), SVHN (house numbers) and SYN "
        "(rendered fonts); 80 % are for training and 20 % for validation.",
        licence="None is published for the collection; the terms of the four source collections apply (SVHN: "
        "non-commercial use only).",
        citation="Zhou et al., 'Deep Domain-Adversarial Image Generation for Domain Generalisation', AAAI 2020, "
        "https://arxiv.org/abs/2003.06054.",
        how_to_get="Follow the link at Digits-DG in DATASETS.md of https://github.com/KaiyangZhou/Dassl.pytorch, "
        "unpack the archive, and move its folder digits_dg to data/digits_dg.",
        layout="ROOT/DOMAIN/PART/CLASS/NAME.jpg, DOMAIN: mnist, mnist_m, svhn, syn; PART: train, val",
    )

    def part_name(self, values: Mapping[str, str]) -> str:
        return "train" if values["part"].lower() == "train" else "validation"
