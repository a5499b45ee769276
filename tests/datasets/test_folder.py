import os
from itertools import product
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from folder_layouts import save_pixels
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.collections.folder import Folder
from medfed.datasets.recognition import recognise

SIDE_BY_SIDE = {"image": "{site}/{case}.*", "mask": "{site}/{case}_mask.*"}
CLASSES = "{site}/{class}/{case}.*"


def write_image(path: Path, seed: int = 0) -> None:
    save_pixels(path, np.random.default_rng(seed).integers(0, 256, (6, 8, 3)))


def mask(path: Path, values=(0, 255)) -> None:
    save_pixels(path, np.resize(values, (6, 8)))


def volume(path: Path, values=None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.random.default_rng(0).integers(0, 900, (6, 5, 4)) if values is None else np.resize(values, (6, 5, 4))
    nib.save(nib.Nifti1Image(array.astype(np.int16), np.diag([1, 1, 3, 1])), path)


@pytest.fixture
def root(tmp_path) -> Path:
    for site in ("north", "south"):
        for name in ("a", "b"):
            write_image(tmp_path / site / "images" / f"{name}.jpg")
            mask(tmp_path / site / "masks" / f"{name}.png")
    return tmp_path


def colour(root: Path, **values) -> Folder:
    return Folder(root=str(root), image_channels=3, **values)


def names(data: Folder, site: str) -> list[tuple[str, str, str]]:
    return [(case.name, case.image.name, case.mask_path.name) for case in data.cases(site)]


def labels(data: Folder, site: str) -> list[tuple[str, int]]:
    return [(case.name, case.label) for case in data.cases(site)]


def test_without_a_pattern_images_and_masks_are_in_two_folders_of_a_site(root):
    write_image(root / "north" / "images" / "c_seg.png")
    mask(root / "north" / "masks" / "c_seg.PNG")
    (root / "north" / "images" / "Thumbs.db").write_text("x")
    (root / "north" / "images" / ".hidden.png").write_text("x")
    data = colour(root)
    assert data.site_names() == ["north", "south"]
    expected = [("a", "a.jpg", "a.png"), ("b", "b.jpg", "b.png"), ("c_seg", "c_seg.png", "c_seg.PNG")]
    assert names(data, "north") == expected
    loaded = data.load(data.cases("north")[0])
    assert loaded.image.shape == (3, 6, 8, 1) and loaded.mask.float().mean() == 0.5 and loaded.spacing_mm is None
    assert data.intensity_range == (0.0, 255.0)


def test_volumes_and_masks_side_by_side(tmp_path):
    for image, of_image in (("a.nii.gz", "a_mask.nii"), ("b.nii", "b_Mask.nii.gz")):
        volume(tmp_path / "north" / image)
        volume(tmp_path / "north" / of_image, (0, 1))
    data = Folder(root=str(tmp_path), **SIDE_BY_SIDE)
    assert names(data, "north") == [("a", "a.nii.gz", "a_mask.nii"), ("b", "b.nii", "b_Mask.nii.gz")]
    assert data.load(data.cases("north")[0]).spacing_mm == (1, 1, 3) and data.intensity_range is None
    assert Folder(root=str(tmp_path), intensity_max=4095.0, **SIDE_BY_SIDE).intensity_range == (0.0, 4095.0)
    with pytest.raises(UserError, match=r"by_site.north.intensity_max is for 2-D image files"):
        _ = Folder(root=str(tmp_path), by_site={"north": {"intensity_max": 9.0}}, **SIDE_BY_SIDE).intensity_range


def test_two_folders_of_one_site_are_refused(root):
    write_image(root / "North" / "images" / "a.jpg")
    mask(root / "North" / "masks" / "a.png")
    with pytest.raises(UserError, match="the site names 'North' and 'north' differ only in upper and lower case"):
        colour(root).site_names()


def test_all_files_without_a_counterpart_are_in_one_message(root):
    (root / "north" / "masks" / "a.png").unlink()
    write_image(root / "north" / "images" / "b.png")
    mask(root / "north" / "masks" / "c.png")
    with pytest.raises(UserError) as error:
        colour(root).cases("north")
    for part in ("a.jpg: this image has no mask", "c.png: this mask has no image", "b.png: another image of the same"):
        assert part in str(error.value)


def test_upper_and_lower_case_make_no_second_patient(tmp_path):
    for name in ("P1_a", "p1_b", "P2_a"):
        write_image(tmp_path / "north" / f"{name}.png")
        mask(tmp_path / "north" / f"{name}_mask.png")
    cases = colour(tmp_path, image="{site}/{patient}_{case}.png", mask="{site}/{patient}_{case}_mask.png").cases(
        "north"
    )
    assert [(case.name, case.patient) for case in cases] == [("P1/a", "P1"), ("P2/a", "P2"), ("p1/b", "P1")]


def test_only_an_asterisk_has_a_meaning_in_ignored_names(tmp_path):
    for name in ("scan[1]", "scan1", "scan?", "scans"):
        write_image(tmp_path / "north" / f"{name}.png")
        mask(tmp_path / "north" / f"{name}_mask.png")

    def names(*ignored):
        return [case.name for case in colour(tmp_path, ignored_names=ignored, **SIDE_BY_SIDE).cases("north")]

    assert names("scan[1]*") == ["scan1", "scan?", "scans"]
    assert names("SCAN?*") == ["scan1", "scan[1]", "scans"]


def test_a_single_structure_is_the_value_that_is_not_background_and_a_third_value_needs_mask_values(root):
    mask(root / "north" / "masks" / "a.png", (0, 1))
    data = colour(root)
    assert all(data.load(case).mask.float().mean() == 0.5 for case in data.cases("north"))
    mask(root / "north" / "masks" / "a.png", (0, 1, 2))
    with pytest.raises(UserError, match="values 1, 2, .* value 0; expected exactly one value .*data.mask_values"):
        data.load(data.cases("north")[0])
    merged = colour(root, mask_values={"foreground": (1, 2)})
    assert merged.load(merged.cases("north")[0]).mask.float().mean() == pytest.approx(2 / 3)
    with pytest.raises(UserError, match=r"labels 0, 1, 2; expected 0 \(background\), 2 .*background: \[1, 2\]"):
        (one := colour(root, mask_values={"foreground": (2,)})).load(one.cases("north")[0])
    one = colour(root, mask_values={"foreground": (2,), "background": (1,)})
    assert one.load(one.cases("north")[0]).mask.float().mean() == pytest.approx(1 / 3)
    two = colour(root, structure_names=("left", "right"))
    assert two.load(two.cases("north")[0]).mask.sum(dim=(1, 2, 3)).tolist() == [16, 16]


def test_many_values_need_a_threshold(root):
    mask(root / "north" / "masks" / "a.png", range(0, 256, 5))
    data = colour(root)
    with pytest.raises(UserError, match="47 values.*data.mask_threshold: 128"):
        data.load(data.cases("north")[0])
    soft = colour(root, mask_threshold=128.0)
    assert soft.load(soft.cases("north")[0]).mask.meta["label_values"] == [0, 1]


@pytest.mark.parametrize(("values", "largest"), [((0, 1, 1), 1), ((0, 1, 2), 2), ((0, 40, 100), 100)])
def test_a_threshold_that_empties_a_mask_is_an_error_that_names_it(root, values, largest):
    mask(root / "north" / "masks" / "a.png", values)
    data = colour(root, mask_threshold=128.0)
    with pytest.raises(UserError, match=f"a.png: the largest .* is {largest}; .* above 128; .*data.mask_threshold"):
        data.load(data.cases("north")[0])


@pytest.mark.parametrize(("name", "values"), [("a.png", (0, 0, 0)), ("a.jpg", (0, 1, 2, 3, 12))])
def test_a_mask_without_foreground_may_have_noise_of_compression(root, name, values):
    (root / "north" / "masks" / "a.png").unlink()
    mask(root / "north" / "masks" / name, values)
    data = colour(root, mask_threshold=128.0)
    assert not data.load(data.cases("north")[0]).mask.any()


def test_cup_within_disc_on_white(root):
    mask(root / "north" / "masks" / "a.png", (255, 255, 128, 0))
    values = {"disc": (0, 128), "cup": (0,)}
    data = colour(root, structure_names=("disc", "cup"), mask_values=values, background_value=255)
    loaded = data.load(data.cases("north")[0])
    assert loaded.mask.float().mean(dim=(1, 2, 3)).tolist() == [0.5, 0.25]


def test_a_mask_of_another_size_is_refused_unless_the_setting_resizes_it(root):
    """Every pixel of a mask of half the size becomes a square of 2 x 2 pixels."""
    small = np.uint8([[0, 255, 0, 0], [0, 255, 0, 0], [0, 0, 0, 255]])
    save_pixels(root / "north" / "masks" / "a.png", small)
    data, resampling = colour(root), colour(root, resample_masks=True)
    with pytest.raises(UserError, match="masks/a.png: .*3 x 4 pixels, but .*a.jpg has 6 x 8; .*resample_masks"):
        data.load(data.cases("north")[0])
    loaded = resampling.load(resampling.cases("north")[0])
    np.testing.assert_array_equal(loaded.mask[0, ..., 0].numpy(), np.kron(small > 0, np.ones((2, 2))))
    assert loaded.notices == ("mask resampled to the size of its image",)
    assert loaded.mask.meta["label_values"] == [0, 255]
    save_pixels(root / "north" / "masks" / "a.png", np.resize((0, 255), (8, 6)))
    with pytest.raises(UserError, match="a.png: the mask has 8 x 6 pixels, .* the same ratio of height and width"):
        resampling.load(resampling.cases("north")[0])


def test_a_volume_mask_is_resampled_where_its_header_places_it(tmp_path):
    """The mask covers the slices 2 and 3 of the image only, with voxels twice as large in the plane."""
    volume(tmp_path / "north" / "a.nii")
    values = np.zeros((3, 3, 2), np.int16)
    values[1, 2] = 1
    affine = np.diag([2.0, 2, 3, 1])
    affine[:3, 3] = 0.5, 0.5, 6
    nib.save(nib.Nifti1Image(values, affine), tmp_path / "north" / "a_mask.nii")
    data = Folder(root=str(tmp_path), resample_masks=True, **SIDE_BY_SIDE)
    loaded = data.load(data.cases("north")[0])
    expected = np.zeros((6, 5, 4))
    expected[2:4, 4:, 2:] = 1
    np.testing.assert_array_equal(loaded.mask[0].numpy(), expected)
    affine[:3, 3] = 500
    nib.save(nib.Nifti1Image(values, affine), tmp_path / "north" / "a_mask.nii")
    with pytest.raises(UserError, match="a_mask.nii: no part of the mask lies inside its image"):
        data.load(data.cases("north")[0])


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_2d_image_file_is_no_mask_of_a_volume_because_its_axes_are_exchanged(root, is_ignored):
    volume(root / "north" / "images" / "a.nii")
    (root / "north" / "images" / "a.jpg").unlink()
    data = Folder(root=str(root), ignore_mask_geometry=is_ignored)
    (case,) = [case for case in data.cases("north") if case.image.suffix == ".nii"]
    with pytest.raises(UserError, match="masks/a.png: the mask is a 2-D image file, and its image .*a.nii is a volume"):
        data.load(case)


def test_2d_image_files_and_volumes_in_one_dataset_are_refused(root):
    volume(root / "south" / "images" / "c.nii")
    volume(root / "south" / "masks" / "c.nii", (0, 1))
    with pytest.raises(UserError, match="2-D image files, such as .* and volumes"):
        _ = colour(root).intensity_range


def test_a_folder_whose_name_is_not_safe_as_the_name_of_a_site_is_refused(tmp_path):
    write_image(tmp_path / "a:b" / "a.png")
    write_image(tmp_path / "a:b" / "a_mask.png")
    with pytest.raises(UserError, match="a site cannot be called"):
        colour(tmp_path, **SIDE_BY_SIDE).site_names()


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"image_channels": 0}, "image_channels"),
        ({"intensity_max": 0.0}, "intensity_max"),
        ({"structure_names": ()}, "structure_names"),
        ({"structure_names": ("a", "a")}, "structure_names"),
        ({"mask_values": {"cup": (1,)}}, "mask_values"),
        ({"mask_values": {"foreground": (0, 1)}}, "the value 0 of the background"),
        (
            {"structure_names": ("a", "background"), "mask_values": {"a": (1,), "background": (2,)}},
            "background lists values of no structure; give the structure another name",
        ),
        ({"mask_values": {"foreground": (1, 2), "background": (2,)}}, "the value 2 of the background"),
        ({"mask_threshold": 1.0, "structure_names": ("a", "b")}, "mask_threshold"),
        ({"patient_pattern": "("}, "patient_pattern"),
        ({"patient_pattern": "[0-9]+"}, "group"),
        ({"image": "{case}.png"}, "no field {site}"),
        ({"image": "{site}/{case"}, "image: "),
        ({"mask": {"cup": "{site}/../{case}"}}, "mask: "),
        ({"table": "a.csv", "mask": "{site}/{case}.png"}, "table replaces"),
        ({"image": CLASSES, "mask": "{site}/{case}.png"}, "{class}"),
        ({"mask": {"cup": "{site}/c/{case}"}, "structure_names": ("disc",)}, "structure_names"),
        ({"class_names": ("a", "a")}, "class_names"),
        ({"class_names": ("a",)}, "class_names"),
        ({"by_site": {"UCL": {"image_size": 3}}}, "by_site.UCL.image_size: unknown key"),
        ({"by_site": {"UCL": {"maks": "{site}/{case}.png"}}}, r"^by_site\.UCL\.maks: .*'mask'"),
        ({"by_site": {"UCL": {"image": "{site"}}}, r"^by_site\.UCL: image: "),
        ({"by_site": {"UCL": {"mask": {"cup": "{site}/{case}"}}}}, r"^by_site\.UCL\.mask .*structures"),
        ({"by_site": {"UCL": {"patient_pattern": "("}}}, "by_site.UCL: .*patient_pattern"),
    ],
)
def test_values_that_contradict_each_other_are_refused(values, word):
    with pytest.raises(ValueError, match=word):
        Folder(root="x", **values)


def test_the_error_about_a_missing_relative_folder_has_the_absolute_path_that_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    absolute = str(tmp_path / "own images")
    with pytest.raises(UserError) as raised:
        Folder(root="own images").ensure_available()
    assert str(raised.value).startswith(
        f"data.root: the folder 'own images' does not exist (medfed looked for {absolute}); expected files that"
    )
    with pytest.raises(UserError, match=f"^own images: this is not a folder .medfed looked for {absolute}.; expected"):
        recognise(Path("own images"))
    with pytest.raises(UserError) as raised:
        Folder(root=absolute).ensure_available()
    assert str(raised.value).startswith(f"data.root: the folder '{absolute}' does not exist; expected files that")
    with pytest.raises(UserError, match="has no phantom"):
        Folder(root=absolute, if_missing="phantom").ensure_available()


def test_the_message_about_an_unreadable_image_recommends_a_config_key(root):
    Image.fromarray(np.full((6, 8), 4095, np.uint16)).save(root / "north" / "images" / "0.png")
    mask(root / "north" / "masks" / "0.png")
    case = colour(root).cases("north")[0]
    with pytest.raises(UserError, match="0.png: .*data.intensity_max to the value that means white"):
        colour(root).read_image(case, [])
    assert float(Folder(root=str(root), intensity_max=4095.0).read_image(case, []).max()) == 255


def test_a_file_name_that_is_not_utf8_is_refused_before_training(tmp_path):
    """Old network drives have such names; a table of scores cannot contain them."""
    for kind in ("images", "masks"):
        folder = tmp_path / "north" / kind
        folder.mkdir(parents=True)
        for name in (b"plain.png", b"caf\xe9.png"):
            Image.new("L", (8, 8), 255).save(tmp_path / "made.png")
            (tmp_path / "made.png").rename(os.fsdecode(os.fsencode(folder) + b"/" + name))
    data = Folder(root=str(tmp_path))
    cases, problems = data.cases_and_problems("north")
    assert [case.name for case in cases] == ["plain"]
    assert len(problems) == 2 and all(
        "caf\\xe9.png: the file name is not valid UTF-8" in text for text in map(str, problems)
    )
    with pytest.raises(UserError, match="not valid UTF-8, so tables cannot contain it; rename the file"):
        data.cases("north")


class TestClasses:
    @pytest.fixture
    def photos(self, tmp_path) -> Path:
        for seed, place in enumerate(product(("photo", "sketch"), ("horse", "dog"), "12")):
            write_image(tmp_path.joinpath(*place).with_suffix(".png"), seed)
        return tmp_path

    def test_sites_classes_and_labels_are_the_folders(self, photos):
        (photos / "photo" / ".DS_Store").write_text("x")
        (photos / "photo" / "dog" / "Thumbs.db").write_text("x")
        data = colour(photos, image=CLASSES)
        assert data.site_names() == ["photo", "sketch"] and data.classes == ("dog", "horse")
        assert labels(data, "photo") == [("dog/1", 0), ("dog/2", 0), ("horse/1", 1), ("horse/2", 1)]
        assert (data.structures, data.intensity_range) == ((), (0.0, 255.0))
        assert all(case.masks == () and case.patient == case.name for case in data.cases("photo"))

    def test_class_names_select_and_order_the_classes_which_are_those_of_the_sites_in_use(self, photos):
        write_image(photos / "photo" / "cat" / "1.png")
        data = colour(photos, image=CLASSES, class_names=("horse", "DOG"))
        assert data.classes == ("horse", "DOG") and labels(data, "photo")[0] == ("dog/1", 1)
        assert len(data.cases("photo")) == 4, "without the cat"
        (warning,) = colour(photos, image=CLASSES).contents.warnings["sketch"]
        assert (warning.place, warning.found) == ("sketch", "no images of the class 'cat'")
        assert colour(photos, image=CLASSES, sites=("sketch",)).classes == ("dog", "horse")
        with pytest.raises(UserError, match="the class 'hors'.*Did you mean 'horse'"):
            colour(photos, image=CLASSES, class_names=("hors", "dog")).cases("photo")

    def test_a_single_class_or_no_image_is_refused(self, photos):
        with pytest.raises(UserError, match="found only the class 'dog'; expected at least two"):
            colour(photos, image="{site}/{class:dog}/{case}.*").cases("photo")
        (photos / "empty" / "dog").mkdir(parents=True)
        with pytest.raises(UserError, match="the site empty has no images"):
            colour(photos, image=CLASSES, sites=("empty", "photo")).site_names()
