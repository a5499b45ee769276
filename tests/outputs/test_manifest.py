"""Every result file of a run is listed with its SHA-256, and a kill at any moment leaves a run that can be resumed."""

import hashlib
import random
import warnings

import pytest
import torch
from made_runs import done

from medfed.core import files
from medfed.core.errors import UserError
from medfed.federation.message import State
from medfed.outputs import run_folder
from medfed.outputs.run_folder import FIGURES, RunFolder

N_ROUNDS = 2
FILES = ("config.yaml", "environment.json", "notices.json", "history.csv", "ledger.csv", "timings.csv", "cases.csv",
         "model.safetensors", "figures/boxes.png", "summary.json", "manifest.json",
         "manifest_timings.json")  # fmt: skip


class Killed(BaseException):
    pass


def start(folder):
    """Check the folder, and write what a run writes before its rounds."""
    if (folder.path / "config.yaml").is_file():
        folder.check()
    folder.forget_conclusions()
    folder.begin_manifest()
    folder.write_json("environment.json", {"run_format": 2})
    folder.write_json("notices.json", [])
    folder.write_text("config.yaml", "seed: 1\n")
    folder.truncate(max(folder.rounds(), default=0))


def train(folder, last=N_ROUNDS):
    if not folder.rounds():
        folder.save_state(State(0, {"w": torch.zeros(2)}))
    for number in range(folder.rounds()[-1] + 1, last + 1):
        if number == 2:
            folder.write_json("notices.json", ["seen in round 2"])
        folder.save_round(done(number), best_round=1)


def conclude(folder):
    folder.write_json("notices.json", ["seen in round 2", "seen at the end"])
    (folder.path / FIGURES).mkdir(exist_ok=True)
    for name in ("cases.csv", "figures/boxes.png"):
        files.write_atomically(folder.path / name, name)
    folder.save_model({"w": torch.ones(2)})
    folder.finish({"seed": 1})


def work(path, last=N_ROUNDS):
    folder = RunFolder(path)
    start(folder)
    train(folder, last)
    if last == N_ROUNDS:
        conclude(folder)
    return folder


def content(path):
    return {name: (path / name).read_bytes() for name in FILES if (path / name).is_file()}


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(files.os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return work(tmp_path_factory.mktemp("finished")).path


class Writes:
    """Kills the process at its n-th write: before or after a file gets its name, or in the middle of a line."""

    def __init__(self, monkeypatch, n, moment):
        self.n, self.moment, self.replace, self.append = n, moment, files.os.replace, run_folder._append
        monkeypatch.setattr(files.os, "replace", lambda *paths: self.do(lambda: self.replace(*paths)))
        monkeypatch.setattr(run_folder, "_append", self.append_part)

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


def flipped(data, rng):
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


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
    assert one == (f"{tmp_path}/cases.csv: has 5 bytes with SHA-256 {found}..., but manifest.json lists 9 bytes with "
                   f"SHA-256 {expected}...; put back a copy of the file, or repeat the run in another folder")
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
    before = [tmp_path / name for name in ("ledger.csv", "history.csv")]
    texts = [path.read_text() for path in before]
    before[0].write_text(texts[0].rpartition("1,a,up")[0])
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


def test_a_run_of_an_older_version_is_accepted_with_a_warning_and_listed_from_then_on(finished, tmp_path):
    folder = work(tmp_path, 1)
    for name in run_folder.MANIFESTS:
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match="manifest.json: the file is missing, so damage .* cannot be found; put back"):
        folder.check()
    (tmp_path / "environment.json").write_text("{}")
    with pytest.warns(UserWarning, match="written by a version of medfed without manifest.json"):
        folder.check()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work(tmp_path)
    assert content(tmp_path) == content(finished)
    folder.check()
