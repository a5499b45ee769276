"""What the usual patterns say about patients, parts, sites and classes, and when images are classes."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from folder_layouts import expand, make, refusal, save_pixels

from medfed.data import main
from medfed.datasets.collections.folder import Folder
from medfed.datasets.part_names import are_years, is_part
from medfed.datasets.recognition import recognise, recognise_layout
from medfed.datasets.walk import walk


@pytest.mark.parametrize(
    ("layout", "patients"),
    [
        ("{n,s}/{p1,p2}/{images,masks}/{1,2}.png", "p1 p1 p2 p2"),
        ("{n,s}/{images,masks}/{p1,p2}/{1,2}.png", "p1 p1 p2 p2"),
        ("{n,s}/{P1,P2}/{1,1_mask}.png {n,s}/P2/{2,2_mask}.png", "P1 P2 P2"),
        ("{n,s}/{train,test}/{images,masks}/{1,2}.png", "test/1 test/2 train/1 train/2"),
        ("n/{fold1,fold2}/{images,masks}/{1,2}.png", "fold1/1 fold1/2 fold2/1 fold2/2"),
        ("n/batch_1/{1,2}{,_mask}.png", "batch_1/1 batch_1/2"),
        ("n/{p1,p2}/{t2,seg}.nii", "p1 p2"),
        ("{n,s}/{benign,malignant}/{1,2}{,_mask}.png", "benign/1 benign/2 malignant/1 malignant/2"),
    ],
)
def test_a_folder_between_the_site_and_the_images_is_a_patient_unless_its_name_says_something_else(
    layout, patients, tmp_path
):
    dataset = recognise(make(tmp_path, layout))
    assert [case.patient for case in dataset.cases("n")] == patients.split() and dataset.site_names()[0] == "n"


def test_sites_that_look_like_something_else_are_read_if_the_user_lists_them(tmp_path):
    for name, sites, layout in (
        ("parts", ["fold1", "fold2"], "{fold1,fold2}/{images,masks}/{1,2}.png"),
        ("one", ["n"], "n/{p1,p2}/{images,masks}/{1,2}.png"),
        ("classes", ["test", "train"], "train/{dog/a1,dog/a2,cat/b1}.png test/{dog/c,cat/d}1.png"),
    ):
        assert str(sites).replace("'", "") in refusal(make(tmp_path / name, layout))
        dataset = recognise_layout(tmp_path / name, None, {"sites": sites})
        assert isinstance(dataset, Folder) and replace(dataset, sites=tuple(sites)).site_names() == sites


def test_sites_of_one_image_each_give_a_warning_because_they_may_be_cases(tmp_path):
    for name, layout, n_warnings in (
        ("a", "{a1,a2,a3}/{x_T2,x_seg}.nii", 1),
        ("b", "{n,s}/{p1,p2}/{x_T2,x_seg}.nii", 0),
    ):
        assert len(recognise(make(tmp_path / name, layout)).contents.warnings[""]) == n_warnings


def test_documents_are_passed_over_but_not_folders_of_such_names(tmp_path):
    files = walk(make(tmp_path, "n/{1.png,CHANGES,a.docx,x.unknown} README LICENSE changes/1.png"))
    assert files.images == ("changes/1.png", "n/1.png", "n/x.unknown")


def test_files_beside_a_published_collection_are_named(tmp_path):
    dataset = recognise(make(tmp_path, "{UCL,HK}/Case00{,_segmentation}.nii.gz OURS/{images,masks}/a.png UCL/x.nii"))
    assert type(dataset).__name__ == "Prostate"
    assert [unread.place for unread in dataset.contents.unread] == [f"{tmp_path}/OURS", f"{tmp_path}/UCL"]


def test_names_of_parts_are_recognised_and_those_of_hospitals_and_patients_are_not():
    parts = "train Train_set TrainingSet test-data fold1 Fold_3 split2 subset0 Set1 a_Training 1_test batch_1 hold-out"
    others = "UCL HK p01 site1 center2 2019 trainer Devon Testa test_hospital partner images fold A_B Validus b"
    assert [name for name in parts.split() if not is_part(name)] == []
    assert [name for name in others.split() if is_part(name)] == []
    assert are_years(["2019", "2020"]) and are_years(["scan_2019-05-01", "scan_2020-01-31"])
    assert not are_years(["2019"]) and not are_years(["2019", "3020"])
    assert not are_years([str(2000 + number) for number in range(20)])  # numbers of patients


PHOTOGRAPH = np.linspace(30, 220, 96 * 96).reshape(96, 96)


def save(root: Path, pixels: np.ndarray, patterns: str) -> Path:
    for path in (root / name for pattern in patterns.split() for name in expand(pattern)):
        save_pixels(path, pixels)
    return root


def test_photographs_in_folders_of_classes_are_classes_with_the_settings_of_a_classifier(tmp_path):
    layout = "{n,s}/benign/benign_{0,1,2}.png {n,s}/malignant/malignant_{0,1,2}.png"
    dataset = recognise(save(tmp_path, PHOTOGRAPH, layout))
    assert dataset.classes == ("benign", "malignant") and dataset.structures == ()
    assert (dataset.image_size, dataset.standardise) == (224, "imagenet")
    assert [(case.name, case.label) for case in dataset.cases("s")][2:4] == [
        ("benign/benign_2", 0),
        ("malignant/malignant_0", 1),
    ]


def test_classes_that_differ_in_upper_and_lower_case_are_one_and_a_missing_class_gives_a_warning(tmp_path):
    save(tmp_path, PHOTOGRAPH, "n/{dog/a,cat/b,cow/c}{1,2}.png s/{Dog/d,CAT/e}{1,2}.png")
    dataset = recognise(tmp_path)
    assert dataset.classes == ("cat", "cow", "dog") and [case.label for case in dataset.cases("s")] == [0, 0, 2, 2]
    assert dataset.contents.warnings["n"] == [] and "'cow'" in dataset.contents.warnings["s"][0].found
    two = Folder(root=str(tmp_path), image="{site}/{class}/{case}.png", class_names=("dog", "cat"))
    assert [case.label for case in two.cases("n")] == [1, 1, 0, 0]


def test_an_image_that_fits_no_class_and_a_single_class_are_refused(tmp_path):
    save(tmp_path, PHOTOGRAPH, "n/dog/small/a1.png n/dog/b1.png n/cat/c1.png")
    assert "n/dog/small/a1.png" in refusal(tmp_path)
    save(tmp_path / "one", PHOTOGRAPH, "n/dog/b{1,2}.png")
    assert "only the class 'dog'" in refusal(tmp_path / "one")


def test_one_image_without_a_mask_does_not_hide_the_other_problems(tmp_path, capsys):
    """The message suggests the patterns that pair most files; with them, every problem is found."""
    make(tmp_path, "{n,s}/{images,masks}/{1,2,3}.png n/images/4.png")
    (tmp_path / "s" / "images" / "1.png").write_bytes(b"broken")
    assert main(["check", str(tmp_path)]) == 2
    lines = re.findall(r"--set '(data\.(?:image|mask)=[^']*)'", capsys.readouterr().err)[:2]
    assert lines == ["data.image={site}/images/{case}.*", "data.mask={site}/masks/{case}.*"]
    assert main(["check", str(tmp_path), "--set", lines[0], "--set", lines[1]]) == 2
    shown = "".join(capsys.readouterr())
    assert "n/images/4.png" in shown and "s/images/1.png" in shown


def test_settings_of_a_single_site_keep_the_recognised_patterns_unless_they_are_patterns(tmp_path):
    make(tmp_path, "{n,s}/{imgs,gt}/{1,2}.png")
    kept = ({"by_site": {"n": {"mask_threshold": 9}}}, {"by_site.n.mask_threshold": 9}, {"mask_threshold": 9})
    replaced = ({"by_site": {"n": {"mask": "{site}/gt/{case}.*"}}}, {"by_site.n.image": "{site}/{case}.*"})
    for settings, has_pattern in [(one, True) for one in kept] + [(one, False) for one in replaced]:
        assert (recognise_layout(tmp_path, None, settings).image is not None) == has_pattern, settings
