"""Images that would be read with other values than they show."""

import struct
from pathlib import Path

import numpy as np
import pytest
from made_dicom import volume, write_series
from PIL import Image

from medfed.core.errors import UserError
from medfed.images import dicom
from medfed.images.two_dimensional import read_colours, read_image_file, read_label_file

GREY = np.arange(48, dtype=np.uint8).reshape(6, 8)


def min_is_white(path: Path, array: np.ndarray) -> Path:
    """Write a TIFF file and change its tag 262 (PhotometricInterpretation) to 0."""
    Image.fromarray(array).save(path)
    content = bytearray(path.read_bytes())
    (start,) = struct.unpack_from("<I", content, 4)
    for entry in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", content, start)[0], 12):
        if struct.unpack_from("<H", content, entry)[0] == 262:
            struct.pack_into("<H", content, entry + 8, 0)
    path.write_bytes(content)
    return path


def test_white_as_0_is_inverted_or_refused(tmp_path):
    image = read_image_file(min_is_white(tmp_path / "a.tif", GREY), None, [])
    np.testing.assert_array_equal(image[0], 255 - GREY)
    with pytest.raises(UserError, match=r"a.tif: the file stores white as 0 \(MinIsWhite in the TIFF tag"):
        read_image_file(min_is_white(tmp_path / "a.tif", GREY.astype(np.uint16)), 65535, [])
    for array in (GREY, GREY.astype(np.uint16), GREY > 20):
        path = min_is_white(tmp_path / "m.tif", array)
        for read in (read_label_file, read_colours):
            with pytest.raises(UserError, match="the file stores white as 0 .*; expected black as 0"):
                read(path, [])


@pytest.mark.parametrize("n_more", [2, 384, -2])
def test_pixel_data_of_another_length_are_refused(tmp_path, n_more):
    write_series(tmp_path, volume())
    assert dicom.read_series(tmp_path).shape == (1, 16, 12, 5)
    path = sorted(tmp_path.iterdir())[2]
    content = path.read_bytes()
    at = content.index(b"\xe0\x7f\x10\x00OW\0\0") + 8
    (length,) = struct.unpack_from("<I", content, at)
    pixels = (content[at + 4 :] + bytes(400))[: length + n_more]
    path.write_bytes(content[:at] + struct.pack("<I", length + n_more) + pixels)
    with pytest.raises(UserError, match=rf"{path.name}: the pixel data have \d+ bytes; expected 384|damaged"):
        dicom.read_series(tmp_path)
