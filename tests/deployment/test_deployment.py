"""A real federation on this machine: FLARE's server and three hospitals over mutual TLS, one of which is killed.

The test takes minutes.
"""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import free_port, tiny_yaml

import medfed
from medfed.config.schema import load
from medfed.engines.in_process import InProcess
from medfed.experiments.setup import build_experiment
from medfed.federation import rounds
from medfed.federation.rounds import federate
from medfed.outputs.run_folder import RunFolder

pytest.importorskip("nvflare")
psutil = pytest.importorskip("psutil")
pytestmark = pytest.mark.slow
SITES = ("BMC", "HK", "UCL")
REPLY_TIMEOUT_S, ROUNDS = 60, 9


def program(log: Path, module: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with open(log, "ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)


def kill_process_tree(process: subprocess.Popen) -> None:
    parent = psutil.Process(process.pid)
    for one in [*parent.children(recursive=True), parent]:
        one.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
def federation(tmp_path, tiny_phantom, monkeypatch):
    """Prepare and provision a federation, and give three hospitals their folders and images; return its folder."""
    monkeypatch.setenv("PYTHONPATH", str(Path(medfed.__file__).parent.parent))  # where it is not installed
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = tmp_path / "tiny.yaml"
    text = tiny_yaml(tiny_phantom).replace("validation_ratio: 0.2", "validation_ratio: 0.25, min_patients: 1")
    settings = f"rounds: {ROUNDS}, quorum: 2, on_bad_update: drop, reply_timeout_s: {REPLY_TIMEOUT_S}, engine: nvflare"
    config.write_text(text.replace("unseen_site: UCL, rounds: 2", settings))
    out = tmp_path / "federation"
    log = tmp_path / "prepare.log"
    assert program(log, "medfed.coordinator", "prepare", config, "--out", out, "--port", free_port()).wait(120) == 0
    provision = [Path(sys.executable).parent / "nvflare", "provision", "-p", out / "project.yml", "-w", out / "kits"]
    subprocess.run(provision, check=True, stdout=subprocess.DEVNULL, timeout=120)
    for site in SITES:
        folder = shutil.copytree(out / "hospitals" / site, tmp_path / site)
        shutil.copytree(tiny_phantom / site, folder / "data" / site)
        shutil.copytree(out / "kits" / "medfed" / "prod_00" / site, folder / "kit")
        own = folder / f"{site}.yaml"
        text = own.read_text().replace("sends: []", "sends: [windows]")
        own.write_text(text.replace("min_patients: 5", "min_patients: 1"))
    return out


def rounds_done(out: Path) -> int:
    return max(RunFolder(out / "run").rounds(), default=0)


def wait_until(condition: Callable[[], bool], run: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 540
    while not condition():
        assert run.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def test_a_killed_hospital_costs_the_others_no_time_and_takes_part_again_when_it_is_back(
    federation, tmp_path, tiny_phantom, monkeypatch
):
    """Then the coordinator is killed and resumed. The programs that only one needs are stopped while it starts."""
    monkeypatch.chdir(tmp_path)
    started: list[subprocess.Popen] = []

    def start(site: str) -> subprocess.Popen:
        started.append(program(tmp_path / f"{site}.log", "medfed.site", f"{site}/{site}.yaml", "--yes", "--quiet"))
        return started[-1]

    def coordinate(*more: str) -> subprocess.Popen:
        arguments = ("run", federation, "--quiet", "--join-seconds", 300, *more)
        started.append(program(log, "medfed.coordinator", *arguments))
        return started[-1]

    def wait_for_round(number: int) -> float:
        """Return when the round was done."""
        wait_until(lambda: rounds_done(federation) >= number, run, log)
        return time.monotonic()

    log = tmp_path / "coordinator.log"
    run = coordinate()
    try:
        sites = {site: start(site) for site in SITES}
        wait_for_round(1)
        kill_process_tree(sites["HK"])
        killed_at = wait_for_round(2)  # HK may have trained in it before
        seconds = wait_for_round(4) - killed_at
        print(f"two rounds without HK took {seconds:.1f} s")
        assert seconds < REPLY_TIMEOUT_S, "the other hospitals waited for HK, or their job was started again"
        run.send_signal(signal.SIGSTOP)
        (tmp_path / "HK" / "medfed_HK" / "flare" / "joined").unlink()
        sites["HK"] = start("HK")
        wait_until((tmp_path / "HK" / "medfed_HK" / "flare" / "joined").is_file, sites["HK"], tmp_path / "HK.log")
        run.send_signal(signal.SIGCONT)
        wait_for_round(7)
        kill_process_tree(run)
        run = coordinate("--resume")
        wait_until(lambda: run.poll() is not None or rounds_done(federation) == ROUNDS, run, log)
        assert run.wait(120) == 0, log.read_text()[-3000:]
        assert [sites[site].wait(60) for site in SITES] == [0, 0, 0]
    finally:
        for process in started:
            if process.poll() is None:
                kill_process_tree(process)
    model = (federation / "run" / "model.safetensors").read_bytes()
    assert {(tmp_path / site / f"medfed_{site}" / "model.safetensors").read_bytes() for site in SITES} == {model}
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or [])]
    check_bits(federation, tmp_path, tiny_phantom, monkeypatch)
    with open(federation / "run" / "survey.csv", newline="") as file:
        assert [row["site"] for row in csv.DictReader(file)] == list(SITES)
    assert json.loads((federation / "run" / "summary.json").read_text())["took_part"] == dict.fromkeys(SITES, ROUNDS)
    with open(federation / "run" / "history.csv", newline="") as file:
        rounds_of_hk = [int(row["round"]) for row in csv.DictReader(file) if row["train_loss/HK"]]
    print("HK took part in the rounds", rounds_of_hk)
    assert not {3, 4} & set(rounds_of_hk) and {7, 8, ROUNDS} <= set(rounds_of_hk)
    texts = [path.read_text() for path in (log, *(tmp_path / f"{site}.log" for site in SITES))]
    assert not [text for text in texts if "stolen" in text], "nobody used a startup kit twice"


def check_bits(federation, tmp_path, tiny_phantom, monkeypatch) -> None:
    """Check that the result equals that of one process in which only the sites with an accepted update are asked."""
    with open(federation / "run" / "history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    asked = iter([[site for site in SITES if row[f"train_loss/{site}"]] for row in rows])
    plan = load(federation / "plan.yaml")
    data = replace(plan.data, root=str(tiny_phantom), sites=SITES)
    plan = replace(plan, data=data, federation=replace(plan.federation, engine="in_process"))
    simulation = build_experiment(plan, tmp_path / "reference", quiet=True)
    engine = InProcess(simulation.engine.local_sites, tmp_path / "reference")
    monkeypatch.setattr(rounds, "choose_sites", lambda *_: next(asked))
    *_, last = federate(plan.method, engine, simulation.start, plan.federation, plan.seed)
    assert RunFolder(federation / "run").load_state(ROUNDS).to_bytes() == last.state.to_bytes()
