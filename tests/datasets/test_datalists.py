import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from folder_layouts import save_pixels

from medfed.core.errors import UserError
from medfed.data import main
from medfed.datasets.datalists import read_datalist
from medfed.datasets.folder import Folder
from medfed.datasets.folder_classes import FolderClasses
from medfed.datasets.recognition import recognise
from medfed.datasets.splits import split

ROWS = """site,patient,image,mask,split
north,p1,all/1.png,all/1m.png,train
north,p1,all/2.png,all/2m.png,train
north,p2,all/3.png,all/3m.png,test
south,p1,all/4.png,all/4m.png,
"""


@pytest.fixture
def root(tmp_path) -> Path:
    for number in range(1, 5):
        save_pixels(tmp_path / "all" / f"{number}.png", np.arange(64).reshape(8, 8) + number)
        save_pixels(tmp_path / "all" / f"{number}m.png", np.eye(8) * 255)
    (tmp_path / "list.csv").write_text(ROWS)
    return tmp_path


def table(root: Path, text: str) -> Folder:
    (root / "list.csv").write_text(text)
    return Folder(root=str(root), datalist="list.csv")


def refusal(dataset: Folder, site: str = "north") -> str:
    with pytest.raises(UserError) as error:
        dataset.cases(site)
    return str(error.value)


def test_a_table_names_sites_patients_pairs_and_parts(root):
    dataset = recognise(root)
    assert dataset == Folder(root=str(root), datalist="list.csv") == recognise(root / "list.csv")
    assert dataset.site_names() == ["north", "south"]
    rows = [f"{case.name} {case.patient} {case.mask.name} {case.part}" for case in dataset.cases("north")]
    assert rows == ["1 p1 1m.png train", "2 p1 2m.png train", "3 p2 3m.png test"]
    assert [case.name for case in split(dataset.cases("north"), 0, 0.0, 0.5).test] == ["3"]
    assert dataset.load(dataset.cases("south")[0]).mask.sum() == 8
    assert dataset.unread([case for site in dataset.site_names() for case in dataset.cases(site)], []) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.csv", ROWS.replace(",", ";")),
        ("list.csv", ROWS.replace(",", "\t")),
        ("list.csv", ROWS.replace("\n", "\r\n")),
        ("list.csv", ROWS.replace("all/", "all\\")),
        ("list.csv", "\ufeff" + ROWS.replace("site,patient", "Site,Patient")),
        ("a.tsv", ROWS.replace(",", "\t")),
        ("a.csv", ROWS.encode("utf-16")),
    ],
)
def test_tables_of_other_programs_are_the_same(root, name, content):
    expected = Folder(root=str(root), datalist="list.csv").cases("north")
    assert [case.image for case in expected] == [root / "all" / f"{n}.png" for n in (1, 2, 3)]
    (root / "list.csv").unlink()
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert recognise(root).cases("north") == expected


def test_another_encoding_and_a_spreadsheet_are_refused_with_the_way_to_save_them(root, capsys):
    (root / "list.csv").write_bytes(ROWS.replace("p2", "Müller").replace(",", ";").encode("cp1252"))
    with pytest.raises(UserError, match="list.csv: line 4 is not in the encoding UTF-8 .byte 0xfc.* 'CSV UTF-8'"):
        recognise(root).cases("north")
    (root / "list.xlsx").write_bytes(b"PK")
    assert main(["check", str(root / "list.xlsx")]) == 2
    assert "save it in UTF-8 (in Excel with 'Save as', file type 'CSV UTF-8')" in capsys.readouterr().err


def test_json_is_the_same_as_a_table(root):
    rows = [dict(zip(ROWS.splitlines()[0].split(","), line.split(","))) for line in ROWS.splitlines()[1:]]
    (root / "cases.json").write_text(json.dumps(rows))
    by_json = Folder(root=str(root), datalist="cases.json")
    assert by_json.cases("north") == Folder(root=str(root), datalist="list.csv").cases("north")
    monai = {"training": [{"site": "north", "image": "all/1.png", "label": "all/1m.png"}]}
    (root / "cases.json").write_text(json.dumps(monai))
    assert [case.mask.name for case in by_json.cases("north")] == ["1m.png"]


def test_a_table_with_classes_is_for_classification(root):
    (root / "list.csv").write_text("site,image,class\nn,all/1.png,cat\nn,all/2.png,dog\ns,all/3.png,dog\n")
    dataset = recognise(root)
    assert dataset == FolderClasses(root=str(root), datalist="list.csv") and dataset.classes == ("cat", "dog")
    assert [(case.name, case.label) for case in dataset.cases("n")] == [("1", 0), ("2", 1)]
    assert dataset.site_warnings("s") == ["s: no images of the class 'cat'"]
    chosen = FolderClasses(root=str(root), datalist="list.csv", class_names=("dog", "horse"))
    with pytest.raises(UserError, match="'class' of the site n is empty or unknown in line 2; expected one of dog"):
        chosen.cases("n")


MISTAKES = [
    ("all/1m.png", "all/9m.png", "list.csv: 1 of the listed files do not exist: .*9m.png; correct the paths"),
    ("all/1m.png", "", "the column 'mask' of the site north is empty or unknown in line 2; expected the path"),
    ("all/2.png", "all/1.png", "1.png: the datalist list.csv names this image in line 2, line 3; .* all rows but one"),
    ("2m.png,train", "2m.png,test", "at the site north, p1 have rows with different"),
    ("3m.png,test", "3m.png,", "the column 'split' of the site north is empty in some rows; fill it in all or none"),
    ("3m.png,test", "3m.png,later", "line 4: the column 'split' has the value 'later'; expected train, validation or"),
    ("north,p2", ",p2", "line 4: the column 'site' is empty"),
    ("image,mask", "image,maks", "there is no column 'mask' or 'class'; did you mean 'maks'.* found site, patient"),
    ("image,mask", "image,label", "there is no column 'mask' or 'class'; is it 'label'?"),
    ("all/2m.png", "all/1m.png", "1m.png: the datalist list.csv names this mask in"),
    ("all/1m.png", "all/1.png", "1.png: the datalist list.csv names this file as an image and as a mask .line 2"),
    ("all/2.png", "all/../all/1.png", "1.png: the datalist list.csv names this"),
]


@pytest.mark.parametrize(("old", "new", "words"), MISTAKES)
def test_a_mistake_in_a_table_is_named_with_its_line(root, old, new, words):
    assert re.search(words, refusal(table(root, ROWS.replace(old, new, 1))))


def test_a_listed_file_outside_the_folder_needs_a_setting(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("elsewhere") / "1.png"
    outside.write_bytes((root / "all" / "1.png").read_bytes())
    dataset = table(root, ROWS.replace("all/1.png", str(outside)))
    assert "by a path in a datalist; move it into that folder, or set data.follow_symlinks: true" in refusal(dataset)


def test_equal_names_of_a_site_get_their_folders_and_steps_in_a_path_are_removed(root):
    for site in "ab":
        (root / site).mkdir()
        for name in ("x.png", "y.png"):
            (root / site / name).write_bytes((root / "all" / "1.png").read_bytes())
    dataset = table(root, "site,image,mask\nnorth,a/x.png,a/y.png\nnorth,none/../b/x.png,b/y.png\n")
    paths = {"a/x": root / "a" / "x.png", "b/x": root / "b" / "x.png"}
    assert {case.name: case.image for case in dataset.cases("north")} == paths


def test_columns_and_files_that_are_not_read_are_named(root):
    dataset = table(root, "site,image,mask,age\nnorth,all/1.png,all/1m.png,60\n")
    assert dataset.root_warnings() == [f"{root / 'list.csv'}: not read: the columns age"]
    assert dataset.unread(dataset.cases("north"), []) == [f"{root}/all: not read: 6 .png files (2.png, 2m.png, ...)"]


def test_two_tables_in_a_folder_are_refused(root):
    (root / "more.csv").write_text(ROWS)
    with pytest.raises(UserError, match="list.csv and more.csv both list images and masks.*data check .*list.csv"):
        recognise(root)
    (root / "more.csv").write_text("age,weight\n3,4\n")
    assert recognise(root).datalist == "list.csv"


def test_the_program_checks_a_table(root, capsys):
    (root / "list.csv").write_text(ROWS.replace("p2,all/3.png,all/3m.png,test", "p2,all/3.png,all/3m.png,train"))
    assert main(["check", str(root / "list.csv"), "--quiet"]) == 0
    output = capsys.readouterr().out
    assert "datalist: list.csv" in output and "0 problems, 0 warnings." in output


def test_a_missing_table_and_an_empty_one_are_named(root):
    with pytest.raises(UserError, match="data.datalist: the file .*none.csv cannot be read"):
        Folder(root=str(root), datalist="none.csv").site_names()
    (root / "list.csv").write_text("site,image,mask\n")
    with pytest.raises(UserError, match="list.csv: the datalist has no rows; expected one row for each image"):
        read_datalist(root / "list.csv")


def test_the_list_of_the_medical_segmentation_decathlon_decides(root):
    for site in ("north", "south"):
        for folder, name in (("imagesTr", "1"), ("imagesTr", "2"), ("labelsTr", "1"), ("imagesTs", "3")):
            (root / "msd" / site / folder).mkdir(parents=True, exist_ok=True)
            (root / "msd" / site / folder / f"{name}.png").write_bytes((root / "all" / "1.png").read_bytes())
        entries = [{"image": "./imagesTr/1.png", "label": "./labelsTr/1.png"}]
        content = {"training": entries, "test": ["./imagesTs/3.png"], "labels": {"0": "background", "1": "gland"}}
        (root / "msd" / site / "dataset.json").write_text(json.dumps(content))
    dataset = recognise(root / "msd")
    assert [(case.name, case.mask.parent.name) for case in dataset.cases("north")] == [("1", "labelsTr")]
    unread = dataset.unread([case for site in ("north", "south") for case in dataset.cases(site)], [])
    assert f"{root / 'msd' / 'north'}: not read: imagesTs/ (1 file)" in unread
    assert f"{root / 'msd' / 'north' / 'imagesTr'}: not read: 2.png" in unread
    with pytest.raises(UserError, match="north: this folder holds .*looks like a single site"):
        recognise(root / "msd" / "north")
    (root / "msd" / "north" / "labelsTr" / "1.png").unlink()
    assert "1 of the listed files do not exist" in refusal(dataset)


def decathlon(root: Path, pairs: list[tuple[str, str]]) -> Folder:
    """A site with a dataset.json that lists these images and masks, beside another site."""
    for image, mask in pairs:
        for name in (image, mask):
            (root / "msd" / "north" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "msd" / "north" / name).write_bytes((root / "all" / "1.png").read_bytes())
    content = {"training": [{"image": image, "label": mask} for image, mask in pairs]}
    (root / "msd" / "north" / "dataset.json").write_text(json.dumps(content))
    return Folder(root=str(root / "msd"))


def test_equal_names_in_a_list_of_the_decathlon_are_all_kept_and_mistakes_are_named(root):
    dataset = decathlon(root, [("im/a/1.png", "m/a/1.png"), ("im/b/1.png", "m/b/1.png"), ("im/b/2.png", "m/b/2.png")])
    assert [case.name for case in dataset.cases("north")] == ["2", "im/a/1", "im/b/1"]
    dataset = Folder(root=dataset.root, ignored_names=("a",))
    assert [case.name for case in dataset.cases("north")] == ["1", "2"]
    text = refusal(decathlon(root, [("im/1.png", "m/1.png"), ("im/2.png", "./m/1.png")]))
    assert "m/1.png: the datalist dataset.json names this mask in entry 1, entry 2" in text
    text = refusal(decathlon(root, [("im/1.png", "m/1.png"), ("im/2.png", "../south/2.png")]))
    assert "dataset.json: 1 of the listed files lie outside the folder" in text and "south/2.png" in text


def test_a_patient_by_the_pattern_is_in_one_part(root):
    for name in ("p7_1", "p7_2"):
        (root / f"{name}.png").write_bytes((root / "all" / "1.png").read_bytes())
    text = "site,image,mask,split\nnorth,p7_1.png,all/1m.png,train\nnorth,p7_2.png,all/2m.png,test\n"
    (root / "list.csv").write_text(text)
    dataset = Folder(root=str(root), datalist="list.csv", patient_pattern="(p[0-9]*)_")
    assert "at the site north, p7 have rows with different values in the column 'split'" in refusal(dataset)


def test_a_table_may_write_umlauts_in_another_unicode_form_than_the_disk(root):
    stored, typed = (unicodedata.normalize(form, "Kö/Bähr") for form in ("NFD", "NFC"))
    (root / stored).parent.mkdir()
    for name, end in (("1", ".png"), ("1m", "_mask.png")):
        (root / "all" / f"{name}.png").rename(root / f"{stored}{end}")
    dataset = table(root, f"site,image,mask\nnorth,{typed}.png,{typed}_mask.png\nnorth,all/2.png,all/2m.png\n")
    case = next(case for case in dataset.cases("north") if case.name == typed.rpartition("/")[2])
    assert (case.image, case.mask) == (root / f"{stored}.png", root / f"{stored}_mask.png")
    (root / f"{typed}.png").parent.mkdir(exist_ok=True)
    (root / f"{typed}.png").write_bytes((root / f"{stored}.png").read_bytes())
    other = Folder(root=str(root), datalist="other.csv")
    (root / "other.csv").write_text((root / "list.csv").read_text())
    assert "1 of the listed files do not exist" in refusal(other)  # two folders look like the one of the mask
