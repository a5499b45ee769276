"""Parts of a split, years and classes: a part is no site, no patient and no class; photographs are classes."""

from pathlib import Path

import numpy as np
import pytest
from folder_layouts import expand, make, save_pixels

from medfed.core.errors import UserError
from medfed.datasets.folder import Folder
from medfed.datasets.folder_classes import FolderClasses
from medfed.datasets.part_names import are_years, is_part
from medfed.datasets.recognition import block_for, recognise


def test_parts_are_sites_if_the_user_lists_them_and_one_site_if_they_lie_in_its_folder(tmp_path):
    make(tmp_path / "a", "{fold1,fold2}/{images,masks}/{1,2}.png")
    assert len(Folder(root=str(tmp_path / "a"), sites=("fold1", "fold2")).cases("fold1")) == 2
    make(tmp_path / "b", "UKE/{fold1,fold2}/{images,masks}/{1,2}.png")
    cases = recognise(tmp_path / "b").cases("UKE")
    assert [case.patient for case in cases] == ["fold1/1", "fold1/2", "fold2/1", "fold2/2"]


def test_names_of_parts_are_recognised_and_those_of_hospitals_and_patients_are_not():
    parts = "train Train_set TrainingSet test-data fold1 Fold_3 split2 subset0 Set1 a_Training 1_test batch_1 hold-out"
    others = "UCL HK p01 site1 center2 2019 trainer Devon Testa test_hospital partner images fold A_B Validus b"
    assert [name for name in parts.split() if not is_part(name)] == []
    assert [name for name in others.split() if is_part(name)] == []
    assert are_years(["2019", "2020"]) and are_years(["scan_2019-05-01", "scan_2020-01-31"])
    assert not are_years(["2019"]) and not are_years(["2019", "3020"])
    assert not are_years([str(2000 + number) for number in range(20)])  # numbers of patients


def photographs(root: Path, patterns: str) -> Path:
    for number, path in enumerate(root / name for pattern in patterns.split() for name in expand(pattern)):
        save_pixels(path, np.random.default_rng(number).integers(0, 256, (16, 16)))
    return root


def test_class_folders_in_parts_of_a_site_are_joined(tmp_path):
    photographs(tmp_path, "{n,s}/train/{dog/d,cat/c}{1,2}.png {n,s}/val/{dog/d,cat/c}3.png")
    dataset = recognise(tmp_path)
    assert isinstance(dataset, FolderClasses) and dataset.classes == ("cat", "dog")
    names = "train/cat/c1 train/cat/c2 train/dog/d1 train/dog/d2 val/cat/c3 val/dog/d3"
    assert [(case.name, case.label) for case in dataset.cases("n")] == list(zip(names.split(), (0, 0, 1, 1, 0, 1)))
    (warning,) = dataset.site_warnings("n")
    assert warning.startswith("n: the folders train and val are read together")
    photographs(tmp_path / "years", "{n,s}/2019/{dog/d,cat/c}{1,2}.png {n,s}/2020/{dog/d,cat/c}3.png")
    assert recognise(tmp_path / "years").classes == ("cat", "dog")


def test_photographs_in_folders_of_equal_names_at_two_sites_are_classes_and_other_images_are_asked_about(tmp_path):
    layout = "{n,s}/benign/benign_{0,1}.png {n,s}/malignant/malignant_{0,1}.png"
    assert recognise(photographs(tmp_path / "photographs", layout)).classes == ("benign", "malignant")
    for name, other in (
        ("constant", layout),
        ("pairs", "{n,s}/x/p{0,1}_A.png {n,s}/y/p{0,1}_B.png"),
    ):
        (make if name == "constant" else photographs)(tmp_path / name, other)
        with pytest.raises(UserError, match="which holds the images and which the masks"):
            recognise(tmp_path / name).site_names()


def test_classes_that_differ_in_upper_and_lower_case_are_one_class_unless_they_lie_side_by_side(tmp_path):
    photographs(tmp_path / "a", "n/dog/a{1,2}.png n/cat/b{1,2}.png s/Dog/c{1,2}.png s/CAT/d{1,2}.png")
    dataset = recognise(tmp_path / "a")
    assert dataset.classes == ("cat", "dog") and [case.label for case in dataset.cases("s")] == [0, 0, 1, 1]
    assert "s: the names of folders differ" in dataset.site_warnings("s")[0]
    photographs(tmp_path / "b", "n/dog/a1.png n/Dog/b1.png n/cat/c1.png")
    with pytest.raises(UserError, match="the folders Dog and dog differ only in upper and lower case; .*data.datalist"):
        _ = FolderClasses(root=str(tmp_path / "b")).classes
    (tmp_path / "b" / "list.csv").write_text("site,image,class\nn,n/dog/a1.png,dog\nn,n/Dog/b1.png,Dog\n")
    with pytest.raises(UserError, match="'class' has the values Dog and dog"):
        _ = recognise(tmp_path / "b").classes


def test_a_folder_inside_the_folder_of_a_class_is_refused_with_the_table_that_helps(tmp_path):
    photographs(tmp_path, "n/dog/small/a1.png n/dog/b1.png n/cat/c1.png")
    _, (problem,) = FolderClasses(root=str(tmp_path)).cases_and_problems("n")
    assert "n/dog/small: this is a folder in the folder of a class" in problem and "columns site, patient" in problem


def test_listed_sites_keep_the_recognised_dataset(tmp_path):
    photographs(tmp_path, "train/{dog/a,cat/b}{1,2}.png test/{dog/c,cat/d}{1,2}.png")
    assert block_for(tmp_path, None, {"sites": ["train", "test"]})["name"] == "folder_classes"
