"""Files that attack: they name other files, need much memory or time, or hold what medfed would read wrongly."""

import gzip
import os
import struct
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from medfed.core.errors import UserError
from medfed.data import main
from medfed.datasets import dicom_names
from medfed.datasets.collections.folder import Folder
from medfed.images import dicom_files, mha_nrrd
from medfed.images.reading import check_file, read_image, read_labels
from medfed.images.two_dimensional import read_colours, read_image_file, read_label_file

SHAPE = (6, 5, 4)
VOXELS = np.arange(120, dtype=np.int16).reshape(SHAPE)
NRRD = """type: short
dimension: 3
sizes: 6 5 4
space: left-posterior-superior
space directions: (1,0,0) (0,1,0) (0,0,3)
space origin: (0,0,0)
endian: little"""


def nrrd(path: Path, *fields: str, data: bytes = b"") -> Path:
    path.write_bytes("\n".join(["NRRD0004", NRRD, *fields, "", ""]).encode() + data)
    return path


def nifti(path: Path, array: np.ndarray = VOXELS, affine: np.ndarray | None = None) -> Path:
    nib.save(nib.Nifti1Image(array, np.eye(4) if affine is None else affine, dtype=array.dtype), path)
    return path


def with_header(path: Path, offset: int, fmt: str, *values: float) -> Path:
    """Write a NIfTI file with other values at a place of its header."""
    content = bytearray(nifti(path.with_suffix(".nii")).read_bytes())
    struct.pack_into(f"<{fmt}", content, offset, *values)
    path.write_bytes(content)
    return path


def refusal(read, *arguments) -> str:
    with pytest.raises(UserError) as error:
        read(*arguments)
    assert "\n" not in str(error.value)
    assert all(str(error.value).count(str(part)) <= 1 for part in arguments), "the file is named once"
    return str(error.value)


def grey(path: Path):
    return read_image(path, 1, [])


@pytest.fixture
def site(tmp_path) -> Path:
    """A site with an image and its mask."""
    for name in ("images", "masks"):
        (tmp_path / "root" / "A" / name).mkdir(parents=True)
    nifti(tmp_path / "root/A/images/a.nii")
    nifti(tmp_path / "root/A/masks/a.nii", (VOXELS > 50).astype(np.uint8))
    return tmp_path / "root" / "A"


class TestDetachedHeaders:
    def test_a_file_in_the_same_folder_is_read(self, tmp_path):
        (tmp_path / "a.raw").write_bytes(VOXELS.tobytes("F"))
        path = nrrd(tmp_path / "a.nrrd", "encoding: raw", "data file: a.raw")
        assert mha_nrrd.data_file(path) == tmp_path / "a.raw"
        np.testing.assert_array_equal(grey(path)[0].numpy(), VOXELS)
        (tmp_path / "a.raw").unlink()
        assert "names 'a.raw' as the file with the voxels; expected one file in the same folder" in refusal(grey, path)


class TestSizes:
    @pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2", "ascii", "hex"])
    def test_an_nrrd_is_refused_by_the_size_in_its_header(self, tmp_path, encoding):
        path = nrrd(tmp_path / "a.nrrd", f"encoding: {encoding}", data=gzip.compress(bytes(100)))
        path.write_bytes(path.read_bytes().replace(b"sizes: 6 5 4", b"sizes: 3000 2000 1000"))
        assert "the volume has 6,000,000,000 voxels; expected 1 to 536,870,912" in refusal(grey, path)

    def test_a_flipped_bit_in_an_nrrd_is_found(self, tmp_path):
        data = bytearray(gzip.compress(VOXELS.tobytes("F")))
        assert grey(nrrd(tmp_path / "a.nrrd", "encoding: gzip", data=bytes(data)))[0, 1, 2, 3] == VOXELS[1, 2, 3]
        data[-6] ^= 1  # in the checksum
        assert "damaged" in refusal(grey, nrrd(tmp_path / "a.nrrd", "encoding: gzip", data=bytes(data)))

    def test_a_file_with_other_bytes_than_its_header_says_is_refused(self, tmp_path):
        """A few zeros behind the voxels are usual; half the bytes left over are voxels of another type."""
        content = nifti(tmp_path / "a.nii").read_bytes()
        (tmp_path / "a.nii.gz").write_bytes(gzip.compress(content + bytes(1000)))
        np.testing.assert_array_equal(grey(tmp_path / "a.nii.gz")[0].numpy(), VOXELS)
        (tmp_path / "a.nii.gz").write_bytes(gzip.compress(content + bytes(1 << 17)))
        assert "has 131,664 bytes; expected 592 bytes" in refusal(grey, tmp_path / "a.nii.gz")
        sentence = refusal(grey, with_header(tmp_path / "b.nii", 70, "h", 2))  # uint8, and still 16 bits per voxel
        assert "voxels of 16 bits (bitpix) and of the type uint8 from byte 352" in sentence
        sentence = refusal(grey, with_header(tmp_path / "c.nii", 108, "f", 0.0))
        assert "from byte 0; expected the length of the type, and a start at byte 352 or later" in sentence


class TestVoxels:
    def test_complex_numbers_and_an_offset_of_infinity_are_refused(self, tmp_path):
        assert "the file is damaged" in refusal(grey, with_header(tmp_path / "b.nii", 108, "f", np.inf))
        for read in (grey, lambda path: read_labels(path, [])):
            sentence = refusal(read, nifti(tmp_path / "a.nii.gz", VOXELS.astype(np.complex64) + 1j))
            assert "the file has voxels of the type complex64; expected real numbers" in sentence
        for code, n_bits in ((2048, 256), (1792, 128)):  # complex256, complex128
            refusal(grey, with_header(tmp_path / "b.nii", 70, "hh", code, n_bits))

    @pytest.mark.parametrize("size", [1e-30, 9e-5, 101, 1e30])
    def test_an_impossible_voxel_size_is_refused(self, tmp_path, size):
        path = nifti(tmp_path / "a.nii", affine=np.diag([1, 1, size, 1]))
        assert f"is 1 x 1 x {size:g} mm; expected 0.0001 to 100 mm" in refusal(grey, path)

    @pytest.mark.parametrize(("size", "words"), [(0.001, "below 0.01 mm"), (50, "above 25 mm"), (0.5, ""), (25, "")])
    def test_an_unusual_voxel_size_is_a_notice(self, tmp_path, size, words):
        notices: list[str] = []
        read_image(nifti(tmp_path / "a.nii", affine=np.diag([size, size, size, 1])), 1, notices)
        assert words in "".join(notices) and bool(notices) == bool(words)

    @pytest.mark.parametrize(("shear", "words"), [(0.6, "31 degrees"), (0.02, "1.15 degrees"), (0.01, "")])
    def test_axes_that_are_not_at_right_angles_are_refused(self, tmp_path, shear, words):
        """tan(31 degrees) is 0.6."""
        affine = np.eye(4)
        affine[0, 1] = shear
        path = nifti(tmp_path / "a.nii", affine=affine)
        if words:
            assert f"{words} away from right angles" in refusal(grey, path)
        else:
            grey(path)

    @pytest.mark.parametrize("value", [0, -1, np.nan, np.inf])  # nibabel would read 0 as 1 mm
    def test_a_voxel_size_that_is_no_size_or_in_another_unit_is_refused(self, tmp_path, value):
        assert "expected 0.0001 to 100 mm" in refusal(grey, with_header(tmp_path / "b.nii", 80, "f", value))
        for code, unit in {1: "metres", 3: "micrometres"}.items():
            assert f"voxel size in {unit} " in refusal(grey, with_header(tmp_path / "b.nii", 123, "b", code | 8))


class TestThingsThatAreNoFiles:
    @pytest.mark.parametrize("kind", ["loop", "folder", "pipe", "device"])
    def test_each_is_a_sentence_and_ends(self, site, kind, capsys):
        path = site / "images" / "b.nii"
        {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}.get(kind, lambda: None)()
        if kind in ("loop", "device"):
            path.symlink_to(path.name if kind == "loop" else "/dev/zero")
        nifti(site / "masks" / "b.nii", (VOXELS > 50).astype(np.uint8))
        assert "a folder, a pipe or a link that leads to no file" in refusal(check_file, path)
        assert main(["check", str(site.parent), "--quiet"]) == 2
        assert "b.nii" in "".join(capsys.readouterr())

    def test_a_pipe_without_an_ending_is_not_opened_and_a_pipe_as_a_list_is_refused(self, site, capsys):
        os.mkfifo(site / "images" / "pipe")
        assert main(["check", str(site.parent), "--quiet"]) in (0, 2)
        os.mkfifo(site.parent / "list.csv")
        assert main(["check", str(site.parent), "--quiet", "--set", "data.table=list.csv"]) == 2
        assert "it is a pipe or a device, not a file" in capsys.readouterr().err

    def test_a_pipe_with_the_name_of_a_file_that_is_read_is_not_waited_for(self, tmp_path):
        for name in ("salt", "a.dcm"):
            os.mkfifo(tmp_path / name)
        with pytest.raises(UserError, match="it is a pipe or a device, not a file"):
            dicom_names.read_salt(tmp_path / "salt")
        assert dicom_files.kind_of(tmp_path / "a.dcm") is None

    def test_links_that_lead_back_are_not_followed(self, site, capsys):
        """Each of the six folders would be found again in each of the others, 40 times inside each other."""
        for folder in (site, site / "images", site / "masks"):
            (folder / "up").symlink_to(site)
            (folder / "root").symlink_to(site.parent)
        (site.parent / "B").symlink_to(".")
        assert main(["check", str(site.parent), "--quiet"]) == 0
        assert "0 problems, " in capsys.readouterr().out
        assert [len(cases) for cases in Folder(str(site.parent)).contents.cases.values()] == [1]


def test_a_json_list_is_no_table(site, capsys):
    (site.parent / "list.json").write_text("[" * 100_000)
    assert main(["check", str(site.parent), "--quiet", "--set", "data.table=list.json"]) == 2
    assert "list.json: not a table of images (a JSON file)" in capsys.readouterr().err


@pytest.mark.parametrize("pattern", [r"(.+)", r"^([a-z]+)_\d+$", "([+*]+)", r"(\(+a\)+)", "((?:[^_]+_){2})", "(a+){2}"])
def test_usual_patterns_are_accepted(pattern):
    Folder("data", patient_pattern=pattern, image=f"{{site}}/{{case:{pattern}}}.png")


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
