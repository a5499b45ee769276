"""Check a volume by its header, before its voxels are read: its size, the file with its voxels, the compressed data.

The header says how much memory a volume needs and which file has its voxels. Both are checked here, because the
libraries that read the voxels trust the header.
"""

from __future__ import annotations

import bz2
import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from medfed.core.errors import UserError

if TYPE_CHECKING:
    import SimpleITK as sitk

MAX_VOXELS = 1 << 29  # 512 x 512 x 2048, a CT of the whole body: 2 GB in float32
MAX_HEADER_BYTES = 1 << 20  # of a header in text; those of scanners have a few thousand
MAX_SHOWN_CHARACTERS = 80  # of a line in an error message
MAX_NRRD_FIELD = 500  # characters; SimpleITK crashes at a few thousand in an unknown encoding or unit
MAX_BYTES_BEHIND = 1 << 16  # after the voxels, which some programs fill up to a multiple of their block size
MAX_GZIP_PARTS = 100_000  # `bgzip` writes one for each 64 KB, 32,768 for the largest volume in float32
_GZIP_PART = b"\x1f\x8b\x08"  # the bytes with which each part begins
_CHUNK = 1 << 16
_METAIMAGE_FIELD = re.compile(r"[ \t]*([A-Za-z_][^=:]*)=(.*)")
_BLANKS = " \t"  # `str.strip` without these would also remove characters that other programs keep
_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_MILLIMETRES = ("mm", *(f"millimet{end}" for end in ("er", "ers", "re", "res")))
_OTHER_LENGTHS = (
    "m",
    "dm",
    "cm",
    "um",
    "\N{MICRO SIGN}m",
    "nm",
    "micron",
    "microns",
    "in",
    "inch",
    "inches",
    *(f"{prefix}met{end}" for prefix in ("", "deci", "centi", "micro", "nano") for end in ("er", "ers", "re", "res")),
)
_COMPRESSED_NRRD = {"gzip": "gzip", "gz": "gzip", "bzip2": "bzip2", "bz2": "bzip2"}


def data_file(path: Path) -> Path:
    """Return the file that contains the voxels of an image: the image file, or the one that a detached header names.

    MHD and NRRD files may have detached headers. UserError if one names no file, several, or one in another folder.
    """
    name = path.name.lower()
    if name.endswith((".mhd", ".mha")):
        return _metaimage_header(path)[1]
    return _nrrd_header(path)[1] if name.endswith(".nrrd") else path


def stored_size(path: Path) -> tuple[int, ...]:
    """Return the size (X, Y, Z) of a volume in MHA, MHD or NRRD format by its header."""
    data_file(path)
    return _read_information(path).GetSize()


def check_size(path: Path, n_voxels: int) -> None:
    """Raise UserError if a volume has no voxels, or more than `MAX_VOXELS`, all channels together."""
    if not 0 < n_voxels <= MAX_VOXELS:
        raise UserError(
            f"{path}: the volume has {n_voxels:,} voxels; expected 1 to {MAX_VOXELS:,}; crop or resample it"
        )


def check_itk_file(path: Path) -> None:
    """Check an MHA, MHD or NRRD file: the file with the voxels exists, has the needed size and is not damaged."""
    is_nrrd = path.name.lower().endswith(".nrrd")
    header, data, offset = _nrrd_header(path) if is_nrrd else _metaimage_header(path)
    if not data.is_file():
        raise UserError(
            f"{path}: the header names {data.name} as the file with the voxels, which does not exist; copy that file "
            "into the same folder"
        )
    _check_units(path, header, is_nrrd)
    import SimpleITK as sitk  # slow to import, and rarely needed

    reader = _read_information(path)
    n_values = math.prod(reader.GetSize()) * reader.GetNumberOfComponents()
    check_size(path, n_values)
    is_vector = reader.GetNumberOfComponents() > 1
    pixel = sitk.Image([1, 1], reader.GetPixelID(), reader.GetNumberOfComponents() if is_vector else 0)
    expected = n_values * pixel.GetSizeOfPixelComponent()
    if is_nrrd:
        kind = _COMPRESSED_NRRD.get(header.get("encoding", "").lower(), "")
        is_raw = header.get("encoding", "").lower() == "raw"
        if {"lineskip", "byteskip"} & header.keys():
            return  # a part of the file comes before the voxels, in which SimpleITK finds them
    else:
        kind = "zlib" if header.get("CompressedData", "").lower() == "true" else ""
        is_raw = not kind
    if kind:
        check_stream(data, _decompress(data, offset, kind), expected)
    elif is_raw and data.stat().st_size - offset < expected:
        raise incomplete(data, data.stat().st_size - offset, expected)


def _check_units(path: Path, header: Mapping[str, str], is_nrrd: bool) -> None:
    """Raise UserError if a header gives lengths in another unit than millimetres, which SimpleITK would not convert."""
    in_space = re.findall(r'"([^"]*)"', header.get("spaceunits", "")) if is_nrrd else [header.get("DistanceUnits", "")]
    on_axes = re.findall(r'"([^"]*)"', header.get("units", "")) if is_nrrd else []  # also of time and of values
    others = [unit for unit in in_space if unit.strip().lower() not in ("", "?", *_MILLIMETRES)]
    others += [unit for unit in on_axes if unit.strip().lower() in _OTHER_LENGTHS]
    if others:
        key = ("space units" if in_space else "units") if is_nrrd else "DistanceUnits"
        raise UserError(
            f"{path}: the header gives lengths in the unit '{others[0]}' ({key}); expected millimetres (mm), in which "
            "distances are reported; convert the header"
        )


def gunzip(path: Path) -> Iterator[bytes]:
    """Yield the decompressed content of a gzip file in chunks; the end of the file has been checked after the last."""
    with gzip.open(path) as stream:
        while chunk := stream.read1(_CHUNK):
            yield chunk


def check_gzip_parts(path: Path) -> None:
    """Raise UserError if a gzip file has very many parts, each of which takes time even if it is empty."""
    n_parts, end = 0, b""
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            n_parts += (end + chunk).count(_GZIP_PART)
            end = chunk[-len(_GZIP_PART) + 1 :]
    if n_parts > MAX_GZIP_PARTS:
        raise UserError(
            f"{path}: the file has {n_parts:,} gzip parts; expected at most {MAX_GZIP_PARTS:,}; compress the image "
            "again"
        )


def check_stream(path: Path, chunks: Iterator[bytes], expected: int) -> None:
    """Decompress a stream up to its end, because only its end shows whether it is incomplete or damaged.

    UserError if it is, or if it goes on long after the voxels, which end at the byte `expected`.
    """
    n_bytes = 0
    try:
        for chunk in chunks:
            n_bytes += len(chunk)
            if n_bytes > expected + MAX_BYTES_BEHIND:
                raise UserError(
                    f"{path}: the file has more data after the {expected:,} bytes up to the end of its voxels; "
                    f"expected at most {MAX_BYTES_BEHIND:,} more; save the image again"
                )
    except EOFError:
        raise incomplete(path, n_bytes, expected) from None
    except (OSError, zlib.error) as error:
        raise UserError(
            f"{path}: the file is damaged ({error}; {n_bytes:,} of {expected:,} bytes decompressed); copy it again "
            "from its source"
        ) from None
    if n_bytes < expected:
        raise incomplete(path, n_bytes, expected)


def incomplete(path: Path, n_bytes: int, expected: int) -> UserError:
    return UserError(
        f"{path}: the file is incomplete: found {n_bytes:,} of {expected:,} bytes; copy it again from its source"
    )


def _read_information(path: Path) -> sitk.ImageFileReader:
    """A reader that has read only the header of the file; UserError if it cannot."""
    import SimpleITK as sitk

    from medfed.transforms.simpleitk_reader import image_io

    reader = sitk.ImageFileReader()
    reader.SetImageIO(image_io(path))
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError as error:
        raise unreadable(path, error) from None
    return reader


def unreadable(path: Path, error: Exception) -> UserError:
    """Return the error about a file that a library cannot read, with the last line of the library's message."""
    last_line = str(error).strip().rpartition("\n")[2]
    return UserError(f"{path}: cannot read the file ({last_line}); check it, or copy it again from its source")


def _metaimage_header(path: Path) -> tuple[dict[str, str], Path, int]:
    """Return the header, the file with the voxels, and their position in it in bytes."""
    header: dict[str, str] = {}
    offset = 0
    for line, end in _lines(path):
        if not line.strip(_BLANKS):
            continue
        if not (field := _METAIMAGE_FIELD.fullmatch(line)):
            raise _damaged_header(path, line, "`Key = value` on each line before the voxels")
        _add_field(path, header, field[1].strip(_BLANKS), field[2].strip(_BLANKS))
        if "ElementDataFile" in header:
            offset = end
            break
    name = header.get("ElementDataFile", "")
    if name in ("LOCAL", "Local", "local"):
        return header, path, offset
    return header, _beside(path, "ElementDataFile", name, "LOCAL or the name of one file"), 0


def _nrrd_header(path: Path) -> tuple[dict[str, str], Path, int]:
    """Return the header with keys in lower case without spaces, the file with the voxels, and their position in it."""
    header: dict[str, str] = {}
    data, offset = path, 0
    for line, end in _lines(path):
        if not line:  # the end of the header
            offset = end
            break
        key, colon, value = line.partition(":")
        if offset and not line.startswith("#") and not colon:
            raise _damaged_header(path, line, "`key: value` on each line before the voxels")
        offset = end
        if colon and not line.startswith("#") and not value.startswith("="):  # `key:=value` says nothing to programs
            if len(line) > MAX_NRRD_FIELD:
                raise _damaged_header(path, line, f"at most {MAX_NRRD_FIELD} characters in a field")
            field = "".join(key.lower().split())
            _add_field(path, header, field, value.strip(_BLANKS))
            if field == "datafile":
                data = _beside(path, "data file", header[field], "the name of one file")
    return header, data, offset if data == path else 0


def _lines(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each line of a header in text without its line end, and the position in bytes at which the next begins.

    A character that ends a line for one program and not for another one is refused: two programs that divide the
    header into different lines may take the voxels from different files.
    """
    with open(path, "rb") as file:
        content = file.read(MAX_HEADER_BYTES)
    start = 0
    while start < len(content):
        end = content.find(b"\n", start) + 1 or len(content)
        if end == MAX_HEADER_BYTES:
            raise UserError(
                f"{path}: the header does not end within {MAX_HEADER_BYTES:,} bytes; expected a short text before the "
                "voxels; save the image again"
            )
        line = content[start:end].removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")
        if control := _CONTROL_CHARACTER.search(line):
            raise _damaged_header(path, line, f"no control character, such as {control[0]!r}, in a line")
        yield line, end
        start = end


def _add_field(path: Path, header: dict[str, str], key: str, value: str) -> None:
    """Add a field to a header; UserError if the header has it already, because programs differ in which one counts."""
    if key in header:
        raise UserError(
            f"{path}: the header gives the field {key!r} twice; expected each field once; remove one of them"
        )
    header[key] = value


def _damaged_header(path: Path, line: str, expected: str) -> UserError:
    return UserError(
        f"{path}: cannot read the header: it has the line {line[:MAX_SHOWN_CHARACTERS]!r}; expected {expected}; save "
        "the image again"
    )


def _beside(path: Path, key: str, name: str, expected: str) -> Path:
    """Return the file with the voxels that a header names, which must lie in the folder of the header."""
    name = os.fsdecode(name.encode("latin-1"))
    is_plain = name[:1].isalnum() or name[:1] == "_"  # `-` is the standard input, and `~` begins a full path
    if not is_plain or Path(name).name != name or name.upper().startswith("LIST") or "%" in name:
        raise UserError(
            f"{path}: {key} in the header is {name!r}; expected {expected} in the same folder; save the image as a "
            "single file"
        )
    return path.with_name(name)


def _decompress(path: Path, offset: int, kind: str) -> Iterator[bytes]:
    """Yield the decompressed data of a MetaImage or NRRD file in chunks of a limited size.

    The stream raises zlib.error or OSError if it is damaged, and EOFError if it ends early.
    """
    with open(path, "rb") as file:
        file.seek(offset)
        if kind == "bzip2":
            with bz2.open(file) as bz2_stream:
                while chunk := bz2_stream.read1(_CHUNK):
                    yield chunk
            return
        stream = zlib.decompressobj(wbits=47)  # 32 + 15: zlib or gzip, detected automatically
        while not stream.eof:
            rest = stream.unconsumed_tail or file.read(_CHUNK)
            if not rest:
                raise EOFError("the compressed data are cut off")
            yield stream.decompress(rest, _CHUNK)
