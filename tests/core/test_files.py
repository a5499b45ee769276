"""Files that are written in one step."""

from medfed.core.files import write_atomically


def test_a_file_is_not_written_through_a_link_that_somebody_left(tmp_path):
    other = tmp_path / "other"
    other.write_text("of somebody else")
    (tmp_path / ".a.json.unfinished").symlink_to(other)
    write_atomically(tmp_path / "a.json", "new")
    assert other.read_text() == "of somebody else"
    assert (tmp_path / "a.json").read_text() == "new" and not (tmp_path / "a.json").is_symlink()
