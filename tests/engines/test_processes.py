import itertools
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import tiny_yaml
from fake_sites import install_fake_worker, is_alive, process_id
from forked_workers import fork_workers
from fresh_imports import run_without

from medfed.config.schema import load_text
from medfed.engines.processes import Processes
from medfed.experiments.setup import build_experiment
from medfed.federation.message import Message, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.testing.small_unet import SmallUNet

SITES = ("east", "north", "west")
REQUEST = Message("train", {"w": torch.ones(3)}, {}, {"round": 1, "last": 0})


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    return install_fake_worker(tmp_path, monkeypatch)


def engine_of(folder: Path, seconds: float = 0.0, **more) -> Processes:
    sites = [SimpleNamespace(name=name, progress=None, local_keys=frozenset()) for name in SITES]
    return Processes(sites, folder / "sites", settings=Federation(reply_timeout_s=seconds), **{"jobs": 3, **more})


def test_a_failing_site_gives_a_failed_reply_and_does_not_affect_the_others(folder):
    (folder / "north.does").write_text("die")
    (folder / "west.does").write_text("no")
    engine = engine_of(folder)
    replies = engine.exchange("train", dict.fromkeys(SITES, REQUEST))
    engine.close()
    assert list(replies) == list(SITES) and digest(replies["east"].to_bytes()) == digest(REQUEST.to_bytes())
    assert [replies[site].kind for site in SITES] == ["train", "failed", "failed"]
    assert engine.work_s == 0.5, "the seconds that the worker of east reports"
    assert replies["north"].facts["why"].startswith("its process was killed")
    assert replies["west"].facts["why"] == "training diverged"


def test_a_site_that_exceeds_the_timeout_does_not_delay_the_others(folder, monkeypatch):
    """After the work of the two other sites, of half a second each, an hour passes at each look at the clock."""
    (folder / "east.does").write_text("sleep")
    engine, hours = engine_of(folder, 3600.0), itertools.count()

    def clock() -> float:
        return 3600.0 * next(hours) if engine._workers.work_s == 1.0 else 0.0

    monkeypatch.setattr("medfed.engines.parts.worker_process.time", SimpleNamespace(monotonic=clock))
    replies = engine.exchange("train", dict.fromkeys(SITES, REQUEST))
    assert [replies[site].kind for site in SITES] == ["failed", "train", "train"]
    assert replies["east"].facts["why"] == "did not finish in time and was stopped"
    engine.close()


@pytest.fixture
def ctrl_c():
    """Make Ctrl-C raise KeyboardInterrupt; a shell starts background processes with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interruption_ends_all_processes_and_starts_no_other(folder, ctrl_c):
    """One site runs at a time: east has replied, north is training, and west waits."""
    (folder / "north.does").write_text("sleep")
    engine, threads, start = engine_of(folder, jobs=1), threading.active_count(), []

    def interrupt() -> None:
        while not (folder / "north.pid").is_file():
            time.sleep(0.05)
        start.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        engine.exchange("train", dict.fromkeys(SITES, REQUEST))
    engine.close()
    assert time.monotonic() - start[0] < 30 and threading.active_count() <= threads
    assert not is_alive(process_id(folder, "east")) and not is_alive(process_id(folder, "north"))
    assert "west" not in engine._workers.processes


def config_of(root: Path, **federation):
    """Return a config with two sites of which one may fail in a round."""
    config = load_text(tiny_yaml(root), "tiny.yaml", ["method.name=fedavg"])
    settings = replace(config.federation, rounds=3, quorum=1, validate_every=3, **federation)
    return replace(config, network=SmallUNet(), federation=settings)


def rounds(config, simulation, state, n: int):
    iterator = federate(config.method, simulation.engine, state, config.federation, config.seed)
    return [next(iterator) for _ in range(n)]


def test_the_worker_can_be_imported_first():
    """A forked worker has imported all of medfed; the program begins with its own module."""
    run_without(("medfed",), "import medfed.deployment.worker")


@pytest.mark.parametrize("start", ["forked", pytest.param("as a program", marks=pytest.mark.slow)])
def test_a_run_with_a_killed_site_is_bit_identical_after_resuming(tiny_phantom, tmp_path, monkeypatch, start):
    """HK is killed in round 2, so that only the update of BMC is used; then the run is stopped and resumed.

    The reference asks only BMC in round 2, in one process, and is never stopped.
    """
    if start == "forked":
        fork_workers(monkeypatch)
    config = config_of(tiny_phantom, engine="processes")
    simulation = build_experiment(config, tmp_path / "sites", quiet=True)
    engine, killed = simulation.engine, []

    def step(site: str, number: int, n_steps: int) -> None:
        if site == "HK" and len(seen) == 1 and not killed:
            killed.append(engine._workers.processes[site]._process.pid)
            os.kill(killed[0], signal.SIGKILL)

    engine.on_step = step
    seen = []
    with pytest.warns(UserWarning, match="HK: its update of round 2 was not received: its process was killed"):
        for done in federate(config.method, engine, simulation.start, config.federation, config.seed):
            seen.append(done)
            if len(seen) == 2:
                break
    engine.close()
    left = [worker._process.pid for worker in engine._workers.processes.values() if worker._process]
    assert killed and not any(map(is_alive, left))
    resumed = build_experiment(config, tmp_path / "sites", quiet=True)
    resumed.engine.restore(seen[1].state.took_part)
    (last,) = rounds(config, resumed, seen[1].state, 1)
    resumed.engine.close()

    reference = config_of(tiny_phantom)
    asked = iter([["BMC", "HK"], ["BMC"], ["BMC", "HK"]])
    monkeypatch.setattr("medfed.federation.rounds.choose_sites", lambda *_: next(asked))
    whole = build_experiment(reference, tmp_path / "whole", quiet=True)
    expected = rounds(reference, whole, whole.start, 3)
    completed = [*seen, last]
    assert [digest(one.state.to_bytes()) for one in completed] == [digest(one.state.to_bytes()) for one in expected]
    assert last.history == expected[2].history
