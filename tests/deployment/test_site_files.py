"""Paths in the file of a hospital, and in the plan next to it."""

from argparse import Namespace
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


def test_a_plan_may_not_name_the_file_of_the_secret_and_the_hospital_may(tmp_path):
    """The secret hides the names of DICOM patients."""
    site_file = tmp_path / "HK.yaml"
    site_file.write_text("site: HK\nagrees: {rounds: 1}\n")
    (tmp_path / "plan.yaml").write_text(PLAN.format(", dicom_salt: /etc/services"))
    with pytest.raises(UserError, match="plan.yaml: data.dicom_salt: .* the coordinator could then know"):
        read_site_file(site_file)
    for plan in ("", ", dicom_salt: /etc/services"):
        (tmp_path / "plan.yaml").write_text(PLAN.format(plan))
        site_file.write_text("site: HK\nagrees: {rounds: 1}\ndata: {dicom_salt: salt}\n")
        assert read_site_file(site_file)[1].data.dicom_salt == str(tmp_path / "salt")


@pytest.mark.parametrize("table", ["/etc/list.csv", "../list.csv", "lists/../../list.csv"])
def test_a_plan_may_name_a_table_only_inside_the_images_and_the_hospital_any(tmp_path, table):
    site_file, plan = tmp_path / "HK.yaml", tmp_path / "plan.yaml"
    site_file.write_text("site: HK\nagrees: {rounds: 1}\n")
    plan.write_text(PLAN.format(f", table: {table}"))
    with pytest.raises(UserError, match="plan.yaml: data.table: .* set data.table in .*HK.yaml"):
        read_site_file(site_file)
    site_file.write_text(f"site: HK\nagrees: {{rounds: 1}}\ndata: {{table: {table}}}\n")
    for of_plan in (table, "lists/list.csv"):
        plan.write_text(PLAN.format(f", table: {of_plan}"))
        assert read_site_file(site_file)[1].data.table == table
    site_file.write_text("site: HK\nagrees: {rounds: 1}\n")
    assert read_site_file(site_file)[1].data.table == "lists/list.csv"


def test_a_plan_may_not_accept_masks_in_another_place_and_the_hospital_may(tmp_path):
    site_file = tmp_path / "HK.yaml"
    (tmp_path / "plan.yaml").write_text(PLAN.format(", ignore_mask_geometry: true"))
    site_file.write_text("site: HK\nagrees: {rounds: 1}\n")
    with pytest.raises(
        UserError, match="plan.yaml: data.ignore_mask_geometry: .* or set data.ignore_mask_geometry in "
    ):
        read_site_file(site_file)
    for own in (True, False):
        site_file.write_text(f"site: HK\nagrees: {{rounds: 1}}\ndata: {{ignore_mask_geometry: {str(own).lower()}}}\n")
        assert read_site_file(site_file)[1].data.ignore_mask_geometry == own


def test_patterns_of_the_hospital_replace_those_of_the_plan_whole(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN.format(", mask: {cup: '{site}/a', disc: '{site}/b'}, by_site: {HK: {}}"))
    own = {"mask": {"cup": "{site}/cup/{case}.png"}, "by_site": {"St. Mary": {"mask_threshold": 9.0}}}
    (tmp_path / "HK.yaml").write_text(f"site: HK\nagrees: {{rounds: 1}}\ndata: {own}\n")
    data = read_site_file(tmp_path / "HK.yaml")[1].data
    assert {"mask": data.mask, "by_site": data.by_site} == own
