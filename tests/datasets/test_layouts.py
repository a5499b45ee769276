"""Folders as people have them: each is recognised with the right pairs, or refused with the setting that helps."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest
from folder_layouts import Found, Refused, check_found, check_refused, make, two

from medfed.core.errors import UserError
from medfed.datasets.folder import Folder
from medfed.datasets.folder_classes import FolderClasses
from medfed.datasets.recognition import recognise

FOUND = {
    "images and masks": Found(two("images/{a,b}.jpg", "masks/{a,b}.png"), "a n/images/a.jpg n/masks/a.png"),
    "img and mask": Found(two("img/{a,b}.png", "mask/{a,b}.png"), "a n/img/a.png n/mask/a.png"),
    "imgs and labels": Found(two("imgs/{a,b}.png", "labels/{a,b}.png"), "a n/imgs/a.png n/labels/a.png"),
    "Image and Label": Found(two("Image/{a,b}.png", "Label/{a,b}.png"), "a n/Image/a.png n/Label/a.png"),
    "IMAGES and GT": Found(two("IMAGES/{a,b}.png", "GT/{a,b}.png"), "a n/IMAGES/a.png n/GT/a.png"),
    "Images and Ground Truth": Found(
        "{n,s}/images/{a,b}.png {n,s}/Ground_Truth/{a,b}.png", "a n/images/a.png n/Ground_Truth/a.png"
    ),
    "images and annotations": Found(
        two("images/{a,b}.png", "annotations/{a,b}.png"), "a n/images/a.png n/annotations/a.png"
    ),
    "images and seg, volumes": Found(
        two("images/{a,b}.nii.gz", "seg/{a,b}.nii.gz"), "a n/images/a.nii.gz n/seg/a.nii.gz"
    ),
    "top folders with the sites inside": Found(
        "Images/{n,s}/{a,b}.png Masks/{n,s}/{a,b}.png", "a Images/n/a.png Masks/n/a.png"
    ),
    "nnU-Net with one channel": Found(
        two("imagesTr/{a,b}_0000.png", "labelsTr/{a,b}.png"), "a_0000 n/imagesTr/a_0000.png n/labelsTr/a.png"
    ),
    "nnU-Net with one case": Found(
        "{n,s}/imagesTr/p_01_0000.nii.gz {n,s}/labelsTr/p_01.nii.gz",
        "p_01_0000 n/imagesTr/p_01_0000.nii.gz n/labelsTr/p_01.nii.gz",
    ),
    "nnU-Net, the channel is set": Found(
        two("imagesTr/{a,b}_{0000,0001}.png", "labelsTr/{a,b}.png"),
        "a n/imagesTr/a_0000.png n/labelsTr/a.png",
        {"image_name": "*_0000"},
    ),
    "T2 and seg in one folder": Found(two("P{1,2}_T2.nii", "P{1,2}_seg.nii"), "P1_T2 n/P1_T2.nii n/P1_seg.nii"),
    "T2 and label, one case": Found(
        "{n,s}/P1_T2.nii {n,s}/P1_label.nii {n,s}/P2_T2.nii {n,s}/P2_seg.nii", "P1_T2 n/P1_T2.nii n/P1_label.nii"
    ),
    "NAME and NAME_label": Found(two("{a,b}.png", "{a,b}_label.png"), "a n/a.png n/a_label.png"),
    "NAME and NAME-mask": Found(two("{a,b}.png", "{a,b}-mask.png"), "a n/a.png n/a-mask.png"),
    "img_1 and mask_1": Found(two("img_{1,2,10}.png", "mask_{1,2,10}.png"), "img_1 n/img_1.png n/mask_1.png"),
    "a common suffix of the masks": Found(
        two("images/im000{1,2}.png", "labels/im000{1,2}ah.png"), "im0001 n/images/im0001.png n/labels/im0001ah.png"
    ),
    "a common suffix of a single mask": Found(
        two("images/im0001.png", "labels/im0001ah.png"), "im0001 n/images/im0001.png n/labels/im0001ah.png"
    ),
    "two common prefixes": Found(
        two("images/Test_Image_{1,2,12}.png", "masks/mask_{1,2,12}.png"),
        "Test_Image_1 n/images/Test_Image_1.png n/masks/mask_1.png",
    ),
    "a suffix of the images": Found(
        two("images/{a,b}.IMG.png", "masks/{a,b}.png"), "a.IMG n/images/a.IMG.png n/masks/a.png"
    ),
    "a word within the name": Found(
        two("images/{1,2}_img_x.png", "masks/{1,2}_gland_x.png"), "1_img_x n/images/1_img_x.png n/masks/1_gland_x.png"
    ),
    "equal numbers with zeros": Found(
        two("images/img{7,8,10}.png", "masks/m_{007,008,010}.png"), "img7 n/images/img7.png n/masks/m_007.png"
    ),
    "case folders with T2 and seg": Found(
        two("{p1,p2}/{p1_T2}.nii", "{p1,p2}/{p1_seg}.nii"), "p1 n/p1/p1_T2.nii n/p1/p1_seg.nii"
    ),
    "case folders with unlike names": Found(
        two("{p1,p2}/scan.nii", "{p1,p2}/gland_label.nii"), "p1 n/p1/scan.nii n/p1/gland_label.nii"
    ),
    "case folders with images and masks": Found(
        two("{p1,p2}/images/{1,2}.png", "{p1,p2}/masks/{1,2}.png"), "p1/1 n/p1/images/1.png n/p1/masks/1.png"
    ),
    "train and test": Found(
        two("{train,test}/images/{a,b}.png", "{train,test}/masks/{a,b}.png"),
        "train/a n/train/images/a.png n/train/masks/a.png",
    ),
    "images/train and masks/train": Found(
        two("images/{train,test}/{a,b}.png", "masks/{train,test}/{a,b}.png"),
        "test/a n/images/test/a.png n/masks/test/a.png",
    ),
    "masks in a folder beside the images": Found(two("{a,b}.png", "masks/{a,b}.png"), "a n/a.png n/masks/a.png"),
    "folder names are set": Found(
        two("raw/{a,b}.png", "gt2/{a,b}.png"),
        "a n/raw/a.png n/gt2/a.png",
        {"image_folders": ("RAW",), "mask_folders": ("gt2",)},
    ),
    "of two folders of masks one is set": Found(
        two("images/{a,b}.png", "{masks,gt}/{a,b}.png"), "a n/images/a.png n/gt/a.png", {"mask_folders": ("gt",)}
    ),
    "one of two raters is set": Found(
        "{n,s}/{1,2}{,_1stHO,_2ndHO}.png",
        "1 n/1.png n/1_1stHO.png",
        {"mask_name": "*_1stHO", "ignored_names": ("*_2ndHO.*",)},
    ),
    "the sequence is set": Found(
        "{n,s}/{p1,p2}/X_{T2,ADC,seg}.nii", "p1 n/p1/X_T2.nii n/p1/X_seg.nii", {"image_name": "*_T2"}
    ),
    "JPEG images and PNG masks of the same name, set": Found(
        "{n,s}/{a,b}.{jpg,png}", "a n/a.jpg n/a.png", {"mask_name": "*.png"}
    ),
    "spaces, brackets and umlauts": Found(
        "{n,s}/Bilder/x.txt {n,s}/images/b_(1)_ä.png {n,s}/masks/b_(1)_ä_mask.png",
        "b_(1)_ä n/images/b_(1)_ä.png n/masks/b_(1)_ä_mask.png",
    ),
    "files of operating systems": Found(
        two("images/{a.png,Thumbs.db,._a.png}", "masks/{a.png,.DS_Store}") + " __MACOSX/x.png",
        "a n/images/a.png n/masks/a.png",
    ),
    "an empty folder with a usual name": Found(
        two("images/{a,b}.png", "masks/{a,b}.png") + " {n,s}/labels/{a,b}.txt", "a n/images/a.png n/masks/a.png"
    ),
    "a site that is called GT": Found("{n,s,GT}/{a,b}.png {n,s,GT}/{a,b}_mask.png", "a n/a.png n/a_mask.png"),
    "fixed names in other upper and lower case": Found(
        "{n,s}/{p1,p2}/{T2,gland}.png", "p1 n/p1/T2.png n/p1/gland.png", {"image_name": "t2", "mask_name": "GLAND"}
    ),
    "fixed names with a suffix": Found(
        "{n,s}/{p1,p2}/{T2.png,T2.jpg,gland.png}",
        "p1 n/p1/T2.png n/p1/gland.png",
        {"image_name": "T2.png", "mask_name": "gland"},
    ),
}
REFUSED = {
    "a folder of masks with an unknown name": Refused(
        two("img/{a,b}.png", "gt2/{a,b}.png"), ("found gt2/ and img/; which holds the masks", "data.mask_folders")
    ),
    "a folder of images with an unknown name": Refused(
        two("photos/{a,b}.png", "masks/{a,b}.png"),
        ("found masks/ and photos/; which holds the images", "data.image_folders"),
    ),
    "two unknown folders": Refused(
        two("left/{a,b}.png", "right/{a,b}.png"),
        (
            "n/ and s/, both with the folders left/ and right/ and files of the same names; which holds the images",
            "data.mask_folders: if n and s are the sites, such as [left] and [right]",
            "folder_classes",
        ),
    ),
    "two unknown folders of other names at each site": Refused(
        "n/{left,right}/{a,b}.png s/{left,right}/{c,d}.png",
        ("left/ (2 images) and right/ (2 images) with files of the same names", "data.mask_folders", "folder_classes"),
    ),
    "two unknown folders with the sites inside": Refused(
        "left/{n,s}/{a,b}.png right/{n,s}/{a,b}.png",
        (
            "found left/ and right/, both with the folders n/ and s/",
            "data.image_folders",
            "if n and s are the sites, such as [left] and [right]",
        ),
    ),
    "top folders, one with an unknown name": Refused(
        "images/{n,s}/{a,b}.png drawn/{n,s}/{a,b}.png",
        ("found drawn/ and images/; which holds the masks", "data.mask_folders, such as [drawn]"),
    ),
    "two folders of masks": Refused(
        two("images/{a,b}.png", "{masks,labels}/{a,b}.png"),
        ("found labels/ and masks/; which holds the masks", "data.mask_folders"),
    ),
    "only a folder of images": Refused(
        "{n,s}/images/{a,b}.png", ("found only the folder images/", "data.mask_folders")
    ),
    "a site of top folders without masks": Refused(
        "images/{n,s}/a.png masks/n/a.png", ("images/s: there is no folder s in", "masks; add it")
    ),
    "names that do not belong together": Refused(
        two("images/{x,y}.png", "masks/{u,v}.png"),
        ("none of the 2 images (such as x.png)", "2 masks (such as u.png)", "data.image_name", "data.datalist"),
    ),
    "other numbers": Refused(two("images/p_07.png", "masks/p_08.png"), ("none of the 1 images", "data.datalist")),
    "two channels": Refused(
        two("imagesTr/{a,b}_{0000,0001}.png", "labelsTr/{a,b}.png"),
        ("two channels of a case, a_0000.png and a_0001.png", "data.image_name, such as '*_0000'"),
    ),
    "two sequences": Refused(
        "{n,s}/{p1,p2}_{T2,ADC,seg}.nii",
        ("two images, p1_ADC.nii and p1_T2.nii, may belong to this mask", "data.image_name, such as '*_ADC'"),
    ),
    "two sequences in case folders": Refused(
        "{n,s}/{p1,p2}/X_{T2,ADC,seg}.nii", ("X_ADC.nii and X_T2.nii, may belong to this mask", "data.image_name")
    ),
    "two masks of an image": Refused(
        "{n,s}/{a,b}.png {n,s}/{a,b}_mask.png {n,s}/a_mask_1.png",
        ("a_mask_1.png: is a second mask of the image a; a_mask.png is also one", "data.ignored_names"),
    ),
    "two masks of an image with two words": Refused(
        "{n,s}/a.png {n,s}/a_{mask,label}.png", ("a_mask.png: is a second mask", "a_label.png is also one")
    ),
    "masks without a known word": Refused(
        "{n,s}/{a,b}.png {n,s}/{a,b}gland.png",
        ("(such as a.png and agland.png)", "which files are the masks", "data.mask_name, such as '*gland'"),
    ),
    "images and masks with other suffixes": Refused(
        "{n,s}/{a,b}.{jpg,png}", ("every name exists as .jpg and as .png", "data.mask_name: '*.png'")
    ),
    "an image without a mask": Refused(
        two("images/{a,b,c}.png", "masks/{a,b}.png"), ("c.png: this image has no mask", "data.ignored_names")
    ),
    "a mask without an image": Refused(
        two("images/{a,b}.png", "masks/{a,b,c}.png"), ("c.png: this mask has no image", "data.ignored_names")
    ),
    "one site with two folders": Refused(
        "images/{a,b}.png masks/{a,b}.png", ("holds the folders images and masks", "looks like a single site", "give")
    ),
    "one site of nnU-Net": Refused("imagesTr/a_0000.png labelsTr/a.png dataset.json", ("looks like a single site",)),
    "one site with its files": Refused("{a,b}.png {a,b}_mask.png", ("holds image files", "looks like a single site")),
    "the folder around the folder of the sites": Refused(
        "all/{n,s}/images/{a,b}.png all/{n,s}/masks/{a,b}.png",
        ("the folder all is the only one", "all instead", "data.sites: [all]"),
    ),
    "parts of a split with the sites inside": Refused(
        "{train,test}/{n,s}/images/{a,b}.png {train,test}/{n,s}/masks/{a,b}.png",
        ("found the folders test and train, which look like parts of a split", "data.datalist", "data.sites:"),
    ),
    "masks of a format that is not supported": Refused(
        two("images/{a,b}.png", "masks/{a,b}.gif"),
        ("a.gif: this file format is not supported (as those of 1 other files ending in .gif", "convert or remove"),
    ),
    "a case folder without a mask": Refused(
        "{n,s}/{p1,p2,p3}/T2.nii {n,s}/{p1,p2}/T2_seg.nii", ("p3/T2.nii: this image has no mask",)
    ),
    "eyes": Refused(two("images/{1,2}_left.png", "masks/{1,2}_right.png"), ("none of the 2 images", "data.datalist")),
    "an eye and the mask of the other eye": Refused(
        "{n,s}/{p1,p2}/{left,right_mask}.png", ("none of the 1 images (such as left.png)", "right_mask.png")
    ),
    "two files of a fixed name": Refused(
        "{n,s}/{p1,p2}/{t2.nii,t2.nii.gz,seg.nii}",
        ("p1/t2.nii.gz: another file has the same name: t2.nii", "remove one", "data.image_name"),
        {"image_name": "t2", "mask_name": "seg"},
    ),
}


@pytest.mark.parametrize("layout", FOUND.values(), ids=FOUND.keys())
def test_a_layout_is_recognised_with_the_right_pairs(layout, tmp_path):
    check_found(layout, tmp_path)


@pytest.mark.parametrize("layout", REFUSED.values(), ids=REFUSED.keys())
def test_a_layout_is_refused_with_what_was_found_and_what_helps(layout, tmp_path):
    check_refused(layout, tmp_path)


def test_folders_of_classes_with_equal_file_names_are_asked_about(tmp_path):
    make(tmp_path / "same", "{n,s}/{dog,cat}/{1,2}.png")
    make(tmp_path / "other", "n/dog/{1,2}.png n/cat/{3,4}.png s/dog/{5,6}.png s/cat/{7,8}.png")
    with pytest.raises(UserError, match="if cat and dog are classes, use the dataset folder_classes"):
        recognise(tmp_path / "same")
    assert recognise(tmp_path / "same", "folder_classes").classes == ("cat", "dog")
    assert recognise(tmp_path / "other") == FolderClasses(root=str(tmp_path / "other"))


def test_the_folder_of_a_patient_with_several_images_is_the_patient(tmp_path):
    dataset = recognise(make(tmp_path, "{n,s}/{p1,p2}/images/{1,2}.png {n,s}/{p1,p2}/masks/{1,2}.png"))
    assert [(case.name, case.patient) for case in dataset.cases("n")] == [
        ("p1/1", "p1"),
        ("p1/2", "p1"),
        ("p2/1", "p2"),
        ("p2/2", "p2"),
    ]
    (warning,) = dataset.site_warnings("n")
    assert warning.startswith("n: all images in a folder count as one patient, such as those in p1")
    by_name = replace(dataset, patient_pattern=r"/(\d)")
    assert [case.patient for case in by_name.cases("n")] == ["1", "2", "1", "2"] and by_name.site_warnings("n") == []


def test_folders_of_parts_are_not_patients_and_give_a_warning(tmp_path):
    dataset = recognise(make(tmp_path, "{n,s}/{train,test}/images/{1,2}.png {n,s}/{train,test}/masks/{1,2}.png"))
    assert len({case.patient for case in dataset.cases("n")}) == 4
    (warning,) = dataset.site_warnings("n")
    assert warning.startswith("n: the folders test and train are read together") and "datalist" in warning


def test_cases_that_lie_where_sites_are_expected_give_a_warning(tmp_path):
    dataset = recognise(make(tmp_path, "{p1,p2,p3}/{x_T2,x_seg}.nii"))
    (warning,) = dataset.root_warnings()
    assert "each of its 3 folders holds one image with its mask and counts as a site" in warning
    assert recognise(make(tmp_path / "more", "{n,s}/{p1,p2}/{x_T2,x_seg}.nii")).root_warnings() == []


def test_a_hospital_alone_with_folders_of_patients_confirms_its_name(tmp_path):
    make(tmp_path, "n/{p1,p2}/images/{1,2}.png n/{p1,p2}/masks/{1,2}.png")
    with pytest.raises(UserError, match=r"p1 and p2 in n look like sites; .* set data.sites: \[n\]"):
        recognise(tmp_path)
    dataset = Folder(root=str(tmp_path), sites=("n",))
    assert [case.name for case in dataset.cases("n")] == ["p1/1", "p1/2", "p2/1", "p2/2"]


def test_every_file_and_folder_that_is_not_read_is_named_once(tmp_path):
    dataset = recognise(
        make(
            tmp_path,
            "{n,s}/images/{a,b}.png {n,s}/masks/{a,b}.png n/previews/{1,2,3}.png n/previews/old/4.png s/notes.txt "
            "s/images/more/{x,y}.png readme.md lost.png n/.cache/z.png",
        )
    )
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
    dataset = recognise(
        make(
            tmp_path, "{UCL,HK}/Case00{,_segmentation}.nii.gz OURS/images/{a,b}.png OURS/masks/{a,b}.png UCL/scan7.nii"
        )
    )
    assert type(dataset).__name__ == "Prostate"
    cases = [case for site in dataset.site_names() for case in dataset.cases(site)]
    assert dataset.unread(cases, []) == [
        f"{tmp_path}: not read: OURS/ (4 files)",
        f"{tmp_path}/UCL: not read: scan7.nii",
    ]
    ucl = replace(dataset, sites=("UCL",))
    assert ucl.unread([case for case in cases if case.site == "UCL"], []) == dataset.unread(cases, [])


def sides(layout: str) -> str:
    """The layout at the site n, and a normal site s."""
    return f"{' '.join(f'n/{part}' for part in layout.split())} s/images/{{a,b}}.png s/masks/{{a,b}}.png"


MORE = {
    "the field of view beside the vessels": Refused(
        "{n,s}/images/{21,22}_training.png {n,s}/1st_manual/{21,22}_manual1.png {n,s}/mask/{21,22}_training_mask.png",
        ("n: found mask/ and 1st_manual/; which holds the masks? set data.mask_folders, such as [1st_manual]",),
    ),
    "the field of view beside the vessels, equal names": Refused(
        "{n,s}/images/{01_dr,02_h}.jpg {n,s}/manual1/{01_dr,02_h}.tif {n,s}/mask/{01_dr,02_h}_mask.tif",
        ("n: found mask/ and manual1/; which holds the masks? set data.mask_folders, such as [manual1]",),
    ),
    "a part with one image and one mask of unlike names": Refused(
        sides("{train,test}/images/{a,b}.png {train,test}/masks/{a,b}.png val/scan.png val/gland_label.png"),
        ("n/val: none of the 1 images (such as scan.png)", "data.image_name"),
    ),
    "two folders of masks that differ in case": Refused(
        sides("images/P1/a.png masks/{P1,p1}/a.png"), ("masks/p1: there is no folder p1 in", "images; add it")
    ),
    "two folders of images that differ in case": Refused(
        sides("images/{Pa,pA}/a.png masks/pa/a.png"),
        ("images/Pa: there is no folder Pa in", "images/pA: there is no", "masks/pa: there is no"),
    ),
    "a site beside top folders": Refused(
        "images/A/1.png masks/A/1.png B/images/2.png B/masks/2.png",
        ("found images/ and masks/ with the folders of the sites, and B/ with other images", "data.ignored_names: [B]"),
    ),
    "a folder beside the files of a site": Refused(
        sides("a{,_mask}.png more/b{,_mask}.png"),
        ("n/more: this folder holds image files and lies beside the image files of", "data.ignored_names"),
    ),
}


@pytest.mark.parametrize("layout", MORE.values(), ids=MORE.keys())
def test_what_would_be_dropped_or_mistaken_is_refused(layout, tmp_path):
    check_refused(layout, tmp_path)


def test_the_chosen_folder_of_masks_is_used_without_a_question(tmp_path):
    make(tmp_path, MORE["the field of view beside the vessels"].files)
    dataset = Folder(root=str(tmp_path), mask_folders=("1st_manual",))
    assert [case.mask.name for case in dataset.cases("n")] == ["21_manual1.png", "22_manual1.png"]


def test_folders_of_cases_with_a_single_image_give_no_warning(tmp_path):
    dataset = recognise(make(tmp_path, "{n,s}/{P1,P2}/{scan,scan_mask}.png"))
    assert dataset.site_warnings("n") == []
    dataset = recognise(make(tmp_path / "mixed", "{n,s}/{P1,P2}/{1,1_mask}.png {n,s}/P2/{2,2_mask}.png"))
    (warning,) = dataset.site_warnings("n")
    assert "such as those in P2" in warning


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


def test_the_folders_of_a_patient_may_have_their_name_in_two_unicode_forms(tmp_path):
    make(tmp_path, f"{{n,s}}/images/{{{NFC},b}}/{{1,2}}.png {{n,s}}/masks/{{{NFD},b}}/{{1,2}}.png")
    assert len(recognise(tmp_path).cases("n")) == 4


def test_two_files_whose_names_look_the_same_are_refused_in_one_sentence(tmp_path):
    make(tmp_path, f"{{n,s}}/images/{{{NFC},{NFD},b}}.png {{n,s}}/masks/{{{NFC},b}}.png")
    _, problems = recognise(tmp_path).cases_and_problems("n")
    assert len(problems) == 1 and "look the same" in problems[0] and "NFC and NFD" in problems[0]
