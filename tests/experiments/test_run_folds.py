"""The runs of a comparison over several processes. Only the slow test trains; the others replace `run`."""

import errno
import os
import signal
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import tiny_yaml
from fake_sites import is_alive
from forked_workers import fork_workers

from medfed import evaluate
from medfed.cli.program import OUT_OF_MEMORY
from medfed.config.schema import load_text
from medfed.core.errors import UserError
from medfed.experiments import run_folds as module
from medfed.experiments.grid import Fold
from medfed.experiments.run_folds import run_folds
from medfed.experiments.sites import assign_patients
from medfed.outputs.run_folder import RunFolder
from medfed.results.row import ComparisonRow, read_row

SITES = ("BMC", "HK", "UCL")


ERRORS = {
    "fail": UserError("training diverged"),
    "bug": IndexError("index 3 is out of bounds"),
    "full disk": OSError(errno.ENOSPC, "No space left on device", "/x/y"),
    "memory": MemoryError(),
    "interrupt": KeyboardInterrupt(),
}


def fake_run(config, folder, resume, accept, quiet, jobs, on_training, row):
    """Finish at once, unless a file says otherwise; the site's name is in the run's log."""
    site = config.federation.unseen_site
    action = folder.path.parent / f"{site}.does"
    with folder.locked():
        folder.write_json("row.json", asdict(row))
        folder.write_text("config.yaml", config.yaml)
        folder.write_text("pid", str(os.getpid()))
        print("working for", site, flush=True)
        match action.read_text() if action.exists() else "":
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                time.sleep(60)
            case name if name in ERRORS:
                raise ERRORS[name]
        if on_training:
            on_training(1, 2)
        folder.finish({"jobs": jobs})


@pytest.fixture
def folds(tmp_path, tiny_phantom, monkeypatch) -> list[Fold]:
    fork_workers(monkeypatch)
    monkeypatch.setattr(module, "run", fake_run)
    text = tiny_yaml(tiny_phantom)
    configs = {site: load_text(text, "tiny.yaml", [f"federation.unseen_site={site}"]) for site in SITES}
    return [Fold(ComparisonRow("elcfs"), one, RunFolder(tmp_path / site)) for site, one in configs.items()]


def test_only_runs_of_local_do_not_print_that_one_site_trains(folds, monkeypatch, capsys):
    def build(config, *more):
        assign_patients(config.data, replace(config.federation, participating=1), 0, "tiny.yaml")
        raise UserError("enough")

    monkeypatch.undo()
    monkeypatch.setattr("medfed.experiments.run.build_experiment", build)
    for row in (ComparisonRow("fedavg"), ComparisonRow("local", trained_at="BMC")):
        folder = RunFolder(folds[0].folder.path / row.folder)
        assert module.do_run(replace(folds[0], row=row, folder=folder), 1, quiet=False) == "enough"
        assert ("trains: this is local training" in capsys.readouterr().err) == (row.method == "fedavg")


def test_a_finished_run_that_is_compared_with_another_row_gets_its_row(folds):
    (fold, *_) = folds
    assert not run_folds([fold], 1, quiet=True)
    other = replace(fold, row=replace(fold.row, equal_effort="fedavg@steps=elcfs"))
    assert not run_folds([other], 1, quiet=True)
    assert read_row(fold.folder.path, "elcfs") == other.row
    fold.folder.check()


def test_a_kill_between_the_new_row_and_its_checksum_leaves_a_run_that_continues(folds, monkeypatch):
    (fold, *_) = folds
    assert not run_folds([fold], 1, quiet=True)
    other = replace(fold, row=replace(fold.row, equal_effort="fedavg@steps=elcfs"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunFolder, "finish", lambda *_: raise_interrupt())
        run_folds([other], 1, quiet=True)
    assert not fold.folder.is_finished()
    assert not run_folds([other], 1, quiet=True) and fold.folder.is_finished()


def raise_interrupt():
    raise KeyboardInterrupt


def test_a_run_that_fails_does_not_stop_the_others_and_is_named(folds, tmp_path):
    for site, action in zip(SITES[:2], ("die", "fail"), strict=True):
        (tmp_path / f"{site}.does").write_text(action)
    unfinished = run_folds(folds, 2, quiet=True)
    assert list(unfinished) == [f"elcfs, unseen {site}, seed 3" for site in SITES[:2]]
    killed, diverged = unfinished.values()
    assert killed.startswith("its process was killed, as the operating system does when memory runs out; see ")
    assert diverged == f"training diverged; see {tmp_path / 'HK' / 'run.log'}"
    for site in SITES[:2]:
        (tmp_path / f"{site}.does").unlink()
    assert not run_folds(folds, 2, quiet=True)
    for site in SITES[:2]:
        assert (tmp_path / site / "run.log").read_text().count(f"working for {site}\n") == 2
    assert all(fold.folder.is_finished() for fold in folds)


@pytest.mark.parametrize(("jobs", "of_a_run"), [(2, 1), (3, 1), (7, 2)])
def test_more_jobs_than_runs_are_divided_among_the_runs(folds, jobs, of_a_run):
    run_folds(folds, jobs, quiet=True)
    assert {fold.folder.read_json("summary.json")["jobs"] for fold in folds} == {of_a_run}


def test_a_worker_process_knows_the_site_of_a_run_of_local(folds):
    rows = [ComparisonRow("local", (), site) for site in ("HK", "UCL")]
    local = [replace(folds[0], row=row, folder=RunFolder(folds[0].folder.path / row.folder)) for row in rows]
    assert not run_folds(local, 2, quiet=True)
    assert [read_row(fold.folder.path, "fedavg") for fold in local] == rows
    assert [fold.name for fold in local] == [f"local at {site}, unseen BMC, seed 3" for site in ("HK", "UCL")]


def test_short_runs_start_no_process(folds):
    run_folds(folds, None, quiet=True)
    assert {(fold.folder.path / "pid").read_text() for fold in folds} == {str(os.getpid())}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_may_fail_for_any_reason_without_stopping_the_others(jobs, folds, tmp_path, capfd):
    for site, action in zip(SITES, ("full disk", "bug", "memory"), strict=True):
        (tmp_path / f"{site}.does").write_text(action)
    full, bug, memory = run_folds(folds, jobs, quiet=True).values()
    more = [f"; see {tmp_path / site / 'run.log'}" if jobs == 2 else "" for site in SITES]
    assert full == f"/x/y: No space left on device; free some space; a run goes on with --resume{more[0]}"
    assert bug == f"IndexError: index 3 is out of bounds{more[1]}"
    assert memory == f"{OUT_OF_MEMORY}{more[2]}"
    log = (tmp_path / "HK" / "run.log").read_text() if jobs == 2 else capfd.readouterr().err
    assert log.count("Traceback (most recent call last):") == 1 and "IndexError: index 3 is out of bounds\n" in log
    (tmp_path / "HK.does").unlink()
    assert run_folds(folds, jobs, quiet=True).keys() == {f"elcfs, unseen {site}, seed 3" for site in ("BMC", "UCL")}
    assert [fold.folder.is_finished() for fold in folds] == [False, True, False]


def test_an_interruption_stops_the_runs_of_this_process(folds, tmp_path):
    (tmp_path / "BMC.does").write_text("interrupt")
    with pytest.raises(KeyboardInterrupt):
        run_folds(folds, 1, quiet=True)
    assert not (tmp_path / "HK").exists()


def test_a_locked_run_is_skipped(folds):
    with folds[1].folder.locked():
        unfinished = run_folds(folds, 2, quiet=True)
    assert unfinished == {folds[1].name: module.LOCKED}


def test_an_interruption_ends_all_processes(folds, tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    for site in SITES:
        (tmp_path / f"{site}.does").write_text("sleep")
    pids = [tmp_path / site / "pid" for site in SITES[:2]]

    def interrupt() -> None:
        while not all(map(Path.is_file, pids)):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt, match="stopped; .* Continue with the same arguments and --resume"):
            run_folds(folds, 2, quiet=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not any(is_alive(int(pid.read_text())) for pid in pids) and not (tmp_path / "UCL").exists()


@pytest.mark.slow
def test_the_table_of_runs_side_by_side_is_that_of_runs_one_after_another(tiny_config, tmp_path, capsys):
    """Real processes: one for each of two runs, then two for the sites of the run that is left."""
    flags = "--leave-one-site-out --methods fedavg --quiet --set federation.rounds=2"
    always = [str(tiny_config), *flags.split()]
    for jobs in ("1", "2"):
        out = ["--out", str(tmp_path / jobs), "--jobs", jobs]
        assert evaluate.main([*always, *out, "--sites", "UCL", "HK"]) == 0
        assert evaluate.main([*always, *out, "--resume"]) == 0
    assert (tmp_path / "1" / "table.csv").read_bytes() == (tmp_path / "2" / "table.csv").read_bytes()
    models = [sorted((tmp_path / jobs).rglob("model.safetensors")) for jobs in ("1", "2")]
    assert len(models[0]) == len(models[1]) == 3
    assert [path.read_bytes() for path in models[0]] == [path.read_bytes() for path in models[1]]
    log = tmp_path / "2" / "fedavg" / "unseen_UCL" / "seed_3" / "run.log"
    assert "round 2/2" in log.read_text()
