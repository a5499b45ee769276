"""Each warning of a dataset check, on a tiny folder made for it; a clean folder gives none."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from folder_layouts import save_pixels
from PIL import Image

from medfed.config.overrides import Override
from medfed.datasets.check_patients import patient_warnings, suggest_pattern
from medfed.datasets.checking import DatasetReport, check_dataset
from medfed.datasets.collections.folder import Folder
from medfed.experiments.sites import assign_patients
from medfed.federation.settings import Federation

SIDE = 64


def scan(*key: int) -> np.ndarray:
    """A smooth random image of 64 x 64 grey levels, another one for every key."""
    coarse = Image.fromarray(np.random.default_rng(key).integers(0, 256, (12, 12), dtype=np.uint8))
    return np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def write(root: Path, site: str, name: str, image: np.ndarray, value: int = 255) -> None:
    """An image with a mask that is a square of a quarter of the side."""
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[:16, :16] = value
    for kind, pixels in (("images", image), ("masks", mask)):
        save_pixels(root / site / kind / f"{name}.png", pixels)


@pytest.fixture
def root(tmp_path) -> Path:
    """Two sites with four images each, all in order."""
    for number, site in enumerate(("north", "south")):
        for index in range(4):
            write(tmp_path, site, f"scan{index}", scan(number, index))
    return tmp_path


def check(root: Path, **settings) -> DatasetReport:
    return check_dataset(Folder(root=str(root), **settings))


def test_a_clean_folder_gives_no_warning(root):
    report = check(root)
    assert (report.problems, report.warnings) == ((), ())
    assert {cover for site in report.sites for cover in site.covers(0)} == {1 / 16}


def test_a_file_in_two_sites_is_the_first_problem(root):
    write(root, "north", "again", scan(0, 0))
    write(root, "south", "also", scan(1, 1))
    write(root, "south", "other", scan(0, 3))
    (root / "north" / "images" / "scan2.png").write_bytes(b"")
    leak, *others = map(str, check(root).problems)
    assert "north/images/scan3.png and " in leak and "an unseen site may have an image that was trained on" in leak
    assert ["unseen site" in problem for problem in others] == [False, False, False]


class TestPatients:
    def classes(self, root: Path, *names: str) -> Folder:
        """Two sites with these images in folders of classes."""
        for number, name in enumerate(names):
            for site in ("north", "south"):
                save_pixels(root / site / f"{name}.png", scan(ord(site[0]), number))
        return Folder(root=str(root), image="{site}/{class}/{case}.png")

    @pytest.mark.parametrize(
        ("names", "patients"),
        [
            ("Image_01L Image_01R Image_02L Image_02R Image_03L", "Image_01 Image_01 Image_02 Image_02 Image_03"),
            ("7_left 7_right 8_left 8_right", "7 7 8 8"),
            ("sub-01_1 sub-01_2 sub-02_1 sub-02_2 sub-03_1", "sub-01 sub-01 sub-02 sub-02 sub-03"),
            ("patch_pat_4_1 patch_pat_4_2 patch_pat_5_1 patch_pat_5_2", "pat_4 pat_4 pat_5 pat_5"),
            ("8863_x51 8863_x101 9022_x51 9022_x101", "8863 8863 9022 9022"),
            ("anna_OD_x anna_OS_y bert_OD_x bert_OS_y", "anna anna bert bert"),
            ("7_L_1 7_R_1 8_L_1 8_R_1 9", "7 7 8 8 9"),
            ("train/N-10-1 test/N-10-2 train/C-7-1 val/C-7-3", "N-10 N-10 C-7 C-7"),
            ("train/7_L test/7_R train/8_L test/8_R", "7 7 8 8"),
            (
                "patient01/study1/view1_a patient01/study2/view1_a patient02/s/v patient02/s/w",
                "patient01 " * 2 + "patient02 " * 2,
            ),
            ("7/left 7/right 8/left 8/right", "7 7 8 8"),
            (
                "IM-0115 person4_1 IM-0117 person4_2 person5_1 person5_2",
                "IM-0115 person4 IM-0117 person4 person5 person5",
            ),
            ("000_HC 000_2HC 001_HC 002_HC 002_2HC 003_HC 004_HC 5_HC 6_HC", "000 000 001 002 002 003 004 5 6"),
        ],
    )
    def test_names_of_several_images_of_a_patient(self, names, patients):
        pattern = suggest_pattern(names.split())
        folder = Folder(root="x", patient_pattern=pattern)  # which accepts the pattern
        assert [re.search(folder.patient_pattern, name)[1] for name in names.split()] == patients.split()

    def test_names_that_suggest_no_patients(self):
        for names in (
            *("", "102 131", "01_test 21_training", "case_001 case_002", "n0210_576_652 n0359_576_692", "x links"),
            *("2018_001 2018_002 2018_003", "2019_1 2019_2 2020_1 2020_2"),
            *("train/1 train/2 test/1 test/2", "fold1/1 fold1/2 fold2/1 fold2/2"),
            *("1-benign_0804-s 1-malignant_0010-r 2-benign_0817-s", "benign_0888-l benign_0849-l benign_1-r"),
            "1-benign_1 1-malignant_2 2-benign_3 2-malignant_4 benign_5 benign_6",
            "cju160wshltz10993i1gmqxbe cju414lf2l1lt0801rl3hjllj",
        ):
            assert suggest_pattern(names.split()) is None, names

    def test_both_eyes_of_a_person_are_two_patients_until_the_pattern_is_set(self, root):
        for index, name in enumerate(("7_left", "7_right", "8_left", "8_right", "9_left")):
            write(root, "east", name, scan(2, index))
        warning = str(check(root).warnings[0])
        assert "east: the file names suggest 3 patients for 5 images" in warning
        assert "7_" not in warning  # no file name, because `medfed score` stores the warning in what a hospital sends
        pattern = warning.partition("data.patient_pattern: '")[2].partition("'")[0]
        report = check(root, sites=("east",), patient_pattern=pattern)
        assert {case.patient for case in report.sites[0].cases} == {"7", "8", "9"}
        assert [warning.kind for warning in report.warnings] == ["no unseen site"]
        assert "(.+)" in warning and check(root, patient_pattern="(.+)").warnings == ()

    def test_the_pattern_of_one_site_is_set_for_this_site(self, root):
        for index, name in enumerate(("PAT_8_1", "PAT_8_2", "PAT_9_1", "PAT_9_2")):
            write(root, "east", name, scan(2, index))
        (warning,) = check(root).warnings
        assert warning.place == "east" and "suggest 2 patients" in warning.found
        setting = Override.parse(
            f"data.{warning.cure.partition('set data.')[2].partition(', or')[0].replace(': ', '=', 1)}"
        )
        cured = check(root, by_site=setting.value)
        assert {case.patient for site in cured.sites for case in site.cases} >= {"PAT_8", "PAT_9", "scan0"}
        kinds = [warning.kind for warning in check(root, by_site={"east": {"patient_pattern": "(.+)"}}).warnings]
        assert "names of several images of a patient" not in kinds

    @pytest.mark.parametrize(
        ("folders", "n_warned"),
        [("P1 P2 P3 P4", 4), ("grade0 grade1", 0), ("a b c", 0), ("fold1 fold2 fold3", 0), ("10X 20X 40X", 0)]
        + [("scanner1 scanner2 T1", 0), ("2019 2020 2021", 0), ("P1 b c", 0), ("P1 P2 b c", 2)]
        + [("P1/P10 P1/P11 P1/P12 P1/P13", 4)],
    )
    def test_which_folders_of_a_table_may_be_patients(self, tmp_path, folders, n_warned):
        """Two images in each folder, and the class of an image is the number of its folder modulo 2."""
        names = folders.split()
        rows = [
            f"{site},{site}/{name}/{chr(97 + 2 * n + i)}.png,{n % 2}"
            for site in "ns"
            for n, name in enumerate(names)
            for i in (0, 1)
        ]
        for row in rows:
            save_pixels(tmp_path / row.split(",")[1], scan(len(row), len(rows)))
        (tmp_path / "list.csv").write_text("\n".join(["site,image,class", *rows]))
        dataset = Folder(root=str(tmp_path), table="list.csv")
        warnings = patient_warnings(dataset, {"n": dataset.cases("n")})
        assert [warning.found.split()[0] for warning in warnings] == [str(n_warned)] * bool(n_warned)
        assert all("column patient" in warning.cure for warning in warnings)

    def test_the_pattern_of_one_site_is_not_that_of_sites_with_patients_or_with_another_pattern(self, tmp_path):
        def cure(**settings: object) -> str:
            dataset = Folder(root=str(tmp_path), **settings)
            found = patient_warnings(dataset, {site: dataset.cases(site) for site in dataset.site_names()})
            return next(warning.cure for warning in found if warning.place == "St. A, B")

        own = {"image": "{site}/{case}.png", "mask": "{site}/{case}_m.png"}
        for name in ("7_L", "7_R", "8_L", "8_R"):
            save_pixels(tmp_path / "St. A, B" / f"{name}.png", scan(1, 1))
            save_pixels(tmp_path / "St. A, B" / f"{name}_m.png", scan(1, 1))
        assert cure(**own).startswith("set data.patient_pattern: '(?i)^")
        for name in ("A12/1", "A12/2"):
            save_pixels(tmp_path / "n" / f"{name}.png", scan(1, 1))
            save_pixels(tmp_path / "n" / f"{name}_m.png", scan(1, 1))
        patients = {key: text.replace("{case}", "{patient}/{case}") for key, text in own.items()}
        assert cure(**patients, by_site={"St. A, B": own}).startswith(
            """set data.by_site: {"St. A, B": {patient_pattern: '(?i)^"""
        )
        for name in ("x1_a", "x1_b", "x2_a", "x2_b"):
            save_pixels(tmp_path / "m" / f"{name}.png", scan(1, 1))
            save_pixels(tmp_path / "m" / f"{name}_m.png", scan(1, 1))
        assert """{"St. A, B": {patient_pattern: '(.+)'}}""" in cure(**own, sites=("St. A, B", "m"))

    def test_folders_of_patients_in_and_above_the_folders_of_classes(self, tmp_path):
        for pattern, names in (
            ("{site}/{class}/{folder}/{study}/{case}.png", "{0}/patient{1}/study{2}/view"),
            ("{site}/{folder}/{class}/{case}.png", "patient{1}/{0}/view{2}"),
        ):
            paths = [names.format(("benign", "malignant")[n % 2], n, study) for n in range(2) for study in range(2)]
            root = tmp_path / str(len(pattern))
            for index, path in enumerate(paths):
                for site in ("north", "south"):
                    save_pixels(root / site / f"{path}.png", scan(ord(site[0]), index))
            found = [warning.found for warning in check_dataset(Folder(root=str(root), image=pattern)).warnings]
            assert [text for text in found if "suggest 2 patients for 4 images" in text], (pattern, found)

    def test_patches_in_folders_of_classes(self, tmp_path):
        dataset = self.classes(tmp_path, "benign/p1_a", "malignant/p1_b", "benign/p2_a", "malignant/p2_b")
        found = [(warning.place, warning.found.partition(" for")[0]) for warning in check_dataset(dataset).warnings]
        assert found == [(site, "the file names suggest 2 patients") for site in ("north", "south")]
        cured = check_dataset(replace(dataset, patient_pattern=r"^(p\d)_")).warnings
        assert [warning.kind for warning in cured] == ["site without a test part"] * 2
        with pytest.warns(UserWarning) as warned:
            assign_patients(dataset, Federation(unseen_site="south"), 0, "a.yaml")
        assert [str(one.message).partition(" for")[0] for one in warned if "suggest" in str(one.message)] == [
            f"{site}: the file names suggest 2 patients" for site in ("north", "south")
        ]
        with warnings.catch_warnings(record=True) as warned:
            assign_patients(replace(dataset, patient_pattern="(.+)"), Federation(unseen_site="south"), 0, "a.yaml")
        assert not [one for one in warned if "suggest" in str(one.message)]


def test_masks_that_are_all_alike_may_show_the_field_of_view(root):
    for index in range(4):
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[: 40 + index % 2] = 255  # 62 and 64 %
        save_pixels(root / "north" / "masks" / f"scan{index}.png", mask)
    (alike,) = map(str, check(root).warnings)
    assert alike.startswith("north: foreground covers 62% of the pixels in each of 4 masks; look at the masks")


def test_names_of_sites_that_may_be_cut_are_named(tmp_path):
    for number, name in enumerate(("St_Anna_1", "St_Anna_2", "St_Mary_1", "UKE_1", "UKE_2")):
        save_pixels(tmp_path / "images" / f"{name}.png", scan(number))
        save_pixels(tmp_path / "masks" / f"{name}.png", 255 * np.eye(SIDE))
    settings = {"image": "images/{site}_{case}.png", "mask": "masks/{site}_{case}.png"}
    (cut,) = [warning for warning in check(tmp_path, **settings).warnings if "cut" in warning.kind]
    assert "a site ends at the first '_' of a name, and the names of the case Anna_1 of the site St contain" in str(cut)
    listed = {"sites": ("St", "UKE"), **settings}
    assert not [warning for warning in check(tmp_path, **listed).warnings if "cut" in warning.kind]
    whole = {key: text.replace("{site}", "{site:St_[a-z]*|UKE}") for key, text in settings.items()}
    assert Folder(root=str(tmp_path), **whole).site_names() == ["St_Anna", "St_Mary", "UKE"]
    assert not [warning for warning in check(tmp_path, **whole).warnings if "cut" in warning.kind]


def test_masks_beside_images_of_classes_are_refused_until_they_are_left_out(tmp_path):
    for number, (site, name) in enumerate((site, name) for site in ("north", "south") for name in ("benign", "normal")):
        for image in ("a (1)", "a (2)"):
            save_pixels(tmp_path / site / name / f"{image}.png", scan(number, len(image), ord(image[3])))
        for mask in ("a (1)_mask", "a (1)_mask_1", "a (1)_lesion_mask", "mask_a (1)", "b_mask"):
            save_pixels(tmp_path / site / name / f"{mask}.png", scan(number, len(mask)))
    report = check(tmp_path, image="{site}/{class}/{case}.png")
    found = [Path(problem.place).name for problem in report.problems if problem.kind == "mask among images of a class"]
    names = ["a (1)_lesion_mask.png", "a (1)_mask.png", "a (1)_mask_1.png", "mask_a (1).png"]
    assert sorted(found) == sorted(4 * names), "b_mask has no image"
    ignored = ("*_mask*", "mask_*")
    assert check(tmp_path, image="{site}/{class}/{case}.png", ignored_names=ignored).problems == ()


def test_images_of_12_bits_that_are_read_as_16_are_almost_black(tmp_path):
    for number in range(4):
        for site, bits in (("north", 12), ("south", 16)):
            pixels = np.random.default_rng(number + bits).integers(0, 2**bits, (8, 8)).astype(np.uint16)
            path = tmp_path / site / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    dataset = Folder(root=str(tmp_path), image="{site}/{class}/{case}.png", intensity_max=65535.0)
    found = [str(warning) for warning in check_dataset(dataset).warnings if warning.kind == "dark images"]
    assert (
        len(found) == 1 and found[0].startswith("north: no image is brighter than 15") and "intensity_max" in found[0]
    )
    cured = check_dataset(replace(dataset, by_site={"north": {"intensity_max": 4095.0}}))
    assert not [warning for warning in cured.warnings if warning.kind == "dark images"]
    assert all(240 < max(case.measures.highest for case in site.cases) <= 255 for site in cured.sites)


def test_a_single_site_has_no_unseen_site_and_a_single_patient_no_test_part(root):
    assert [(one.kind, one.place) for one in check(root, sites=("north",)).warnings] == [("no unseen site", "north")]
    for index in range(3):
        (root / "north" / "images" / f"scan{index}.png").unlink()
        (root / "north" / "masks" / f"scan{index}.png").unlink()
    assert [(one.kind, one.place) for one in check(root).warnings] == [("site without a test part", "north")]
    assert len(check(root, test_ratio=0.0).warnings) == 2


def test_a_structure_that_no_mask_of_any_site_shows_is_a_problem_unless_other_hospitals_take_part(root):
    for path in root.glob("*/masks/*.png"):
        Image.fromarray(np.zeros((SIDE, SIDE), np.uint8)).save(path)
    report = check(root)
    (problem,) = report.problems
    assert str(problem).startswith(f"{root}: no mask of any site shows foreground; expected every structure in at")
    at_hospital = check_dataset(Folder(root=str(root)), others_take_part=True)
    assert at_hospital.problems == () and at_hospital.warnings == report.warnings
    write(root, "south", "scan3", scan(1, 3))
    assert check(root).problems == ()


def test_masks_whose_foreground_is_the_background_are_named_with_the_setting_that_inverts_them(root):
    for index in range(3):
        path = root / "north" / "masks" / f"scan{index}.png"
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    (warning,) = check(root).warnings
    assert (warning.place, warning.kind) == ("north", "masks that may be inverted")
    assert warning.found.startswith("foreground covers more than 90% of the pixels in 3 of 4 masks")
    assert "data.background_value" in warning.cure and "data.mask_colours" in warning.cure
    write(root, "north", "scan2", scan(0, 2))  # half of the masks may be large
    (warning,) = check(root).warnings
    assert warning.place == "north and south"
    assert warning.found.startswith("covered share: 'foreground' covers 50% of a typical image at north, but")
    for index in (2, 3):
        path = root / "north" / "masks" / f"scan{index}.png"
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    report = check(root, sites=("north",), background_value=255)
    assert [one.kind for one in report.warnings] == ["no unseen site"] and set(report.sites[0].covers(0)) == {1 / 16}


def test_a_structure_that_covers_another_share_of_the_image_at_one_site_is_named(tmp_path):
    """A square of 30 % of the image at A, 25 % at B, and 75 % at C, whose masks are inverted."""
    for site, rows in (("A", 12), ("B", 10), ("C", 30)):
        mask = np.zeros((40, 40))
        mask[:rows] = 255
        for folder, pixels in (("images", np.arange(1600).reshape(40, 40) % 251), ("masks", mask)):
            save_pixels(tmp_path / site / folder / "1.png", pixels)
    report = check(tmp_path)
    assert [str(warning) for warning in report.warnings if warning.kind == "covered share"] == [
        "C: covered share: 'foreground' covers 75% of a typical image, but 30% is usual; the masks may be inverted; "
        "look at the masks"
    ]


@pytest.mark.parametrize("colour", [0, 255])
@pytest.mark.parametrize("settings", [{}, {"mask_colours": {"foreground": "#ffffff"}}])
def test_a_mask_whose_shape_is_in_the_alpha_channel_is_refused(root, colour, settings):
    path = root / "south" / "masks" / "scan1.png"
    shape = Image.open(path)
    Image.merge("RGBA", [*[Image.new("L", shape.size, colour)] * 3, shape]).save(path)
    (problem,) = check(root, **settings).problems
    assert str(problem).startswith(f"{path}: the shape of the mask is in the alpha channel")
    Image.open(path).getchannel("A").save(path)  # as the sentence says
    assert check(root, **settings).problems == ()
    Image.merge("RGBA", [*[shape] * 3, Image.new("L", shape.size, 255)]).save(path)
    assert check(root, **settings).problems == ()
