"""A run that surveys its sites: the same weights, one table, and every mismatch is named before the first round."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
from conftest import read_csv
from forked_workers import fork_workers

from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.experiments.grid import without_federation
from medfed.experiments.setup import build_experiment
from medfed.experiments.training import survey_sites, train
from medfed.outputs.run_folder import RunFolder

BASE = ("federation.unseen_site=", "federation.rounds=1", "data.test_ratio=0")


def configured(path, survey="warn", *more):
    return load(path, [*BASE, f"federation.survey={survey}", *more])


def rewrite(folder, masks=lambda voxels: voxels, images=lambda voxels: voxels, affine=lambda matrix: matrix):
    """Change the volumes of a site."""
    for path in folder.iterdir():
        volume, change = nib.load(path), masks if "egmentation" in path.name else images
        nib.save(nib.Nifti1Image(change(np.asarray(volume.dataobj)), affine(volume.affine)), path)


@pytest.fixture
def data(tmp_path, small_phantom, small_config):
    """A copy of three sites of four patients each, whose files a test may change."""
    root = shutil.copytree(small_phantom, tmp_path / "data")
    small_config.write_text(small_config.read_text().replace(str(small_phantom), str(root)))
    return root


def survey_of(experiment, path, quiet=True):
    """The content of survey.json, and the rows of the ledger."""
    folder = RunFolder(path)
    folder.create()
    ledger = survey_sites(experiment.engine, experiment.task, folder, stops=False, quiet=quiet)
    return folder.read_json("survey.json"), ledger


def trained(config, path):
    """Train in a folder as a run does, without its evaluation; return the folder."""
    experiment, folder = build_experiment(config, path / "sites", quiet=True), RunFolder(path)
    folder.create()
    train(config, experiment.engine, folder, experiment.start, experiment.task, quiet=False)
    return folder


def test_a_survey_changes_no_weight_and_is_in_the_ledger(small_config, tmp_path, capsys):
    folders = {word: trained(configured(small_config, word), tmp_path / word) for word in ("none", "warn")}
    assert folders["none"].load_state(1).to_bytes() == folders["warn"].load_state(1).to_bytes()
    rows = [row for row in folders["warn"].ledger() if row["kind"] == "survey"]
    others = [row for row in folders["warn"].ledger() if row["kind"] != "survey"]
    assert others == list(folders["none"].ledger()) and not (tmp_path / "none" / "survey.csv").exists()
    assert {(row["round"], row["content"]) for row in rows} == {("1", "fact")}
    table = {row["site"]: row for row in read_csv(tmp_path / "warn" / "survey.csv")}
    assert set(table) == {"BMC", "HK", "UCL"}
    assert {(row["patients"], row["0.images"]) for row in table.values()} == {("4", "4")}
    (names,) = (row["name"] for row in rows if (row["site"], row["direction"]) == ("HK", "up"))
    assert set(names.split("; ")) == {name for name, value in table["HK"].items() if value} - {"site"}
    assert "before round 1" in (printed := capsys.readouterr().out) and "prostate" in printed


def test_other_units_and_a_flip_are_named_with_the_site(data, small_config, tmp_path):
    """Everywhere the prostate is moved to the front; at BMC the images are flipped, and the headers do not say so."""
    for site in ("BMC", "HK", "UCL"):
        first = min(path.name for path in (data / site).iterdir())[:6]
        for path in list((data / site).glob(f"{first}*")):  # quantiles need five patients
            shutil.copy(path, path.with_name(path.name.replace(first, "Case99")))
        rewrite(data / site, *[lambda voxels: np.roll(voxels, -8, axis=1)] * 2)
    config = configured(small_config, "warn", "data.allow_duplicates=true")
    assert not survey_of(build_experiment(config, None, quiet=True), tmp_path)[0]["mismatches"]
    rewrite(data / "BMC", *[lambda voxels: voxels[:, ::-1]] * 2)
    metres = np.diag([1e-3, 1e-3, 1e-3, 1])
    rewrite(data / "HK", images=lambda voxels: voxels * np.float32(1000), affine=lambda matrix: matrix @ metres)
    experiment = build_experiment(config, None, quiet=True)
    with pytest.warns(UserWarning, match="BMC: orientation.*front and back may be exchanged"):
        mismatches = survey_of(experiment, tmp_path)[0]["mismatches"]
    named = [("BMC", "orientation"), ("HK", "spacing"), ("HK", "intensities")]
    assert [(one["site"], one["what"]) for one in mismatches] == named


def test_masks_without_the_structure_stop_the_run_before_round_1_if_the_user_wants_it(data, small_config, tmp_path):
    rewrite(data / "HK", masks=np.zeros_like)
    with pytest.raises(UserError, match="HK: labels: no mask shows the structure 'prostate'.*set federation.survey to"):
        trained(configured(small_config, "stop"), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").rounds()
    (mismatch,) = json.loads((tmp_path / "run" / "survey.json").read_text())["mismatches"]
    assert (mismatch["site"], mismatch["is_severe"]) == ("HK", True)
    with pytest.warns(UserWarning, match="HK: labels: no mask shows the structure 'prostate'"):
        assert trained(configured(small_config), tmp_path / "run").rounds() == [0, 1]


def test_sites_in_processes_reply_the_same_and_one_with_too_few_patients_only_says_so(
    data, small_config, tmp_path, monkeypatch, capsys
):
    fork_workers(monkeypatch)
    for number in ("00", "01"):
        for path in (data / "HK").glob(f"*{number}*"):
            path.unlink()
    files = sorted((data / "HK").iterdir())
    for path in files[: len(files) // 2]:
        path.unlink(missing_ok=True)
    expected, _ = survey_of(build_experiment(configured(small_config), None, quiet=True), tmp_path / "one")
    experiment = build_experiment(configured(small_config, "warn", "federation.engine=processes"), tmp_path / "p", True)
    try:
        survey, ledger = survey_of(experiment, tmp_path / "several", quiet=False)
    finally:
        experiment.engine.close()
    assert survey == expected and set(survey["sites"]) == {"BMC", "UCL"}
    assert survey["too_few_patients"] == ["HK"] and "too few patients: HK" in capsys.readouterr().out
    sent = [row["name"] for row in ledger if (row["site"], row["direction"]) == ("HK", "up")]
    assert sent == ["too_few_patients"]


def test_an_impossible_reply_is_named_and_not_compared(small_config, tmp_path, capsys):
    experiment = build_experiment(configured(small_config), None, quiet=True)
    site = experiment.engine.local_sites[0]
    site.survey.facts = lambda least: {"patients": 4, "images": 4, "measured_images": 4, "0.images": 5}
    with pytest.warns(UserWarning, match=f"{site.name}: its survey of round 1 reports 5 for '0.images', which no site"):
        survey, _ = survey_of(experiment, tmp_path, quiet=False)
    assert site.name not in survey["sites"] and site.name in survey["no_valid_reply"]
    assert f"no reply: {site.name}" in capsys.readouterr().out


def test_a_survey_needs_sites_that_hold_their_images(small_config):
    for arrangement in ("pooled", "local"):
        assert not without_federation(configured(small_config, "stop"), arrangement, "HK").federation.surveys

    with pytest.raises(UserError, match="federation.survey: is warn, but the participants are simulated clients"):
        configured(small_config, "warn", "federation.clients=4")
