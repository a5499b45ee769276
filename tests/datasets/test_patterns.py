"""Patterns of paths, how they pair images with masks, and how they name cases, patients and what is wrong."""

import re
import unicodedata
from pathlib import Path

import pytest
from folder_layouts import make

from medfed.core.errors import UserError
from medfed.datasets.collections.folder import Folder
from medfed.datasets.pairing import Layout, Pairs, pair
from medfed.datasets.patterns import compile_pattern
from medfed.datasets.recognition import recognise
from medfed.datasets.walk import Files

NFC, NFD = (unicodedata.normalize(form, "Bähr") for form in ("NFC", "NFD"))


@pytest.mark.parametrize(
    ("pattern", "path", "fields"),
    [
        ("{site}/images/{case}.png", "UCL/images/a.png", {"site": "UCL", "case": "a"}),
        ("{site}/images/{case}.png", "UCL/IMAGES/A.PNG", {"site": "UCL", "case": "A"}),
        ("{site}/images/{case}.png", "UCL/images/more/a.png", None),  # a field is a part of one name
        ("{site}/images/{case}.png", "UCL/images/.png", None),
        ("{site}/{case}.*", "n/a.b.nii.gz", {"site": "n", "case": "a.b"}),
        ("{site}/{case}.*", "n/a.docx", None),  # no image
        ("{site}/{case}.*", "n/a.gif", {"site": "n", "case": "a"}),
        ("{case}_{n}", "a_b_c", {"case": "a", "n": "b_c"}),  # as few characters as possible
        ("{case}_T2", "a_T2_T2", {"case": "a_T2"}),
        ("{case}{eye:[LR]}", "007L", {"case": "007", "eye": "L"}),
        ("{case}{eye:[LR]}", "007X", None),
        (r"{year:\d{4}}/{case}", "2019/a", {"year": "2019", "case": "a"}),
        ("{patient}/{patient}_T2", "p1/P1_T2", {"patient": "p1"}),
        ("{patient}/{patient}_T2", "p1/p2_T2", None),
        ("*/gr?y(1).{x}", "any/grey(1).y", {"x": "y"}),
        ("*/{x}", "a/b/c", None),
        (f"{NFC}/{{case}}", f"{NFD}/{NFD}", {"case": NFC}),
        (f"{{case:{NFD}}}", NFC, {"case": NFC}),
    ],
)
def test_a_pattern_matches_a_path_or_not(pattern, path, fields):
    assert compile_pattern(pattern).match(path) == fields


@pytest.mark.parametrize(
    "text", ["", "/a/{x}", "a/../{x}", "{a", "a}", "{}", "{A}", "{a b}", "{1}", "{a:(}", "{a:[}]}", "a\\{x}"]
)
def test_a_text_that_is_no_pattern_is_refused_with_its_name(text):
    with pytest.raises(ValueError, match=re.escape(text or "''")):
        compile_pattern(text)
    with pytest.raises(ValueError, match="^image: "):
        Folder(root="r", image=(text,))


def pairs(paths: str, images: str, *masks: str, structures: str = "") -> Pairs:
    patterns = zip(structures.split(",") if structures else [""] * len(masks), map(compile_pattern, masks), strict=True)
    files = Files(Path("r"), tuple(sorted(paths.split())), (), {})
    return pair(files, Layout(tuple(map(compile_pattern, images.split())), tuple(patterns)))


@pytest.mark.parametrize(
    ("paths", "patterns", "expected"),
    [
        ("n/a.png n/a_m.png", "{site}/{case}.png {site}/{case}_m.png", "n/a.png+n/a_m.png"),
        ("N/A.png m/n/a.png", "{site}/{case}.png m/{site}/{case}.png", "N/A.png+m/n/a.png"),
        ("n/a_1.png n/a_2.png g/a.png", "n/{case}_{n}.png g/{case}.png", "n/a_1.png+g/a.png n/a_2.png+g/a.png"),
        ("n/a.png g/a_1.png g/a_2.png", "n/{case}.png g/{case}_{n}.png", "n/a.png+g/a_1.png+g/a_2.png"),
        ("p1/v1 p1/v2 p1/v1_m p1/v2_m", "{p}/{v:v.} {p}/{v}_m", "p1/v1+p1/v1_m p1/v2+p1/v2_m"),
        ("n/a.png g/a.png h/a.png", "n/{case}.png g/{case}.png h/{case}.png", "n/a.png+g/a.png+h/a.png"),
        ("n/a n/b g/a g/b h/b", "n/{c} g/{c} h/{c}", "n/a+g/a n/b+g/b+h/b"),
    ],
)
def test_an_image_and_a_mask_belong_together_if_all_fields_of_both_are_equal(paths, patterns, expected):
    result = pairs(paths, *patterns.split())
    assert " ".join("+".join([one.path, *(path for _, path in one.masks)]) for one in result.pairs) == expected


@pytest.mark.parametrize(
    ("paths", "patterns", "path", "words"),
    [
        ("n/a n/b g/a", "n/{c} g/{c}", "n/b", "no mask"),
        ("n/a g/a g/b", "n/{c} g/{c}", "g/b", "no image"),
        ("n/a.png n/a.jpg g/a", "n/{c}.* g/{c}", "n/a.png", "n/a.jpg"),
        ("n/a g/1/a g/2/a", "n/{c} g/*/{c}", "g/2/a", "g/1/a"),
        ("n/Bär n/BÄR g/bär", "n/{c} g/{c}", "n/Bär", "n/BÄR"),
        ("n/a_1 n/a_2 g/a_1", "n/{c}_{n} g/{c}_1", "g/a_1", "several images, such as n/a_1 and n/a_2"),
        ("n/a n/b g/a g/b h/b", "n/{c} g/{c} h/{c}", "n/a", "no mask 'h/{c}', which other images"),
    ],
)
def test_what_has_no_partner_or_several_is_a_problem(paths, patterns, path, words):
    ((_, problem), *_) = pairs(paths, *patterns.split()).problems
    assert problem.place == path and words in problem.found


def test_patterns_of_structures_say_what_each_mask_shows_and_which_is_missing():
    result = pairs("n/a n/b d/a d/b c/a", "n/{x}", "d/{x}", "c/{x}", structures="disc,cup")
    assert result.pairs[0].masks == [("disc", "d/a"), ("cup", "c/a")]
    assert [(one.place, "mask of cup" in one.found) for _, one in result.problems] == [("n/b", True)]


def test_the_first_of_several_patterns_counts_and_a_mask_is_no_image():
    result = pairs("n/a_T2 n/b n/b_m n/a_m n/c.d", "n/{case}_T2 n/{case:[^.]*}", "n/{case}_m")
    assert [(one.path, one.fields["case"]) for one in result.pairs] == [("n/a_T2", "a"), ("n/b", "b")]
    assert result.unmatched == ["n/c.d"]


def test_names_in_two_unicode_forms_are_a_pair_and_names_that_look_the_same_are_refused(tmp_path):
    layout = f"{{n,s}}/images/{{{NFC},b}}.png {{n,s}}/masks/{{{NFD},b}}.png"
    assert sorted(case.name for case in recognise(make(tmp_path / "a", layout)).cases("n")) == sorted([NFC, "b"])
    both = Folder(root=str(make(tmp_path / "b", f"n/images/{{{NFC},{NFD}}}.png n/masks/{NFC}.png")))
    (problem,) = both.cases_and_problems("n")[1]
    assert problem.kind == "second image of a case"


def test_a_case_is_named_by_all_fields_and_the_field_or_the_pattern_of_the_patient_joins_images(tmp_path):
    make(tmp_path, "n/{train/P1,train/P2,val/P3,test/P4}/{v1,v2}_{i,m}.png")
    settings = {name: f"{{site}}/{{part}}/{{patient}}/{{visit}}_{name[0]}.png" for name in ("image", "mask")}
    cases = Folder(root=str(tmp_path), **settings).cases("n")
    assert [case.patient for case in cases] == ["P4", "P4", "P1", "P1", "P2", "P2", "P3", "P3"]
    assert cases[0].name == "test/P4/v1"
    by_name = Folder(root=str(tmp_path), **settings, patient_pattern=r"(v\d)$")
    assert {case.patient for case in by_name.cases("n")} == {"v1", "v2"}
    unfit = Folder(root=str(tmp_path), **settings, patient_pattern="(P[123])")
    assert [problem.place for problem in unfit.cases_and_problems("n")[1]] == [
        f"{tmp_path}/n/test/P4/{visit}_i.png" for visit in ("v1", "v2")
    ]


def test_files_that_no_pattern_matches_are_counted_and_a_folder_without_a_match_is_a_problem(tmp_path):
    make(tmp_path, "{n,s}/{images,masks}/{a,b}.png n/old/{1,2,x/3}.png s/notes.txt lost.png n/.cache/z.png plots/a.png")
    dataset = Folder(root=str(tmp_path))
    assert [unread.place for unread in dataset.contents.unread] == [str(tmp_path), f"{tmp_path}/n"]
    assert ": 3 files, such as n/old/1.png" in dataset.contents.unread[1].found
    assert "data.ignored_names: [plots]" in dataset.cases_and_problems("plots")[1][0].cure
    quiet = Folder(root=str(tmp_path), ignored_names=("OLD", "lost.*", "plots"))
    assert quiet.contents.unread == [] and quiet.site_names() == ["n", "s"]


def test_a_single_site_may_have_settings_of_its_own(tmp_path):
    make(tmp_path, "{n,t}/{images,masks}/{1_a,2_a}.png s/{x,y}/{1_a,1_b}.png t/masks/1_a_copy.png")
    by_site = {
        "s": {"image": "{site}/x/{case}.png", "mask": "{site}/y/{case}.png", "patient_pattern": r"^(\d)"},
        "t": {"ignored_names": ["*_copy.png"]},
    }
    dataset = Folder(root=str(tmp_path), by_site=by_site)
    assert {site: [case.patient for case in dataset.cases(site)] for site in dataset.site_names()} == {
        "n": ["1_a", "2_a"],
        "s": ["1", "1"],
        "t": ["1_a", "2_a"],
    }
    assert dataset.cases("s")[0].mask_path == tmp_path / "s" / "y" / "1_a.png"
    without = Folder(root=str(tmp_path), by_site={"s": by_site["s"], "T": by_site["t"]})
    assert "1_a_copy.png: this mask has no image" in str(without.cases_and_problems("t")[1][0])
    assert [warning.found for warning in without.contents.warnings[""]] == ["there is no site 'T'"]


def test_a_pattern_without_a_site_needs_the_name_of_the_only_site(tmp_path):
    make(tmp_path, "images/{1,2}.png masks/{1,2}.png")
    dataset = Folder(root=str(tmp_path), sites=("UKE",), image="images/{case}.png", mask="masks/{case}.png")
    assert dataset.site_names() == ["UKE"] and len(dataset.cases("UKE")) == 2


def test_two_images_that_two_patterns_give_the_same_name_are_refused(tmp_path):
    dataset = Folder(
        root=str(make(tmp_path, "n/a.png n/b/a.png n/a_m.png")),
        image=("{site}/{case}.png", "{site}/b/{case}.png"),
        mask="{site}/{case}_m.png",
    )
    with pytest.raises(UserError, match=r"a_m.png: this mask belongs to several images"):
        dataset.cases("n")


def test_files_of_a_site_that_only_the_general_patterns_match_are_named(tmp_path):
    make(tmp_path, "{n,s}/images/{a,b}.png {n,s}/masks/{a,b}.png s/old/{a,b}.png s/images/c.png")
    by_site = {"s": {"image": "{site}/old/{case}.png"}}
    found = Folder(root=str(tmp_path), by_site=by_site).contents
    assert [len(found.cases[site]) for site in "ns"] == [2, 2]
    (unread,) = found.unread
    assert "3 files, such as s/images/a.png" in unread.found


def test_patterns_without_a_common_field_are_an_error_and_not_an_empty_dataset(tmp_path):
    make(tmp_path, "{n,s}/{images,masks}/{a,b}.png")
    dataset = Folder(root=str(tmp_path), image="{site}/images/{case}.png", mask="{site}/masks/{cas}.png")
    with pytest.raises(UserError, match="several images, such as n/images/a.png and n/images/b.png"):
        dataset.cases("n")
