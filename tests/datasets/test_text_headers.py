"""MHA, MHD and NRRD files whose headers say different things to different programs."""

import os
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from medfed.core.errors import UserError
from medfed.images.reading import check_stored_sizes, read_image

SECRET = np.full((6, 5, 4), 777, np.int16)
INLINE = np.arange(120, dtype=np.int16).reshape(6, 5, 4)
MHA = "ObjectType = Image\nNDims = 3\nDimSize = 6 5 4\nElementType = MET_SHORT\n"
LOCAL = "ElementDataFile = LOCAL\n"
NRRD = (
    "NRRD0004\ntype: short\ndimension: 3\nsizes: 6 5 4\nspace: left-posterior-superior\n"
    "space directions: (1,0,0) (0,1,0) (0,0,3)\nspace origin: (0,0,0)\nendian: little\nencoding: raw\n"
)


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """The folder of a site; a file outside it, in the working directory, holds other voxels."""
    (tmp_path / "site").mkdir()
    for name in ("secret.raw", "~secret.raw"):
        (tmp_path / name).write_bytes(SECRET.tobytes("F"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "site"


def write(site: Path, name: str, header: str, after: bytes = b"") -> Path:
    path = site / name
    text = header.format(secret=site.parent / "secret.raw")
    path.write_bytes(text.encode("latin-1") + after + INLINE.tobytes("F"))
    return path


def voxels(path: Path) -> np.ndarray:
    return read_image(path, 1, [])[0].numpy()


@pytest.mark.parametrize(
    ("name", "header", "words"),
    [
        ("a.nrrd", NRRD + "# harmless\rdata file: {secret}\n\n", r"such as '\r'"),
        ("a.nrrd", NRRD + "content: x\x00\n\n", r"such as '\x00'"),
        ("a.nrrd", NRRD + "data file: x.raw\ndata file: {secret}\n\n", "'datafile' twice"),
        ("a.nrrd", NRRD + "data file: -\n\n", "data file in the header is '-'"),
        ("a.nrrd", NRRD + "Data\tFile:\t{secret}\n\n", "data file in the header is"),
        ("a.nrrd", NRRD + " \ndata file: {secret}\n\n", "the line ' '; expected `key: value`"),
        ("a.nrrd", NRRD.replace("raw", "raw" + "A" * 5000) + "\n", "at most 500 characters in a field"),
        ("a.mha", MHA + "elementdatafile = LOCAL\nElementDataFile = {secret}\n", "ElementDataFile in the header is"),
        ("a.mha", MHA + "ElementDataFile\xa0 = LOCAL\nElementDataFile = {secret}\n", "ElementDataFile in the header"),
        ("a.mha", MHA + "ElementDataFile: {secret}\n" + LOCAL, "expected `Key = value`"),
        ("a.mha", MHA + "2 " + LOCAL, "expected `Key = value`"),
        ("a.mha", MHA + "DimSize = 6 5 4\n" + LOCAL, "'DimSize' twice"),
        ("a.mha", MHA + "ElementDataFile = ~secret.raw\n", "ElementDataFile in the header is '~secret.raw'"),
        ("a.mhd", MHA + "ElementDataFile = ../secret.raw\n", "ElementDataFile in the header is '../secret.raw'"),
        ("a.nrrd", NRRD + "data file: s%d.raw 0 1 1\n\n", "data file in the header is"),
        ("a.nrrd", NRRD + "data file: LIST 2\nsecret.raw\n\n", "data file in the header is"),
        ("a.nrrd", NRRD + "data file:\n\n", "data file in the header is"),
        ("a.mhd", MHA + "ElementDataFile = LoCaL\n", "names LoCaL as the file with the voxels, which does not exist"),
        ("a.nrrd", NRRD + 'space units: "mm" "mm" "cubits"\n\n', "in the unit 'cubits' (space units); expected"),
        ("a.nrrd", NRRD + 'units: "um" "um" "um"\n\n', "in the unit 'um' (units); expected millimetres"),
        ("a.mha", MHA + "DistanceUnits = cm\n" + LOCAL, "in the unit 'cm' (DistanceUnits); expected millimetres"),
    ],
)
def test_a_header_that_two_programs_may_read_differently_is_refused(site, name, header, words):
    path = write(site, name, header)
    with pytest.raises(UserError) as error:
        voxels(path)
    assert words in str(error.value) and "\n" not in str(error.value) and str(error.value).count(str(path)) == 1
    with pytest.raises(UserError):
        voxels(write(site, name, header, b"ElementDataFile = ../secret.raw\n"))
    check_stored_sizes(path, path)  # leaves the file to the functions that read it


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a.mha", MHA + LOCAL),
        ("a.mha", (MHA + LOCAL).replace("\n", "\r\n")),
        ("a.mha", MHA + "\nComment =\nMy-Key.1 = 2: 3 = 4\n" + LOCAL),
        ("a.mha", MHA + "Comment = \xe9\n  ElementDataFile =   Local  \n"),
        ("A.MHA", MHA + LOCAL),
        ("a.nrrd", NRRD + "\n"),
        ("a.nrrd", (NRRD + "\n").replace("\n", "\r\n")),
        ("a.nrrd", NRRD + "# a comment: x\nkey:=data file: x\ncontent: \xe9\tb\n\n"),
        ("a.nrrd", NRRD + 'space units: "mm" "millimeter" ""\n\n'),
        ("a.nrrd", NRRD.replace("space", "#") + 'units: "mm" "mm" "s"\n\n'),
        ("a.mha", MHA + "DistanceUnits = mm\n" + LOCAL),
        ("a.mha", MHA + "DistanceUnits = ?\n" + LOCAL),
    ],
)
def test_the_usual_spellings_and_millimetres_are_read(site, name, header):
    np.testing.assert_array_equal(voxels(write(site, name, header)), INLINE)


def test_a_name_that_is_not_utf8_is_that_file(site):
    """Replaced characters would be the name of another file, which may lie in the folder."""
    (site / "\N{REPLACEMENT CHARACTER}.raw").write_bytes(INLINE.tobytes("F"))
    path = write(site, "a.mhd", MHA + "ElementDataFile = \xff.raw\n")
    Path(os.fsdecode(os.fsencode(site) + b"/\xff.raw")).symlink_to(site.parent / "secret.raw")
    with pytest.raises(UserError, match="ElementDataFile in the header is"):
        voxels(path)


def test_files_that_simpleitk_writes_are_read(site):
    image = sitk.GetImageFromArray(INLINE.transpose(2, 1, 0))
    image.SetMetaData("Some key", "a value with = and :")
    for name in ("a.mha", "a.mhd", "a.nrrd"):
        for compressed in (False, True):
            sitk.WriteImage(image, str(site / name), useCompression=compressed)
            np.testing.assert_array_equal(voxels(site / name), INLINE)
