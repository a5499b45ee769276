"""A hospital that scores a bundle over a network: its own file, what it shows before it joins, and what it replies."""

import pytest
from scored_bundles import foreign_bundle, write_photographs

from medfed import coordinator
from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.deployment import worker
from medfed.deployment.join_scoring import format_scoring, own_scores, read_scoring_file, scores_bundle
from medfed.federation.message import Message, State
from medfed.federation.rounds import requests_with_last_round
from medfed.scoring.federated import build_scoring_sites
from medfed.site import main

FILE = """
site: here
bundle: tools
data: {root: data, sites: [here]}
agrees: {requests: [score], min_patients: 6}
"""


@pytest.fixture
def file(tmp_path):
    write_photographs(tmp_path / "data", n=6)
    foreign_bundle(tmp_path / "tools")
    path = tmp_path / "here.yaml"
    path.write_text(FILE)
    return path


def test_the_dry_run_shows_the_numbers_that_would_leave_and_sends_nothing(file, tmp_path, capsys):
    assert scores_bundle(file) and main([str(file), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "Outputs of the bundle: 1 is Tool." in printed and not (tmp_path / "medfed_site").exists()
    file.write_text(FILE.replace("min_patients: 6", "rounds: 1"))  # without a minimum in the file it is 5
    site_file, inputs = read_scoring_file(file)
    (site,) = build_scoring_sites(inputs, ["here"], {"here": site_file.agrees.min_patients})
    lines = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)
    assert {name: float(number) for name, number in lines.items()} == pytest.approx(own_scores(site).facts, rel=1e-5)
    site.min_patients = 7
    assert own_scores(site).facts == {"too_few_patients": 1}


def test_a_hospital_that_did_not_agree_to_score_is_told_before_it_joins(file, capsys):
    file.write_text(FILE.replace("requests: [score], ", ""))
    with pytest.raises(UserError, match="agrees.requests: lacks 'score'"):
        read_scoring_file(file)
    file.write_text(FILE.replace("tools", "missing"))
    assert main([str(file)]) == 2 and "bundle: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("site: here", "site: hera", "has no images of the site 'hera'. Did you mean 'here'?"),
        ("agrees: {requests: [score], min_patients: 6}", "agrees:", "agrees.requests: lacks 'score'"),
        ("agrees: {requests: [score], min_patients: 6}", "agrees: [score]", "agrees: expected"),
        ("bundle: tools", "bundle: tools\ndevice: nogpu", "device: is 'nogpu'; expected auto, cpu or cuda"),
        ("bundle: tools", "bundle: tools\ndevice: [1]", "device: is [1]; expected auto, cpu or cuda"),
        ("sites: [here]", "name: 3", "data.name: is 3; expected the name of a dataset"),
    ],
    ids=["site", "no agreement", "list", "device", "devices", "dataset"],
)
def test_a_mistake_in_the_file_is_one_sentence(file, old, new, sentence, capsys):
    file.write_text(FILE.replace(old, new))
    assert main([str(file), "--dry-run"]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed and len(printed.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["nogpu", "mps", "cuda:3", "meta", ""])
def test_an_unknown_device_on_the_command_line_is_one_sentence(name):
    with pytest.raises(UserError, match=f"^device: is '{name}'; expected auto, cpu or cuda "):
        pick_device(name)


def test_the_coordinator_cannot_set_what_each_hospital_decides(file, tmp_path, capsys):
    command = ["score", str(tmp_path / "tools"), str(tmp_path), "--engine", "nvflare", "--out", str(tmp_path / "out")]
    assert coordinator.main([*command, "--min-patients", "1"]) == 2
    assert "--min-patients: has no effect with --engine nvflare, because each hospital" in capsys.readouterr().err
    assert coordinator.main(command) == 2 and "has no folder SITE with SITE.yaml" in capsys.readouterr().err


def test_behind_the_guard_the_site_replies_with_the_numbers_that_it_showed_and_gets_the_model(file, tmp_path):
    site_file, inputs = read_scoring_file(file)
    (site,) = build_scoring_sites(inputs, ["here"], {"here": 6})
    shown = own_scores(site)
    assert "here (6 images do not leave)" in format_scoring(site, shown)
    job = {"folder": str(tmp_path), "agreement": {"requests": ["score"], "sends": [], "min_patients": 6}}
    serve = worker._serve_behind_guard(site, job)
    request = requests_with_last_round("score", State.of(site.network), ["here"], 1)["here"]
    (reply,) = serve({}, [request.to_bytes()])
    assert Message.from_bytes(reply).facts == shown.facts
    (reply,) = serve({}, [Message("end", request.weights, {}, {"round": 1}).to_bytes()])
    assert Message.from_bytes(reply) == Message("end") and (tmp_path / "model.safetensors").is_file()
