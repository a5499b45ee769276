"""Files that are written in one step, and one process at a time: `exclusive_lock`."""

import os
import subprocess
import sys
import time

import pytest

from medfed.core.errors import UserError
from medfed.core.files import exclusive_lock, write_atomically


def test_a_file_is_not_written_through_a_link_that_somebody_left(tmp_path):
    other = tmp_path / "other"
    other.write_text("of somebody else")
    (tmp_path / ".a.json.unfinished").symlink_to(other)
    write_atomically(tmp_path / "a.json", "new")
    assert other.read_text() == "of somebody else"
    assert (tmp_path / "a.json").read_text() == "new" and not (tmp_path / "a.json").is_symlink()


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a folder, a device or a pipe"):
        write_atomically(tmp_path / "pipe", "new")
    assert not (tmp_path / "pipe").is_file()


def busy(holder: str) -> UserError:
    return UserError(f"{holder} is here")


def test_a_second_holder_is_refused_with_the_name_of_the_first(tmp_path):
    with exclusive_lock(tmp_path / "a.lock", busy):
        assert (tmp_path / "a.lock").read_text() == f"process {os.getpid()}\n"
        sentence = f"process {os.getpid()} is here"
        with pytest.raises(UserError, match=sentence), exclusive_lock(tmp_path / "a.lock", busy):
            pass
    assert (tmp_path / "a.lock").read_text() == ""


def test_who_waits_gets_the_lock_when_the_first_holder_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from medfed.core.files import exclusive_lock\n"
        "with exclusive_lock(Path(sys.argv[1]), ValueError):\n    print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.lock")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"process {holder.pid} is here"), exclusive_lock(tmp_path / "a.lock", busy):
        pass
    subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {holder.pid}"])
    start = time.monotonic()
    with exclusive_lock(tmp_path / "a.lock", busy, wait_s=20):
        assert 0.2 < time.monotonic() - start < 20
    holder.wait()


def test_a_folder_that_is_not_there_is_an_error_of_the_disk_and_not_of_the_lock(tmp_path):
    with pytest.raises(FileNotFoundError), exclusive_lock(tmp_path / "none" / "a.lock", busy):
        pass
