"""Folders as public challenges distribute them: recognised with the right pairs, or asked about with what helps."""

import numpy as np
import pytest
from folder_layouts import make, save_pixels
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.folder import Folder
from medfed.datasets.folder_classes import FolderClasses
from medfed.datasets.recognition import recognise


def test_one_folder_with_a_single_site_of_parts_or_batches_is_a_site(tmp_path):
    for name, layout in (
        ("parts", "n/{train,test}/{images,masks}/{1,2}.png"),
        ("batch", "n/batch_1/{1,2}{,_mask}.png"),
        ("cases", "n/{p1,p2}/{t2,seg}.nii"),
    ):
        dataset = recognise(make(tmp_path / name, layout))
        assert dataset.site_names() == ["n"] and dataset.cases_and_problems("n")[1] == []


def jpegs(folder, image):
    """Three JPEG files of an image, whose names begin with the folder's first character and its site."""
    for number in range(3):
        save_pixels(folder / f"{folder.name[0]}{folder.parent.name}{number}.jpg", image)


DISC = np.where(np.hypot(*np.mgrid[-1:1:96j, -1:1:96j]) < 0.4, 255, 0).astype(np.uint8)
PHOTOGRAPH = np.linspace(30, 220, 96 * 96).reshape(96, 96).astype(np.uint8)


@pytest.mark.parametrize("kind", ["two values", "JPEG"])
def test_masks_with_other_file_names_than_their_images_are_not_taken_for_a_class(tmp_path, kind):
    for site in "ns":
        for folder, image in (("scans", PHOTOGRAPH), ("drawn", DISC)):
            if kind == "JPEG":
                jpegs(tmp_path / site / folder, image)
                continue
            for number in range(3):
                pixels = np.random.default_rng(number).integers(0, 255 if folder == "scans" else 2, (8, 8))
                save_pixels(tmp_path / site / folder / f"{folder[0]}{number}{site}.png", pixels)
    if kind == "JPEG":
        assert len(np.unique(np.asarray(Image.open(tmp_path / "n" / "drawn" / "dn0.jpg")))) > 3
    dataset = recognise(tmp_path)
    assert isinstance(dataset, Folder)
    (problem,) = dataset.cases_and_problems("n")[1]
    assert "found drawn/ (3 images) and scans/ (3 images); which holds the images and which the masks?" in problem
    (tmp_path / "list.csv").write_text("image,mask\nn/scans/s0n.png,n/drawn/d0n.png\n")
    with pytest.raises(UserError, match="list.csv: there is no column 'site'"):
        recognise(tmp_path)


def test_classes_of_drawings_are_classes_also_beside_a_site_of_photographs(tmp_path):
    """All classes of the site s are black on white; in the site m, one photograph among drawings is one, too."""
    for name in ("cats", "dogs"):
        jpegs(tmp_path / "n" / name, PHOTOGRAPH)
        jpegs(tmp_path / "s" / name, DISC)
    assert isinstance(recognise(tmp_path), FolderClasses)
    jpegs(tmp_path / "m" / "dogs", PHOTOGRAPH)
    jpegs(tmp_path / "m" / "cats", DISC)
    save_pixels(tmp_path / "m" / "cats" / "cm1.jpg", PHOTOGRAPH)
    assert isinstance(recognise(tmp_path), FolderClasses)


def test_two_files_of_one_name_at_a_site_of_one_case_are_a_problem_of_this_site(tmp_path):
    make(tmp_path, "p1/{t2.nii,t2.nii.gz,seg.nii} p2/{t2.nii,seg.nii}")
    dataset = Folder(root=str(tmp_path), image_name="t2", mask_name="seg", one_site_per_case=True)
    cases, (problem,) = dataset.cases_and_problems("p1")
    assert cases == [] and "p1/t2.nii.gz: another file has the same name: t2.nii" in problem
    assert len(dataset.cases("p2")) == 1
