"""The result does not depend on `jobs`, the number of worker processes among which the sites are divided."""

import errno
import os
import signal
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import slices_of, tiny_yaml
from forked_workers import fork_workers

from medfed.cli.program import OUT_OF_MEMORY, run_program
from medfed.config.schema import load_text
from medfed.core.errors import UserError
from medfed.engines.in_process import InProcess
from medfed.engines.parts import worker_process
from medfed.engines.parts.worker_pool import balanced_groups
from medfed.experiments.setup import build_experiment
from medfed.experiments.training import record_notices
from medfed.federation.message import Message, digest
from medfed.federation.rounds import federate
from medfed.federation.site import Site
from medfed.outputs.run_folder import RunFolder
from medfed.testing.small_unet import SmallUNet

SITES = "data.sites=[BMC, HK, RUNMC, UCL]"  # three train, UCL is unseen
SMALL = ["federation.rounds=3", "data.image_size=16", "training.batch_size=4"]
STACK = "method.methods=[{name: ccst, min_patients: 1, k: 2}, {name: elcfs, alpha: 0.1, min_patients: 1}]"
CASES = {
    "scaffold": ["method.name=scaffold", "network.norm=batch", "federation.batch_norm=local"],
    "ccst": ["method.name=ccst", "method.min_patients=1"],
    "stable_fdg": ["method.name=stable_fdg", "method.min_patients=1", "method.stages=[1,2]", "method.attention=false"],
    "stack": ["method.name=stack", STACK],
}

DENSENET = """
seed: 3
data: {name: camelyon17, root: FOLDER, if_missing: phantom, image_size: 24, validation_ratio: 0.2, test_ratio: 0.3,
       sites: [hospital_1, hospital_3, hospital_4, hospital_5]}
network: {name: densenet, init_features: 8, growth_rate: 4, blocks: [2, 2]}
method: {name: stable_fdg, min_patients: 1, stages: [1, 2]}
training: {batch_size: 16, learning_rate: 0.01, optimizer_state: reset}
federation: {unseen_site: hospital_5, rounds: 3}
"""


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    fork_workers(monkeypatch)


@pytest.fixture(scope="module")
def phantom(tmp_path_factory, tiny_phantom) -> Path:
    """The four sites of the configs, with four slices of each patient."""
    return slices_of(tiny_phantom, tmp_path_factory.mktemp("four"), ("BMC", "HK", "RUNMC", "UCL"), slice(5, 9))


def config_of(root: Path, *changes: str):
    config = load_text(tiny_yaml(root), "tiny.yaml", [SITES, *SMALL, *changes])
    return replace(config, network=SmallUNet(norm=config.network.norm))


def rounds(config, folder: Path, jobs: int | None, state=None, n: int = 3):
    """Return the digests of the next n rounds and their tables, and the state after them."""
    simulation = build_experiment(config, folder, quiet=True, jobs=jobs)
    engine = simulation.engine
    engine.restore(state.took_part if state else {}, state.weights if state else None)
    done = []
    try:
        for one in federate(config.method, engine, state or simulation.start, config.federation, config.seed):
            done.append(one)
            if len(done) == n:
                break
    finally:
        engine.close()
    return [(digest(one.state.to_bytes()), one.history, one.ledger) for one in done], done[-1].state


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if name == "scaffold" else pytest.mark.slow) for name in CASES]
)
def test_results_do_not_depend_on_the_number_of_jobs(case, phantom, tmp_path):
    """Also if a run is resumed with another number of jobs, or with a process for each site."""
    check_jobs(config_of(phantom, *CASES[case]), tmp_path)


@pytest.mark.slow
def test_results_of_a_densenet_do_not_depend_on_the_number_of_jobs(tmp_path):
    """Its BatchNorm is averaged, its feature maps are channels last, and StableFDG shares styles in every round."""
    check_jobs(load_text(DENSENET.replace("FOLDER", str(tmp_path / "data")), "tiny.yaml"), tmp_path)


def check_jobs(config, tmp_path: Path) -> None:
    expected, _ = rounds(config, tmp_path / "one", 1)
    assert rounds(config, tmp_path / "three", 3)[0] == expected
    first, state = rounds(config, tmp_path / "two", 2, n=1)
    second, state = rounds(config, tmp_path / "two", 1, state, n=1)
    isolated = replace(config, federation=replace(config.federation, engine="processes"))
    third, _ = rounds(isolated, tmp_path / "two", 2, state)
    assert [*first, *second, *third] == expected


def test_workers_start_when_the_time_that_they_save_is_worth_it(phantom, tmp_path, monkeypatch):
    """The first round is done in this process, the second one in workers; the result stays the same."""
    config = config_of(phantom, "method.name=fedavg", "training.optimizer_state=reset", "federation.rounds=2")
    expected, _ = rounds(config, tmp_path / "one", 1, n=2)
    monkeypatch.setattr(InProcess, "_max_workers", lambda self, n_sites: 2)
    simulation = build_experiment(config, tmp_path / "short", quiet=True, jobs=None)
    simulation.engine.reading_s = 0.0
    request = dict.fromkeys(["BMC", "HK", "RUNMC"], Message("train", facts={"round": 1}))
    # One round is left, of which two workers save half the time, at least three times the 8 s that they need to start;
    # 2 s of the first round are not counted.
    assert simulation.engine._n_workers_worth_it(49.0, request) == 1
    assert simulation.engine._n_workers_worth_it(50.0, request) == 2
    monkeypatch.setattr(worker_process, "WORKER_START_S", -1e6)
    assert rounds(config, tmp_path / "long", None, n=2)[0] == expected
    assert sorted(path.name for path in (tmp_path / "long").iterdir()) == ["BMC", "HK", "RUNMC"]


def test_a_worker_that_is_killed_ends_the_run_with_the_names_of_its_sites(phantom, tmp_path):
    config = config_of(phantom, "method.name=fedavg")
    simulation = build_experiment(config, tmp_path, quiet=True, jobs=2)
    engine = simulation.engine
    first = lambda: next(iter(engine._workers.processes.values()))._process.pid  # noqa: E731
    engine.on_step = lambda site, step, n_steps: os.kill(first(), signal.SIGKILL)
    sentence = "the worker process of .* failed: its process was killed, as the operating system does when memory runs"
    with pytest.raises(UserError, match=sentence):
        list(federate(config.method, engine, simulation.start, config.federation, config.seed))
    engine.close()


def test_failed_replies_of_sites_in_workers_are_those_of_sites_in_this_process(phantom, tmp_path):
    changes = ["method.name=fedavg", "training.learning_rate=1e30", "federation.on_bad_update=drop"]
    config, sentences = config_of(phantom, *changes), []
    for jobs in (1, 2):
        with pytest.raises(UserError, match="^round 1: 0 of 3 sites") as raised:
            rounds(config, tmp_path / str(jobs), jobs)
        sentences.append(str(raised.value))
    assert sentences[0] == sentences[1]


FULL_DISK = OSError(errno.ENOSPC, "No space left on device", "/x/y")
ERRORS = {  # the error of a site: (the error, the exit code, a line on stderr)
    "full disk": (FULL_DISK, 1, "t: /x/y: No space left on device; free some space; a run goes on with --resume"),
    "memory": (MemoryError("boom"), 1, f"t: {OUT_OF_MEMORY}"),
    "ValueError": (ValueError("boom"), 1, "ValueError: boom"),
    "KeyError": (KeyError("boom"), 1, "KeyError: 'boom'"),
    "UserError": (UserError("BMC: boom"), 2, "t: BMC: boom"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_at_a_site_ends_the_program_alike_with_any_number_of_jobs(
    case, tiny_phantom, tmp_path, monkeypatch, capfd
):
    """A bug keeps its traceback, which the worker prints."""
    error, code, sentence = ERRORS[case]

    def fail(site, request):
        raise error

    monkeypatch.setattr(Site, "reply", fail)
    config = config_of(tiny_phantom, "method.name=fedavg")
    for jobs in (1, 2):
        simulation = build_experiment(config, tmp_path / str(jobs), quiet=True, jobs=jobs)
        requests = {"BMC": Message("train", simulation.start.weights, {}, {"round": 1, "last": 0})}
        try:
            exit_code = run_program("t", partial(simulation.engine.exchange, "train", requests))  # raises
        except Exception as bug:  # Python prints the traceback and exits with 1
            traceback.print_exception(bug)
            exit_code = 1
        simulation.engine.close()
        lines = capfd.readouterr().err.splitlines()
        assert (exit_code, sentence in lines) == (code, True), lines
        assert ("Traceback (most recent call last):" in lines) == ("t: " not in sentence)
    assert ("t: the worker process of BMC failed: " in "\n".join(lines)) == ("t: " not in sentence)


def test_notices_do_not_depend_on_the_number_of_jobs(tiny_phantom, tmp_path, monkeypatch):
    """The first site is the slowest, so that the others warn earlier if they work at the same time."""
    reply = Site.reply

    def slow(site, request):
        if site.name == "BMC" and request.kind == "train":
            time.sleep(0.2)
        return reply(site, request)

    monkeypatch.setattr(Site, "reply", slow)
    changes = ["method.name=ccst", "method.transfer=moments", "method.k=9", "method.min_patients=1"]
    config = config_of(tiny_phantom, *changes)
    notices = {}
    for jobs in (1, 2):
        run = RunFolder(tmp_path / str(jobs))
        with record_notices(run, quiet=True) as notices[jobs]:
            rounds(config, run.path, jobs, n=1)
    of_sites = [text.split(":")[0] for text in notices[1] if "method.k is 9" in text]
    assert of_sites == ["BMC", "HK", "RUNMC"] and notices[1] == notices[2]


def test_groups_have_about_the_same_number_of_images():
    sizes = {"a": 50, "b": 10, "c": 30, "d": 20, "e": 0}
    assert balanced_groups(sizes, 2) == [["a", "b"], ["c", "d", "e"]]  # 60 and 50 images
    assert balanced_groups(sizes, 9) == [["a"], ["c"], ["d"], ["b"], ["e"]]
