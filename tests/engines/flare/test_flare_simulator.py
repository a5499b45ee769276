"""Whole runs in NVIDIA FLARE's simulator; each takes half a minute or more."""

import tempfile
import time
from pathlib import Path

import pytest
from conftest import tiny_yaml
from fake_sites import is_alive

import medfed
from medfed.config.schema import load_text
from medfed.experiments.setup import build_experiment
from medfed.federation.message import digest
from medfed.federation.rounds import federate

pytest.importorskip("nvflare")
pytestmark = pytest.mark.slow


def states(root: Path, folder: Path, engine: str, *changes: str) -> list[str]:
    config = load_text(tiny_yaml(root), "tiny.yaml", [f"federation.engine={engine}", *changes])
    simulation = build_experiment(config, folder, quiet=True)
    rounds = federate(config.method, simulation.engine, simulation.start, config.federation, config.seed)
    try:
        return [digest(done.state.to_bytes()) for done in rounds]
    finally:
        simulation.engine.close()


def running() -> set[int]:
    """Return the process ids of FLARE's simulator, its clients and the sites."""
    pids = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:  # the process has just ended
            continue
        if b"nvflare.private" in words or b"medfed.deployment.worker" in words:
            pids.add(int(folder.name))
    return pids


@pytest.mark.parametrize(
    "changes",
    [["method.name=fedavg"], ["method.name=stable_fdg", "method.attention=false"]],
    ids=["fedavg", "stable_fdg"],
)
def test_the_simulator_gives_bit_identical_results_to_one_process(changes, tiny_phantom, tmp_path, monkeypatch):
    """It leaves no processes or files. The config has relative paths, and FLARE's processes run in another folder."""
    before = running()
    monkeypatch.setenv("PYTHONPATH", str(Path(medfed.__file__).parent.parent))  # where it is not installed
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tiny_phantom.parent)
    root = Path(tiny_phantom.name)
    flare_states = states(root, tmp_path / "flare", "nvflare", *changes)
    until = time.monotonic() + 30
    while (left := {pid for pid in running() - before if is_alive(pid)}) and time.monotonic() < until:
        time.sleep(1)
    assert not left and not list((tmp_path / "temporary").glob("medfed*"))
    assert flare_states == states(root, tmp_path / "alone", "in_process", *changes)
