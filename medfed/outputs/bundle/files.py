"""Read the files of a bundle (a folder, or a zip of it) without unpacking the zip and without following links."""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from medfed.core.errors import UserError
from medfed.core.files import DAMAGED_ZIP, check_checksums

IMAGE_FOLDERS = ("input", "eval")  # the user's images and results; these folders are not part of the bundle
MAX_CONFIG_BYTES = 1 << 20
MAX_UNPACKED_BYTES, MAX_RATIO = 1 << 32, 200


@dataclass(frozen=True)
class BundleFiles:
    """The files of an opened bundle; `names` maps a path within the bundle to a function that opens the file."""

    path: Path
    names: dict[str, Callable[[], IO[bytes]]]

    def json(self, name: str) -> Any:
        """The values in a JSON file; UserError if it is too large (1 MiB) or damaged, KeyError if it does not exist."""
        with self.names[name]() as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise UserError(f"{self.path}: {name} has more than {MAX_CONFIG_BYTES:,} bytes; expected a few thousand")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.path}: {name} is not JSON ({error}); export the bundle again") from error

    def check_weights(self, name: str) -> None:
        """UserError if a file of weights is no zip, or compressed, or differs from the CRC-32 checksums that PyTorch
        stores."""
        with self.names[name]() as file:
            check_checksums(file, f"{self.path}: {name}", "copy the bundle again")


@contextmanager
def open_bundle(path: Path) -> Iterator[BundleFiles]:
    """Open a bundle's folder or zip without unpacking; UserError if it is neither, contains links, or would be
    dangerous to unpack: files outside the folder, or above 4 GiB."""
    if path.is_dir():
        yield BundleFiles(path, _in_folder(path))
        return
    if not (path.is_file() and zipfile.is_zipfile(path)):
        raise UserError(f"{path}: is not a bundle; expected the folder of a bundle, or a zip file of that folder")
    try:
        archive = zipfile.ZipFile(path)
    except (*DAMAGED_ZIP, ValueError) as error:
        raise UserError(f"{path}: the zip file is damaged ({error}); copy it again") from error
    with archive:
        yield BundleFiles(path, _in_zip(path, archive))


def _in_folder(path: Path) -> dict[str, Callable[[], IO[bytes]]]:
    names: dict[str, Callable[[], IO[bytes]]] = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        if name.parts[0] in IMAGE_FOLDERS or (file.is_dir() and not file.is_symlink()):
            continue
        if file.is_symlink() or not file.is_file():
            raise UserError(f"{path}: '{name.as_posix()}' is a link, a pipe or a device; replace it by the file itself")
        names[name.as_posix()] = partial(_open_file, file)
    return names


def _open_file(path: Path) -> IO[bytes]:
    return path.open("rb")


def _in_zip(path: Path, archive: zipfile.ZipFile) -> dict[str, Callable[[], IO[bytes]]]:
    """List the files of a zipped bundle, below its top folder if there is only one."""
    for member in archive.infolist():
        name, parts = member.orig_filename, PurePosixPath(member.orig_filename).parts
        is_link = stat.S_ISLNK(member.external_attr >> 16)
        if is_link or not parts or name.startswith("/") or ".." in parts or any(sign in name for sign in "\\:\0"):
            raise UserError(
                f"{path}: contains {name!a}, which is a link or would be written outside the bundle's folder; do not "
                "unpack it, and ask the sender for another file"
            )
    members = [member for member in archive.infolist() if not member.is_dir()]
    n_bytes, packed = (sum(getattr(member, size) for member in members) for size in ("file_size", "compress_size"))
    if n_bytes > MAX_UNPACKED_BYTES or n_bytes > MAX_RATIO * max(packed, 1):
        raise UserError(
            f"{path}: would unpack {packed:,} bytes to {n_bytes:,}; do not unpack it, and ask the sender "
            "for another file"
        )
    tops = {PurePosixPath(member.filename).parts[0] for member in members}
    prefix = f"{tops.pop()}/" if len(tops) == 1 else ""
    names: dict[str, Callable[[], IO[bytes]]] = {}
    for member in members:
        name = member.filename.removeprefix(prefix)
        if name.casefold() in map(str.casefold, names):
            raise UserError(f"{path}: contains '{name}' twice; do not unpack it, and ask the sender for another file")
        names[name] = partial(_open_member, path, archive, member)
    return names


def _open_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    try:
        return io.BytesIO(archive.read(member))
    except DAMAGED_ZIP as error:
        raise UserError(f"{path}: '{member.filename}' cannot be read ({error}); copy the zip again") from error
