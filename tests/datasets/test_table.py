import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from folder_layouts import save_pixels

from medfed.core import site_names
from medfed.core.errors import UserError
from medfed.data import main
from medfed.datasets import table as table_module
from medfed.datasets.collections.folder import Folder
from medfed.datasets.recognition import recognise
from medfed.datasets.splits import split

ROWS = """site,patient,image,mask,split
north,p1,all/1.png,all/1m.png,train
north,p1,all/2.png,all/2m.png,train
north,p2,all/3.png,all/3m.png,test
south,p1,all/4.png,all/4m.png,
"""


def images(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        save_pixels(folder / f"{name}.png", np.arange(64).reshape(8, 8) + number)
        save_pixels(folder / f"{name}m.png", np.eye(8) * 255)


@pytest.fixture
def root(tmp_path) -> Path:
    images(tmp_path / "all", *"1234")
    (tmp_path / "list.csv").write_text(ROWS)
    return tmp_path


def table(root: Path, text: str, name: str = "list.csv", **settings) -> Folder:
    (root / name).write_text(text)
    return Folder(root=str(root), table=name, **settings)


def refusal(dataset: Folder, site: str = "north") -> str:
    with pytest.raises(UserError) as error:
        dataset.cases(site)
    return str(error.value)


def test_a_row_without_a_patient_is_a_problem_if_others_have_one(root):
    text = ROWS.replace("north,p2,", "north,,")
    assert "line 4: the column 'patient' is empty, but not in all rows of the site north" in refusal(table(root, text))
    by_name = table(root, text, patient_pattern="(.+)").cases("north")
    assert [case.patient for case in by_name] == ["p1", "p1", "3"]
    assert [case.patient for case in table(root, ROWS.replace(",p2,", ",,").replace(",p1,", ",,")).cases("north")] == [
        *"123"
    ]


def test_a_table_names_sites_patients_pairs_and_parts(root):
    dataset = recognise(root)
    assert dataset == Folder(root=str(root), table="list.csv") == recognise(root / "list.csv")
    assert dataset.site_names() == ["north", "south"]
    rows = [f"{case.name} {case.patient} {case.mask_path.name} {case.part}" for case in dataset.cases("north")]
    assert rows == ["1 p1 1m.png train", "2 p1 2m.png train", "3 p2 3m.png test"]
    assert [case.name for case in split(dataset.cases("north"), 0, 0.0, 0.5).test] == ["3"]
    assert dataset.load(dataset.cases("south")[0]).mask.sum() == 8
    (root / "more").mkdir()
    (root / "all" / "4.png").rename(root / "more" / "5.png")
    text = ROWS.replace("south,p1,all/4.png,all/4m.png,\n", "")
    (left,) = [unread for unread in table(root, text).contents.unread if "more" in unread.place]
    assert "the table does not list them: 1 file, such as more/5.png" in left.found


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.csv", ROWS.replace(",", ";")),
        ("list.csv", ROWS.replace(",", "\t")),
        ("list.csv", ROWS.replace("\n", "\r\n")),
        ("list.csv", ROWS.replace("\n", "\n\n") + ",,,,\n"),
        ("list.csv", ROWS.replace("all/", "all\\")),
        ("list.csv", "\ufeff" + ROWS.replace("site,patient", "Site, Patient")),
        ("a.tsv", ROWS.replace(",", "\t")),
    ],
)
def test_tables_of_other_programs_are_the_same(root, name, content):
    expected = Folder(root=str(root), table="list.csv").cases("north")
    assert [case.image for case in expected] == [root / "all" / f"{n}.png" for n in (1, 2, 3)]
    (root / "list.csv").unlink()
    (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert recognise(root).cases("north") == expected


def test_another_encoding_and_a_spreadsheet_are_refused_with_the_way_to_save_them(root, capsys):
    (root / "list.csv").write_bytes(ROWS.replace("p2", "Müller").replace(",", ";").encode("cp1252"))
    with pytest.raises(UserError, match="list.csv: not a table .*byte 0xfc.* 'CSV UTF-8'"):
        recognise(root).cases("north")
    (root / "list.xlsx").write_bytes(b"PK")
    assert main(["check", str(root / "list.xlsx")]) == 2
    assert "'CSV UTF-8'" in capsys.readouterr().err


def test_a_table_with_classes_is_for_classification(root):
    (root / "list.csv").write_text("site,image,class\nn,all/1.png,cat\nn,all/2.png,dog\ns,all/3.png,dog\n")
    dataset = recognise(root)
    assert dataset.table == "list.csv" and dataset.classes == ("cat", "dog") and dataset.structures == ()
    assert (dataset.image_size, dataset.standardise) == (224, "imagenet")
    assert [(case.name, case.label, case.masks) for case in dataset.cases("n")] == [("1", 0, ()), ("2", 1, ())]
    assert [warning.found for warning in dataset.contents.warnings["s"]] == ["no images of the class 'cat'"]
    with pytest.raises(UserError, match="no image of the class 'horse'"):
        Folder(root=str(root), table="list.csv", class_names=("dog", "horse")).site_names()
    (root / "list.csv").write_text("site,image,class\nn,all/1.png,cat\nn,all/2.png,dog\ns,all/3.png,Horse\n")
    chosen = Folder(root=str(root), table="list.csv", class_names=("dog", "horse"))
    assert [case.label for case in chosen.cases("s")] == [1]
    assert "line 2: the column 'class' is empty or unknown; expected one of dog" in refusal(chosen, "n")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("all/1m.png", "all/9m.png", "all/9m.png: there is no such file, but list.csv lists it; correct its path"),
        ("all/1m.png", "", "line 2: the column 'mask' is empty or unknown; expected the path"),
        ("all/2.png", "all/1.png", "1.png: list.csv names this image in line 2, line 3"),
        ("\nnorth,p1,all/2.png", "\n\nnorth,p1,all/1.png", "1.png: list.csv names this image in line 2, line 4"),
        ("2m.png,train", "2m.png,test", "p1 of north has rows with different"),
        ("3m.png,test", "3m.png,", "the column 'split' of the site north is empty in some rows; expected it in all"),
        ("3m.png,test", "3m.png,later", "line 4: the column 'split' has the value 'later'; expected train, validation"),
        ("3m.png,test", "3m.png,test,more", "list.csv: not a table .*line 4"),
        ("north,p2", ",p2", "line 4: the column 'site' has the value ''"),
        ("image,mask", "image,maks", "there is no column 'mask' or 'class'; expected site.* found site, patient"),
        ("patient,image", " Image,image", "there are 2 columns 'image'"),
        ("all/2m.png", "all/1m.png", "1m.png: list.csv names this mask in"),
        ("all/2.png", "all/../all/1.png", "1.png: list.csv names this image"),
    ],
)
def test_a_mistake_in_a_table_is_named_with_its_line(root, old, new, words):
    assert re.search(words, refusal(table(root, ROWS.replace(old, new, 1))))


def test_a_table_may_be_anywhere_and_may_name_files_anywhere_by_absolute_paths(root, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    images(elsewhere, "5")
    (elsewhere / "far.csv").write_text(f"site,image,mask\nn,5.png,5m.png\nn,{root}/all/1.png,{root}/all/1m.png\n")
    dataset = Folder(root=str(root), table=str(elsewhere / "far.csv"))
    assert [case.image for case in dataset.cases("n")] == [root / "all" / "1.png", elsewhere / "5.png"]


def test_equal_names_of_a_site_get_their_folders_and_steps_in_a_path_are_removed(root):
    for site in "ab":
        images(root / site, "x")
    dataset = table(root, "site,image,mask\nnorth,a/x.png,a/xm.png\nnorth,none/../b/x.png,b/xm.png\n")
    paths = {"a/x": root / "a" / "x.png", "b/x": root / "b" / "x.png"}
    assert {case.name: case.image for case in dataset.cases("north")} == paths


def test_two_tables_in_a_folder_are_refused(root):
    (root / "more.csv").write_text(ROWS)
    with pytest.raises(UserError, match="list.csv and more.csv both list images.*data check .*list.csv"):
        recognise(root)
    (root / "more.csv").write_text("age,weight\n3,4\n")
    assert recognise(root).table == "list.csv"


def test_the_program_checks_a_table(root, capsys):
    (root / "list.csv").write_text(ROWS.replace("p2,all/3.png,all/3m.png,test", "p2,all/3.png,all/3m.png,train"))
    assert main(["check", str(root / "list.csv"), "--quiet"]) == 0
    output = capsys.readouterr().out
    assert "table: list.csv" in output and "0 problems, " in output


def test_a_missing_table_and_an_empty_one_are_named(root):
    with pytest.raises(UserError, match="data.table: the file .*none.csv cannot be read"):
        Folder(root=str(root), table="none.csv").site_names()
    with pytest.raises(UserError, match="list.csv: the table has no rows; expected one row for each image"):
        table(root, "site,image,mask\n").site_names()


def test_whole_numbers_of_classes_that_pandas_wrote_with_a_point_are_the_same_classes(root):
    rows = "site,image,class\nn,all/1.png,0\nn,all/2.png,1\ns,all/3.png,0.0\ns,all/4.png,1.0\n"
    dataset = table(root, rows)
    assert dataset.classes == ("0", "1") and [case.label for case in dataset.cases("s")] == [0, 1]
    assert table(root, rows.replace("1.0", "1.5")).classes == ("0", "0.0", "1", "1.5"), "not all are whole numbers"
    assert table(root, rows.replace("1.0", "unknown")).classes == ("0", "1", "unknown")


def test_a_patient_by_the_pattern_is_in_one_part(root):
    images(root, "p7_1", "p7_2")
    text = "site,image,mask,split\nnorth,p7_1.png,p7_1m.png,train\nnorth,p7_2.png,p7_2m.png,test\n"
    dataset = table(root, text, patient_pattern="(p[0-9]*)_")
    assert "p7 of north has rows with different values in the column 'split'" in refusal(dataset)


def test_a_table_may_write_umlauts_in_another_unicode_form_than_the_disk(root):
    stored, typed = (unicodedata.normalize(form, "Kö/Bähr") for form in ("NFD", "NFC"))
    images(root, stored)
    text = f"site,image,mask\nnorth,{typed}.png,{typed}m.png\nnorth,all/2.png,all/2m.png\n"
    case = next(case for case in table(root, text).cases("north") if case.name == typed.rpartition("/")[2])
    assert case.files == (root / f"{stored}.png", root / f"{stored}m.png")


def test_names_of_sites_are_checked_once_and_files_are_asked_for_once(tmp_path, monkeypatch):
    n_sites, calls = 40, Counter()
    for name in (f"{kind}{n}.png" for n in range(n_sites) for kind in "ab"):
        (tmp_path / name).touch()
    rows = [f"s{n},a{n}.png,b{n}.png" for n in range(n_sites)]
    dataset = table(tmp_path, "\n".join(["site,image,mask", *rows]) + "\n")
    real_problem, real_existing = site_names._problem, table_module._existing
    monkeypatch.setattr(site_names, "_problem", lambda name: (calls.update(names=1), real_problem(name))[1])
    monkeypatch.setattr(table_module, "_existing", lambda *path: (calls.update(files=1), real_existing(*path))[1])
    cases = dataset.cases_by_site(dataset.site_names())
    assert [len(cases[f"s{n}"]) for n in range(n_sites)] == [1] * n_sites
    assert calls == {"names": n_sites, "files": 2 * n_sites}


@pytest.mark.parametrize("linked", ["all", "all/2.png", "all/2m.png"])
@pytest.mark.parametrize("start", ["", "ROOT/"])
def test_a_table_and_its_files_may_be_links(root, linked, start, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (root / linked).rename(elsewhere / "moved")
    (root / linked).symlink_to(elsewhere / "moved")
    (elsewhere / "table.csv").write_text(ROWS.replace(",all/", f",{start}all/").replace("ROOT", str(root)))
    (root / "list.csv").unlink()
    (root / "list.csv").symlink_to(elsewhere / "table.csv")
    assert len(Folder(root=str(root), table="list.csv").cases("north")) == 3


def test_columns_that_are_not_read_may_be_repeated(root):
    dataset = table(root, "site,image,mask,,,note,note\nnorth,all/1.png,all/1m.png,1,2,3,4\n")
    assert [case.name for case in dataset.cases("north")] == ["1"]
