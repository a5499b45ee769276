"""DICOM series: the same volume as from NIfTI, and refusals by name of what is no single regular stack."""

import locale
import shutil
import struct

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from made_dicom import LPS_TO_RAS, SAME_UIDS, oblique_affine, volume, write_nifti, write_series
from pydicom import Dataset
from pydicom.uid import DeflatedExplicitVRLittleEndian as DEFLATED
from pydicom.uid import JPEG2000Lossless, JPEGLosslessSV1

from medfed.core.errors import UserError
from medfed.datasets.duplicates import file_sha256
from medfed.images import dicom, pairs, reading


def refused(folder, *words, **settings):
    with pytest.raises(UserError) as caught:
        dicom.read_series(folder, **settings)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"


def compress(path, compressor):
    writer = sitk.ImageFileWriter()
    writer.SetFileName(str(path))
    writer.KeepOriginalImageUIDOn()
    writer.UseCompressionOn()
    writer.SetCompressor(compressor)
    before = locale.setlocale(locale.LC_ALL)
    writer.Execute(sitk.ReadImage(str(path)))
    locale.setlocale(locale.LC_ALL, before)  # GDCM leaves "C", so that later tests would write ASCII files


def change(path, edit):
    dataset = pydicom.dcmread(path)
    edit(dataset)
    dataset.save_as(path)


class TestReading:
    @pytest.mark.parametrize("names", ["IM{:04d}.dcm", "IM-0001-{:04d}", "I{}", "1.2.840.{}"])
    def test_an_oblique_series_gives_the_array_and_the_affine_of_its_nifti_file(self, tmp_path, names):
        write_series(tmp_path / "series", volume(), names=names)
        write_nifti(tmp_path / "a.nii.gz", volume())
        image = dicom.read_series(tmp_path / "series")
        nifti = reading.read_image(tmp_path / "a.nii.gz", 1, [])
        assert np.array_equal(image.numpy(), nifti.numpy())
        assert np.allclose(image.affine, nifti.affine, atol=1e-5)
        assert reading.spacing_mm(tmp_path / "series", image) == pytest.approx((0.5, 0.7, 3.0), abs=1e-5)

    def test_rescale_slope_and_intercept_of_each_slice_are_applied(self, tmp_path):
        voxels = volume((4, 3, 2))
        write_series(tmp_path, voxels, slices=[0], SeriesInstanceUID="1.2.3", RescaleSlope=2, RescaleIntercept=-10)
        write_series(tmp_path, voxels, slices=[1], SeriesInstanceUID="1.2.3", RescaleSlope=0.5, RescaleIntercept=1)
        image = dicom.read_series(tmp_path).numpy()[0]
        assert np.array_equal(image[..., 0], voxels[..., 0] * 2.0 - 10)
        assert np.array_equal(image[..., 1], voxels[..., 1] * 0.5 + 1)

    @pytest.mark.parametrize(
        ("compressor", "syntax"), [("JPEG", JPEGLosslessSV1), ("JPEG2000", JPEG2000Lossless), ("", DEFLATED)]
    )
    def test_a_compressed_slice_has_the_voxels_of_the_uncompressed_one(self, tmp_path, compressor, syntax):
        write_series(tmp_path, volume())
        expected, path = dicom.read_series(tmp_path), tmp_path / "IM0097.dcm"
        if compressor:
            compress(path, compressor)
        else:
            change(path, lambda dataset: setattr(dataset.file_meta, "TransferSyntaxUID", syntax))
        assert pydicom.dcmread(path).file_meta.TransferSyntaxUID == syntax
        image = dicom.read_series(tmp_path)
        assert np.array_equal(image.numpy(), expected.numpy()) and np.array_equal(image.affine, expected.affine)

    def test_positions_rounded_to_a_tenth_of_a_slice_are_regular(self, tmp_path):
        affine = np.diag([1.0, 1.0, 0.625, 1.0])
        for index in range(8):
            tags = {"SeriesInstanceUID": "1.2.3", "ImagePositionPatient": [0, 0, round(0.625 * index, 1)]}
            write_series(tmp_path, volume((4, 3, 8)), affine, slices=[index], **tags)
        assert dicom.read_series(tmp_path).affine[2, 2] == pytest.approx(0.625, abs=0.01)

    def test_the_hash_of_a_series_depends_on_its_slices_and_not_on_file_names(self, tmp_path):
        for name in "ab":
            write_series(tmp_path / name, volume(), **SAME_UIDS)
        (slice_,) = (tmp_path / "b").glob("IM0097.dcm")
        slice_.rename(tmp_path / "b" / "Z")
        assert [path.name for path in (tmp_path / "a").iterdir()] != [path.name for path in (tmp_path / "b").iterdir()]
        before = file_sha256(tmp_path / "a")
        (tmp_path / "a" / "IM0097.dcm").write_bytes(b"0" * 200)
        assert file_sha256(tmp_path / "b") == before != file_sha256(tmp_path / "a")


class TestSeries:
    def test_the_series_is_chosen_by_its_description(self, tmp_path):
        write_series(tmp_path / "1", volume(seed=1), SeriesDescription="t2_tse_tra")
        write_series(tmp_path / "2", volume((16, 12, 3), seed=2), SeriesDescription="ADC")
        refused(tmp_path, "2 DICOM series", "'ADC' (slices: 3)", "'t2_tse_tra' (slices: 5)", "data.dicom_series")
        refused(tmp_path, "expected one that fits data.dicom_series 'T1'", "'ADC'", series="T1")
        refused(tmp_path, "data.dicom_series '*'", series="*")
        write_series(tmp_path / "3", volume(), SeriesDescription="ADC")  # no setting tells the two apart
        with pytest.raises(UserError, match="or leave the others out with data.ignored_names$"):
            dicom.read_series(tmp_path)
        shutil.rmtree(tmp_path / "3")
        assert np.array_equal(dicom.read_series(tmp_path, "T2*").numpy()[0], volume(seed=1))
        assert np.array_equal(dicom.read_series(tmp_path, ignored_names=["1"]).numpy()[0], volume((16, 12, 3), seed=2))


class TestRefusals:
    @pytest.mark.parametrize(
        ("first", "second", "words"),
        [
            ({"PatientID": "7"}, {"PatientID": "8"}, ["different values of PatientID"]),
            ({"slices": [0, 1, 3, 4]}, None, ["IM0093.dcm and IM0085.dcm is 6 mm, that of most others 3 mm"]),
            ({"SeriesInstanceUID": "1"}, {"SeriesInstanceUID": "1", "slices": [2]}, ["other89 is 0 mm", "copies"]),
            ({"slices": [0], "NumberOfFrames": 2}, None, ["IM0097.dcm", "multi-frame", "dcm2niix"]),
            ({"PhotometricInterpretation": "MONOCHROME1"}, None, ["MONOCHROME1", "expected MONOCHROME2"]),
            ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.4.1"}, None, ["multi-frame"]),
            ({"ModalityLUTSequence": [Dataset()]}, None, ["ModalityLUTSequence is a table"]),
            ({"RescaleSlope": "nan"}, None, ["RescaleSlope is nan", "expected a finite number"]),
            ({"RescaleSlope": 0}, None, ["RescaleSlope is 0.0", "a finite number other than 0"]),
            ({"RescaleSlope": 2, "RescaleIntercept": "inf"}, None, ["RescaleIntercept is inf"]),
            ({"Rows": 65535, "Columns": 65535}, None, ["have 384 bytes; expected 8,589,672,450"]),
            ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, None, ["is nan mm"]),
            ({"PixelSpacing": [-0.5, 0.7]}, None, ["PixelSpacing is [-0.5, 0.7]; expected 2 numbers above 0"]),
        ],
    )
    @pytest.mark.filterwarnings("ignore:Invalid value for VR DS")
    def test_what_is_no_single_regular_stack_of_greys_is_named(self, tmp_path, first, second, words):
        write_series(tmp_path, volume(), **first)
        if second:
            write_series(tmp_path, volume(), names="other{}", **second)
        refused(tmp_path, *words)

    def test_a_localiser_is_refused_and_can_be_left_out(self, tmp_path):
        write_series(tmp_path, volume(), SeriesInstanceUID="1.2.3")
        tags = {"SeriesInstanceUID": "1.2.3", "ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}
        write_series(tmp_path, volume(), slices=[0], names="scout", **tags)
        refused(tmp_path, "scout: ImageType is ", "no localiser", "data.ignored_names")
        assert dicom.read_series(tmp_path, ignored_names=["scout"]).shape == (1, 16, 12, 5)

    def test_a_slice_of_another_size_orientation_or_spacing_is_named(self, tmp_path):
        for index, (words, shape, tags) in enumerate(
            (
                ("Rows is 8, and 12", (16, 8, 5), {}),
                ("ImageOrientationPatient is [1.0, ", (16, 12, 5), {"ImageOrientationPatient": [1, 0, 0, 0, 0, 1]}),
                ("PixelSpacing is [0.9, 0.9], and [0.7", (16, 12, 5), {"PixelSpacing": [0.9, 0.9]}),
                ("ImagePositionPatient is None", (16, 12, 5), {"ImagePositionPatient": None}),
            )
        ):
            folder = tmp_path / str(index)
            write_series(folder, volume(), SeriesInstanceUID="1.2.3", slices=[0, 1])
            write_series(folder, volume(shape), SeriesInstanceUID="1.2.3", slices=[2], names="other", **tags)
            refused(folder, "other: ", words)

    def test_a_tilted_gantry_is_refused(self, tmp_path):
        affine = np.diag([1.0, 1.0, 3.0, 1.0])
        for index in range(5):
            tags = {"SeriesInstanceUID": "1.2.3", "ImagePositionPatient": [0, index, 3 * index]}
            write_series(tmp_path, volume(), affine, slices=[index], **tags)
        refused(tmp_path, "by 4 mm", "tilted gantry")

    @pytest.mark.parametrize(
        ("compressor", "words"),
        [("JPEG", "(16, 12, 1) voxels, but (65535, 65535)"), ("JPEG2000", "IM0097.dcm: the file is damaged")],
    )
    def test_a_compressed_slice_of_another_size_than_its_header_says_is_refused(self, tmp_path, compressor, words):
        write_series(tmp_path, volume(), slices=[0])
        compress(tmp_path / "IM0097.dcm", compressor)
        change(tmp_path / "IM0097.dcm", lambda dataset: dataset.update({"Rows": 65535, "Columns": 65535}))
        refused(tmp_path, words)

    @pytest.mark.parametrize("n_more", [2, 384, -2])
    def test_pixel_data_of_another_length_are_refused(self, tmp_path, n_more):
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

    def test_a_damaged_file_is_named(self, tmp_path):
        write_series(tmp_path, volume())
        whole = (tmp_path / "IM0097.dcm").read_bytes()
        (tmp_path / "IM0097.dcm").write_bytes(whole[:400])
        refused(tmp_path, "IM0097.dcm: the file is damaged")
        (tmp_path / "IM0097.dcm").write_bytes(whole[:-100])
        refused(tmp_path, "IM0097.dcm: the file is damaged")
        (tmp_path / "IM0097.dcm").write_bytes(np.random.default_rng(0).bytes(5000))
        refused(tmp_path, "IM0097.dcm: the file is damaged")


class TestOrderOfAxes:
    """Masks as other programs write them for the same voxels: with rows or slices in the reverse order."""

    def reversed_mask(self, mask, axis):
        affine = oblique_affine()
        affine[:3, 3] += affine[:3, axis] * (mask.shape[axis] - 1)
        affine[:3, axis] *= -1
        return reading.MetaTensor(
            np.flip(mask, axis)[None].copy(), affine=LPS_TO_RAS @ affine, meta={"label_values": [0, 1]}
        )

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_a_mask_with_a_reversed_axis_is_read_in_the_order_of_its_image(self, tmp_path, axis):
        write_series(tmp_path, volume())
        image, mask, notices = dicom.read_series(tmp_path), (volume() % 2).astype(np.uint8), []
        reordered = pairs.reorder_mask(image, self.reversed_mask(mask, axis), notices)
        assert np.array_equal(reordered.numpy()[0], mask)
        assert np.array_equal(reordered.affine, image.affine)
        assert notices == ["axes of the mask reordered as in its image"]

    def test_a_mask_that_lies_elsewhere_is_not_changed(self, tmp_path):
        write_series(tmp_path, volume())
        mask = self.reversed_mask((volume() % 2).astype(np.uint8), 1)
        mask.affine[:3, 3] += 1.3
        assert pairs.reorder_mask(dicom.read_series(tmp_path), mask, []) is mask
