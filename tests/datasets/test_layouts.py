"""Folders as people have them: patients, parts and sites, what is not read, and names in two Unicode forms."""

import unicodedata
from dataclasses import replace

import pytest
from folder_layouts import make

from medfed.core.errors import UserError
from medfed.datasets.folder import Folder
from medfed.datasets.folder_classes import FolderClasses
from medfed.datasets.recognition import recognise


def test_folders_of_classes_with_equal_file_names_are_asked_about(tmp_path):
    make(tmp_path / "same", "{n,s}/{dog,cat}/{1,2}.png")
    make(tmp_path / "other", "n/dog/{1,2}.png n/cat/{3,4}.png s/dog/{5,6}.png s/cat/{7,8}.png")
    with pytest.raises(UserError, match="if cat and dog are classes, use the dataset folder_classes"):
        recognise(tmp_path / "same")
    assert recognise(tmp_path / "same", "folder_classes").classes == ("cat", "dog")
    make(tmp_path / "one site", "sketch/{dog/dog,elephant/elephant}.png")
    for name in ("other", "one site"):
        assert recognise(tmp_path / name) == FolderClasses(root=str(tmp_path / name))


def test_the_folder_of_a_patient_with_several_images_is_the_patient(tmp_path):
    dataset = recognise(make(tmp_path, "{n,s}/{p1,p2}/{images,masks}/{1,2}.png"))
    patients = {"p1/1": "p1", "p1/2": "p1", "p2/1": "p2", "p2/2": "p2"}
    assert {case.name: case.patient for case in dataset.cases("n")} == patients
    (warning,) = dataset.site_warnings("n")
    assert warning.startswith("n: all images in a folder count as one patient, such as those in p1")
    by_name = replace(dataset, patient_pattern=r"/(\d)")
    assert [case.patient for case in by_name.cases("n")] == ["1", "2", "1", "2"] and by_name.site_warnings("n") == []


def test_folders_of_parts_and_of_cases_with_a_single_image_are_not_patients(tmp_path):
    dataset = recognise(make(tmp_path, "{n,s}/{train,test}/{images,masks}/{1,2}.png"))
    assert len({case.patient for case in dataset.cases("n")}) == 4
    (warning,) = dataset.site_warnings("n")
    assert warning.startswith("n: the folders test and train are read together") and "datalist" in warning
    dataset = recognise(make(tmp_path / "cases", "{n,s}/{P1,P2}/{scan,scan_mask}.png"))
    assert dataset.site_warnings("n") == []
    dataset = recognise(make(tmp_path / "mixed", "{n,s}/{P1,P2}/{1,1_mask}.png {n,s}/P2/{2,2_mask}.png"))
    (warning,) = dataset.site_warnings("n")
    assert "such as those in P2" in warning


def test_cases_that_lie_where_sites_are_expected_give_a_warning_and_a_hospital_alone_confirms_its_name(tmp_path):
    dataset = recognise(make(tmp_path, "{p1,p2,p3}/{x_T2,x_seg}.nii"))
    (warning,) = dataset.root_warnings()
    assert "each of its 3 folders holds one image with its mask and counts as a site" in warning
    assert recognise(make(tmp_path / "more", "{n,s}/{p1,p2}/{x_T2,x_seg}.nii")).root_warnings() == []

    make(tmp_path / "alone", "n/{p1,p2}/{images,masks}/{1,2}.png")
    with pytest.raises(UserError, match=r"p1 and p2 in n look like sites; .* set data.sites: \[n\]"):
        recognise(tmp_path / "alone")
    dataset = Folder(root=str(tmp_path / "alone"), sites=("n",))
    assert [case.name for case in dataset.cases("n")] == ["p1/1", "p1/2", "p2/1", "p2/2"]


def test_every_file_and_folder_that_is_not_read_is_named_once(tmp_path):
    used, more = "{n,s}/{images,masks}/{a,b}.png", "n/previews/{1,2,3,old/4}.png s/notes.txt s/images/more/{x,y}.png"
    dataset = recognise(make(tmp_path, f"{used} {more} readme.md lost.png n/.cache/z.png"))
    unread = dataset.unread([case for site in "ns" for case in dataset.cases(site)], [])
    assert unread == [
        f"{tmp_path}: not read: lost.png, readme.md",
        f"{tmp_path}/n: not read: previews/ (4 files)",
        f"{tmp_path}/s: not read: notes.txt",
        f"{tmp_path}/s/images: not read: more/ (2 files)",
    ]
    quiet = replace(dataset, ignored_names=("previews", "*.txt", "more", "LOST.*", "readme.md"))
    assert quiet.unread([case for site in "ns" for case in quiet.cases(site)], []) == []


def test_the_folder_beside_those_of_a_published_collection_is_named(tmp_path):
    layout = "{UCL,HK}/Case00{,_segmentation}.nii.gz OURS/{images,masks}/{a,b}.png UCL/scan7.nii"
    dataset = recognise(make(tmp_path, layout))
    assert type(dataset).__name__ == "Prostate"
    cases = [case for site in dataset.site_names() for case in dataset.cases(site)]
    unread = [f"{tmp_path}: not read: OURS/ (4 files)", f"{tmp_path}/UCL: not read: scan7.nii"]
    assert dataset.unread(cases, []) == unread
    ucl = replace(dataset, sites=("UCL",))
    assert ucl.unread([case for case in cases if case.site == "UCL"], []) == unread


@pytest.mark.parametrize(
    "layout",
    [
        "{n,s}/{train/P1,train/P2,val/P3,test/P4}/{v1,v2}/{a,a_mask}.png",
        "{n,s}/{images,masks}/{train/P1,train/P2,val/P3,test/P4}/{v1,v2}.png",
        "{n,s}/{train/P1,train/P2,val/P3,test/P4}/{images,masks}/{v1,v2}.png",
        "{n,s}/{train,val}/{images,masks}/P4/{v1,v2}.png {n,s}/test/{images,masks}/{P1,P2,P3}/{v1,v2}.png",
    ],
)
def test_the_only_patient_of_a_part_is_one_patient(layout, tmp_path):
    dataset = recognise(make(tmp_path, layout))
    assert {case.patient for case in dataset.cases("n")} == {"P1", "P2", "P3", "P4"}


NFC, NFD = (unicodedata.normalize(form, "Bähr") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    "names",
    [
        (f"images/{NFC}.jpg", f"masks/{NFD}.png"),
        (f"images/{NFD}.jpg", f"masks/{NFC}_seg.png"),
        (f"{NFC}.jpg", f"{NFD}_mask.png"),
        (f"{NFD}_T2.jpg", f"{NFC}_seg.png"),
    ],
)
def test_names_in_two_unicode_forms_are_a_pair(tmp_path, names):
    image, mask = names
    files = (image, mask, *(path.replace(NFC, "Jörg").replace(NFD, "Jo\u0308rg") for path in names))
    make(tmp_path, " ".join(f"{{n,s}}/{path}" for path in files))
    cases, problems = recognise(tmp_path).cases_and_problems("n")
    assert problems == [] and (tmp_path / "n" / image, tmp_path / "n" / mask) in [(c.image, c.mask) for c in cases]


def test_folders_of_a_patient_may_have_two_unicode_forms_and_files_that_look_the_same_are_refused(tmp_path):
    make(tmp_path, f"{{n,s}}/images/{{{NFC},b}}/{{1,2}}.png {{n,s}}/masks/{{{NFD},b}}/{{1,2}}.png")
    assert len(recognise(tmp_path).cases("n")) == 4
    make(tmp_path / "same", f"{{n,s}}/images/{{{NFC},{NFD},b}}.png {{n,s}}/masks/{{{NFC},b}}.png")
    _, problems = recognise(tmp_path / "same").cases_and_problems("n")
    assert len(problems) == 1 and "look the same" in problems[0] and "NFC and NFD" in problems[0]
