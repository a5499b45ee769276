"""Paths in the file of a hospital, and in the plan next to it."""

from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import pytest

from medfed.core.errors import UserError
from medfed.deployment.join import read_site_file
from medfed.deployment.take_part import run_site

PLAN = """
data: {{name: folder, root: data{}}}
network: {{name: unet, features: [4, 4, 4, 8, 8, 4]}}
method: {{name: fedavg}}
federation: {{rounds: 1}}
"""


def refusal(file):
    with pytest.raises(UserError) as raised:
        run_site(Namespace(file=Path(file), yes=True, dry_run=True, quiet=True))
    return str(raised.value)


def test_a_missing_folder_of_images_is_named_with_the_path_that_starts_at_the_folder_of_the_hospitals_file(
    tmp_path, monkeypatch
):
    (tmp_path / "clinic").mkdir()
    (tmp_path / "own").mkdir()  # in the current folder, where no path of the file starts
    (tmp_path / "clinic" / "plan.yaml").write_text(PLAN.format(""))
    (tmp_path / "clinic" / "HK.yaml").write_text("site: HK\nagrees: {rounds: 1}\ndata: {root: own}\n")
    monkeypatch.chdir(tmp_path)
    found = f"the folder 'clinic/own' does not exist (medfed looked for {tmp_path}/clinic/own)"
    assert found in refusal("clinic/HK.yaml")


def test_a_hospital_in_a_folder_without_yaml_files_learns_which_folder_was_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, folder in (("BMC.yaml", tmp_path), ("none/BMC.yaml", tmp_path / "none")):
        assert f"The folder {folder} has no YAML file" in refusal(name)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ("device: gpu", "device: expected 'auto', 'cpu' or 'cuda', got the text 'gpu'"),
        ("data: {image_channels: many}", "data.image_channels: "),
        ("data: {image_channel: 3}", "data.image_channel: "),
        ("data: 3", "data: "),
        ("cache: {max_gb: -1}", "cache.max_gb: "),
        ("cache: {folder: {a: 1}}", "cache.folder"),
    ],
)
def test_a_mistake_in_the_hospitals_own_blocks_is_named_with_its_file_and_key(tmp_path, own, says):
    (tmp_path / "plan.yaml").write_text(PLAN.format(""))
    (tmp_path / "HK.yaml").write_text(f"site: HK\nagrees: {{rounds: 1}}\n{own}\n")
    with pytest.raises(UserError) as raised:
        read_site_file(tmp_path / "HK.yaml")
    assert str(raised.value).startswith(f"{tmp_path / 'HK.yaml'}: {says}"), raised.value


MAY_NOT = [("dicom_salt", "/etc/services"), ("ignore_mask_geometry", "true"), ("allow_duplicates", "true")]
MAY_NOT += [("if_missing", "phantom"), ("by_site", "{HK: {patient_pattern: '(.*)'}}")]
MAY_NOT += [("table", path) for path in ("/etc/list.csv", "../list.csv", "lists/../../list.csv")]


@pytest.mark.parametrize(("key", "value"), MAY_NOT)
def test_what_the_hospital_alone_may_set_is_refused_in_a_plan_and_taken_from_its_own_file(tmp_path, key, value):
    """The secret that hides patients, masks in another place, copies, phantoms, and a table outside the images."""
    site_file, plan = tmp_path / "HK.yaml", tmp_path / "plan.yaml"
    site_file.write_text("site: HK\nagrees: {rounds: 1}\n")
    plan.write_text(PLAN.format(f", {key}: {value}"))
    with pytest.raises(UserError, match=f"plan.yaml: data.{key}: .* set data.{key} in .*HK.yaml"):
        read_site_file(site_file)
    own = {"dicom_salt": "salt", "ignore_mask_geometry": False, "allow_duplicates": False, "by_site": {}}.get(
        key, value
    )
    site_file.write_text(f"site: HK\nagrees: {{rounds: 1}}\ndata: {{{key}: {str(own).lower()}}}\n")
    expected = str(tmp_path / "salt") if key == "dicom_salt" else own
    for of_plan in (f", {key}: {value}", ""):
        plan.write_text(PLAN.format(of_plan))
        assert getattr(read_site_file(site_file)[1].data, key) == expected


@pytest.mark.parametrize("root", ["/etc", "images/../.."])
def test_a_plan_may_not_choose_a_folder_outside_that_of_the_hospitals_file(tmp_path, root):
    (tmp_path / "HK.yaml").write_text("site: HK\nagrees: {rounds: 1}\n")
    (tmp_path / "plan.yaml").write_text(PLAN.format("").replace("root: data", f"root: {root}"))
    with pytest.raises(UserError, match="plan.yaml: data.root: .* set data.root in .*HK.yaml"):
        read_site_file(tmp_path / "HK.yaml")
    (tmp_path / "HK.yaml").write_text("site: HK\nagrees: {rounds: 1}\ndata: {root: own}\n")
    assert read_site_file(tmp_path / "HK.yaml")[1].data.root == str(tmp_path / "own")


def test_a_plan_that_names_weights_for_the_hospital_to_read_is_refused(tmp_path):
    (tmp_path / "HK.yaml").write_text("site: HK\nagrees: {rounds: 1}\n")
    (tmp_path / "plan.yaml").write_text(PLAN.format("").replace("name: unet", "name: unet, weights: /etc/passwd"))
    with pytest.raises(UserError, match="plan.yaml: network: a plan may not name a bundle or weights"):
        read_site_file(tmp_path / "HK.yaml")


def test_a_plan_may_name_a_table_inside_the_images(tmp_path):
    (tmp_path / "HK.yaml").write_text("site: HK\nagrees: {rounds: 1}\n")
    (tmp_path / "plan.yaml").write_text(PLAN.format(", table: lists/list.csv"))
    assert read_site_file(tmp_path / "HK.yaml")[1].data.table == "lists/list.csv"


def test_patterns_of_the_hospital_replace_those_of_the_plan_whole(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN.format(", mask: {cup: '{site}/a', disc: '{site}/b'}, by_site: {HK: {}}"))
    own = {
        "mask": {"cup": "{site}/cup/{case}.png", "disc": "{site}/{case}.png"},
        "by_site": {"St. Mary": {"mask_threshold": 9.0}},
    }
    (tmp_path / "HK.yaml").write_text(f"site: HK\nagrees: {{rounds: 1}}\ndata: {own}\n")
    data = read_site_file(tmp_path / "HK.yaml")[1].data
    assert {"mask": data.mask, "by_site": data.by_site} == own


TWO_MASKS = ", mask: {disc: '{site}/d', cup: '{site}/c'}"
PATCHES = ", patch_size: [32, 32, 16], spacing_mm: [1.0, 1.0, 2.0]"


@pytest.mark.parametrize(
    ("of_plan", "own", "says"),
    [
        (TWO_MASKS, "{mask: '{site}/{case}', structure_names: [disc, cup], mask_values: {disc: [1], cup: [2]}}", ""),
        (
            TWO_MASKS,
            "{mask: {cup: '{site}/c', disc: '{site}/d'}}",
            r"structures is \('cup', 'disc'\), but \('disc'",
        ),
        (PATCHES, "{spacing_mm: [1, 1, 2]}", ""),
        (PATCHES, "{patch_size: null, spacing_mm: null}", r"patch_size is None, but \(32, 32, 16\) in the plan"),
        ("", "{image_channels: 3}", "channels is 3, but 1 in the plan"),
        ("", "{name: prostate, root: data}", ""),
        ("", "{name: fundus, root: data}", "channels is 3, but 1 in the plan"),
        (", image_size: 96", "{name: prostate, root: data, image_size: 96}", ""),
        (", image_size: 96", "{name: prostate, root: data, image_size: 384}", "image_size is 384, but 96 in the plan"),
    ],
)
def test_what_all_hospitals_must_share_is_that_of_the_plan_however_it_is_written(tmp_path, of_plan, own, says):
    (tmp_path / "plan.yaml").write_text(PLAN.format(of_plan))
    (tmp_path / "HK.yaml").write_text(f"site: HK\nagrees: {{rounds: 1}}\ndata: {own}\n")
    with pytest.raises(UserError, match=f"HK.yaml: data: {says}.*all hospitals need") if says else nullcontext():
        read_site_file(tmp_path / "HK.yaml")


def test_values_and_colours_of_the_hospital_replace_those_of_the_plan_whole(tmp_path):
    """An entry of the plan, such as its background, would otherwise be mixed with the hospital's."""
    (tmp_path / "plan.yaml").write_text(PLAN.format(", mask_colours: {foreground: '#ff0000', background: '#0000ff'}"))
    for own in ({"mask_colours": {"foreground": "#00ff00"}}, {"mask_colours": {}, "mask_values": {"foreground": [7]}}):
        (tmp_path / "HK.yaml").write_text(f"site: HK\nagrees: {{rounds: 1}}\ndata: {own}\n")
        data = read_site_file(tmp_path / "HK.yaml")[1].data
        assert data.mask_colours == own["mask_colours"] and len(data.mask_values) == len(own.get("mask_values", {}))
