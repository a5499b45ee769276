"""Half a minute to minutes each: NVIDIA FLARE's own processes on this machine."""

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
    going_on = federate(config.method, simulation.engine, simulation.start, config.federation, config.seed)
    try:
        return [digest(done.state.to_bytes()) for done in going_on]
    finally:
        simulation.engine.close()


def running() -> set[int]:
    """Processes of FLARE's simulator, its clients and our sites."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if b"nvflare.private" in words or b"medfed.deployment.worker" in words:
            found.add(int(folder.name))
    return found


@pytest.mark.parametrize("changes", [["method.name=fedavg"], ["method.name=stable_fdg", "method.attention=false"]],
                         ids=["fedavg", "stable_fdg"])
def test_the_simulator_ends_with_the_bits_of_one_process(changes, tiny_phantom, tmp_path, monkeypatch):
    """And leaves nothing behind. The config's paths are relative to a folder that FLARE's processes do not work in."""
    before = running()
    monkeypatch.setenv("PYTHONPATH", str(Path(medfed.__file__).parent.parent))  # where it is not installed
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tiny_phantom.parent)
    root = Path(tiny_phantom.name)
    found = states(root, tmp_path / "flare", "nvflare", *changes)
    until = time.monotonic() + 30
    while (left := {pid for pid in running() - before if is_alive(pid)}) and time.monotonic() < until:
        time.sleep(1)
    assert not left and not list((tmp_path / "temporary").iterdir())
    assert found == states(root, tmp_path / "alone", "in_process", *changes)
