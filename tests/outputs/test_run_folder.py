import errno
import multiprocessing
import os

import pytest
import torch
from made_runs import done

from medfed.core import files
from medfed.core.errors import UserError
from medfed.federation.message import State
from medfed.outputs.run_folder import RunFolder, RunFolderLockedError


def hold(path, held, release):
    with RunFolder(path).locked():
        held.set()
        release.wait(20)


def test_a_locked_folder_and_one_that_cannot_be_created_are_rejected_and_the_lock_of_a_dead_process_is_not(tmp_path):
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, release))
    other.start()
    assert held.wait(20)
    folder = RunFolder(tmp_path)
    with pytest.raises(RunFolderLockedError, match=f"process {other.pid} is running here"), folder.locked():
        pass
    other.kill()
    other.join()
    with folder.locked():
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError), RunFolder(tmp_path / "file" / "run").locked():
        pass


def test_only_the_checkpoints_of_the_last_two_rounds_of_the_best_and_of_every_nth_if_asked_for_are_kept(tmp_path):
    folder = RunFolder(tmp_path)
    for number in range(1, 7):
        folder.save_round(done(number, number / 10), best_round=2)
    (tmp_path / "states" / "round_00006 (1).state").write_text("a copy")
    assert folder.rounds() == [2, 5, 6]
    assert folder.load_state(2).weights["w"][0].item() == pytest.approx(0.2)
    assert [row["round"] for row in folder.history()] == [1, 2, 3, 4, 5, 6]
    assert folder.history()[3]["train_loss"] == 0.1 + 0.4 and folder.history()[0]["validation_score"] is None
    folder = RunFolder(tmp_path / "every_third_round")
    folder.create()
    folder.save_state(State(0, {"w": torch.zeros(2)}))
    for number in range(1, 9):
        folder.save_round(done(number), best_round=4, keep_every=3)
    assert folder.rounds() == [3, 4, 6, 7, 8], "not the one before training"


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failure_while_writing_keeps_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "model"
    files.write_atomically(path, b"old")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    if call == "write":
        monkeypatch.setattr("builtins.open", full)
    else:
        monkeypatch.setattr(files.os, call, full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_checkpoint_belongs_to_the_round_of_its_name_and_a_pipe_is_none(tmp_path):
    folder = RunFolder(tmp_path)
    folder.save_round(done(1), best_round=1)
    folder.save_state(State(10**9, {"w": torch.zeros(2)}))
    (tmp_path / "states" / "round_1000000000.state").rename(tmp_path / "states" / "round_00001.state")
    with pytest.raises(UserError, match="belongs to round 1,000,000,000; expected round 1, as its name says"):
        folder.load_state(1)
    os.mkfifo(tmp_path / "states" / "round_00002.state")
    with pytest.raises(UserError, match="it is a pipe or a device"):
        folder.load_state(2)
