"""A kill at any moment leaves a run that can be resumed, and damage of a run's file is found where it is read."""

import random
import subprocess
from dataclasses import replace

import pytest
from damaged_files import flipped
from made_runs import done
from untrained_runs import FILES, content, work

from medfed.core import files
from medfed.core.errors import UserError
from medfed.engines.parts.site_store import SiteStore
from medfed.outputs import run_files
from medfed.outputs.run_folder import CHECKSUMS, RunFolder


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return work(tmp_path_factory.mktemp("finished")).path


class Writes:
    """Kills the process at its n-th write: before or after a file gets its name, or in the middle of a line."""

    def __init__(self, monkeypatch, n, moment):
        self.n, self.moment, self.replace, self.append = n, moment, files.os.replace, run_files.append_text
        monkeypatch.setattr(files.os, "replace", lambda *paths: self.do(lambda: self.replace(*paths)))
        monkeypatch.setattr(run_files, "append_text", self.append_part)

    def do(self, write):
        self.n -= 1
        if self.n == 0 and self.moment == "before":
            raise Killed
        write()
        if self.n == 0:
            raise Killed

    def append_part(self, path, text):
        part = text[: len(text) // 2] if self.n == 1 and self.moment == "before" else text
        if part != text:
            self.append(path, part)
        self.do(lambda: self.append(path, text))


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_run_killed_at_any_write_is_resumed_to_the_same_files(finished, tmp_path, moment):
    expected, n_kills = content(finished), 0
    for first in range(1, 100):
        path = tmp_path / str(first)
        path.mkdir()
        for n in (first, 1 + first % 7):  # the resumed run is killed as well
            with pytest.MonkeyPatch.context() as patch:
                Writes(patch, n, moment)
                try:
                    work(path)
                    break
                except Killed:
                    n_kills += 1
        else:
            work(path)
        assert content(path) == expected, f"killed at write {first}"
        if n == first:
            break
    assert n_kills > 20, "the last run was not killed, so every write has been tried"


@pytest.mark.parametrize("name", [*FILES, "states/round_00002.state"])
def test_a_changed_cut_or_missing_file_of_a_finished_run_is_named(tmp_path, name):
    folder = work(tmp_path)
    folder.check()
    path, rng = tmp_path / name, random.Random(0)
    data = path.read_bytes()
    for damaged in [*(flipped(data, rng) for _ in range(20)), data[:-70], data + b"1"]:
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=CHECKSUMS if name == CHECKSUMS else f"^{path}: "):
            folder.check()
    path.unlink()
    if name not in (CHECKSUMS, "summary.json", "states/round_00002.state"):  # without the first two, it is unfinished
        with pytest.raises(UserError, match=f"^{path}: is missing"):
            folder.check()
    else:
        folder.check()


@pytest.mark.parametrize("name", ["history.csv", "ledger.csv"])
def test_a_changed_row_of_an_unfinished_run_is_found_when_it_is_continued(tmp_path, name):
    work(tmp_path, 1)
    path, rng = tmp_path / name, random.Random(0)
    data = path.read_bytes()
    for damaged in [*(flipped(data, rng) for _ in range(20)), data[: len(data) // 2], b""]:
        path.write_bytes(damaged)
        try:
            RunFolder(tmp_path).truncate(1)
        except UserError as error:
            assert str(error).startswith(f"{path}: ")
        else:
            assert path.read_bytes() == data, "a line end of another kind is no other row"
    path.unlink()
    with pytest.raises(UserError, match=f"^{path}: "):
        RunFolder(tmp_path).truncate(1)


def test_a_run_continues_from_the_newest_valid_checkpoint_to_the_same_files(finished, tmp_path):
    work(tmp_path, 1)
    path = tmp_path / "states" / "round_00001.state"
    path.write_bytes(flipped(path.read_bytes(), random.Random(0)))
    with pytest.warns(UserWarning, match="round_00001.state: the file is damaged.*continues after round 0"):
        work(tmp_path)
    assert content(tmp_path) == content(finished)
    for path in (tmp_path / "states").iterdir():
        path.write_bytes(b"")
    with pytest.raises(UserError, match="is damaged"):
        RunFolder(tmp_path).newest_state()


@pytest.mark.parametrize("name", ["cases.csv", "config.yaml", "model.safetensors", "summary.json"])
def test_checksums_that_do_not_list_a_file_are_incomplete(tmp_path, name):
    folder = work(tmp_path)
    lines = (tmp_path / CHECKSUMS).read_text().splitlines(keepends=True)
    (tmp_path / CHECKSUMS).write_text("".join(line for line in lines if not line.endswith(f"  {name}\n")))
    (tmp_path / name).write_text("changed")
    with pytest.raises(UserError, match=f"^{tmp_path / CHECKSUMS}: does not list {name}, so it is cut"):
        folder.check()


def test_the_checksums_are_those_of_the_program_sha256sum(finished):
    result = subprocess.run(["sha256sum", "--check", CHECKSUMS], cwd=finished, capture_output=True, text=True)
    listed = {line.partition(":")[0] for line in result.stdout.splitlines()}
    assert result.returncode == 0 and listed | {CHECKSUMS} == {*FILES, "states/round_00002.state"}


def test_a_finished_run_keeps_the_checkpoint_of_the_last_and_the_selected_round(tmp_path):
    folder = RunFolder(tmp_path)
    for number in range(1, 7):
        folder.save_round(done(number), best_round=2)
    folder.finish({"selected_round": 2})
    assert folder.rounds() == [2, 6]


def test_a_run_that_becomes_unfinished_has_no_figures_and_optional_files_of_the_earlier_config(tmp_path):
    folder = work(tmp_path)
    (tmp_path / "unseen_rounds.json").touch()
    folder.forget_conclusions()
    names = {path.name for path in tmp_path.iterdir()}
    assert not names & {"figures", "unseen_rounds.json", "summary.json", CHECKSUMS} and "model.safetensors" in names


def test_a_finished_run_keeps_what_the_sites_need_for_further_rounds(tmp_path):
    store = SiteStore(tmp_path)
    for site in "ABC":
        (tmp_path / site).mkdir()
        for name in ("round_00002.site", "round_00003.site", "round_00003.reply"):
            (tmp_path / site / name).touch()
    store.tidy({"A": 3, "B": 2})  # the update of B in round 3 was rejected, and all of C
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*"))
    assert left == ["A/round_00003.site", "B/round_00002.site"] and not (tmp_path / "C").exists()


def test_columns_that_appear_later_and_rows_of_an_uncommitted_round_are_removed(tmp_path):
    folder = RunFolder(tmp_path)
    folder.save_round(done(1), 1)
    before = {p.name: p.read_bytes() for p in tmp_path.glob("*.csv")}
    later = done(2)
    folder.save_round(replace(later, history={**later.history, "train_loss/new": 1.0}), 1)
    (tmp_path / "ledger.csv").open("a").write("3,a,up,tra")  # killed in the middle of a line
    folder.truncate(1)
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.csv")} == before
