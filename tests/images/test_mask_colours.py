"""Masks in colours: what a colour means is written in the config, and a colour without a meaning is refused."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from medfed.core.errors import UserError
from medfed.datasets.collections.folder import Folder

RED, GREEN, BLUE, GREY, BLACK, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (128,) * 3, (0, 0, 0), (255,) * 3


def folder_with(root: Path, colours: list, **settings) -> Folder:
    """A site with one image of one row, whose mask shows these colours from left to right."""
    return folder_with_mask(root, Image.fromarray(np.uint8([colours])), "a.png", **settings)


def folder_with_mask(root: Path, mask: Image.Image, name: str, quality: int = 75, **settings) -> Folder:
    pixels = np.resize(np.arange(0, 250, 9, np.uint8), mask.size[::-1])
    for kind, image in (("images", Image.fromarray(pixels)), ("masks", mask)):
        (root / "north" / kind).mkdir(parents=True, exist_ok=True)
        image.save(root / "north" / kind / (name if kind == "masks" else "a.png"), quality=quality)
    return Folder(root=str(root), **settings)


def mask_of(dataset: Folder, notices: list[str] | None = None) -> list:
    """The mask as nested lists, (structure, column)."""
    (case,) = dataset.cases("north")
    return dataset.read_mask(case, [] if notices is None else notices)[:, 0, :, 0].tolist()


@pytest.mark.parametrize("lesion", ["#ff0000", "#FF0000", (255, 0, 0), ("#ff0000",)])
def test_a_colour_has_several_spellings(tmp_path, lesion):
    dataset = folder_with(tmp_path, [BLACK, RED, BLACK], mask_colours={"foreground": lesion})
    assert mask_of(dataset) == [[0, 1, 0]]


def test_grey_values_are_colours_and_a_colour_can_belong_to_two_structures(tmp_path):
    settings = {"structure_names": ("disc", "cup"), "background_value": 255}
    settings["mask_colours"] = {"disc": ("#808080", "#000000"), "cup": 0}
    dataset = folder_with(tmp_path, [255, 128, 0, 128, 255], **settings)
    assert mask_of(dataset) == [[0, 1, 1, 1, 0], [0, 0, 1, 0, 0]]


@pytest.mark.parametrize(("name", "mode"), [("a.png", "RGB"), ("a.png", "P"), ("a.gif", "P")])
def test_a_palette_is_read_as_its_colours_and_the_background_can_have_one(tmp_path, name, mode):
    mask = Image.fromarray(np.uint8([[BLUE, RED, GREEN, WHITE]])).convert(mode, palette=Image.Palette.ADAPTIVE)
    meanings = {"b": "#00ff00", "a": "#ff0000", "background": ("#0000ff", "#ffffff")}
    settings = {"structure_names": ("a", "b"), "mask_colours": meanings}
    dataset = folder_with_mask(tmp_path, mask, name, **settings)
    assert mask_of(dataset) == [[0, 1, 0, 0], [0, 0, 1, 0]]


@pytest.mark.parametrize("colours", [(BLACK, WHITE), (WHITE, BLACK), (RED, BLACK)])
def test_black_is_the_background_of_a_palette_in_any_order(tmp_path, colours):
    mask = Image.fromarray(np.uint8([[colours.index(BLACK), *[1 - colours.index(BLACK)] * 2]]), mode="P")
    mask.putpalette([part for colour in colours for part in colour])
    notices: list[str] = []
    assert mask_of(folder_with_mask(tmp_path, mask, "a.png"), notices) == [[0, 1, 1]]
    assert any("palette that does not begin with black" in text for text in notices) == (colours[0] != BLACK)


@pytest.mark.parametrize("colours", [(WHITE, RED), ((1, 1, 1), WHITE), (BLUE, GREEN)])
def test_a_palette_without_black_is_read_by_its_indices(tmp_path, colours):
    mask = Image.fromarray(np.uint8([[0, 1, 1]]), mode="P")
    mask.putpalette([part for colour in colours for part in colour])
    assert mask_of(folder_with_mask(tmp_path, mask, "a.png")) == [[0, 1, 1]]


@pytest.mark.parametrize(("colours", "value"), [((WHITE, RED), 0), ((BLUE, GREEN), 0), ((RED, BLACK), 1)])
def test_a_palette_of_which_the_mask_shows_only_the_first_colour(tmp_path, colours, value):
    """A palette of a TIFF file has 256 colours: those that nobody chose are black."""
    mask = Image.fromarray(np.uint8([[0, 0, 0]]), mode="P")
    mask.putpalette([part for colour in (*colours, *[BLACK] * 254) for part in colour])
    dataset = folder_with_mask(tmp_path, mask, "a.tif")
    if value:
        with pytest.raises(UserError, match="1 colours, such as #ff0000"):
            mask_of(dataset)
    else:
        assert mask_of(dataset) == [[0, 0, 0]]


def test_a_mask_that_is_the_structure_everywhere_may_have_a_palette(tmp_path):
    mask = Image.fromarray(np.uint8([[WHITE, WHITE]])).convert("P", palette=Image.Palette.ADAPTIVE)
    assert mask_of(folder_with_mask(tmp_path, mask, "a.png")) == [[1, 1]]


def test_a_colour_that_jpeg_has_changed_is_refused(tmp_path):
    mask = Image.fromarray(np.uint8([BLACK, RED])[np.eye(32, dtype=int)])
    dataset = folder_with_mask(tmp_path, mask, "a.jpg", mask_colours={"foreground": "#ff0000"})
    with pytest.raises(UserError, match="without a name .*; name them there, such as background, or save .* as PNG"):
        mask_of(dataset)


def test_a_volume_has_grey_values(tmp_path):
    (tmp_path / "north").mkdir()
    for name, values in (("a", [[[5, 6, 7]]]), ("a_mask", [[[0, 300, 2]]])):
        nib.save(nib.Nifti1Image(np.int16(values), np.eye(4)), tmp_path / "north" / f"{name}.nii.gz")
    patterns = {"image": "{site}/{case}.*", "mask": "{site}/{case}_mask.*"}
    dataset = Folder(root=str(tmp_path), mask_colours={"foreground": 2}, **patterns)
    with pytest.raises(UserError, match=r"such as 300; expected 0 \(background\), 2 \(foreground\)"):
        mask_of(dataset)


def test_colours_without_a_name_are_refused_with_the_most_frequent_one(tmp_path):
    dataset = folder_with(tmp_path, [BLACK, RED, GREEN, GREEN, GREY], mask_colours={"foreground": "#ff0000"})
    with pytest.raises(UserError, match=r"has 2 colours .* such as #00ff00; expected 0 \(background\), #ff0000 \(fore"):
        mask_of(dataset)
    many = [(n, n // 2, 7) for n in range(20)]
    with pytest.raises(UserError, match=r"has 20 colours .*save the mask as PNG with one colour per structure"):
        mask_of(folder_with(tmp_path / "many", many, mask_colours={"foreground": "#ff0000"}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mask_colours": {"lesion": "#ff0000"}}, "each of ['foreground']"),
        ({"mask_colours": {"foreground": "red"}}, "'red' is not a colour"),
        ({"mask_colours": {"foreground": (255, 0)}}, "(255, 0) is not a colour"),
        ({"mask_colours": {"foreground": 256}}, "256 is not a colour"),
        ({"mask_colours": {"foreground": 0}}, "the colour 0 of 'foreground' is also the background"),
        ({"mask_colours": {"foreground": 1}, "mask_threshold": 128.0}, "replaces mask_values and mask_threshold"),
        (
            {"mask": {"lesion": "{site}/{case}.png"}, "mask_values": {"background": (7,)}, "mask_threshold": 1.0},
            "mask_threshold needs a single structure without mask_values",
        ),
    ],
)
def test_wrong_entries_are_refused_when_the_config_is_read(settings, words):
    with pytest.raises(ValueError) as error:
        Folder(root="x", **settings)
    assert words in str(error.value)


def test_one_colour_on_black_needs_no_setting_and_is_named(tmp_path):
    notices: list[str] = []
    dataset = folder_with(tmp_path, [BLACK, GREEN, BLACK])
    assert mask_of(dataset, notices) == [[0, 1, 0]] and notices == ["two-colour mask: #00ff00 is the structure"]
    notices = []
    assert mask_of(folder_with(tmp_path / "white", [BLACK, WHITE]), notices) == [[0, 1]] and notices == []


@pytest.mark.parametrize(
    ("colours", "settings"),
    [
        ([WHITE, RED], {}),  # which of them is the background?
        ([BLACK, RED, GREEN], {}),
        ([BLACK, RED], {"structure_names": ("disc", "cup")}),  # which of them is red?
    ],
)
def test_other_colours_are_asked_for(tmp_path, colours, settings):
    with pytest.raises(UserError, match=r"#ff0000.*data.mask_colours"):
        mask_of(folder_with(tmp_path, colours, **settings))


class TestStoredChannels:
    GREY = np.arange(64, dtype=np.uint8).reshape(8, 8)
    G, C = Image.fromarray(GREY), Image.fromarray(np.stack([GREY, 2 * GREY, 3 * GREY], -1))

    def dataset(self, root: Path, *images: Image.Image) -> Folder:
        for kind in ("images", "masks"):
            (root / "north" / kind).mkdir(parents=True)
        for number, image in enumerate(images):
            image.save(root / "north" / "images" / f"{number}.png")
            Image.fromarray(self.GREY % 2).save(root / "north" / "masks" / f"{number}.png")
        return Folder(root=str(root)).with_stored_channels()

    @pytest.mark.parametrize(
        ("images", "channels", "is_repeated"),
        [
            ((G.convert("P"), G, G.convert("RGB")), 1, False),
            ((G, C), 3, True),
            ((C, C.convert("P")), 3, False),
        ],
        ids=["a palette of greys first", "grey among colour", "colour"],
    )
    def test_the_channels_are_those_that_all_images_need(self, tmp_path, images, channels, is_repeated):
        dataset, notices = self.dataset(tmp_path, *images), []
        assert dataset.image_channels == channels
        assert all(len(dataset.read_image(case, notices)) == channels for case in dataset.cases("north"))
        assert ("grey repeated as RGB" in notices) == is_repeated
