"""Case names, patients, labels and splits of collections and phantoms stay as they are, so that runs are comparable."""

import hashlib
from pathlib import Path

import pytest

from medfed.datasets.base import Dataset
from medfed.datasets.collections.camelyon17 import Camelyon17
from medfed.datasets.collections.digits_dg import DigitsDG
from medfed.datasets.collections.fundus import Fundus
from medfed.datasets.collections.officehome import OfficeHome
from medfed.datasets.collections.pacs import PACS
from medfed.datasets.collections.prostate import Prostate
from medfed.datasets.collections.vlcs import VLCS
from medfed.datasets.splits import split
from medfed.phantoms.camelyon17_phantom import Camelyon17Phantom
from medfed.phantoms.fundus_phantom import FundusPhantom
from medfed.phantoms.prostate_phantom import ProstatePhantom


def digest(dataset: Dataset) -> str:
    """The beginning of the SHA-256 of site, case, patient, label, published part and part with seed 0, of all cases."""
    rows = []
    for site in dataset.site_names():
        cases = dataset.cases(site)
        parts = split(cases, 0, dataset.validation_ratio, dataset.test_ratio)
        part_of = {case.name: part for part in ("train", "validation", "test") for case in getattr(parts, part)}
        rows += [
            (site, case.name, case.patient, str(case.label), case.part, part_of.get(case.name, "none"))
            for case in cases
        ]
    return hashlib.sha256("\n".join(map("|".join, sorted(rows))).encode()).hexdigest()[:16]


def touch(root: Path, *names: str) -> None:
    """Make empty files: names are found without opening the files."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def objects(dataset: type[Dataset], inner: str = "") -> list[str]:
    """Five images of each of the published number of classes, which begin with TV, Table or table, at each site."""
    sites, n_classes = dataset.published_counts, dataset.published_n_classes
    classes = [f"{('TV', 'Table', 'table')[k % 3]}_{k}" for k in range(n_classes)]
    return [f"{site}/{inner}{name}/pic 1.{k}.jpg" for site in sites for name in classes for k in range(5)]


@pytest.fixture
def root(tmp_path) -> Path:
    for number, folder in enumerate("RUNMC BMC I2CVB UCL BIDMC HK ISBI ISBI_1.5 HCRUDB".split()):
        base = tmp_path / ("prostate" if number < 6 else "prostate_old")
        end = "Segmentation" if folder == "BMC" else "segmentation"
        for k in range(13):
            case = f"{'case' if folder == 'HCRUDB' else 'Case'}{k:02d}"
            touch(base / folder, f"{case}.nii.gz", f"{case}_{end}.nii{'.gz' if k else ''}")
    rim_one = [f"{group}-{k}-{eye}" for group in "NGS" for k in range(4) for eye in "LR"]
    rim_one += ["test-S-7-L_576_32,32", "train-S-7-R_576_32,32", "S-8-Left"]
    for number, site in enumerate(("DRISHTI-GS", "rim-one-R3", "REFUGE-train", "REFUGE-val"), 1):
        names = rim_one if number == 2 else [f"{letter}{k:04d}" for letter in "gnV" for k in range(5)]
        for index, name in enumerate(names):
            domain = tmp_path / f"fundus/Domain{number}/{'train' if index % 4 else 'test'}/ROIs"
            touch(domain, f"image/{name}.png", f"mask/{name}.png")
            touch(tmp_path / "fundus_plain" / site, f"images/{name}.JPG", f"masks/{name}.bmp")
    rows = [(p, n, 32 * k, 96, (k + p) % 3 // 2, p // 20) for p in range(0, 100, 7) for n in range(2) for k in range(9)]
    lines = [f"{p:03d},{n},{x},{y},{tumour},{centre},{x // 32 % 5 // 4}" for p, n, x, y, tumour, centre in rows]
    slides = [f"patient_{p:03d}_node_{n}" for p, n, *_ in rows]
    patches = [f"patches/{slide}/patch_{slide}_x_{row[2]}_y_96.png" for slide, row in zip(slides, rows)]
    touch(tmp_path / "camelyon17", *patches)
    header = "patient,node,x_coord,y_coord,tumor,center,split"
    (tmp_path / "camelyon17/metadata.csv").write_text("\n".join([header, *lines]))
    touch(tmp_path / "pacs", "README.txt", *objects(PACS))
    digits = [*objects(DigitsDG, "train/"), *objects(DigitsDG, "val/")]
    for name, paths in (("officehome", objects(OfficeHome)), ("vlcs", objects(VLCS)), ("digits_dg", digits)):
        touch(tmp_path / name, *paths)
    return tmp_path


COLLECTIONS = [
    (Prostate, "prostate", {}, "245eb7dc1815c521"),
    (Prostate, "prostate_old", {}, "d847a63c53974598"),
    (Fundus, "fundus", {}, "bb8c0471de062821"),
    (Fundus, "fundus", {"published_split": True}, "69caa526ef1326b5"),
    (Fundus, "fundus_plain", {}, "bb8c0471de062821"),
    (Camelyon17, "camelyon17", {}, "345ff4a79bcc1502"),
    (Camelyon17, "camelyon17", {"max_per_site": 20}, "76c31c73b991c288"),
    (Camelyon17, "camelyon17", {"splits": "slide"}, "6a3bd6cf3e323967"),
    (Camelyon17, "camelyon17", {"splits": "slide", "max_per_site": 20}, "bcb427395607dc35"),
    (Camelyon17, "camelyon17", {"splits": "published"}, "11cc814102c69d9c"),
    (Camelyon17, "camelyon17", {"splits": "published", "max_per_site": 20}, "68ee093e810b0aa1"),
    (PACS, "pacs", {}, "b30166faa6099b40"),
    (OfficeHome, "officehome", {}, "f36fbac07e322231"),
    (VLCS, "vlcs", {}, "2639d4abea9084f2"),
    (DigitsDG, "digits_dg", {}, "fe297298e0d3787d"),
]


def test_names_and_splits_of_the_collections_never_change(root, monkeypatch):
    monkeypatch.chdir(root)
    for dataset, folder, settings, expected in COLLECTIONS:
        assert digest(dataset(root=folder, **settings)) == expected, (folder, settings)


@pytest.mark.parametrize(
    ("phantom", "settings", "expected"),
    [
        (Camelyon17Phantom, {"patches_per_site": 8, "patients_per_site": 4}, "f6142fd526fe0afb"),
        (FundusPhantom, {"images_per_site": 4, "size": 32}, "9ee23295e72491d5"),
        (ProstatePhantom, {"cases_per_site": 4, "matrix": 32}, "2281df2f7f7fc235"),
    ],
)
def test_names_and_splits_of_the_phantoms_never_change(tmp_path, phantom, settings, expected):
    assert digest(phantom(root=str(tmp_path / "p"), **settings).ensure_available()) == expected
