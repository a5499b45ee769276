"""The fingerprint of images whose numbers are known."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from folder_layouts import save_pixels

from medfed.core.errors import UserError
from medfed.datasets.collections.folder import Folder
from medfed.datasets.recognition import recognise
from medfed.planning import fingerprint as fingerprint_module
from medfed.planning.fingerprint import take_fingerprint


@pytest.fixture
def lines(tmp_path) -> Folder:
    """Two sites with ten images of 40 x 100 pixels: half 10, half 250; the mask is a line, 4 pixels wide."""
    for site in "ab":
        for number in range(10):
            image, mask = np.full((40, 100), 10), np.zeros((40, 100))
            image[20:], mask[10:14] = 250, 255
            save_pixels(tmp_path / site / "images" / f"p{number // 2}_{number}.png", image)
            save_pixels(tmp_path / site / "masks" / f"p{number // 2}_{number}.png", mask)
    return Folder(root=str(tmp_path), patient_pattern="^(p[0-9])_")


def test_counts_sizes_intensities_and_the_width_of_a_line_are_those_of_the_files(lines):
    fingerprint = take_fingerprint(lines, ["b", "a"], 0)
    assert [(site.name, site.n_images, site.n_patients) for site in fingerprint.sites] == [("a", 10, 5), ("b", 10, 5)]
    assert [site.n_training for site in fingerprint.sites] == [6, 6]  # 1 of 5 patients validates, 1 tests
    assert (fingerprint.height, fingerprint.width, fingerprint.depth, fingerprint.spacing_mm) == (40, 100, 1, None)
    assert fingerprint.intensities == (10, 250) and fingerprint.channels == 1 and fingerprint.classes == ()
    (structure,) = take_fingerprint(lines, ["a"], 0).structures
    assert structure.foreground == pytest.approx(4 / 40)
    assert structure.width * 4000**0.5 == pytest.approx(2 * 400 / 208)  # 4, but for the two ends of the line


def test_only_patients_that_train_are_read(lines):
    before = take_fingerprint(lines, ["a"], 0)
    from medfed.datasets.splits import split

    parts = split(lines.cases("a"), 0, lines.validation_ratio, lines.test_ratio)
    for case in [*parts.validation, *parts.test]:
        case.image.write_bytes(b"damaged")
    assert take_fingerprint(lines, ["a"], 0) == before


def test_the_error_of_a_damaged_image_says_how_to_find_all_of_them(lines):
    for path in Path(lines.root).glob("a/images/*.png"):
        path.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"images/p\d_\d\.png: .*medfed\.data check"):
        take_fingerprint(lines, ["a"], 0)


def test_a_structure_that_no_training_mask_shows_is_refused_in_one_sentence(lines):
    for path in Path(lines.root).glob("a/masks/*.png"):
        save_pixels(path, np.zeros((40, 100)))
    assert take_fingerprint(lines, ["a", "b"], 0).structures == take_fingerprint(lines, ["b"], 0).structures
    with pytest.raises(UserError, match=r"no mask that is used for training shows foreground \(sites that train: a\)"):
        take_fingerprint(lines, ["a"], 0)


def test_further_cases_are_read_until_a_mask_shows_the_structure(lines, monkeypatch):
    monkeypatch.setattr(fingerprint_module, "MAX_READ", 1)
    whole = take_fingerprint(lines, ["a"], 0)
    measure, paths = fingerprint_module.measure_case, []
    monkeypatch.setattr(
        fingerprint_module, "measure_case", lambda case, *read: (paths.append(case.mask_path), measure(case, *read))[1]
    )
    take_fingerprint(lines, ["a"], 0)
    for path in paths:
        save_pixels(path, np.zeros((40, 100)))
    n_before = len(paths)
    assert take_fingerprint(lines, ["a"], 0).structures == whole.structures
    assert len(paths) == 2 * n_before + 1


def test_slices_of_volumes_are_counted_and_have_a_spacing(tmp_path):
    image = np.random.default_rng(0).random((12, 20, 5), dtype=np.float32)
    for number in range(4):
        for name, array in (("", image), ("_mask", (image > 0.5).astype(np.uint8))):
            (tmp_path / "a").mkdir(exist_ok=True)
            nib.save(nib.Nifti1Image(array, np.diag([0.5, 0.25, 3, 1])), tmp_path / "a" / f"c{number}{name}.nii.gz")
    fingerprint = take_fingerprint(recognise(tmp_path), ["a"], 0)
    assert fingerprint.sites[0].n_training == 2 * 5
    assert (fingerprint.height, fingerprint.width, fingerprint.depth) == (12, 20, 5)
    assert fingerprint.spacing_mm == (0.5, 0.25, 3)


def test_the_axes_of_a_volume_are_put_in_order(tmp_path):
    """A sagittal volume, whose axes are stored as posterior, superior, right."""
    affine = np.array([[0, 0, 3, 0], [-0.5, 0, 0, 0], [0, 0.25, 0, 0], [0, 0, 0, 1]])
    for number in range(4):
        for name in ("", "_mask"):
            (tmp_path / "a").mkdir(exist_ok=True)
            array = (
                np.arange(12 * 20 * 5, dtype=np.float32).reshape(12, 20, 5) if not name else np.eye(12, 20)[..., None]
            )
            array = np.broadcast_to(array, (12, 20, 5)).astype(np.uint8 if name else np.float32)
            nib.save(nib.Nifti1Image(array, affine), tmp_path / "a" / f"c{number}{name}.nii.gz")
    fingerprint = take_fingerprint(recognise(tmp_path), ["a"], 0)
    assert (fingerprint.height, fingerprint.width, fingerprint.depth) == (5, 12, 20)
    assert fingerprint.spacing_mm == (3, 0.5, 0.25) and fingerprint.sites[0].n_training == 2 * 20


def test_classes_are_counted(tmp_path):
    for site in "ab":
        for name, n in (("benign", 3), ("malignant", 2)):
            for number in range(n):
                save_pixels(
                    tmp_path / site / name / f"{name}_{number + 10 * n}{site}.png", np.full((16, 16, 3), 9 * number)
                )
    fingerprint = take_fingerprint(recognise(tmp_path), ["a"], 0)
    assert fingerprint.classes == (("benign", 3), ("malignant", 2)) and fingerprint.structures == ()
