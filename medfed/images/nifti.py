"""Read volumes: NIfTI with MONAI and nibabel, MHA, MHD and NRRD with SimpleITK; damaged files are detected first.

Neither library reads a compressed file up to its checksum: of 100 `.nii.gz` files with one flipped bit, 83 were read
without an error. Therefore every compressed file is decompressed completely here. A NIfTI file is then read from the
decompressed bytes.
"""

from __future__ import annotations

import io
import logging
import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from medfed.images import mha_nrrd
from medfed.images.mha_nrrd import (
    check_gzip_parts,
    check_itk_file,
    check_size,
    check_stream,
    gunzip,
    incomplete,
    unreadable,
)

SUFFIXES = (".nii.gz", ".nii", ".mha", ".mhd", ".nrrd")
MIN_SPACING_MM, MAX_SPACING_MM = 1e-4, 100.0  # finer than light microscopes, and coarser than any scanner
USUAL_SPACING_MM = (0.01, 25.0)  # outside, sizes in metres or micrometres are more likely than a microscope
MAX_AXES = 4
_HEADER_ERRORS = (  # an offset of infinity overflows, and an extension of 2 GB does not fit into the memory
    ImageFileError,
    HeaderDataError,
    OSError,
    EOFError,
    ValueError,
    zlib.error,
    OverflowError,
    MemoryError,
)
_OTHER_UNITS = {1: "metres", 3: "micrometres"}  # codes of `xyzt_units` in a NIfTI header


def read_volume(path: Path) -> MetaTensor:
    """Read a NIfTI, MHA, MHD or NRRD file: (C, H, W, D) float32 with its stored intensities and its affine.

    C is the number of values per voxel or the length of the fourth axis, or 1; D is 1 for a 2-D image.
    """
    with _quiet_nibabel():
        if _is_nifti(path):
            loader: Callable[[Path], MetaTensor] = partial(_nifti_loader(), reader=_OpenedNifti(_open_nifti(path)))
        else:
            from medfed.transforms.simpleitk_reader import SimpleITKReader  # slow to import, and rarely needed

            check_itk_file(path)
            loader = partial(_nifti_loader(), reader=SimpleITKReader())
        try:
            image = loader(path)
        except (RuntimeError, ValueError, TypeError, OSError) as error:
            raise unreadable(path, error) from None
    check_affine(path, image.affine.numpy())
    return _channel_first(path, image)


def stored_size(path: Path) -> tuple[int, ...]:
    """Return the size (X, Y, Z) of a volume by its header; the voxels are not read."""
    if not _is_nifti(path):
        return mha_nrrd.stored_size(path)
    with _quiet_nibabel():
        return _load_nifti(path).shape[:3]


def _is_nifti(path: Path) -> bool:
    return path.name.lower().endswith((".nii", ".nii.gz"))


def check_affine(path: Path, affine: np.ndarray) -> None:
    """Check that the axes of an affine matrix (4, 4) span a volume, and that their lengths are possible voxel sizes.

    A voxel size below 0.1 micrometres or above 100 mm is refused, because all distances in mm would be wrong.
    `spacing_notices` describes sizes that are possible but unusual.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = np.linalg.norm(affine[:3, :3].astype(np.float64), axis=0)
    if not np.isfinite(affine).all() or spacing.min() == 0 or abs(np.linalg.det(affine[:3, :3] / spacing)) < 1e-3:
        raise UserError(
            f"{path}: the affine in the header is singular (voxel size {_join_mm(spacing)}); expected three axes that "
            "span a volume; correct the header"
        )
    if spacing.min() < MIN_SPACING_MM or spacing.max() > MAX_SPACING_MM:
        raise UserError(
            f"{path}: the voxel size in the header is {_join_mm(spacing)}; expected {MIN_SPACING_MM:g} to "
            f"{MAX_SPACING_MM:g} mm, so that distances in mm are right; correct the header"
        )


def spacing_notices(spacing: Iterable[float]) -> list[str]:
    """Describe a voxel size in mm that is possible but unusual: below 0.01 mm or above 25 mm."""
    smallest, largest = USUAL_SPACING_MM
    notices = []
    if min(spacing) < smallest:
        notices.append(f"voxels below {smallest:g} mm (a header in metres instead of mm?)")
    if max(spacing) > largest:
        notices.append(f"voxels above {largest:g} mm (a header in micrometres instead of mm?)")
    return notices


def _join_mm(spacing: Iterable[float]) -> str:
    """A voxel size as text, such as "0.5 x 0.5 x 3 mm"."""
    return f"{' x '.join(f'{size:g}' for size in spacing)} mm"


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
    """Silence nibabel's messages about corrected headers; this module checks the important fields itself."""
    was_disabled = imageglobals.logger.disabled
    imageglobals.logger.disabled = True  # to set its level would empty the caches of all loggers, for each file
    try:
        yield
    finally:
        imageglobals.logger.disabled = was_disabled


def _channel_first(path: Path, image: MetaTensor) -> MetaTensor:
    """Move a channel axis to the front, and add axes of length 1, so that the shape is (C, H, W, D)."""
    if image.ndim > MAX_AXES:
        raise _too_many_axes(path, tuple(image.shape))
    rank = len(image.meta["spatial_shape"])
    voxels = image.as_tensor().movedim(-1, 0) if image.ndim > rank else image.as_tensor()[None]
    voxels = voxels.reshape(*voxels.shape, *(1 for _ in range(3 - rank)))
    return MetaTensor(voxels.contiguous(), affine=image.affine)


def _too_many_axes(path: Path, shape: tuple[int, ...]) -> UserError:
    return UserError(
        f"{path}: the file has {len(shape)} axes of lengths {shape}; expected three, or four with channels; save one "
        "volume per file"
    )


class _OpenedNifti(NibabelReader):
    """MONAI's reader of NIfTI files, for an image that nibabel has already opened."""

    def __init__(self, image: nib.Nifti1Image) -> None:
        super().__init__()
        self.image = image

    def read(self, data: Sequence[PathLike] | PathLike, **kwargs: object) -> nib.Nifti1Image:
        """Return the image; `data` is the path of its file, which `get_data` needs."""
        self.filenames = ensure_tuple(data)
        return correct_nifti_header_if_necessary(self.image)


def _open_nifti(path: Path) -> nib.Nifti1Image:
    """Return a NIfTI image whose voxels are not read yet; they are in memory if the file is compressed."""
    image = _load_nifti(path)
    if len(image.shape) > MAX_AXES:
        raise _too_many_axes(path, image.shape)
    check_size(path, math.prod(image.shape))
    _check_nifti_header(path, image)
    assert isinstance(image.dataobj, ArrayProxy), "nibabel has not read the voxels yet"
    expected = image.dataobj.offset + math.prod(image.shape) * image.dataobj.dtype.itemsize
    if not path.name.lower().endswith(".gz"):
        if path.stat().st_size < expected:
            raise incomplete(path, path.stat().st_size, expected)
        return image
    content = io.BytesIO()
    check_stream(path, _copied(gunzip(path), content, expected), expected)
    return type(image).from_stream(content)


def _load_nifti(path: Path) -> nib.Nifti1Image:
    """Return a NIfTI image of which only the header has been read."""
    try:
        if path.name.lower().endswith(".gz"):
            check_gzip_parts(path)
        image = nib.load(path)
    except UserError:
        raise
    except _HEADER_ERRORS as error:
        details = f"{path.stat().st_size:,} bytes; {error}"
        raise UserError(
            f"{path}: this is not a NIfTI file, or it is damaged ({details}); copy it again from its source"
        ) from None
    if not isinstance(image, nib.Nifti1Image):  # a CIFTI file has this ending, too
        raise UserError(
            f"{path}: the file contains a {type(image).__name__}; expected a NIfTI volume; save the image as one"
        )
    return image


def _check_nifti_header(path: Path, image: nib.Nifti1Image) -> None:
    """Raise UserError if the voxels are no real numbers, or if their size is impossible or not in millimetres."""
    dtype = image.header.get_data_dtype()
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        kind = "several values, such as a colour" if dtype.names else f"a number of the type {dtype.name}"
        raise UserError(
            f"{path}: each voxel stores {kind}; expected a whole number or a real number of at most 64 bits; convert "
            "the image, for example to its magnitude in float32"
        )
    with nib.openers.ImageOpener(str(path)) as stream:
        header = type(image.header).from_fileobj(stream, check=False)  # nibabel itself silently replaces 0 mm by 1 mm
    spacing = header["pixdim"][1 : 1 + min(len(image.shape), 3)]
    if not (spacing > 0).all() or not np.isfinite(spacing).all():
        raise UserError(
            f"{path}: the voxel size in the header is {_join_mm(spacing)}; expected sizes above 0; correct the header"
        )
    if unit := _OTHER_UNITS.get(int(header["xyzt_units"]) & 7):
        raise UserError(
            f"{path}: the header gives the voxel size in {unit} (xyzt_units); expected millimetres, in which distances "
            "are reported; convert the header"
        )
    check_affine(path, image.affine)


def _copied(chunks: Iterator[bytes], content: io.BytesIO, n_bytes: int) -> Iterator[bytes]:
    """Yield all chunks, and write those with the first `n_bytes` bytes to `content`."""
    for chunk in chunks:
        if content.tell() < n_bytes:
            content.write(chunk)
        yield chunk
