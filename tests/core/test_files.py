"""Files that are written in one step."""

import os

import pytest

from medfed.core.files import write_atomically


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
