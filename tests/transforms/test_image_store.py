"""Images of patients on the disk: who can read them, when they are removed, and damaged ones."""

import errno
import gc
import os
import shutil
import signal
import stat
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.datasets.collections.folder import Folder
from medfed.experiments.resume import check_cache_folder
from medfed.federation.settings import Cache
from medfed.transforms.image_store import CHECKSUM_BYTES, ImageStore

ORIGINAL = torch.rand(3, 4, 5, generator=stream(0, "image"))
IMAGE = ORIGINAL.flip(0).half()
N_BYTES = CHECKSUM_BYTES + 2 * IMAGE.numel()


def stored(store: ImageStore, position: int = 2) -> ImageStore:
    store.write(position, ORIGINAL, IMAGE)
    return store


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("folder", [None, "disk"])
def test_an_image_is_read_as_it_was_written(folder, tmp_path):
    store = stored(ImageStore(Cache(folder and str(tmp_path / folder))))
    assert torch.equal(store.read(2, ORIGINAL), IMAGE)
    assert [store.read(position, ORIGINAL) for position in (0, 1, 3)] == [None] * 3, "never written"
    assert store.read(2, 1 - ORIGINAL) is None, "computed from another original"


def test_the_file_has_no_name_and_is_readable_by_the_user_only(tmp_path):
    store = stored(ImageStore(Cache(str(tmp_path / "new" / "cache"))))
    assert mode(tmp_path / "new" / "cache") == 0o700 and not list((tmp_path / "new" / "cache").iterdir())
    assert stat.S_IMODE(os.fstat(store._file.fileno()).st_mode) == 0o600


def test_the_temporary_folder_is_that_of_the_environment(tmp_path, monkeypatch):
    used, create = [], tempfile.TemporaryFile
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # the answer of an earlier call
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir, **kw: used.append(dir) or create(dir=dir, **kw))
    ImageStore(Cache())
    assert used == [tmp_path]


def test_a_flipped_bit_on_the_disk_is_noticed(tmp_path):
    store = stored(ImageStore(Cache(str(tmp_path))))
    for bit in range(0, 8 * N_BYTES, 37):
        place = 2 * N_BYTES + bit // 8
        byte = os.pread(store._file.fileno(), 1, place)
        os.pwrite(store._file.fileno(), bytes([byte[0] ^ 1 << bit % 8]), place)
        assert store.read(2, ORIGINAL) is None
        os.pwrite(store._file.fileno(), byte, place)
    assert torch.equal(store.read(2, ORIGINAL), IMAGE)


@pytest.mark.parametrize("folder", [None, "disk"])
def test_no_more_bytes_are_stored_than_allowed(folder, tmp_path):
    store = ImageStore(Cache(folder and str(tmp_path), max_gb=2 * N_BYTES / 1e9))
    for position in range(4):
        assert store.has_room(position, IMAGE) == (position < 2)
        store.write(position, ORIGINAL, IMAGE)
    assert [store.read(position, ORIGINAL) is None for position in range(4)] == [False, False, True, True]
    assert store._file is None or os.fstat(store._file.fileno()).st_size == 2 * N_BYTES


def test_nothing_stays_on_the_disk_after_a_killed_process(tmp_path):
    child = os.fork()
    if not child:
        stored(ImageStore(Cache(str(tmp_path))))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL and not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_nothing_stays_on_the_disk_after_the_store_is_deleted_or_an_exception(error, tmp_path):
    numbers = []

    def fail():
        store = stored(ImageStore(Cache(str(tmp_path))))
        numbers.append(store._file.fileno())
        if error:
            raise error

    with pytest.raises(error) if error else nullcontext():
        fail()
    gc.collect()
    assert not list(tmp_path.iterdir()) and not Path(f"/proc/self/fd/{numbers[0]}").exists()


def test_a_full_disk_ends_the_storing_with_a_warning(tmp_path, monkeypatch):
    store = ImageStore(Cache(str(tmp_path)), "HK")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**29))
    with pytest.warns(UserWarning, match="HK: the disk of cache.folder is full .less than 1.1 GB is free."):
        store.write(0, ORIGINAL, IMAGE)
    store.write(0, ORIGINAL, IMAGE)
    assert not store.has_room(0, IMAGE) and store.read(0, ORIGINAL) is None


def test_an_error_of_the_disk_is_not_hidden(tmp_path, monkeypatch):
    store = ImageStore(Cache(str(tmp_path)), "HK")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="Input/output"):
        store.write(0, ORIGINAL, IMAGE)


def test_a_folder_that_is_not_suitable_is_named(tmp_path):
    data, results = Folder(root=str(tmp_path / "data")), tmp_path / "run"
    (tmp_path / "data").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    of_results = "a.yaml: cache.folder: .* must not hold images of patients"
    of_originals = r"a.yaml: cache.folder: .* lies in .*data, .*\(data.root\).*; choose a"
    for folder, reason in (
        ("data", of_originals),
        ("data/cache", of_originals),
        ("link/cache", of_originals),
        ("run/images", of_results),
    ):
        with pytest.raises(UserError, match=reason):
            check_cache_folder(Cache(str(tmp_path / folder)), data, results, "a.yaml")
    for other in ("", None, str(tmp_path / "data2")):
        check_cache_folder(Cache(other), data, results, "a.yaml")
    with pytest.raises(UserError, match="cache.folder: no file for the restyled images of HK can be created in .*file"):
        ImageStore(Cache(str(tmp_path / "file")), "HK")
