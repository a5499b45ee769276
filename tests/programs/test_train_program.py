import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from conftest import read_csv, small_yaml
from PIL import Image

from medfed import train
from medfed.core.errors import UserError
from medfed.datasets.case import Case
from medfed.datasets.splits import PARTS, Split
from medfed.experiments.resume import check_data
from medfed.networks.parts.adain import load_codec, serialise_codec
from medfed.outputs.run_folder import RunFolder

FILES = "config.yaml environment.json cases.csv summary.json ledger.csv history.csv model.safetensors".split()
FIGURES = ("histograms style_grid training_curves site_boxes unseen_cases same_cases interpolation_tsne").split()


def run(config, out, *more: str) -> int:
    return train.main([str(config), "--out", str(out), "--quiet", "--device", "cpu", *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_phantom):
    """One finished run without figures that the tests below only look at."""
    folder = tmp_path_factory.mktemp("runs")
    path = folder / "tiny.yaml"
    path.write_text(small_yaml(small_phantom))
    assert run(path, folder / "run") == 0
    return path, folder / "run"


@pytest.mark.figures
def test_a_run_writes_every_file_and_figure(small_config, tmp_path):
    out = tmp_path / "run"
    assert run(small_config, out) == 0
    assert all((out / name).stat().st_size for name in FILES)
    assert {path.name for path in (out / "figures").glob("*.png")} == {f"{name}.png" for name in FIGURES}
    patients = sorted((out / "figures" / "patients").iterdir())
    unseen = {row["patient"] for row in read_csv(out / "cases.csv") if row["role"] == "unseen"}
    assert [path.name for path in patients] == [f"{number:03}.webp" for number in range(len(unseen))]
    assert all(max(Image.open(path).size) >= 128 for path in patients)
    assert RunFolder(out).rounds() == [2]


@pytest.fixture(scope="module")
def measured(finished, tmp_path_factory):
    """The same run with the boundary distance, and with a look at the unseen site in every round after training."""
    out = tmp_path_factory.mktemp("measured") / "run"
    settings = ("evaluation.boundary_distance=true", "evaluation.unseen_every=1")
    assert run(finished[0], out, *(part for setting in settings for part in ("--set", setting))) == 0
    return out


def test_the_unseen_site_is_measured_after_training_and_chooses_nothing(finished, measured):
    """The scores of the run stay as they are."""
    history = read_csv(measured / "history.csv")
    assert all(0 < float(row[f"boundary_distance/{site}"]) < 2 for row in history for site in ("BMC", "HK"))
    assert "UCL" not in "".join(history[0])
    content = json.loads((measured / "unseen_rounds.json").read_text())
    assert "must not choose" in content["note"]
    assert [(row["round"], row["site"]) for row in content["rounds"]] == [(1, "UCL"), (2, "UCL")]
    first, last = (row["boundary_distance"] for row in content["rounds"])
    assert 0 < last < 2 and last != first
    assert all(0 <= row["score"] <= 1 for row in content["rounds"])
    for name in ("model.safetensors", "cases.csv"):
        assert (measured / name).read_bytes() == (finished[1] / name).read_bytes()


def test_the_summary_records_what_the_scores_depend_on(finished):
    summary = json.loads((finished[1] / "summary.json").read_text())
    expected = {"data": "phantom", "selection": "last", "selected_round": 2, "seed": 3, "method": "elcfs"}
    expected |= {"unseen_site": "UCL", "source_sites": ["BMC", "HK"], "sites_kept_entries": False}
    assert {key: summary[key] for key in expected} == expected
    assert summary["versions"]["medfed"] and len(summary["config_sha256"]) == 64


def test_the_unseen_site_and_the_test_patients_of_the_others_are_scored_but_the_unseen_site_sends_nothing(finished):
    result = read_csv(finished[1] / "cases.csv")
    assert {(r["site"], r["role"]) for r in result} == {("BMC", "seen"), ("HK", "seen"), ("UCL", "unseen")}
    images = [r["site"] for r in result if r["metric"] == "dice"]
    assert images.count("UCL") == 4 and len(images) < 4 * 3
    ledger = read_csv(finished[1] / "ledger.csv")
    assert {r["site"] for r in ledger} == {"BMC", "HK"}
    assert "UCL" not in (finished[1] / "history.csv").read_text()
    assert {r["name"] for r in ledger if r["kind"] == "share" and r["content"] == "statistic"} == {"windows"}


def test_the_summary_has_the_sums_of_the_ledger_and_the_model_is_that_of_the_selected_round(finished):
    """Weights and facts go both ways in each of the two rounds; windows go up once, and down in every round."""
    ledger = read_csv(finished[1] / "ledger.csv")
    sent = json.loads((finished[1] / "summary.json").read_text())["sent_bytes"]
    for way in ("up", "down"):
        for content in ("weight", "statistic", "fact"):
            sizes = [int(r["bytes"]) for r in ledger if (r["direction"], r["content"]) == (way, content)]
            assert sent[way][content] == sum(sizes) > 0
    names = {r["name"] for r in ledger if r["content"] == "statistic"}
    assert names == {"windows", "bank/*"}
    weights = safetensors.torch.load_file(finished[1] / "model.safetensors")
    assert {r["n"] for r in ledger if r["content"] == "weight"} == {str(len(weights))}
    state = RunFolder(finished[1]).load_state(2)
    assert weights.keys() == state.weights.keys()
    assert all(torch.equal(weights[name], entry) for name, entry in state.weights.items())


@pytest.fixture(scope="module")
def other_seed(finished, tmp_path_factory):
    """The same run with another seed."""
    out = tmp_path_factory.mktemp("other_seed") / "run"
    assert run(finished[0], out, "--seed", "4") == 0
    return out


def test_a_run_interrupted_between_its_tables_and_its_checkpoint_is_resumed_to_the_same_bytes(
    finished, tmp_path, monkeypatch, capsys
):
    path, out = finished
    real = RunFolder.save_state

    def impatient(folder, state):
        if state.round == 2:
            raise KeyboardInterrupt
        real(folder, state)

    monkeypatch.setattr(RunFolder, "save_state", impatient)
    assert run(path, tmp_path / "run") == 130
    assert "stopped in round 2 of 2" in (output := capsys.readouterr().err) and "--resume" in output
    monkeypatch.undo()
    assert run(path, tmp_path / "run", "--resume") == 0
    for name in ("model.safetensors", "cases.csv", "ledger.csv", "history.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (out / name).read_bytes(), name


def test_a_finished_run_is_not_overwritten_and_resuming_it_only_prints_its_table(finished, capsys):
    path, out = finished
    refused(capsys, run(path, out), "holds a finished run", "--resume", "--out")
    before = (out / "model.safetensors").stat().st_mtime_ns
    assert run(path, out, "--resume") == 0
    assert "UCL" in (output := capsys.readouterr().out) and "PHANTOM" in output.upper()
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def refused(capsys, code: int, *words: str) -> None:
    output = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and len(output) == 1 and output[0].startswith("medfed.train: ")
    assert all(word in output[0] for word in words), output


CHANGES = "federation.unseen_site=HK seed=9 method.alpha=0.2 data.test_ratio=0.3 network.norm=batch".split()


@pytest.mark.parametrize("change", CHANGES)
def test_changes_that_would_mix_two_federations_are_refused_even_when_accepted(finished, capsys, change):
    path, out = finished
    before = {path: path.read_bytes() for path in out.iterdir() if path.is_file() and path.name != "run.lock"}
    code = run(path, out, "--resume", "--accept-config-change", "--set", change)
    refused(capsys, code, change.split("=")[0], "would mix the results of two configs", "undo the change", "--out")
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_run_may_continue_with_another_engine_because_its_results_are_the_same(finished, tmp_path):
    path, out = finished
    shutil.copytree(out, tmp_path / "run")
    code = run(path, tmp_path / "run", "--resume", "--accept-config-change", "--set", "federation.engine=processes")
    assert code == 0 and "engine: processes" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_run_does_not_continue_with_fewer_rounds_than_it_has(finished, tmp_path, capsys):
    path, out = finished
    shutil.copytree(out, tmp_path / "run")
    code = run(path, tmp_path / "run", "--resume", "--accept-config-change", "--set", "federation.rounds=1")
    refused(capsys, code, "federation.rounds: is 1, but", "has finished 2 rounds")


@pytest.mark.parametrize("change", [{"label": 1}, {"patient": "p2"}, {"part": "test"}, {"name": "b"}])
def test_a_case_with_another_name_class_patient_or_part_is_another_case(change, tmp_path, small_phantom):
    (image,) = small_phantom.glob("HK/Case39.nii.gz")
    before = Case("HK", "a", image, (), "p1", 0)
    change = dict(change)
    part = change.pop("part", "train")
    folder, data, empty = RunFolder(tmp_path), SimpleNamespace(root="root"), dict.fromkeys(PARTS, [])
    for _ in range(2):
        check_data(folder, data, {"HK": Split(**empty | {"train": [before]})}, ())
    with pytest.raises(UserError, match=r"root: (\d) of \1 cases or codecs changed.*disappeared.* the first is HK/a;"):
        check_data(folder, data, {"HK": Split(**empty | {part: [replace(before, **change)]})}, ())


def test_files_of_another_run_or_site_are_refused(finished, other_seed, tmp_path, capsys):
    """All files of this run that have another content at another seed, and the file of another site."""
    path, folder = finished
    for name in ("model.safetensors", "cases.csv"):
        assert (other_seed / name).read_bytes() != (folder / name).read_bytes()
    out = tmp_path / "run"
    shutil.copytree(folder, out)
    (out / "summary.json").unlink()
    other_site = "sites/HK/round_00002.site: is the file of"
    for name, source, words in (
        ("states/round_00002.state", other_seed / "states" / "round_00002.state", "not those that the run wrote"),
        ("sites/HK/round_00002.site", other_seed / "sites" / "HK" / "round_00002.site", other_site),
        ("sites/HK/round_00002.site", out / "sites" / "BMC" / "round_00002.site", other_site),
    ):
        before = (out / name).read_bytes()
        (out / name).write_bytes(source.read_bytes())
        refused(capsys, run(path, out, "--resume"), words)
        (out / name).write_bytes(before)


def test_a_codec_that_changed_since_the_start_is_refused(finished, tmp_path, capsys):
    path, _ = finished
    codec = load_codec()
    (tmp_path / "mine").mkdir()
    data = serialise_codec(codec, {"architecture": "small", "channels": list(codec.encoder.channels)})
    (tmp_path / "mine" / "codec.safetensors").write_bytes(data)
    ccst = ("--set", "method.name=ccst", "--set", f"method.codec={tmp_path / 'mine'}", "--set", "method.min_patients=1")
    assert run(path, tmp_path / "run", *ccst, "--set", "federation.rounds=1") == 0
    again = (path, tmp_path / "run", "--resume", "--accept-config-change", *ccst)
    next(codec.decoder.parameters()).mul_(0.5)
    data = serialise_codec(codec, {"architecture": "small", "channels": list(codec.encoder.channels)})
    (tmp_path / "mine" / "codec.safetensors").write_bytes(data)
    refused(capsys, run(*again), "1 of ", "cases or codecs changed", str(tmp_path / "mine"), "--out")


def test_a_figure_that_fails_does_not_lose_the_scores(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("medfed.experiments.run.draw_all", lambda *args: 1 / 0)
    assert run(finished[0], tmp_path / "run", "--set", "federation.rounds=1") == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert any("a figure could not be drawn: ZeroDivisionError" in notice for notice in summary["notices"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "evaluation.unseen_every=3 federation.batch_norm=local network.norm=batch federation.rounds=3",
            ("evaluation.unseen_every: is 3, but entries of the network stay at the sites",),
        ),
        ("federation.unseen_site=UCLA", ("UCLA", "UCL")),
        ("evaluation.match=style", ("evaluation.match: is 'style', but elcfs with these settings shares no styles",)),
        ("data.image_size=34", ("data.image_size is 34", "multiple of 4")),
        ("data.root=nowhere", ("data.root", "nowhere", "python -m medfed.data card prostate")),
        ("data.sites=[UCL]", ("UCL", "no other site is left to train on")),
    ],
)
def test_mistakes_are_one_line_before_any_training(finished, tmp_path, capsys, change, words):
    flags = [word for setting in change.split() for word in ("--set", setting)]
    refused(capsys, run(finished[0], tmp_path / "run", *flags), *words)
    assert not list(tmp_path.glob("run/states/*"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_missing_cuda_device_is_a_one_line_error(finished, tmp_path, capsys):
    code = train.main([str(finished[0]), "--out", str(tmp_path / "run"), "--quiet", "--device", "cuda"])
    refused(capsys, code, "device: cuda: PyTorch found no CUDA device", "use cpu")
