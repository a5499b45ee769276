import gzip
import re
import struct
import zlib
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
import torch
from monai.data import MetaTensor
from PIL import Image

from medfed.core.errors import UserError
from medfed.images.pairs import check_pair
from medfed.images.reading import SUFFIXES, read_image, read_labels, spacing_mm, to_structures

SHAPE = (6, 5, 4)
AFFINE = np.array([[-0.5, 0, 0, 10], [0, -0.6, 0, 20], [0, 0, 3.0, -5], [0, 0, 0, 1]])
MOVED = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.5], [0, 0, 0, 1]])
LABELS = {0: (), 1: ("prostate",), 2: ("prostate",)}


def voxels(shape=SHAPE, dtype=np.int16) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1000, shape).astype(dtype)


def nifti(path: Path, array: np.ndarray, affine=AFFINE) -> Path:
    nib.save(nib.Nifti1Image(array, affine), path)
    return path


def write_image(path: Path, array: np.ndarray, mode: str | None = None, **options) -> Path:
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def write_png(path: Path, header: bytes, pixels: bytes) -> Path:
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(pixels)), (b"IEND", b""))
    chunks = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    return path


def colours(height=7, width=9) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)


def refused(read, path: Path, *words: str) -> str:
    """Check that reading raises a UserError that names the file and matches the words; return its message."""
    with pytest.raises(UserError) as error:
        read(path)
    sentence = str(error.value)
    assert sentence.startswith(f"{path}: ") and "\n" not in sentence
    assert all(re.search(word, sentence) for word in words), sentence
    return sentence


def grey(path: Path) -> MetaTensor:
    return read_image(path, 1, [])


def labels(path: Path) -> MetaTensor:
    return to_structures(path, read_labels(path, []), LABELS, ("prostate",))


class TestVolumes:
    @pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "A.NII.GZ"])
    def test_a_nifti_file_keeps_its_values_and_its_affine(self, tmp_path, name):
        image = grey(nifti(tmp_path / name, voxels()))
        assert image.dtype == torch.float32 and image.shape == (1, *SHAPE)
        np.testing.assert_array_equal(image[0].numpy(), voxels())
        np.testing.assert_allclose(image.affine.numpy(), AFFINE, atol=1e-6)
        assert spacing_mm(tmp_path / name, image) == (0.5, 0.6, 3.0)

    @pytest.mark.parametrize("name", ["a.mha", "a.mhd", "a.nrrd"])
    @pytest.mark.parametrize("compressed", [False, True])
    def test_metaimage_and_nrrd_are_the_same_volume(self, tmp_path, name, compressed):
        image = sitk.GetImageFromArray(voxels().T)
        image.SetSpacing((0.5, 0.6, 3.0))
        image.SetOrigin((-10, -20, -5))
        sitk.WriteImage(image, str(tmp_path / name), compressed)
        image_read = grey(tmp_path / name)
        np.testing.assert_array_equal(image_read[0].numpy(), voxels())
        np.testing.assert_allclose(image_read.affine.numpy(), AFFINE, atol=1e-12)

    def test_a_2d_volume_and_a_constant_image_give_notices(self, tmp_path):
        for array, notice in ((voxels((6, 5)), "only one slice"), (np.full(SHAPE, 7, np.int16), "constant image")):
            notices = []
            read_image(nifti(tmp_path / "a.nii", array), 1, notices)
            assert notices == [notice]

    def test_a_fourth_axis_is_channels_only_if_the_dataset_has_that_many(self, tmp_path):
        path = nifti(tmp_path / "a.nii", voxels((*SHAPE, 2)))
        two = read_image(path, 2, [])
        np.testing.assert_array_equal(two.numpy(), np.moveaxis(voxels((*SHAPE, 2)), -1, 0))
        assert grey(nifti(tmp_path / "b.nii", voxels((*SHAPE, 1)))).shape == (1, *SHAPE)
        refused(grey, nifti(tmp_path / "a.nii", voxels((6, 5, 4, 1, 3))), "has 5 axes, .* 6 x 5 x 4 x 1 x 3")

    def test_a_truncated_file_names_both_sizes(self, tmp_path):
        path = nifti(tmp_path / "a.nii", voxels())
        path.write_bytes(path.read_bytes()[:400])
        refused(grey, path, "has 400 bytes; expected 592 bytes")  # 352 of header, 6 * 5 * 4 * 2 of voxels
        path = nifti(tmp_path / "b.nii.gz", voxels())
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:500]))
        refused(grey, path, "has 500 bytes; expected 592 bytes")
        for name, n_bytes, words in (("a.mha", 40, "File cannot be read"), ("a.nrrd", 20, "cut off|incomplete")):
            sitk.WriteImage(sitk.GetImageFromArray(voxels()), str(tmp_path / name), name == "a.nrrd")
            (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-n_bytes])
            refused(grey, tmp_path / name, words)

    def test_a_flipped_bit_of_a_gz_is_always_refused(self, tmp_path):
        """Except in the ten bytes before the stream, which are not content: time stamp, flags and system."""
        path = nifti(tmp_path / "a.nii.gz", voxels())
        content = path.read_bytes()
        assert content[3] == 0, "this gzip header is 10 bytes long"
        rng = np.random.default_rng(0)
        for position, bit in zip(rng.integers(10, len(content), 100), rng.integers(0, 8, 100)):
            broken = bytearray(content)
            broken[position] ^= 1 << bit
            path.write_bytes(broken)
            refused(grey, path)

    @pytest.mark.parametrize("name", ["a.mha", "a.mhd"])
    def test_a_flipped_bit_of_a_compressed_metaimage_is_refused(self, tmp_path, name):
        """SimpleITK only prints a message and returns other voxels."""
        sitk.WriteImage(sitk.GetImageFromArray(voxels()), str(tmp_path / name), True)
        data = tmp_path / ("a.zraw" if name == "a.mhd" else name)
        broken = bytearray(data.read_bytes())
        broken[-40] ^= 4
        data.write_bytes(broken)
        with pytest.raises(UserError, match=f"{data.name}: the file is damaged"):
            grey(tmp_path / name)

    def test_voxels_that_are_infinite_no_numbers_or_too_many_and_axes_along_one_line_are_refused(self, tmp_path):
        array = voxels(dtype=np.float32)
        array[0, :3, 0] = -np.inf
        refused(grey, nifti(tmp_path / "a.nii", array), "3 are infinite")
        array = np.zeros(SHAPE, dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
        refused(grey, nifti(tmp_path / "a.nii", array), "voxels of the type .*u1")
        path = nifti(tmp_path / "a.nii", voxels())
        header = bytearray(path.read_bytes())
        header[42:48] = struct.pack("<3h", 30000, 30000, 30000)
        path.write_bytes(header)
        refused(grey, path, "27,000,000,000,000 voxels")  # before memory is allocated
        flat = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
        image = nib.Nifti1Image(voxels(), None)
        image.header.set_sform(flat, 1)
        nib.save(image, path)
        refused(grey, path, "90 degrees away from right angles")


class TestAnyFile:
    @pytest.mark.parametrize("read", [grey, labels])
    @pytest.mark.parametrize("name", [f"a{ending}" for ending in SUFFIXES])
    def test_missing_empty_and_text_files_have_different_messages(self, tmp_path, read, name):
        path = tmp_path / name
        refused(read, path, "the file does not exist")
        path.write_bytes(b"")
        refused(read, path, "is damaged, incomplete")
        path.write_text("patients are listed elsewhere\n" * 20)
        refused(read, path, "is damaged")

    def test_an_unknown_ending_lists_the_known_ones(self, tmp_path):
        for name in ("a.webp", "a.dcm"):
            (tmp_path / name).write_text("x")
            refused(grey, tmp_path / name, "not supported", ".nii.gz, .nii, .mha, .mhd, .nrrd, .png", "dcm2niix")

    def test_spaces_unicode_and_long_paths_work(self, tmp_path):
        folder = tmp_path / "Hôpital Saint-Louis α" / ("x" * 200)
        folder.mkdir(parents=True)
        assert grey(nifti(folder / "cas n° 1.nii.gz", voxels())).shape == (1, *SHAPE)
        assert grey(write_image(folder / "cas n° 2.png", colours()[..., 0])).shape == (1, 7, 9, 1)
        sitk.WriteImage(sitk.GetImageFromArray(voxels().T), str(folder / "cas n° 3.mhd"))
        assert grey(folder / "cas n° 3.mhd").shape == (1, *SHAPE)


class TestImageFiles:
    @pytest.mark.parametrize("ending", ["png", "bmp", "tif"])
    def test_rows_come_before_columns(self, tmp_path, ending):
        path = write_image(tmp_path / f"a.{ending}", colours())
        image = read_image(path, 3, [])
        assert image.shape == (3, 7, 9, 1) and spacing_mm(path, image) is None
        np.testing.assert_array_equal(image[..., 0].numpy(), colours().transpose(2, 0, 1))

    def test_a_palette_and_cmyk_become_rgb(self, tmp_path):
        image = Image.new("P", (9, 7), 1)
        image.putpalette([0, 0, 0, 10, 200, 30])
        image.save(tmp_path / "a.png")
        notices = []
        assert read_image(tmp_path / "a.png", 3, notices)[:, 0, 0, 0].tolist() == [10, 200, 30]
        assert notices == ["palette converted to RGB"]
        flat = np.broadcast_to(np.uint8([250, 120, 10]), (16, 16, 3))
        notices = []
        image = read_image(write_image(tmp_path / "a.jpg", flat, "CMYK", quality=100), 3, notices)
        np.testing.assert_allclose(image[:, 8, 8, 0].numpy(), [250, 120, 10], atol=4)
        assert notices == ["CMYK converted to RGB"]

    def test_a_grey_image_is_repeated_as_rgb_with_a_notice(self, tmp_path):
        path, notices = write_image(tmp_path / "a.png", colours()[..., 0]), []
        np.testing.assert_array_equal(read_image(path, 3, notices)[..., 0].numpy(), [colours()[..., 0]] * 3)
        assert notices == ["grey repeated as RGB"]

    def test_a_gif_is_read_and_an_animated_one_is_refused(self, tmp_path):
        """The indices of a mask's palette are no labels: Pillow gives 0 to white here, and 2 to black."""
        array = colours(4, 8)
        read = read_image(write_image(tmp_path / "a.gif", array), 3, [])
        np.testing.assert_array_equal(read[..., 0].numpy(), array.transpose(2, 0, 1))
        values = np.uint8([[0, 0, 0, 128], [0, 0, 128, 255]])
        read = read_labels(write_image(tmp_path / "m.gif", values, "RGB"), [])
        np.testing.assert_array_equal(read[0, ..., 0].numpy(), values)
        pages = [Image.fromarray(np.full((4, 4), grey, np.uint8)) for grey in (0, 200)]
        pages[0].save(tmp_path / "b.gif", save_all=True, append_images=pages[1:])
        for read in (grey, labels):
            refused(read, tmp_path / "b.gif", "2 pages; expected one page")
        pages[0].save(tmp_path / "b.tif", save_all=True, append_images=pages[1:])
        refused(grey, tmp_path / "b.tif", "2 pages; expected one page")

    def test_alpha_is_dropped_and_an_image_is_rotated_as_its_exif_data_require(self, tmp_path):
        """Orientation 6: the stored image must be rotated by 90 degrees clockwise to be upright."""
        exif, notices = Image.Exif(), []
        exif[0x0112] = 6
        image = read_image(write_image(tmp_path / "a.png", colours(), exif=exif), 3, notices)
        np.testing.assert_array_equal(image[..., 0].numpy(), np.rot90(colours(), -1).transpose(2, 0, 1))
        assert notices == ["rotated as its EXIF data require"]
        notices, alpha = [], np.full((7, 9, 1), 99, np.uint8)
        image = read_image(write_image(tmp_path / "a.png", np.concatenate([colours(), alpha], -1)), 3, notices)
        np.testing.assert_array_equal(image[..., 0].numpy(), colours().transpose(2, 0, 1))
        assert notices == ["alpha channel dropped"]

    def test_more_than_8_bits_need_intensity_max_and_are_scaled_to_255(self, tmp_path):
        path = write_image(tmp_path / "a.png", np.uint16([[0, 4095], [819, 2]]))
        refused(grey, path, "8 bits", "0 to 4095", "data.intensity_max")
        image = read_image(path, 1, [], intensity_max=4095)
        assert image.flatten().tolist() == pytest.approx([0, 255, 51, 2 * 255 / 4095])
        refused(lambda path: read_image(path, 1, [], intensity_max=1023), path, "expected values from 0 to 1023")
        path = write_image(path, np.uint8([[0, 255]]))  # 8 bits need no white
        assert read_image(path, 1, [], intensity_max=65535).max() == 255

    def test_colours_and_volumes_need_image_channels(self, tmp_path):
        refused(grey, write_image(tmp_path / "b.png", colours()), "is in colour; expected", "data.image_channels: 3")
        refused(grey, nifti(tmp_path / "c.nii", voxels((6, 5, 4, 2))), "2 volumes", "set data.image_channels")
        assert len(grey(write_image(tmp_path / "e.png", colours()[..., :1].repeat(3, -1)))) == 1  # equal channels

    def test_only_16_bits_per_channel_give_a_notice(self, tmp_path):
        """A row of 533 pixels of 8-bit RGB fills 1600 bytes in a BMP, and BMP packs colours into 16 bits."""
        notices = []
        read_image(write_image(tmp_path / "a.bmp", colours(2, 533)), 3, notices)
        entries = struct.pack("<IiiHHIIiiIIIII", 40, 2, 1, 1, 16, 3, 4, 0, 0, 0, 0, 0xF800, 0x07E0, 0x001F)
        (tmp_path / "b.bmp").write_bytes(b"BM" + struct.pack("<IHHI", 70, 0, 0, 66) + entries + b"\x1f\x00\x00\xf8")
        assert read_image(tmp_path / "b.bmp", 3, notices)[..., 0, :, 0].tolist() == [[0, 255], [0, 0], [255, 0]]
        assert notices == []

    @pytest.mark.parametrize(("kind", "channels"), [(2, 3), (6, 4)])
    def test_16_bit_colour_is_read_with_8_and_said(self, tmp_path, kind, channels):
        """Pillow writes no such PNG: kind 2 is RGB, 6 is RGBA, big-endian after a filter byte a row."""
        row = b"\0" + struct.pack(f">{2 * channels}H", *([0x1234, 0xFF00, 0x00FF, 0xFFFF][:channels] * 2))
        header = struct.pack(">IIBBBBB", 2, 1, 16, kind, 0, 0, 0)
        write_png(tmp_path / "a.png", header, row)
        notices = []
        assert read_image(tmp_path / "a.png", 3, notices)[:, 0, 0, 0].tolist() == [0x12, 0xFF, 0]
        assert "16-bit colour reduced to 8 bits" in notices

    def test_truncated_and_altered_pictures_are_found(self, tmp_path):
        for name in ("a.png", "a.jpg"):
            path = write_image(tmp_path / name, colours(64, 64))
            path.write_bytes(path.read_bytes()[:-300])
            refused(lambda path: read_image(path, 3, []), path, "the file is damaged")
        path = write_image(tmp_path / "a.png", colours(64, 64))
        broken = bytearray(path.read_bytes())
        broken[len(broken) // 2] ^= 1
        path.write_bytes(broken)
        refused(lambda path: read_image(path, 3, []), path, "the file is damaged")

    def test_a_decompression_bomb_is_refused_by_its_header(self, tmp_path):
        path = write_png(tmp_path / "a.png", struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0), b"")
        refused(grey, path, "1600000000 pixels")


class TestMasks:
    def test_values_become_structures_which_may_lie_within_each_other_and_are_listed_in_the_metadata(self, tmp_path):
        array = np.zeros(SHAPE, np.uint8)
        array[1], array[2] = 1, 2
        mask = labels(nifti(tmp_path / "a.nii.gz", array))
        assert mask.dtype == torch.uint8 and mask.shape == (1, *SHAPE)
        np.testing.assert_array_equal(mask[0].numpy(), array > 0)
        assert mask.meta["label_values"] == [0, 1, 2]
        path = write_image(tmp_path / "a.png", np.uint8([[255, 128, 0, 128]]))  # background, rim, cup, rim
        mask = to_structures(
            path, read_labels(path, []), {255: (), 128: ("disc",), 0: ("disc", "cup")}, ("disc", "cup")
        )
        assert mask[..., 0].tolist() == [[[0, 1, 1, 1]], [[0, 0, 1, 0]]]

    def test_negative_values_are_listed_and_a_threshold_makes_soft_edges_hard(self, tmp_path):
        refused(labels, nifti(tmp_path / "a.nii", np.full(SHAPE, -1, np.int16)), "labels -1")
        path = nifti(tmp_path / "a.nii", np.float32([[[0.2, 0.5, 0.7]]]))
        assert read_labels(path, [], threshold=0.5).flatten().tolist() == [0, 0, 1]
        refused(labels, path, "fractional labels such as 0.200000003; expected whole numbers", "mask_threshold")

    def test_colours_are_an_error_unless_they_are_grey(self, tmp_path):
        path = write_image(tmp_path / "a.png", np.uint8([[[0, 0, 0], [255, 0, 0]]]))
        refused(labels, path, "2 colours", "one number per pixel")
        assert labels(write_image(tmp_path / "b.png", np.uint8([[[0, 0, 0], [1, 1, 1]]]))).flatten().tolist() == [0, 1]

    def test_palette_indices_are_the_labels(self, tmp_path):
        image = Image.fromarray(np.uint8([[0, 1, 2]]), "L").convert("P")
        image.putdata([0, 1, 2])
        image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        image.save(tmp_path / "a.png")
        assert read_labels(tmp_path / "a.png", []).flatten().tolist() == [0, 1, 2]
        path = write_image(tmp_path / "b.png", np.uint8([[0, 255, 255]]), "1")
        assert labels(path).flatten().tolist() == [0, 1, 1], "one bit"


class TestPairs:
    def pair(self, affine=AFFINE, shape=SHAPE, ignore_geometry=False) -> None:
        image = MetaTensor(torch.zeros(1, *SHAPE), affine=torch.tensor(AFFINE))
        mask = MetaTensor(torch.zeros(1, *shape), affine=torch.tensor(np.asarray(affine)))
        check_pair(Path("a.nii"), image, Path("a_mask.nii"), mask, ignore_geometry)

    def test_the_same_position_up_to_rounding_is_accepted_and_another_spacing_or_position_is_an_error(self):
        self.pair()
        self.pair(AFFINE + 1e-5 * np.eye(4))
        self.pair(AFFINE @ np.diag([1, 1, 1.001, 1]))  # the last slice is 0.009 mm away
        with pytest.raises(UserError, match="0.5 x 0.6 x 3.1 mm along .* 0.3 mm away from .*a.nii, 0.5 x 0.6 x 3 mm"):
            self.pair(AFFINE @ np.diag([1, 1, 3.1 / 3, 1]))
        with pytest.raises(UserError, match="up to 1.5 mm .* data.ignore_mask_geometry"):  # half a voxel of 3 mm
            self.pair(AFFINE @ MOVED)

    def test_a_small_rotation_is_measured_at_the_farthest_corner(self):
        """5 degrees move the far corner (2.5 and 2.4 mm from the near one) by 3.466 * 2 sin(2.5 degrees) = 0.302 mm."""
        cos, sin = np.cos(np.radians(5)), np.sin(np.radians(5))
        rotation = np.array([[cos, -sin, 0, 0], [sin, cos, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
        corner = np.eye(4)
        corner[:3, 3] = AFFINE[:3, 3]
        with pytest.raises(UserError, match="up to 0.302 mm"):
            self.pair(corner @ rotation @ np.linalg.inv(corner) @ AFFINE)

    def test_geometry_can_be_ignored_but_not_the_shape(self):
        self.pair(np.eye(4), ignore_geometry=True)
        with pytest.raises(UserError, match=r"a_mask.nii: .* 6 x 5 x 3 voxels, but its image a.nii has 6 x 5 x 4"):
            self.pair(shape=(6, 5, 3), ignore_geometry=True)
