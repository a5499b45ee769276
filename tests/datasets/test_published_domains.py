"""PACS, Office-Home, VLCS and Digits-DG: published collections of objects in folders of classes."""

from pathlib import Path

import numpy as np
import pytest
from folder_layouts import save_pixels
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.case import Case
from medfed.datasets.checking import check_dataset
from medfed.datasets.collections import fundus, prostate
from medfed.datasets.collections.camelyon17 import Camelyon17
from medfed.datasets.collections.digits_dg import DigitsDG
from medfed.datasets.collections.fundus import Fundus
from medfed.datasets.collections.officehome import OfficeHome
from medfed.datasets.collections.pacs import PACS
from medfed.datasets.collections.prostate import Prostate
from medfed.datasets.collections.vlcs import VLCS
from medfed.datasets.recognition import recognise
from medfed.datasets.splits import split
from medfed.experiments.sites import assign_patients
from medfed.federation.settings import Federation

CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def make_images(root: Path, sites, n_classes: int, part: str = "") -> Path:
    """An image of each class at each site."""
    for site in sites:
        for number in range(n_classes):
            save_pixels(root / site / part / f"class {number}" / "a.png", np.zeros((2, 2, 3)))
    return root


@pytest.fixture
def digits_root(tmp_path) -> Path:
    """In each domain, every digit has two images for training and one for validation, all with the same names."""
    for number, site in enumerate(DigitsDG.published_counts):
        for part, n_images, blue in (("train", 2, 10), ("val", 1, 110)):
            for digit in range(10):
                for k in range(n_images):
                    pixels = np.full((32, 32, 3), (60 * number, 20 * digit, blue + 40 * k))
                    save_pixels(tmp_path / site / part / str(digit) / f"{k:05d}.jpg", pixels)
    return tmp_path


@pytest.fixture
def pacs_root(tmp_path) -> Path:
    """Ten dogs and one image of each other class in each domain; the file README.txt is no domain."""
    (tmp_path / "README.txt").write_text("x")
    for number, site in enumerate(PACS.published_counts):
        for label, name in enumerate(CLASSES):
            for k in range(10 if label == 0 else 1):
                pixels = np.full((2, 2, 3), (20 * number, 30 * label, k))
                save_pixels(tmp_path / site / name / f"pic_{k:03d}.png", pixels)
    return tmp_path


@pytest.mark.parametrize(("dataset", "part"), [(PACS, ""), (OfficeHome, ""), (VLCS, ""), (DigitsDG, "val")])
def test_a_collection_is_recognised_by_its_sites_and_its_number_of_classes(dataset, part, tmp_path):
    sites, n = tuple(dataset.published_counts), dataset.published_n_classes
    assert recognise(make_images(tmp_path / "whole", sites, n, part)) == dataset(root=str(tmp_path / "whole"))
    assert dataset.recognise(make_images(tmp_path / "few classes", sites, n - 1, part)) is None
    assert dataset.recognise(make_images(tmp_path / "few sites", sites[1:], n, part)) is None
    assert dataset.recognise(make_images(tmp_path / "other parts", sites, n, "test")) is None


def test_the_published_counts_sum_to_the_number_of_images_or_patients():
    for dataset, total in ((PACS, 9991), (OfficeHome, 15588), (VLCS, 10729), (DigitsDG, 24000)):
        assert sum(dataset.published_counts.values()) == total
        assert f"{total:,} images" in dataset.card.description and dataset.card.licence
    for dataset, total, names in ((Prostate, 116, prostate.SITES), (Fundus, 1060, fundus.SITES)):
        assert sum(dataset.published_counts.values()) == total and set(dataset.published_counts) == set(names)
    assert sum(Camelyon17.published_counts.values()) == 455_954


@pytest.mark.parametrize("dataset", [Camelyon17, Fundus])
def test_an_image_of_more_than_8_bits_is_refused(tmp_path, dataset):
    path = tmp_path / "a.png"
    Image.fromarray(np.full((96, 96), 4095, np.uint16)).save(path)
    with pytest.raises(UserError, match=f"^{path}: the image .*8 bits, .*; save it with 8 bits, or set "):
        dataset(root=str(tmp_path)).read_image(Case("a", "a", path), [])


def test_other_folders_of_the_collection_are_no_sites_and_are_named(pacs_root):
    save_pixels(pacs_root / "Train val splits" / "dog" / "a.png", np.zeros((2, 2, 3)))
    data = PACS(root=str(pacs_root))
    assert data.site_names() == ["art_painting", "cartoon", "photo", "sketch"] and data.classes == CLASSES
    assert [unread.place for unread in data.contents.unread] == [f"{pacs_root}/Train val splits"]


def test_digits_dg_has_four_domains_of_ten_digits_with_the_published_split(digits_root):
    data = DigitsDG(root=str(digits_root))
    assert data.site_names() == ["mnist", "mnist_m", "svhn", "syn"] and data.classes == tuple("0123456789")
    cases = data.cases("svhn")
    assert len(cases) == len({case.patient for case in cases}) == 30, "each image is a patient of its own"
    assert all(case.image.parent.name == str(case.label) for case in cases)
    for ratios in ((0.1, 0.2), (0.0, 0.0)):
        parts = split(cases, 1, *ratios)
        names = [[case.name for case in part] for part in (parts.train, parts.validation, parts.test)]
        assert names[0] == [f"train/{digit}/{k:05d}" for digit in range(10) for k in range(2)]
        assert names[1:] == [[f"val/{digit}/00000" for digit in range(10)], []]
    image = data.read_image(next(case for case in cases if case.name == "val/7/00000"), [])
    assert image.shape == (3, 32, 32, 1) and [round(float(c.mean()) / 10) for c in image] == [12, 14, 11]


def test_every_domain_of_digits_dg_is_tested_whole(digits_root):
    splits, _, unseen = assign_patients(DigitsDG(root=str(digits_root)), Federation(unseen_site="syn"), 0, "x.yaml")
    assert set(splits) == {"mnist", "mnist_m", "svhn"} and len(unseen["syn"]) == 30
    assert all((len(parts.train), len(parts.validation), len(parts.test)) == (20, 10, 0) for parts in splits.values())


def test_the_check_of_digits_dg_reads_all_images_and_names_what_is_missing(digits_root):
    for path in sorted(digits_root.glob("syn/*/3/*.jpg")):
        path.unlink()
    report = check_dataset(DigitsDG(root=str(digits_root)))
    assert not report.problems and [site.n_cases for site in report.sites] == [30, 30, 30, 27]
    assert [str(one) for one in report.warnings if "class" in one.kind] == [
        "syn: no images of the class '3'; check the names of the folders"
    ]
    (digits_root / "mnist" / "val").rename(digits_root / "mnist" / "test")
    warnings = list(map(str, check_dataset(DigitsDG(root=str(digits_root))).warnings))
    assert "mnist: found 20 cases, but 6000 are published" in warnings
    assert any(text.startswith(f"{digits_root}/mnist: not read") and "mnist/test/" in text for text in warnings)


def test_a_share_of_the_unseen_site_is_tested_and_the_other_sites_are_whole(pacs_root):
    data = PACS(root=str(pacs_root), validation_ratio=0.0, test_ratio=0.0)

    def assigned(ratio: float, seed: int = 0):
        federation = Federation(unseen_site="sketch", unseen_ratio=ratio)
        splits, _, unseen = assign_patients(data, federation, seed, "x.yaml")
        assert all(len(parts.train) == 16 for parts in splits.values())
        return [case.name for case in unseen["sketch"]]

    everything = [case.name for case in data.cases("sketch")]
    assert assigned(1.0) == everything
    quarter, half = assigned(0.25), assigned(0.5)
    assert (len(quarter), len(half), len(assigned(0.01))) == (4, 8, 1)
    assert set(quarter) < set(half) and half == sorted(half) and half != assigned(0.5, seed=1)
