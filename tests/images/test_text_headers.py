"""MHA, MHD and NRRD files: detached voxels, units, and long fields."""

from pathlib import Path

import numpy as np
import pytest

from medfed.core.errors import UserError
from medfed.images.reading import read_image

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
    (tmp_path / "secret.raw").write_bytes(SECRET.tobytes("F"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "site"


def write(site: Path, name: str, header: str) -> Path:
    path = site / name
    text = header.format(secret=site.parent / "secret.raw")
    path.write_bytes(text.encode("latin-1") + INLINE.tobytes("F"))
    return path


def voxels(path: Path) -> np.ndarray:
    return read_image(path, 1, [])[0].numpy()


@pytest.mark.parametrize(
    ("name", "header", "words"),
    [
        ("a.nrrd", NRRD.replace("raw", "raw" + "A" * 5000) + "\n", "expected at most 500"),
        ("a.mhd", MHA + "ElementDataFile = ../secret.raw\n", "names '../secret.raw' as the file with the voxels"),
        ("a.nrrd", NRRD + "data file: s%d.raw 0 1 1\n\n", "expected one file in the same folder"),
        ("a.nrrd", NRRD + "data file: LIST 2\nsecret.raw\n\n", "expected one file in the same folder"),
        ("a.mhd", MHA + "ElementDataFile = gone.raw\n", "names 'gone.raw' as the file with the voxels"),
        ("a.nrrd", NRRD + 'space units: "mm" "mm" "cubits"\n\n', "in the unit 'cubits' (units); expected"),
        ("a.nrrd", NRRD + 'units: "um" "um" "um"\n\n', "in the unit 'um' (units); expected millimetres"),
        ("a.mha", MHA + "DistanceUnits = cm\n" + LOCAL, "in the unit 'cm' (units); expected millimetres"),
    ],
)
def test_voxels_elsewhere_other_units_and_long_fields_are_refused(site, name, header, words):
    path = write(site, name, header)
    with pytest.raises(UserError) as error:
        voxels(path)
    assert words in str(error.value) and "\n" not in str(error.value) and str(error.value).count(str(path)) == 1


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
