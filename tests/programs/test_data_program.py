import json
import re
from pathlib import Path

import numpy as np
import pytest
from folder_layouts import save_pixels
from PIL import Image

import medfed
from medfed import init
from medfed.cli import progress
from medfed.config.schema import load, load_text
from medfed.data import main
from medfed.datasets.collections.folder import IMAGE, MASK
from medfed.phantoms.prostate_phantom import ProstatePhantom


@pytest.fixture
def root(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for name in ("a", "b"):
            save_pixels(tmp_path / "sites" / site / "images" / f"{name}.png", rng.integers(0, 256, (6, 8, 3)))
            save_pixels(tmp_path / "sites" / site / "masks" / f"{name}.png", np.resize((0, 255), (6, 8)))
    return tmp_path / "sites"


def block(root: Path, more: str = "") -> str:
    """The block `data` that the check prints."""
    lines = ["name: folder", f"root: {root}", f"image: '{IMAGE}'", f"mask: '{MASK}'", f"image_channels: 3{more}"]
    return "\n  ".join(["data:", *lines]) + "\n"


def test_without_arguments_every_dataset_has_a_line_and_a_card_has_licence_layout_and_citation(capsys):
    assert main([]) == 0
    output = capsys.readouterr().out
    assert all(f"{name}: " in output for name in ("folder", "phantom", "prostate")) and "licence:" in output
    assert main(["card", "prostate"]) == 0
    output = capsys.readouterr().out
    assert all(f"{part}:" in output for part in ("what", "licence", "how to get", "layout", "cite"))
    assert all(len(line) <= 100 for line in output.splitlines())


def test_checking_a_correct_folder_returns_0_and_prints_its_config(root, capsys):
    assert main(["check", str(root), "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(block(root))
    assert "\n0 problems, " in captured.out and captured.err == ""


def test_problems_return_2_and_are_in_the_json_report_and_that_of_the_function(root, capsys):
    (root / "north" / "images" / "a.png").write_text("no picture")
    (root / "south" / "masks" / "b.png").unlink()
    flags = ["--quiet", "--set", f"data.image={IMAGE}"]
    assert main(["check", str(root), *flags]) == 2
    text = capsys.readouterr().out
    assert text.endswith("2 problems, 2 warnings.\n")
    assert main(["check", str(root), *flags, "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert [Path(problem["place"]).name for problem in report["problems"]] == ["b.png", "a.png"]
    checked = medfed.check_data(root, settings={"data.image": IMAGE})
    assert list(map(str, checked.problems)) == [f"{p['place']}: {p['found']}; {p['cure']}" for p in report["problems"]]
    assert f"{checked}\n" == text


def test_progress_goes_to_stderr(root, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
    main(["check", str(root)])
    captured = capsys.readouterr()
    assert "0/4" in captured.err and "0/4" not in captured.out


def test_a_config_is_checked_by_its_data_block_and_duplicates_can_be_allowed(root, tmp_path, capsys):
    text = "data: {name: folder, root: %s, image_channels: 1}\nmethod: {name: fedavg}\nnetwork: {name: unet}\n"
    (tmp_path / "c.yaml").write_text(text % root)
    assert main(["check", str(tmp_path / "c.yaml"), "--quiet"]) == 2
    assert "set data.image_channels: 3" in capsys.readouterr().out
    (root / "south" / "images" / "a.png").write_bytes((root / "north" / "images" / "a.png").read_bytes())
    assert main(["check", str(root), "--quiet"]) == 2
    assert main(["check", str(root), "--quiet", "--set=data.allow_duplicates=true"]) == 0


def test_a_setting_is_tried_without_a_config(root, capsys):
    for path in root.glob("*/masks/*.png"):
        save_pixels(path, np.resize((0, 3, 250), (6, 8)))
    assert main(["check", str(root), "--quiet"]) == 2
    output = capsys.readouterr().out
    assert " ".join(output.split()).count("the mask has the values 3, 250") in (2, 4) and "data.mask_values" in output
    assert main(["check", str(root), "--quiet", "--set", "data.mask_threshold=128"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(block(root, "\n  mask_threshold: 128.0"))
    assert "\n0 problems, " in output


@pytest.fixture
def cases(tmp_path) -> Path:
    """Two sites with folders of cases, each with an image and a mask."""
    for number, path in enumerate(f"{site}/{case}" for site in ("north", "south") for case in "abc"):
        image = np.random.default_rng(number).integers(0, 256, (6, 8))
        for name, pixels in (("t2", image), ("mask", 255 * (image > 99))):
            save_pixels(tmp_path / "cases" / path / f"{name}.png", pixels)
    return tmp_path / "cases"


@pytest.mark.parametrize("settings", [[], ["data.image_size=64"], ["data.resample_masks=true", "data.sites=[south]"]])
def test_a_setting_keeps_what_is_recognised_in_the_check_and_in_a_planned_config(cases, tmp_path, capsys, settings):
    flags = [word for text in settings for word in ("--set", text)]
    assert main(["check", str(cases), "--quiet", *flags]) == 0
    printed = capsys.readouterr().out.partition("\n\n")[0]
    checked = load_text(f"{printed}\nmethod: {{name: fedavg}}\nnetwork: {{name: unet}}\n", "printed").data
    one_site = ["--set", "federation.unseen_site="] if len(settings) == 2 else []
    assert init.main([str(cases), "--out", str(tmp_path / "my.yaml"), "--quiet", *flags, *one_site]) == 0
    planned = load(tmp_path / "my.yaml").data
    found = [planned.image, planned.mask, planned.sites]
    assert found == ["{site}/{case}/t2.*", "{site}/{case}/mask.*", ("south",) * bool(one_site)]
    for site in planned.site_names():
        assert planned.cases(site) == checked.cases(site) and len(planned.cases(site)) == 3


def test_patterns_replace_the_recognised_ones_and_other_files_are_named(cases, capsys):
    patterns = ("--set", "data.image={site}/{case}/mask.*", "--set", "data.mask={site}/{case}/t2.*")
    assert main(["check", str(cases), "--quiet", *patterns, "--set", "data.mask_threshold=99"]) == 0
    assert "image: '{site}/{case}/mask.*'\n  mask: '{site}/{case}/t2.*'\n" in capsys.readouterr().out
    (cases / "north" / "a" / "adc.png").write_bytes((cases / "north" / "b" / "t2.png").read_bytes())
    assert main(["check", str(cases), "--quiet"]) == 2
    assert "no usual pattern" in (error := capsys.readouterr().err) and "north/a/adc.png" in error


def test_the_printed_settings_load_all_images_as_a_config(root, tmp_path, capsys):
    """Grey files, palettes of greys and colours in one folder: after 0 problems, training asks nothing more."""
    grey = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8))
    grey.save(root / "north" / "images" / "a.png")
    grey.rotate(180).convert("P").save(root / "north" / "images" / "b.png")
    assert main(["check", str(root), "--quiet"]) == 0
    printed = capsys.readouterr().out.partition("\n\n")[0]
    dataset = load_text(f"{printed}\nmethod: {{name: fedavg}}\nnetwork: {{name: unet}}\n", "printed").data
    assert dataset.channels == 3
    for site in ("north", "south"):
        assert {dataset.load(case).image.shape for case in dataset.cases(site)} == {(3, 6, 8, 1)}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["card", "prostat"], "medfed.data: no dataset 'prostat'. Did you mean 'prostate'?"),
        (["check", "ROOT/nowhere"], "nowhere: does not exist"),
        (["check", "ROOT/../empty"], "the folder holds no image"),
        (["check", "ROOT", "--set", "data.mask_treshold=1"], "Did you mean 'mask_threshold'?"),
        (["check", "ROOT", "--set", "mask_threshold=1"], "expected a setting of the block data"),
        (["check", "ROOT", "--set", "training.batch_size=1"], "expected a setting of the block data"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(root, capsys, words, sentence):
    (root.parent / "empty").mkdir()
    assert main([word.replace("ROOT", str(root)) for word in words]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.err.startswith("medfed.data: ")
    assert captured.err.count("\n") == 1 and captured.out == ""


def test_a_setting_of_a_folder_with_classes(tmp_path, capsys):
    for number, name in enumerate(("north/cat", "north/dog", "south/cat", "south/dog")):
        save_pixels(tmp_path / name / f"{number}.png", np.full((4, 4), number))
    assert main(["check", str(tmp_path), "--quiet", "--set", "data.image_size=32"]) == 0
    output = capsys.readouterr().out
    assert "image: '{site}/{class}/{case}.*'" in output and re.search(r" cat +dog *\nnorth ", output)


def test_fetching_a_phantom_creates_it_and_for_another_dataset_says_where_it_is(tmp_path, monkeypatch, capsys):
    assert main(["fetch", "prostate"]) == 0
    assert "liuquande.github.io/SAML" in capsys.readouterr().out.replace("\n", "")
    made = []
    monkeypatch.setattr(ProstatePhantom, "write_collection", lambda *arguments: made.append(arguments))
    assert main(["fetch", "prostate_phantom", "--to", str(tmp_path / "p"), "--quiet"]) == 0
    assert made and (tmp_path / "p").is_dir()
