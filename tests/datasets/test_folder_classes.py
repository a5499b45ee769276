from pathlib import Path

import numpy as np
import pytest
from folder_layouts import save_pixels
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.folder_classes import FolderClasses


def write_image(path: Path, seed: int = 0) -> None:
    save_pixels(path, np.random.default_rng(seed).integers(0, 256, (6, 8, 3)))


@pytest.fixture
def root(tmp_path) -> Path:
    for site in ("photo", "sketch"):
        for name in ("horse", "dog"):
            for k in (1, 2):
                write_image(tmp_path / site / name / f"{k}.png", seed=k)
    return tmp_path


def cases_of(data: FolderClasses, site: str) -> list[tuple[str, int]]:
    return [(case.name, case.label) for case in data.cases(site)]


def test_sites_classes_and_labels_are_the_folders(root):
    (root / "photo" / ".DS_Store").write_text("x")
    (root / "photo" / "dog" / "Thumbs.db").write_text("x")
    data = FolderClasses(root=str(root))
    assert data.site_names() == ["photo", "sketch"] and data.classes == ("dog", "horse")
    assert cases_of(data, "photo") == [("dog/1", 0), ("dog/2", 0), ("horse/1", 1), ("horse/2", 1)]
    assert (data.channels, data.structures, data.intensity_range) == (3, (), (0.0, 255.0))
    assert all(case.mask is None and case.patient == case.name for case in data.cases("photo"))


def test_class_names_select_and_order_the_classes_and_a_missing_folder_of_a_class_is_named(root):
    write_image(root / "photo" / "cat" / "1.png")
    data = FolderClasses(root=str(root), class_names=("horse", "dog"))
    assert data.classes == ("horse", "dog") and cases_of(data, "photo")[0] == ("dog/1", 1)
    with pytest.raises(UserError, match="sketch: the site sketch has no folder for the class 'cat'.*data.class_names"):
        FolderClasses(root=str(root)).cases("photo")
    with pytest.raises(UserError, match="the class 'hors'.*Did you mean 'horse'"):
        FolderClasses(root=str(root), class_names=("hors", "dog")).cases("photo")
    (root / "photo").rename(root / "other")
    (root / "sketch").rename(root / "photo")
    assert FolderClasses(root=str(root), sites=("photo",)).classes == ("dog", "horse"), "of the sites in use"


def test_an_empty_class_folder_gives_a_warning_and_a_single_class_or_no_image_is_refused(root):
    for name in ("1", "2"):
        (root / "sketch" / "dog" / f"{name}.png").unlink()
    data = FolderClasses(root=str(root))
    assert cases_of(data, "sketch") == [("horse/1", 1), ("horse/2", 1)] and data.site_warnings("photo") == []
    assert data.site_warnings("sketch") == ["sketch: no images of the class 'dog'"]
    write_image(root / "alone" / "photo" / "dog" / "1.png")
    with pytest.raises(UserError, match="found only the class 'dog'; expected at least two"):
        FolderClasses(root=str(root / "alone")).cases("photo")
    for name in ("dog", "horse"):
        (root / "empty" / name).mkdir(parents=True)
    with pytest.raises(UserError, match="the site empty has no images; expected ROOT/SITE/CLASS/NAME.png"):
        FolderClasses(root=str(root), sites=("empty", "photo")).cases("empty")


def test_all_problems_are_in_one_message(root):
    write_image(root / "photo" / "dog" / "1.jpg")
    (root / "photo" / "dog" / "clip.gif").write_text("x")
    write_image(root / "photo" / "dog" / "more" / "7.png")
    with pytest.raises(UserError) as error:
        FolderClasses(root=str(root)).cases("photo")
    for part in ("1.png: another image has the same name: 1.jpg", "clip.gif: this is not", "more: this is a folder"):
        assert part in str(error.value)


def test_the_channel_of_a_grey_image_is_repeated_unless_forbidden_and_the_value_of_white_can_be_set(root):
    save_pixels(root / "photo" / "dog" / "1.png", 9 * np.indices((6, 8))[0])
    data, notices = FolderClasses(root=str(root)), []
    image = data.read_image(data.cases("photo")[0], notices)
    assert image.shape == (3, 6, 8, 1) and notices == ["grey repeated as RGB"] and bool((image[0] == image[2]).all())
    strict = FolderClasses(root=str(root), grey_to_rgb=False)
    with pytest.raises(UserError, match="is grey; expected colour; set data.grey_to_rgb: true"):
        strict.read_image(strict.cases("photo")[0], [])
    Image.fromarray(np.full((6, 8), 4095, np.uint16)).save(root / "photo" / "dog" / "1.png")
    deep = FolderClasses(root=str(root), image_channels=1, intensity_max=4095.0)
    assert float(deep.read_image(deep.cases("photo")[0], []).max()) == 255


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"image_channels": 2}, "image_channels"),
        ({"class_names": ("a", "a")}, "class_names"),
        ({"class_names": ("a",)}, "class_names"),
        ({"patient_pattern": "("}, "patient_pattern"),
    ],
)
def test_values_that_make_no_sense_are_refused(values, word):
    with pytest.raises(ValueError, match=word):
        FolderClasses(root="x", **values)
