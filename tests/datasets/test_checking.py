import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from folder_layouts import save_pixels

from medfed.core.errors import Problem
from medfed.datasets.check_report import to_json, to_text
from medfed.datasets.checking import check_dataset
from medfed.datasets.collections.folder import Folder
from medfed.datasets.collections.prostate import Prostate
from medfed.datasets.duplicates import file_sha256, find_duplicates
from medfed.datasets.recognition import recognise

AFFINE = np.diag([-0.6, -0.6, 3.6, 1])


def write_case(folder: Path, number: int, image: np.ndarray | None = None, labels=(0, 1)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if image is None:
        image = np.random.default_rng([len(folder.name), number]).integers(1, 900, (8, 8, 3))
    nib.save(nib.Nifti1Image(image.astype(np.float32), AFFINE), folder / f"Case{number:02d}.nii.gz")
    mask = np.resize(labels, (8, 8, 3)).astype(np.uint8)
    nib.save(nib.Nifti1Image(mask, AFFINE), folder / f"Case{number:02d}_segmentation.nii.gz")


@pytest.fixture
def data(tmp_path) -> Prostate:
    for number in range(3):
        write_case(tmp_path / "HK", number)
        write_case(tmp_path / "UCL", number)
    return Prostate(root=str(tmp_path), sites=("HK", "UCL"))


def test_a_dataset_in_order_has_its_measures_and_no_problem(data):
    report = check_dataset(data)
    hk = report.sites[0]
    assert report.problems == () and (hk.name, hk.n_cases, len(hk.cases)) == ("HK", 3, 3)
    case, measures = hk.cases[0], hk.cases[0].measures
    assert (case.name, measures.shape, case.labels, case.notices) == ("Case00", (8, 8, 3), (0, 1), ())
    assert measures.spacing_mm == (0.6, 0.6, 3.6)
    assert 1 <= measures.lowest < measures.highest < 900


def test_all_problems_of_all_files_are_found_at_once(data):
    root = Path(data.root)
    write_case(root / "HK", 0, np.full((8, 8, 3), np.nan), labels=(0, 255))
    (root / "HK" / "Case01.nii.gz").write_bytes(b"")
    (root / "UCL" / "Case02_segmentation.nii.gz").unlink()
    write_case(root / "UCL", 1, np.ones((8, 8, 4)))
    report = check_dataset(data)
    expected = [
        ("UCL/Case02.nii.gz", "has no mask"),
        ("HK/Case00.nii.gz", "192 of 192 voxels are NaN"),
        ("HK/Case00_segmentation.nii.gz", "labels 0, 255"),
        ("HK/Case01.nii.gz", "Empty file"),
        ("UCL/Case01_segmentation.nii.gz", "8 x 8 x 3 voxels, but its image"),
    ]
    assert len(report.problems) == len(expected)
    for problem, (file, words) in zip(report.problems, expected):
        assert str(problem).startswith(f"{root / file}: ") and words in str(problem)
    assert [len(site.cases) for site in report.sites] == [1, 1]
    assert to_text(report).count(" (1 read)") == 2


def test_images_of_equal_size_and_other_content_are_no_duplicates(data):
    for number in range(2):
        (Path(data.root) / "HK" / f"Case0{number}.nii.gz").write_bytes(bytes([number]) * 50)
    assert find_duplicates(data.cases("HK")) == []


def test_an_mhd_is_as_its_voxels_whatever_its_header_says(tmp_path):
    for name, spacing in (("a", 1.0), ("b", 2.0)):
        image = sitk.GetImageFromArray(np.arange(24, dtype=np.int16).reshape(2, 3, 4))
        image.SetSpacing((spacing,) * 3)
        sitk.WriteImage(image, str(tmp_path / f"{name}.mhd"))
    assert file_sha256(tmp_path / "a.mhd") == file_sha256(tmp_path / "b.mhd") == file_sha256(tmp_path / "b.raw")


def test_unusual_cases_are_counted_per_site(data):
    root = Path(data.root)
    write_case(root / "HK", 1, np.full((8, 8, 3), 4.0), labels=(0,))
    write_case(root / "UCL", 0, labels=(0,))
    warnings = list(map(str, check_dataset(data).warnings))
    assert "HK: constant image: in 1 of 3 cases, the first is Case01" in warnings
    assert "HK: no prostate in the mask: in 1 of 3 cases, the first is Case01" in warnings
    assert "UCL: no prostate in the mask: in 1 of 3 cases, the first is Case00" in warnings


def test_numbers_of_cases_are_compared_with_the_published_ones(data):
    assert list(map(str, check_dataset(data).warnings)) == [
        "UCL: found 3 cases, but 13 are published",
        "HK: found 3 cases, but 12 are published",
    ]
    all_sites = check_dataset(Prostate(root=data.root))
    assert "BIDMC: found 0 cases, but 12 are published" in map(str, all_sites.warnings)
    (Path(data.root) / "PHANTOM.json").write_text("{}")
    assert check_dataset(data).warnings == () and check_dataset(data).is_phantom


def test_text_and_json_contain_the_same_facts_and_different_sizes_are_a_range(data):
    report = check_dataset(data)
    lines = to_text(report).splitlines()
    assert lines[0].split() == "site cases patients size spacing mm intensity mask values prostate".split()
    assert lines[1].split()[:5] == ["HK", "3", "3", "8x8x3", "0.6x0.6x3.6"] and lines[1].endswith("0 1  50 (50-50)")
    assert lines[-1] == "0 problems, 2 warnings."
    loaded = json.loads(to_json(report))
    assert loaded["sites"][1]["cases"][2]["name"] == "Case02"
    assert [Problem(**warning) for warning in loaded["warnings"]] == list(report.warnings)
    write_case(Path(data.root) / "HK", 0, np.arange(8 * 8 * 5).reshape(8, 8, 5))
    mask = nib.Nifti1Image(np.ones((8, 8, 5), np.uint8), AFFINE)
    nib.save(mask, Path(data.root) / "HK" / "Case00_segmentation.nii.gz")
    assert "8x8x3-5" in to_text(check_dataset(data))


def test_the_published_prostate_layout_and_any_other_sites_with_colour_images_are_recognised(data, tmp_path_factory):
    assert recognise(Path(data.root)) == Prostate(root=data.root)
    root = tmp_path_factory.mktemp("colour")
    for name, pixels in (("images/a.jpg", np.full((4, 4, 3), (200, 0, 0))), ("masks/a.png", np.zeros((4, 4)))):
        save_pixels(root / "north" / name, pixels)
    patterns = {"image": "{site}/images/{case}.*", "mask": "{site}/masks/{case}.*"}
    assert recognise(root) == Folder(root=str(root), image_channels=3, **patterns)


def test_a_mask_with_another_value_than_the_other_masks_of_its_site_gives_a_warning(tmp_path):
    """7 among 255 may be another structure, and training would treat both as the same one."""
    for name, value in (("a", 255), ("b", 255), ("c", 7)):
        for kind, pixels in (("images", np.arange(64).reshape(8, 8)), ("masks", np.eye(8) * value)):
            noise = np.random.default_rng(ord(name)).integers(0, 9, (8, 8)) if kind == "images" else 0
            save_pixels(tmp_path / "north" / kind / f"{name}.png", pixels + noise)
    warning, _ = check_dataset(Folder(root=str(tmp_path))).warnings
    assert str(warning) == (
        "north: masks of different values are read as the same structure: 0, 7 in c; 0, 255 in b; if they are "
        "different structures, set data.mask_values"
    )
    values = {"lesion": (255,), "background": (7,)}
    of_site = {"north": {"mask_values": values}}
    for settings in ({"mask_values": values}, {"by_site": of_site}):
        named = Folder(root=str(tmp_path), structure_names=("lesion",), **settings)
        assert "masks of different values" not in [warning.kind for warning in check_dataset(named).warnings]
