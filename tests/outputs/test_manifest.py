"""Every result file of a run is listed with its SHA-256, and a kill at any moment leaves a run that can be resumed."""

import hashlib
import random
from dataclasses import replace

import pytest
from damaged_files import flipped
from made_runs import done
from untrained_runs import FILES, N_ROUNDS, content, start, work

from medfed.core import files
from medfed.core.errors import UserError
from medfed.outputs import csv_files, run_folder
from medfed.outputs.run_folder import RunFolder


class Killed(BaseException):
    pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return work(tmp_path_factory.mktemp("finished")).path


class Writes:
    """Kills the process at its n-th write: before or after a file gets its name, or in the middle of a line."""

    def __init__(self, monkeypatch, n, moment):
        self.n, self.moment, self.replace, self.append = n, moment, files.os.replace, csv_files.append_text
        monkeypatch.setattr(files.os, "replace", lambda *paths: self.do(lambda: self.replace(*paths)))
        monkeypatch.setattr(run_folder, "append_text", self.append_part)

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
    assert n_kills > 40, "the last run was not killed, so every write has been tried"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("last", [N_ROUNDS, 1], ids=["finished", "unfinished"])
def test_a_changed_cut_or_missing_file_is_named(tmp_path, name, last):
    folder = work(tmp_path, last)
    folder.check()
    if not (path := tmp_path / name).is_file():
        return
    data, rng = path.read_bytes(), random.Random(0)
    for damaged in [*(flipped(data, rng) for _ in range(20)), data[:-1], data + b"1", b""]:
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=f"^{path}: .*; put back a copy of "):
            folder.check()
    path.unlink()
    if name != "summary.json":  # without it the run is unfinished
        with pytest.raises(UserError, match=f"^{path}: .*is missing.*; put back a copy of "):
            folder.check()


def test_the_sentence_says_what_was_found_and_what_was_expected(tmp_path):
    folder = work(tmp_path)
    (tmp_path / "cases.csv").write_text("cases")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError) as error:
        folder.check()
    one, other = error.value.sentences
    found, expected = (hashlib.sha256(text).hexdigest()[:12] for text in (b"cases", b"cases.csv"))
    assert one == (
        f"{tmp_path}/cases.csv: has 5 bytes with SHA-256 {found}..., but manifest.json lists 9 bytes with "
        f"SHA-256 {expected}...; put back a copy of the file, or repeat the run in another folder"
    )
    assert other.startswith(f"{tmp_path}/model.safetensors: is missing, but manifest.json lists ")


def test_rows_that_were_changed_in_the_last_round_are_no_unfinished_rows(tmp_path):
    """The earlier rows are complete, as after a kill, but the checkpoint says that the round is complete too."""
    folder = work(tmp_path, 1)
    for name in ("ledger.csv", "history.csv"):
        lines = (tmp_path / name).read_text()
        (tmp_path / name).write_text(lines.replace("\n1,", "\n2,"))
        with pytest.raises(UserError, match=name):
            folder.check()
        (tmp_path / name).write_text(lines)
    (tmp_path / "ledger.csv").write_text((tmp_path / "ledger.csv").read_text().rpartition("1,a,up")[0])
    with pytest.raises(UserError, match="ledger.csv"):
        folder.check()


def test_a_run_goes_on_from_an_earlier_checkpoint_if_the_last_one_is_deleted(finished, tmp_path):
    work(tmp_path, 1)
    (tmp_path / "states" / "round_00001.state").unlink()
    work(tmp_path)
    assert content(tmp_path) == content(finished)


def test_a_file_that_is_changed_while_the_run_works_is_found_before_it_is_rewritten(tmp_path):
    folder = work(tmp_path, 1)
    (tmp_path / "history.csv").write_text((tmp_path / "history.csv").read_text().replace("0.1", "0.3"))
    with pytest.raises(UserError, match="history.csv: has "):
        folder.save_round(done(2), best_round=1)


def test_a_run_without_a_manifest_or_of_another_format_is_refused(tmp_path):
    folder = work(tmp_path, 1)
    path = tmp_path / "manifest.json"
    path.write_bytes(files.checked_json(run_folder.read_manifest(path)._content() | {"format": 9}))
    with pytest.raises(UserError, match=f"^{path}: the data have run folder version 9, but .* version 1; use the "):
        folder.check()
    path.unlink()
    with pytest.raises(UserError, match="manifest.json: the file is missing, so damage .* cannot be found; put back"):
        folder.check()


def test_a_checkpoint_of_another_run_is_refused_and_a_copy_of_the_same_run_is_not(finished, tmp_path):
    folder = work(tmp_path, 1)
    path = tmp_path / "states" / "round_00001.state"
    path.write_bytes((finished / "states" / path.name).read_bytes())
    folder.check()
    other = RunFolder(tmp_path / "other")
    other.create()
    other.save_state(done(1, 0.5).state)
    path.write_bytes(other._state_path(1).read_bytes())
    with pytest.raises(UserError, match=f"^{path}: begins with SHA-256 .*, but manifest.json lists .*another run; put"):
        folder.check()
    path.unlink()
    folder.check()


def test_a_checkpoint_that_is_not_listed_is_refused(tmp_path):
    """The run's own checkpoints are deleted, and another run's checkpoint of an earlier round is put there."""
    folder = work(tmp_path)
    (tmp_path / "states" / "round_00002.state").unlink()
    (tmp_path / "states" / "round_00001.state").rename(tmp_path / "states" / "round_00000.state")
    with pytest.raises(UserError, match="round_00000.state: .* lists no such file: "):
        folder.check()


def test_the_files_of_two_rounds_of_each_site_are_listed_and_another_runs_file_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    start(folder)
    path = tmp_path / "sites" / "HK" / "round_00003.site"
    path.parent.mkdir(parents=True)
    for number in (1, 2, 3):
        data = bytes([number])
        files.write_atomically(path.with_name(f"round_{number:05d}.site"), files.sha256_digest(data), data)
        round_done = done(number)
        state = replace(round_done.state, took_part={"HK": number, "UCL": 1})
        folder.save_round(replace(round_done, state=state), best_round=1)
    listed = run_folder.read_manifest(tmp_path / "manifest.json").checkpoints
    of_sites = [f"sites/HK/round_0000{number}.site" for number in (2, 3)]
    assert sorted(listed) == of_sites + [f"states/round_0000{number}.state" for number in (1, 2, 3)]
    assert listed["sites/HK/round_00003.site"] == hashlib.sha256(bytes([3])).hexdigest()
    folder.check()
    path.write_bytes(files.sha256_digest(b"other") + b"other")
    with pytest.raises(UserError, match=f"^{path}: begins with SHA-256 .*; put back the file of this run$"):
        folder.check()
    folder._state_path(3).unlink()
    folder.truncate(2)  # round 3 is done again, perhaps with an accepted change of the config
    folder.check()
