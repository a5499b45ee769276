"""Read volumes: NIfTI with MONAI and nibabel, MHA, MHD and NRRD with SimpleITK; damaged files are detected first.

Neither library reads a compressed file up to its checksum: of 100 `.nii.gz` files with one flipped bit, 83 were read
without an error. Therefore every compressed file is decompressed completely here. A NIfTI file is then read from the
decompressed bytes.
"""

from __future__ import annotations

import gzip
import io
import logging
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import nibabel as nib
import numpy as np
from monai.config import PathLike
from monai.data import ImageReader, MetaTensor, NibabelReader
from monai.data.utils import correct_nifti_header_if_necessary
from monai.transforms import LoadImage
from monai.utils import ensure_tuple
from nibabel import imageglobals
from nibabel.arrayproxy import ArrayProxy
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError

from medfed.core.errors import UserError

SUFFIXES = (".nii.gz", ".nii", ".mha", ".mhd", ".nrrd")
MAX_VOXELS = 1_000_000_000  # 4 GB in float32
_META_BYTES = {
    "MET_CHAR": 1, "MET_UCHAR": 1, "MET_SHORT": 2, "MET_USHORT": 2, "MET_INT": 4, "MET_UINT": 4, "MET_FLOAT": 4,
    "MET_DOUBLE": 8, "MET_LONG_LONG": 8, "MET_ULONG_LONG": 8,
}  # fmt: skip


def read_volume(path: Path) -> MetaTensor:
    """Read a volume with its stored intensities and its affine.

    Args:
        path: file in NIfTI, MHA, MHD or NRRD format.

    Returns:
        (C, H, W, D) float32 on the voxel grid of the file. C is 1, except if the file has several values per voxel or a
        fourth axis: then C is the number of values, or the length of this axis. D is 1 for a 2-D image. The attribute
        `affine`, a matrix (4, 4), maps voxel indices to millimetres.

    Raises:
        UserError: if the file is damaged, incomplete or too large, has another format, or if its affine is singular.
    """
    with _quiet_nibabel():
        if path.name.lower().endswith((".nii", ".nii.gz")):
            loader: Callable[[Path], MetaTensor] = partial(_nifti_loader(), reader=_OpenedNifti(_open_nifti(path)))
        else:
            if path.name.lower().endswith((".mha", ".mhd")):
                _check_metaimage(path)
            from medfed.transforms.simpleitk_reader import SimpleITKReader  # slow to import, and rarely needed

            loader = _loader(SimpleITKReader())
        try:
            image = loader(path)
        except (RuntimeError, ValueError, TypeError, OSError) as error:
            last_line = str(error).strip().rpartition("\n")[2]
            raise UserError(
                f"{path}: cannot read the file ({last_line}); check it, or copy it again from its source"
            ) from None
    check_affine(path, image.affine.numpy())
    return _channel_first(path, image)


def check_affine(path: Path, affine: np.ndarray) -> None:
    """Check that the three axes of an affine matrix have lengths above 0 and span a volume.

    Args:
        path: path of the image file, for the error message.
        affine: (4, 4), maps voxel indices to millimetres.

    Raises:
        UserError: if an axis has the length 0, if the axes lie in one plane, or if a value is NaN or infinite.
    """
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    if not np.isfinite(affine).all() or spacing.min() == 0 or abs(np.linalg.det(affine[:3, :3] / spacing)) < 1e-3:
        raise UserError(
            f"{path}: the affine in the header is singular (voxel size {' x '.join(f'{size:g}' for size in spacing)} "
            "mm); expected three axes that span a volume; correct the header"
        )


def data_file(path: Path) -> Path:
    """Return the file that contains the voxels of an image.

    For an MHD file, which contains only a header, this is the file given in the header. For other formats it is the
    image file itself.

    Args:
        path: the image file.

    Raises:
        UserError: if the header of an MHD file gives no file, several files or a file in another folder.
    """
    return _metaimage_header(path)[1] if path.name.lower().endswith(".mhd") else path


@cache
def _nifti_loader() -> LoadImage:
    """Return MONAI's loader of NIfTI files; to create one takes long, as it looks for the packages of other formats."""
    return _loader("NibabelReader")


def _loader(reader: str | ImageReader) -> LoadImage:
    """Return MONAI's loader, without its warning that pydicom is installed and NVIDIA's decoder is not."""
    logger = logging.getLogger("monai.data.nvimgcodec_pydicom_plugin")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="NvImgCodecPydicomReader", category=UserWarning)
            return LoadImage(reader=reader, image_only=True)
    finally:
        logger.disabled = was_disabled


@contextmanager
def _quiet_nibabel() -> Iterator[None]:
    """Context manager that silences nibabel's messages about corrected headers.

    This module checks the important header fields itself and reports them in one sentence.
    """
    was_disabled = imageglobals.logger.disabled
    imageglobals.logger.disabled = True  # to set its level would empty the caches of all loggers, for each file
    try:
        yield
    finally:
        imageglobals.logger.disabled = was_disabled


def _channel_first(path: Path, image: MetaTensor) -> MetaTensor:
    """Move a channel axis to the front, and add axes of length 1, so that the shape is (C, H, W, D)."""
    if image.ndim > 4:
        raise UserError(
            f"{path}: the file has {image.ndim} axes of lengths {tuple(image.shape)}; expected three, or four with "
            "channels; save one volume per file"
        )
    rank = len(image.meta["spatial_shape"])
    voxels = image.as_tensor().movedim(-1, 0) if image.ndim > rank else image.as_tensor()[None]
    voxels = voxels.reshape(*voxels.shape, *(1 for _ in range(3 - rank)))
    return MetaTensor(voxels.contiguous(), affine=image.affine)


class _OpenedNifti(NibabelReader):
    """MONAI's reader of NIfTI files, for a file that nibabel has already opened.

    Args:
        image: the image, as nibabel returns it.
    """

    def __init__(self, image: nib.Nifti1Image) -> None:
        super().__init__()
        self.image = image

    def read(self, data: Sequence[PathLike] | PathLike, **kwargs: object) -> nib.Nifti1Image:
        """Return the image.

        Args:
            data: the path of the file, which `get_data` needs.
            kwargs: not used.
        """
        self.filenames = ensure_tuple(data)
        return correct_nifti_header_if_necessary(self.image)


def _open_nifti(path: Path) -> nib.Nifti1Image:
    """Return a NIfTI image whose voxels are not read yet; they are in memory if the file is compressed.

    Raises:
        UserError: if the file is damaged, incomplete or too large, or has an invalid voxel size.
    """
    try:
        image = nib.load(path)
    except (ImageFileError, HeaderDataError, OSError, EOFError, ValueError, zlib.error) as error:
        details = f"{path.stat().st_size:,} bytes; {error}"
        raise UserError(
            f"{path}: this is not a NIfTI file, or it is damaged ({details}); copy it again from its source"
        ) from None
    if not isinstance(image, nib.Nifti1Image):  # a CIFTI file has this ending, too
        raise UserError(
            f"{path}: the file contains a {type(image).__name__}; expected a NIfTI volume; save the image as one"
        )
    _check_size(path, image.shape)
    with nib.openers.ImageOpener(str(path)) as stream:
        header = type(image.header).from_fileobj(stream, check=False)  # nibabel itself silently replaces 0 mm by 1 mm
    spacing = header["pixdim"][1 : 1 + min(len(image.shape), 3)]
    if not spacing.all():
        raise UserError(
            f"{path}: the voxel size in the header is {' x '.join(f'{size:g}' for size in spacing)} mm; expected sizes "
            "above 0; correct the header"
        )
    check_affine(path, image.affine)
    assert isinstance(image.dataobj, ArrayProxy), "nibabel has not read the voxels yet"
    expected = image.dataobj.offset + math.prod(image.shape) * image.dataobj.dtype.itemsize
    if not path.name.lower().endswith(".gz"):
        if path.stat().st_size < expected:
            raise _incomplete(path, path.stat().st_size, expected)
        return image
    content = io.BytesIO()
    with gzip.open(path) as stream:
        _check_bytes(path, _copied(iter(lambda: stream.read1(1 << 16), b""), content, expected), expected)
    return type(image).from_stream(content)


def _copied(chunks: Iterator[bytes], content: io.BytesIO, n_bytes: int) -> Iterator[bytes]:
    """Yield all chunks, and write those with the first `n_bytes` bytes to `content`."""
    for chunk in chunks:
        if content.tell() < n_bytes:
            content.write(chunk)
        yield chunk


def _check_metaimage(path: Path) -> None:
    """Raise UserError if an MHA or MHD file is damaged, incomplete or too large."""
    header, data, offset = _metaimage_header(path)
    if not data.is_file():
        raise UserError(
            f"{path}: the header names {data.name} as the file with the voxels, which does not exist; copy that file "
            "into the same folder"
        )
    try:
        shape = [int(size) for size in header["dimsize"].split()]
        item = _META_BYTES[header["elementtype"].upper()] * int(header.get("elementnumberofchannels", 1))
    except (KeyError, ValueError):
        return  # a rare element type, or damage that SimpleITK reports
    _check_size(path, shape)
    expected = math.prod(shape) * item
    if header.get("compresseddata", "").lower() == "true":
        _check_bytes(data, _decompress(data, offset), expected)
    elif data.stat().st_size - offset < expected:
        raise _incomplete(data, data.stat().st_size - offset, expected)


def _metaimage_header(path: Path) -> tuple[dict[str, str], Path, int]:
    """Return the header with keys in lower case, the file with the voxels, and their position in it in bytes."""
    header: dict[str, str] = {}
    with open(path, "rb") as file:
        while "elementdatafile" not in header and (line := file.readline(10_000)):
            key, _, value = line.decode("latin-1").partition("=")
            header[key.strip().lower()] = value.strip()
        offset = file.tell()
    name = header.get("elementdatafile", "")
    if name.upper() == "LOCAL":
        return header, path, offset
    if not name or Path(name).name != name or name.upper().startswith("LIST") or "%" in name:
        raise UserError(
            f"{path}: ElementDataFile in the header is {name!r}; expected LOCAL or the name of one file in the same "
            "folder; save the image as a single MHA file"
        )
    return header, path.with_name(name.encode("latin-1").decode("utf-8", "replace")), 0


def _decompress(path: Path, offset: int) -> Iterator[bytes]:
    """Yield the decompressed zlib stream of a MetaImage in chunks.

    Raises:
        zlib.error: if the stream is damaged.
        EOFError: if it ends early.
    """
    stream = zlib.decompressobj(wbits=47)  # 32 + 15: zlib or gzip, detected automatically
    with open(path, "rb") as file:
        file.seek(offset)
        while chunk := file.read(1 << 16):
            yield stream.decompress(chunk)
    if not stream.eof:
        raise EOFError("the compressed data are cut off")


def _check_bytes(path: Path, chunks: Iterator[bytes], expected: int) -> None:
    """Decompress a stream completely; only its end shows whether it is incomplete or damaged."""
    n_bytes = 0
    try:
        for chunk in chunks:
            n_bytes += len(chunk)
    except EOFError:
        raise _incomplete(path, n_bytes, expected) from None
    except (OSError, zlib.error) as error:
        raise UserError(
            f"{path}: the file is damaged ({error}; {n_bytes:,} of {expected:,} bytes decompressed); copy it again "
            "from its source"
        ) from None
    if n_bytes < expected:
        raise _incomplete(path, n_bytes, expected)


def _check_size(path: Path, shape: tuple[int, ...] | list[int]) -> None:
    if not 0 < math.prod(shape) <= MAX_VOXELS:
        raise UserError(
            f"{path}: the volume has {math.prod(shape):,} voxels; expected 1 to {MAX_VOXELS:,}; crop or resample it"
        )


def _incomplete(path: Path, n_bytes: int, expected: int) -> UserError:
    return UserError(
        f"{path}: the file is incomplete: found {n_bytes:,} of {expected:,} bytes; copy it again from its source"
    )
