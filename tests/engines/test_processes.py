import os
import signal
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_yaml
from fake_sites import install_fake_worker, is_alive, process_id

from medfed.config.schema import load_text
from medfed.engines.processes import Processes
from medfed.experiments.notices import record_notices
from medfed.experiments.setup import build_experiment
from medfed.federation.message import Message, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.outputs.run_folder import RunFolder

SITES = ("east", "north", "west")
LETTER = Message("train", {"w": torch.ones(3)}, {}, {"round": 1, "last": 0})


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    return install_fake_worker(tmp_path, monkeypatch)


def engine_of(folder: Path, seconds: float = 0.0, **more) -> Processes:
    members = [SimpleNamespace(name=name, progress=None, local_keys=frozenset()) for name in SITES]
    return Processes(members, folder / "sites", settings=Federation(reply_timeout_s=seconds), **more)


@pytest.fixture
def three_at_once(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 3 * torch.get_num_threads())


def test_what_a_site_does_wrong_is_its_own_answer(folder, three_at_once):
    (folder / "north.does").write_text("die")
    (folder / "west.does").write_text("no")
    engine = engine_of(folder)
    answers = engine.exchange("train", dict.fromkeys(SITES, LETTER))
    engine.close()
    assert list(answers) == list(SITES) and digest(answers["east"].to_bytes()) == digest(LETTER.to_bytes())
    assert [answers[site].kind for site in SITES] == ["train", "failed", "failed"]
    assert answers["north"].facts["why"].startswith("its process was killed")
    assert answers["west"].facts["why"] == "training diverged"


def test_a_late_site_takes_its_own_time_alone(folder, three_at_once):
    (folder / "east.does").write_text("sleep")
    engine = engine_of(folder, 5.0)
    began = time.monotonic()
    answers = engine.exchange("train", dict.fromkeys(SITES, LETTER))
    assert time.monotonic() - began < 30
    assert [answers[site].kind for site in SITES] == ["failed", "train", "train"]
    assert answers["east"].facts["why"] == "was not done in time and was stopped"
    engine.close()


@pytest.fixture
def ctrl_c():
    """A shell starts what it puts in the background with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupting_leaves_no_process_and_starts_no_other(folder, monkeypatch, ctrl_c):
    """One site at a time: east has answered, north works, west waits for its turn."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    (folder / "north.does").write_text("sleep")
    engine, threads, began = engine_of(folder), threading.active_count(), []

    def interrupt() -> None:
        while not (folder / "north.pid").is_file():
            time.sleep(0.05)
        began.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        engine.exchange("train", dict.fromkeys(SITES, LETTER))
    engine.close()
    assert time.monotonic() - began[0] < 30 and threading.active_count() <= threads
    assert not is_alive(process_id(folder, "east")) and not is_alive(process_id(folder, "north"))
    assert "west" not in engine._processes


def test_notes_of_sites_at_once_are_all_written_down(folder, three_at_once):
    """Each note writes the run's file of notices; two at a time would take each other's unfinished file away."""
    run = RunFolder(folder / "run")
    run.path.mkdir()
    run.write_text("config.yaml", "")
    engine = engine_of(folder)
    busy, most = [], []

    with record_notices(run, quiet=True):
        shown = warnings.showwarning

        def slow(*args: object) -> None:
            busy.append(1)
            most.append(len(busy))
            time.sleep(0.2)
            busy.pop()
            shown(*args)

        warnings.showwarning = slow
        engine.exchange("train", dict.fromkeys(SITES, LETTER))
    engine.close()
    assert max(most) == 1 and len(most) == 3


def config_of(root: Path, **federation):
    """Two sites, of which one may be lost in a round."""
    config = load_text(tiny_yaml(root), "tiny.yaml", ["method.name=fedavg"])
    return replace(config, federation=replace(config.federation, rounds=3, quorum=1, validate_every=3, **federation))


def rounds(config, simulation, state, n: int):
    going_on = federate(config.method, simulation.engine, state, config.federation, config.seed)
    return [next(going_on) for _ in range(n)]


def test_a_site_killed_in_training_and_a_stopped_run_go_on_to_the_same_bits(tiny_phantom, tmp_path, monkeypatch):
    """HK is killed in round 2, which counts BMC alone; then the run is stopped and all processes begin again.

    Four real processes. The reference asks BMC alone in round 2, in one process, and is never stopped.
    """
    config = config_of(tiny_phantom, engine="processes")
    simulation = build_experiment(config, tmp_path / "sites", quiet=True)
    engine, killed = simulation.engine, []

    def step(site: str, number: int, n_steps: int) -> None:
        if site == "HK" and len(seen) == 1 and not killed:
            killed.append(engine._processes[site]._process.pid)
            os.kill(killed[0], signal.SIGKILL)

    engine.on_step = step
    seen = []
    with pytest.warns(UserWarning, match="HK: its update of round 2 did not come: its process was killed"):
        for done in federate(config.method, engine, simulation.start, config.federation, config.seed):
            seen.append(done)
            if len(seen) == 2:
                break
    engine.close()
    assert killed and not any(is_alive(site._process.pid) for site in engine._processes.values() if site._process)
    again = build_experiment(config, tmp_path / "sites", quiet=True)
    again.engine.restore(seen[1].state.took_part)
    (last,) = rounds(config, again, seen[1].state, 1)
    again.engine.close()

    alone = config_of(tiny_phantom)
    asked = iter([["BMC", "HK"], ["BMC"], ["BMC", "HK"]])
    monkeypatch.setattr("medfed.federation.rounds.choose_sites", lambda *_: next(asked))
    whole = build_experiment(alone, tmp_path / "whole", quiet=True)
    expected = rounds(alone, whole, whole.start, 3)
    found = [*seen, last]
    assert [digest(one.state.to_bytes()) for one in found] == [digest(one.state.to_bytes()) for one in expected]
    assert last.history == expected[2].history


@pytest.mark.slow
def test_what_a_user_can_mend_is_a_sentence_of_the_site(tiny_phantom, tmp_path):
    """A real process: training diverges."""
    config = load_text(tiny_yaml(tiny_phantom), "tiny.yaml", ["method.name=fedavg", "training.learning_rate=1e30",
                                                             "federation.engine=processes"])  # fmt: skip
    simulation = build_experiment(config, tmp_path / "sites", quiet=True)
    letter = Message("train", simulation.start.weights, {}, {"round": 1, "last": 0})
    answer = simulation.engine.exchange("train", {"HK": letter})["HK"]
    simulation.engine.close()
    assert answer.kind == "failed" and answer.facts["why"].startswith("HK: training diverged in round 1, step ")
