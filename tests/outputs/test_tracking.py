"""Callbacks: what they receive, that they change no result, and TensorBoard's event files."""

import hashlib
import json
import math
import sys

import numpy as np
import pytest
from conftest import small_yaml

import medfed
from medfed import evaluate, train
from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.core.registry import code_allowed
from medfed.experiments.resume import changed_settings
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.trackers.tensorboard import TensorBoard

OWN = '''
"""Callbacks of another laboratory."""

import random

import numpy as np
import torch

import medfed

CALLS = []


class Recorder(medfed.Callback):
    def on_start(self, config, folder):
        CALLS.append(("on_start", config.federation.rounds, (folder / "config.yaml").is_file()))

    def on_round(self, row):
        CALLS.append(("on_round", row["round"], row["train_loss"]))

    def on_end(self, summary):
        CALLS.append(("on_end", summary["selected_round"], len(summary["scores"])))


class Raising(medfed.Callback):
    """Raises in each method, with another text each time, after it has used the random streams of the process."""

    calls = 0

    def on_start(self, config, folder):
        pass

    def on_round(self, row):
        Raising.calls += 1
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(Raising.calls)
        row.clear()
        raise ConnectionError(f"no server in call {Raising.calls}")

    on_end = on_round


class Exiting(medfed.Callback):
    """Ends the process, and raises an error whose text fails."""

    def on_round(self, row):
        raise WithoutText()

    def on_end(self, summary):
        summary["scores"].clear()
        raise SystemExit(0)


class WithoutText(Exception):
    def __str__(self):
        return self.reason


class NeverStarts(medfed.Callback):
    def on_start(self, config, folder):
        raise ValueError("no name")

    def on_round(self, row):
        CALLS.append("called although it has not started")


class CannotBeCreated(medfed.Callback):
    def __init__(self):
        raise KeyError("token")
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module `own_trackers`, which is not imported yet."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "own_trackers.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_trackers", raising=False)
    yield
    sys.modules.pop("own_trackers", None)


@pytest.fixture
def config(tmp_path, small_phantom):
    path = tmp_path / "c.yaml"
    path.write_text(small_yaml(small_phantom).replace("elcfs, alpha: 0.1, min_patients: 1", "fedavg"))
    return path


def run(config, out, *names, flags=()):
    tracking = ["--set", f"tracking=[{', '.join(names)}]"] if names else []
    return train.main([str(config), "--out", str(out), "--quiet", "--jobs", "1", *tracking, *flags])


def scalars(folder):
    """The values by tag and step, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def checksums_are_right(folder):
    lines = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert lines and not any(name.startswith("tensorboard") for _, name in lines)
    return all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256 for sha256, name in lines)


def history_by_tag(folder):
    rows = RunFolder(folder).history()
    tags = [name for name in rows[-1] if name != "round"]
    values = {tag: {row["round"]: row[tag] for row in rows if row[tag] is not None} for tag in tags}
    return {tag: {step: np.float32(value) for step, value in of_tag.items()} for tag, of_tag in values.items()}


def test_tensorboard_shows_the_history_and_the_scores_also_of_a_resumed_run(config, tmp_path):
    out = tmp_path / "run"
    assert run(config, out, "tensorboard", flags=["--set", "federation.rounds=1"]) == 0
    assert history_by_tag(out).items() <= scalars(out).items() and checksums_are_right(out)
    resumed = ["--resume", "--accept-config-change", "--set", "federation.rounds=3"]
    assert run(config, out, "tensorboard", flags=resumed) == 0
    shown, history = scalars(out), history_by_tag(out)
    assert set(history["train_loss"]) == {1, 2, 3} and "train_loss/BMC" in history
    assert {tag: shown[tag] for tag in history} == history and checksums_are_right(out)
    summary = json.loads((out / "summary.json").read_text())
    (score,) = (s for s in summary["scores"] if (s["role"], s["site"], s["metric"]) == ("unseen", "UCL", "dice"))
    assert shown[f"dice/unseen, UCL, {score['structure']}"][3] == pytest.approx(score["mean"], rel=1e-6)
    assert medfed.load_run(out).history[0]["round"] == 1

    # rounds that are trained again, because their checkpoint is damaged, replace their values
    events = TensorBoard()
    events.on_start(load(out / "config.yaml"), out)
    events.on_round({"round": 4, "train_loss": math.pi, "validation_score": None})
    events.on_end({"scores": [], "selected_round": 4})
    (out / "history.csv").write_text("round,train_loss,validation_score\n1,0.5,\n")
    events.on_start(load(out / "config.yaml"), out)
    events.on_round({"round": 2, "train_loss": 0.25, "validation_score": None})
    events.on_end({"scores": [], "selected_round": 2})
    assert set(scalars(out)["train_loss"]) == {1, 2} and scalars(out)["train_loss"][2] == 0.25


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_callbacks_that_fail_leave_notices_and_the_same_weights(config, tmp_path, own, capsys):
    plain, tracked = tmp_path / "plain", tmp_path / "tracked"
    assert run(config, plain) == 0
    names = [f"own_trackers.{name}" for name in ("Raising", "NeverStarts", "Exiting", "Recorder")]
    assert run(config, tracked, *names, flags=["--allow-code"]) == 0
    for name in ("model.safetensors", "history.csv", "cases.csv"):  # also after callbacks that change what they receive
        assert (tracked / name).read_bytes() == (plain / name).read_bytes(), name
    notices = [
        "tracking: 'own_trackers.NeverStarts' failed in on_start: ValueError: no name; the run continues",
        "tracking: 'own_trackers.Raising' failed in on_round: ConnectionError: no server in call 1; the run continues",
        "tracking: 'own_trackers.Exiting' failed in on_round: WithoutText; the run continues",
        "tracking: 'own_trackers.Raising' failed in on_end: ConnectionError: no server in call 3; the run continues",
        "tracking: 'own_trackers.Exiting' failed in on_end: SystemExit: 0; the run continues",
    ]
    for file in ("notices.json", "summary.json"):
        content = json.loads((tracked / file).read_text())
        stored = content["notices"] if file == "summary.json" else content
        assert [text for text in stored if text.startswith("tracking")] == notices
    assert checksums_are_right(tracked)

    history = medfed.load_run(tracked).history  # a finished run is read without the callback's code
    calls = sys.modules["own_trackers"].CALLS
    assert (n_scores := len(medfed.load_run(tracked).summary["scores"])) > 0
    rounds = [("on_round", row["round"], row["train_loss"]) for row in history]
    assert calls == [("on_start", 2, True), *rounds, ("on_end", 2, n_scores)]

    # a resumed run may have other callbacks, which receive the new rounds only
    assert changed_settings(RunFolder(tracked), {"tracking": [], **_settings_of(tracked)}) == []
    calls.clear()
    resumed = ["--allow-code", "--resume", "--accept-config-change", "--set", "federation.rounds=3"]
    assert run(config, tracked, "own_trackers.Recorder", flags=resumed) == 0
    assert [call[:2] for call in calls] == [("on_start", 3), ("on_round", 3), ("on_end", 3)]
    assert run(config, tracked, flags=["--resume", "--set", "federation.rounds=3"]) == 0  # finished; nothing is done


def _settings_of(folder):
    from medfed.config.schema import resolved

    with code_allowed():
        settings = resolved(load(folder / "config.yaml"))
    return {key: value for key, value in settings.items() if key != "tracking"}


@pytest.mark.parametrize(
    ("name", "allow", "words"),
    [
        ("tensorbord", [], "tracking: no callback 'tensorbord'. Did you mean 'tensorboard'? Known: tensorboard"),
        ("tensorboard, tensorboard", [], "tracking: 'tensorboard' comes twice; leave one out"),
        ("own_trackers.Recorder", [], "tracking: 'own_trackers.Recorder' would run code from outside of medfed; if"),
        ("own_trackers.Absent", ["--allow-code"], "tracking: 'own_trackers.Absent' cannot be imported"),
        ("own_trackers.CALLS", ["--allow-code"], "tracking: 'own_trackers.CALLS' is no callback; expected a class"),
        ("own_trackers.CannotBeCreated", ["--allow-code"], "CannotBeCreated' cannot be created: KeyError: 'token'"),
    ],
)
def test_a_wrong_name_is_refused_before_the_run_starts(name, allow, words, config, tmp_path, own, capsys):
    assert run(config, tmp_path / "run", name, flags=allow) == 2
    output = capsys.readouterr().err.strip()
    assert words in output and len(output.splitlines()) == 1
    evaluated = ["--leave-one-site-out", "--quiet", "--out", str(tmp_path / "run"), "--set", f"tracking=[{name}]"]
    assert evaluate.main([str(config), *evaluated, *allow]) == 2
    assert words in (output := capsys.readouterr().err.strip()) and len(output.splitlines()) == 1
    assert not list(tmp_path.glob("run/*"))


def test_without_the_package_the_run_is_refused_and_the_extra_is_named(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # its import fails
    assert run(config, tmp_path / "run", "tensorboard") == 2
    assert 'tensorboard, which is not installed; run pip install "medfed[tracking]"' in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_callback_may_be_a_class_of_the_program_itself(config):
    settings = {"tracking": ["__main__.Mine"]}
    assert medfed.load_config(config, settings).tracking == ("__main__.Mine",)
    with pytest.raises(UserError, match="'__main__.Mine' cannot be imported"):
        medfed.run(medfed.load_config(config, settings))
