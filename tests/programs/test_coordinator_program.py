"""A coordinator's side, up to where FLARE begins."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import tiny_yaml
from folder_layouts import save_pixels

import medfed
from medfed import coordinator, report
from medfed.config import strict_yaml
from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.core.files import read_with_checksum
from medfed.datasets.collections.prostate import Prostate
from medfed.deployment import coordinate
from medfed.deployment.coordinate import _finish
from medfed.deployment.join import read_site_file
from medfed.experiments.setup import build_experiment
from medfed.federation.message import Message, State, failed_reply
from medfed.outputs.bundle.write import export_run
from medfed.outputs.run_folder import RunFolder
from medfed.phantoms import ProstatePhantom
from medfed.tasks.evaluation import Evaluation

SITES = ("BMC", "HK", "UCL")


def changed(tmp_path, tiny_phantom, **more: str) -> Path:
    path = tmp_path / "tiny.yaml"
    keys = "".join(f"{key}: {value}, " for key, value in more.items())
    path.write_text(tiny_yaml(tiny_phantom).replace("unseen_site: UCL, ", keys))
    return path


@pytest.fixture
def config(tmp_path, tiny_phantom) -> Path:
    return changed(tmp_path, tiny_phantom)


def run(*words: object) -> int:
    return coordinator.main([str(word) for word in words])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, tiny_phantom) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    where = ["--out", folder / "federation", "--host", "hub.example", "--port", 9002]
    assert run("prepare", changed(folder, tiny_phantom), *where) == 0
    return folder / "federation"


def test_it_writes_what_its_readme_names(prepared):
    text = (prepared / "README.md").read_text()
    for name in re.findall(rf"{re.escape(str(prepared))}/([\w.]+)", text):
        assert (prepared / name).exists() or name in ("kits", "run"), name
    names = "README.md plan.yaml start.state images.json project.yml hospitals certificates"
    assert {path.name for path in prepared.iterdir()} == set(names.split())
    assert {path.stem for path in (prepared / "hospitals").iterdir()} == set(SITES)
    assert not re.search(r"{\w*}", text) and "hub.example" in text


def test_the_plan_has_the_settings_of_the_config_and_names_no_path_of_this_machine(prepared, config, tiny_phantom):
    """One setting is decided: hospitals are compared before round 1, unless the config says otherwise."""
    texts = [path.read_text() for path in (prepared / "plan.yaml", *(prepared / "hospitals").rglob("*.yaml"))]
    assert not any(str(tiny_phantom.parent) in text or "/tmp" in text or str(Path.home()) in text for text in texts)
    plan = load(prepared / "plan.yaml")
    assert (plan.data.root, plan.data.sites, plan.data.if_missing) == ("data", (), "error")
    assert plan.federation.unseen_site == ""
    asked = load(config)
    for block in ("method", "network", "training", "seed"):
        assert getattr(plan, block) == getattr(asked, block)
    assert plan.federation == replace(asked.federation, survey="warn")


def test_the_hospitals_dataset_is_named_and_not_the_phantom_that_replaces_it_here(
    config, tiny_phantom, tmp_path, monkeypatch
):
    phantom = ProstatePhantom(root=str(tiny_phantom), sites=SITES, image_size=32, cases_per_site=4, matrix=40)
    monkeypatch.setattr(Prostate, "phantom", lambda self: phantom)
    missing = ("--set", f"data.root={tmp_path / 'missing'}", "--set", "data.if_missing=phantom")
    assert run("prepare", config, "--out", tmp_path / "federation", "--host", "hub.example", *missing) == 0
    assert json.loads((tmp_path / "federation" / "images.json").read_text())["dataset"] == Prostate.card.title


def test_settings_of_an_unseen_site_are_not_in_the_plan(config, tiny_phantom, tmp_path):
    of_unseen = ["federation.unseen_site=UCL", "federation.unseen_ratio=0.5"]
    of_unseen += ["evaluation.match=window", "evaluation.match_ratio=0.5", "evaluation.unseen_every=1"]
    where = ["--out", tmp_path / "federation", "--host", "hub.example", "--sites", *SITES]
    assert run("prepare", config, *where, *(word for setting in of_unseen for word in ("--set", setting))) == 0
    plan = load(tmp_path / "federation" / "plan.yaml")
    assert (plan.federation.unseen_site, plan.federation.unseen_ratio) == ("", 1.0) and plan.evaluation == Evaluation()


def test_settings_of_a_single_site_are_in_its_own_file_and_not_in_the_plan(tmp_path):
    for site, suffix in (("A", ""), ("B", "_drawn")):
        for number in range(3):
            save_pixels(tmp_path / "images" / site / "images" / f"{number}.png", np.full((32, 32), 40 * number))
            save_pixels(tmp_path / "images" / site / "masks" / f"{number}{suffix}.png", np.eye(32))
    config = tmp_path / "own.yaml"
    of_site = {"B": {"mask": "{site}/masks/{case}_drawn.png"}}
    config.write_text(
        f"data: {{name: folder, root: {tmp_path / 'images'}, image_size: 32, by_site: {of_site}}}\n"
        "network: {name: unet, features: [2, 2, 2, 2, 2, 2]}\nmethod: {name: fedavg}\nfederation: {rounds: 2}\n"
    )
    assert run("prepare", config, "--out", tmp_path / "out") == 0
    assert load(tmp_path / "out" / "plan.yaml").data.by_site == {}
    masks = {site: read_site_file(tmp_path / "out" / "hospitals" / site / f"{site}.yaml")[1].data.mask for site in "AB"}
    assert masks == {"A": None, "B": "{site}/masks/{case}_drawn.png"}


def test_training_begins_where_a_simulation_begins(prepared, config):
    start = State.from_bytes(read_with_checksum(prepared / "start.state", ""))
    expected = build_experiment(load(config), None, quiet=True).start
    assert start.round == 0 and list(start.weights) == list(expected.weights)
    assert all(torch.equal(entry, expected.weights[name]) for name, entry in start.weights.items())


@pytest.mark.parametrize("site", SITES)
def test_a_hospitals_file_loads_and_agrees_to_no_statistic_yet(prepared, tmp_path, site):
    (tmp_path / f"{site}.yaml").write_text((prepared / "hospitals" / site / f"{site}.yaml").read_text())
    (tmp_path / "plan.yaml").write_text((prepared / "plan.yaml").read_text())
    hospital, config = read_site_file(tmp_path / f"{site}.yaml")
    assert hospital.site == site and hospital.agrees.sends == () and hospital.agrees.rounds == 2
    assert (hospital.agrees.min_patients, hospital.agrees.max_epsilon, hospital.agrees.delta) == (5, None, 1e-5)
    assert Path(config.data.root) == tmp_path / "data" and Path(hospital.kit) == tmp_path / "kit"


def test_flares_project_names_everybody(prepared):
    project = strict_yaml.parse((prepared / "project.yml").read_text(), "project.yml")
    people = {person["name"]: person for person in project["participants"]}
    assert set(people) == {*SITES, "hub.example", "coordinator@medfed.org"}
    assert (people["hub.example"]["fed_learn_port"], people["hub.example"]["admin_port"]) == (9002, 9003)
    assert len({people[site]["org"] for site in SITES} | {"coordinator"}) == 4


def test_each_hospital_can_make_a_private_key_of_its_own(prepared, tmp_path):
    """FLARE's own program accepts the file for the request, which holds no key."""
    pytest.importorskip("nvflare")
    program = [Path(sys.executable).parent / "nvflare", "cert", "request"]
    words = ["-p", prepared / "hospitals" / "HK" / "request.yml", "--out", tmp_path / "request"]
    subprocess.run([*program, *words], check=True, capture_output=True, env={**os.environ, "HOME": str(tmp_path)})
    with zipfile.ZipFile(tmp_path / "request" / "HK.request.zip") as request:
        assert set(request.namelist()) == {"request.json", "site.yaml", "HK.csr"}
    assert (tmp_path / "request" / "HK.key").stat().st_mode & 0o077 == 0


def test_a_hospital_that_only_validates_is_one_of_the_sites(tmp_path, tiny_phantom):
    path = changed(tmp_path, tiny_phantom, validation_site="UCL", selection="validation_site")
    assert run("prepare", path, "--out", tmp_path / "out") == 0
    plan = load(tmp_path / "out" / "plan.yaml")
    assert (plan.federation.validation_site, plan.federation.selection) == ("UCL", "validation_site")
    assert {file.stem for file in (tmp_path / "out" / "hospitals").iterdir()} == set(SITES)
    project = strict_yaml.parse((tmp_path / "out" / "project.yml").read_text(), "project.yml")
    assert "UCL" in {person["name"] for person in project["participants"]}
    assert "BMC, HK, UCL (which only validates)" in (tmp_path / "out" / "README.md").read_text()


ONLOOKER = {"validation_site": "UCL"}


@pytest.mark.parametrize(
    ("keys", "sites", "sentence"),
    [
        ({"clients": "4"}, SITES, "federation.clients: 4 is for simulations"),
        ({"participating": "2"}, SITES, "federation.participating: 2 is for simulations"),
        ({"batch_norm": "local"}, SITES, "keeps entries of the network at each site"),  # no model to hand out
        ({"selection": "validation_site"}, SITES, "'validation_site' needs federation.validation_site"),
        (ONLOOKER, ["BMC", "HK"], "federation.validation_site: 'UCL' is not among --sites (BMC, HK)"),
        (ONLOOKER, ["BMC", "UCL"], "two hospitals that train, got BMC, UCL, of which UCL only validates"),
        ({}, ["HK"], "a federation needs at least two hospitals that train, got HK"),
        ({}, ["HK", "HK"], "'HK' is listed twice"),
        ({}, ["HK", "../HK"], "must not contain /"),
        ({}, ["HK", "a b"], "NVIDIA FLARE cannot name a site 'a b'"),
    ],
)
def test_a_federation_that_cannot_be_is_not_prepared(tmp_path, tiny_phantom, capsys, keys, sites, sentence):
    path = changed(tmp_path, tiny_phantom, **keys)
    assert run("prepare", path, "--out", tmp_path / "out", "--sites", *sites) == 2
    assert sentence in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_federation_is_never_written_over(prepared, config, capsys):
    before = (prepared / "start.state").read_bytes()
    assert run("prepare", config, "--out", prepared, "--seed", 9) == 2
    assert "already holds a federation" in capsys.readouterr().err and (prepared / "start.state").read_bytes() == before


def copy_files(prepared, folder, without=""):
    for path in prepared.iterdir():
        if path.is_file() and path.name != without:
            shutil.copy(path, folder)


@pytest.mark.parametrize("gone", ["plan.yaml", "start.state"])
def test_running_what_is_no_federation_is_refused(prepared, tmp_path, capsys, gone):
    pytest.importorskip("nvflare")
    copy_files(prepared, tmp_path, without=gone)
    assert run("run", tmp_path) == 2
    assert "holds no federation; prepare one with python -m medfed.coordinator prepare" in capsys.readouterr().err


def test_running_without_kits_says_how_to_make_them(prepared, capsys):
    pytest.importorskip("nvflare")
    assert run("run", prepared) == 2
    assert "found none; make them with nvflare provision" in capsys.readouterr().err
    assert not (prepared / "run").exists()


def test_a_run_is_not_begun_again_nor_gone_on_with_by_another_plan(prepared, tmp_path, capsys, monkeypatch):
    pytest.importorskip("nvflare")
    monkeypatch.setattr(coordinate, "find_kits", lambda *_: (None, None))
    start = State.from_bytes(read_with_checksum(prepared / "start.state", ""))
    folder = RunFolder(tmp_path / "run")
    copy_files(prepared, tmp_path)
    assert run("run", tmp_path) == 2
    assert "has no folder SITE with SITE.yaml; prepare the federation again" in capsys.readouterr().err
    shutil.copytree(prepared / "hospitals", tmp_path / "hospitals")
    folder.path.mkdir()
    folder.truncate(1)
    folder.save_state(State(1, start.weights))
    other = (prepared / "plan.yaml").read_text().replace("learning_rate: 0.01", "learning_rate: 0.02")
    folder.write_text("config.yaml", other)
    assert run("run", tmp_path) == 2
    assert "holds a run that has finished round 1; continue with --resume" in capsys.readouterr().err
    assert run("run", tmp_path, "--resume") == 2
    assert "the plan was changed after the run started (training.learning_rate: 0.02" in capsys.readouterr().err
    folder.write_text("config.yaml", (prepared / "plan.yaml").read_text())
    asked = []
    monkeypatch.setattr(coordinate, "server_process", lambda kit: SimpleNamespace(start=asked.append, stop=list))
    monkeypatch.setattr(coordinate, "train", lambda plan, engine, *_, **__: stop(plan, engine.settings))

    def stop(*settings):
        asked.extend(settings)
        raise UserError("stopped")

    assert run("run", tmp_path, "--resume", "--reply-seconds", 33) == 2
    _, plan, settings = asked
    assert (plan.federation.reply_timeout_s, settings.reply_timeout_s) == (0, 33)
    assert run("run", tmp_path, "--resume", "--reply-seconds", -1) == 2
    assert "federation.reply_timeout_s" in capsys.readouterr().err


def test_what_the_hospitals_made_goes_back_into_a_bundle(prepared, tmp_path):
    """The coordinator saw no image, and its card says so; the weights in the bundle are those of the last round."""
    shutil.copytree(prepared, tmp_path / "federation")
    folder = RunFolder(tmp_path / "federation" / "run")
    folder.path.mkdir()
    plan, last = load(prepared / "plan.yaml"), State.from_bytes(read_with_checksum(prepared / "start.state", ""))
    last = replace(last, round=1, took_part={"BMC": 1, "HK": 0, "UCL": 1})
    folder.write_text("history.csv", "round,train_loss,validation_score\n1,0.5,\n")
    folder.write_text("config.yaml", plan.yaml)
    ended = []

    def exchange(kind, messages):
        ended.append((kind, set(messages)))
        return {"BMC": Message("end"), "HK": failed_reply("is gone")}

    engine = SimpleNamespace(sites=lambda: list(SITES), exchange=exchange)
    tracked = []
    callbacks = SimpleNamespace(end=tracked.append)
    for site in ("VUMC", ""):
        validated = replace(plan, federation=replace(plan.federation, validation_site=site))
        with pytest.warns(UserWarning, match="HK: did not receive the final model"):
            _finish(validated, engine, folder, last, callbacks, ["HK has few patients"])
        assert folder.read_json("summary.json").get("validation_site", "") == site
        assert tracked[-1]["selected_round"] == 1 and tracked[-1].get("validation_site", "") == site
    assert ended == [("end", {*SITES, "VUMC"}), ("end", set(SITES))]
    bundle = export_run(folder.path)
    result = torch.load(bundle / "models" / "model.pt", weights_only=True)
    assert all(torch.equal(entry, last.weights[name]) for name, entry in result.items()) and result
    card = (bundle / "docs" / "README.md").read_text()
    assert "the origin of the training images is not stated" in card and "Sites that trained: BMC, UCL" in card
    trained = medfed.load_run(folder.path)
    assert trained.scores.empty and "its coordinator has no images" in str(trained)
    assert report.main([str(folder.path)]) == 0
    page = (folder.path / "report.html").read_text()
    assert "its coordinator has no images" in page and "What left each site" in page
    assert "HK has few patients" in page
    assert not any(wrong in page for wrong in ("REAL", "Scores by site", "This run simulated", "To repeat the run"))
    assert "real data" not in medfed.plot.curves(trained).get_suptitle()
    with pytest.raises(UserError, match="has no scores"):
        medfed.plot.scores(trained)
