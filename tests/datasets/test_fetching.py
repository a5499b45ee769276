"""Downloads: the content and its checksum, and nothing on disk after a failure."""

import hashlib
import io
import os
import sys

import pytest

from medfed.core.errors import UserError
from medfed.datasets import fetching
from medfed.datasets.fetching import download

CONTENT = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def no_retries(monkeypatch):
    """A retry waits a second."""
    monkeypatch.setattr(fetching, "N_RETRIES", 0)


def test_a_file_is_downloaded_with_a_progress_bar_and_its_checksum_is_returned(tmp_path, file_server, monkeypatch):
    (file_server.folder / "a.zip").write_bytes(CONTENT)
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, expected in (("any.zip", None), ("checked.zip", sha256.upper())):
        assert download(f"{file_server.address}/a.zip", tmp_path / "new" / name, expected) == sha256
        assert (tmp_path / "new" / name).read_bytes() == CONTENT
        assert "256k/256k" in terminal.getvalue()
        terminal.truncate(0)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["any.zip", "checked.zip"]


def test_quiet_shows_no_progress(tmp_path, file_server, capsys):
    (file_server.folder / "a.zip").write_bytes(CONTENT)
    download(f"{file_server.address}/a.zip", tmp_path / "a.zip", quiet=True)
    assert capsys.readouterr() == ("", "")


def test_a_downloaded_file_has_the_permissions_of_a_new_file(tmp_path, file_server):
    (file_server.folder / "a.zip").write_bytes(CONTENT)
    download(f"{file_server.address}/a.zip", tmp_path / "a.zip", quiet=True)
    (tmp_path / "new").touch()
    assert (tmp_path / "a.zip").stat().st_mode == (tmp_path / "new").stat().st_mode


@pytest.mark.parametrize(
    ("name", "sha256", "message"),
    [
        ("a.zip", "0" * 64, "expected 0000"),
        ("missing.zip", None, "the download failed .404"),
        ("short", None, "990 more expected"),
    ],
)
def test_a_failed_download_is_one_sentence_and_leaves_no_file(tmp_path, file_server, name, sha256, message):
    (file_server.folder / "a.zip").write_bytes(CONTENT)
    with pytest.raises(UserError, match=message) as error:
        download(f"{file_server.address}/{name}", tmp_path / "new" / name, sha256, quiet=True)
    assert "\n" not in str(error.value) and list((tmp_path / "new").iterdir()) == []


def test_a_server_that_does_not_answer_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="check the connection"):
        download("http://127.0.0.1:1/a.zip", tmp_path / "a.zip", quiet=True)


def test_an_existing_file_is_not_replaced(tmp_path, file_server):
    (tmp_path / "a.zip").write_bytes(b"mine")
    with pytest.raises(UserError, match="remove the file to download it again"):
        download(f"{file_server.address}/a.zip", tmp_path / "a.zip", quiet=True)
    assert (tmp_path / "a.zip").read_bytes() == b"mine"


def test_other_addresses_are_refused(tmp_path):
    for url in ("file:///etc/hosts", "ftp://host/a.zip", "a.zip"):
        with pytest.raises(UserError, match="expected an address that begins with https://"):
            download(url, tmp_path / "a.zip", quiet=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("url", ["doi:nonsense", "doi:10.5281/zenodo.123", "doi://10.5281/zenodo.123/a.zip"])
def test_a_doi_without_a_file_is_one_sentence(tmp_path, url):
    with pytest.raises(UserError, match="expected the DOI and the name of a file, such as doi:"):
        download(url, tmp_path / "a.zip", quiet=True)


@pytest.mark.parametrize("sha256", ["abc", "", "md5:" + "0" * 32, "g" * 64])
def test_a_malformed_sha256_is_refused_before_the_download(tmp_path, sha256):
    with pytest.raises(UserError, match="expected a SHA-256 of 64 hexadecimal digits, got '"):
        download("http://127.0.0.1:1/a.zip", tmp_path / "a.zip", sha256, quiet=True)


def test_the_scheme_may_be_in_upper_case(tmp_path, file_server):
    (file_server.folder / "a.zip").write_bytes(CONTENT)
    download(file_server.address.replace("http", "HTTP") + "/a.zip", tmp_path / "a.zip", quiet=True)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["file/a.zip", "file/new/a.zip", "x" * 300])
def test_a_target_that_cannot_be_written_is_one_sentence(tmp_path, file_server, name):
    (file_server.folder / "a.zip").write_bytes(CONTENT)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=": cannot be written: .*; choose another path$"):
        download(f"{file_server.address}/a.zip", tmp_path / name, quiet=True)


def test_a_wrong_checksum_is_not_answered_with_try_again(tmp_path, file_server):
    (file_server.folder / "a.zip").write_bytes(CONTENT)
    with pytest.raises(UserError, match="check the address, and the SHA-256 if you gave one$"):
        download(f"{file_server.address}/a.zip", tmp_path / "a.zip", "0" * 64, quiet=True)
