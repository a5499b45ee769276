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


def test_kept_images_are_found_again_by_a_run_with_the_same_content(tmp_path):
    cache = Cache(str(tmp_path / "kept"), keep=True)
    stored(ImageStore(cache, "HK", "settings"))
    (file,) = (tmp_path / "kept").iterdir()
    assert file.name.startswith("HK-") and mode(file) == 0o600 and mode(tmp_path / "kept") == 0o700
    file.chmod(0o664)
    first = ImageStore(cache, "HK", "settings")
    assert torch.equal(first.read(2, ORIGINAL), IMAGE) and mode(file) == 0o600, "whatever its permissions were"
    assert ImageStore(cache, "HK", "other settings").read(2, ORIGINAL) is None
    assert stored(ImageStore(cache, "HK", "settings"), 0) and first.read(0, ORIGINAL) is None, "in use, so not shared"


KEPT_GB = 4 * N_BYTES / 1e9  # room for four images


def kept(tmp_path, content: str, n_images: int, site: str = "HK", max_gb: float = KEPT_GB) -> ImageStore:
    """Return a store of a kept file, after writing images at the first positions."""
    store = ImageStore(Cache(str(tmp_path), max_gb, keep=True), site, content)
    for position in range(n_images):
        stored(store, position)
    return store


def total(folder: Path, site: str = "HK") -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{site}-*.images"))


def test_kept_files_of_a_site_together_take_no_more_than_the_limit_and_the_oldest_is_deleted(tmp_path):
    for content in "ab":
        kept(tmp_path, content, 2)
        for path in tmp_path.iterdir():  # an hour passes between two runs
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 3600 * 10**9))
    assert total(tmp_path) == 4 * N_BYTES
    assert kept(tmp_path, "a", 0).read(1, ORIGINAL) is not None, "opened, so that b is now the oldest"
    store = kept(tmp_path, "c", 1)
    assert total(tmp_path) == 3 * N_BYTES and len(list(tmp_path.iterdir())) == 2
    del store
    assert kept(tmp_path, "b", 0).read(0, ORIGINAL) is None, "deleted"
    assert kept(tmp_path, "a", 0).read(0, ORIGINAL) is not None


def test_a_kept_file_that_a_run_uses_is_not_deleted(tmp_path):
    first = kept(tmp_path, "a", 3)
    second = kept(tmp_path, "b", 4)
    assert total(tmp_path) == 4 * N_BYTES
    assert [first.read(position, ORIGINAL) is not None for position in range(4)] == [True, True, True, False]
    assert [second.read(position, ORIGINAL) is not None for position in range(4)] == [True, False, False, False]
    assert not second.has_room(1, IMAGE) and not first.has_room(3, IMAGE)
    del first
    assert second.has_room(1, IMAGE) and total(tmp_path) == N_BYTES


def test_a_smaller_limit_makes_kept_files_smaller(tmp_path):
    kept(tmp_path, "a", 4)
    store = kept(tmp_path, "a", 0, max_gb=2 * N_BYTES / 1e9)
    assert total(tmp_path) == 2 * N_BYTES and store.read(1, ORIGINAL) is not None and store.read(2, ORIGINAL) is None


def test_kept_files_of_other_sites_are_not_counted_and_not_deleted(tmp_path):
    for site in ("HK-2", "HK", "H", "[HK]"):
        kept(tmp_path, "a", 4, site)
    (tmp_path / "HK-notes.images").touch()
    assert len(list(tmp_path.iterdir())) == 5 and total(tmp_path, "HK-2") == 4 * N_BYTES


def test_a_link_with_the_name_of_a_kept_file_is_not_followed(tmp_path):
    kept(tmp_path / "cache", "a", 1)
    (file,) = (tmp_path / "cache").iterdir()
    outside = file.rename(tmp_path / "outside")
    content = outside.read_bytes()
    file.symlink_to(outside)
    with pytest.raises(UserError, match=f"cache.folder: {file} is a symbolic link; expected a file.*remove the link"):
        kept(tmp_path / "cache", "a", 2)
    assert outside.read_bytes() == content and file.is_symlink()


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
    for folder in ("", None):
        with pytest.raises(ValueError, match="keep: is true, but images of patients are kept only in a folder that"):
            Cache(folder, keep=True)
