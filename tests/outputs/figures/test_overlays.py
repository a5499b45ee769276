"""Masks on images: orientation, slices, cropping, contours and filled areas."""

import io

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from monai.data import MetaTensor
from PIL import Image

from medfed.datasets.case import Volume
from medfed.outputs.figures.figure import png_bytes
from medfed.outputs.figures.overlays import (
    FALSE_NEGATIVE,
    FALSE_POSITIVE,
    PREDICTION,
    REFERENCE,
    TRUE_POSITIVE,
    case_panels,
    overlays,
)


def volume(image, mask, spacing=None, diagonal=(-1.0, -1.0, 1.0)):
    affine = torch.diag(torch.tensor([*diagonal, 1.0], dtype=torch.float64))
    return Volume(MetaTensor(image, affine=affine), MetaTensor(mask, affine=affine), spacing)


def scan(diagonal=(-0.5, -1.5, 3.0)):
    """12 x 8 x 6 voxels; a bright voxel at i = 2, j = 5; the reference around it in slices 1 to 5."""
    image, mask = torch.zeros(1, 12, 8, 6), torch.zeros(1, 12, 8, 6, dtype=torch.uint8)
    image[0, 2, 5] = 1
    mask[0, 1:4, 4:7, 1:] = 1
    mask[0, 1:5, 4:7, 2] = 1
    return volume(image, mask, (0.5, 1.5, 3.0), diagonal)


def photograph(mask=None):
    image = torch.rand(3, 60, 90, 1, generator=torch.Generator().manual_seed(0)) * 255
    mask = torch.zeros(1, 60, 90, 1, dtype=torch.uint8) if mask is None else mask
    return volume(image, mask)


def brightest(pixels):
    """(row, column) of the middle of the white pixels, as fractions of the height and width."""
    return np.argwhere(pixels.min(axis=2) > 200).mean(axis=0) / pixels.shape[:2]


def has(pixels, colour, close=40):
    return (np.abs(pixels.astype(float) - 255 * np.array(to_rgb(colour))).max(axis=2) < close).any()


def test_a_scan_shows_three_slices_of_its_reference_with_rows_along_w_in_millimetres():
    """The reference is in slices 1 to 5 of 0 to 5: near its ends and in its middle are 1, 3 and 5."""
    panels = case_panels(scan(), scan().mask)
    assert [note for _, note, _ in panels] == ["slice 2 of 6", "slice 4 of 6", "slice 6 of 6"]
    for pixels, _, _ in panels:
        assert pixels.shape == (360, 180, 3)  # 8 rows of 1.5 mm, 12 columns of 0.5 mm
        assert brightest(pixels) == pytest.approx([5.5 / 8, 2.5 / 12], abs=0.03)


def test_the_front_is_up_and_the_right_side_is_on_the_left():
    """With axes that increase to the right and to the front, both are flipped: row 7 - 5, column 11 - 2."""
    pixels = case_panels(scan((0.5, 1.5, 3.0)), scan().mask)[0][0]
    assert brightest(pixels) == pytest.approx([2.5 / 8, 9.5 / 12], abs=0.03)


def test_photographs_keep_their_rows_stand_side_by_side_and_name_a_missing_mask():
    mask = torch.zeros(1, 60, 90, 1, dtype=torch.uint8)
    mask[0, 20:40, 30:50] = 1
    panels = case_panels(photograph(mask), 0 * mask)
    assert [(note, is_filled) for _, note, is_filled in panels] == [("no prediction", False)]
    figure = overlays({"best\na": panels, "worst\nb": panels}, "a title (real data)")
    written = [text.get_text() for text in figure.axes[0].texts]
    assert written == ["no prediction", "best\na", "no prediction", "worst\nb"]
    assert figure.get_suptitle() == "a title (real data)"
    png = Image.open(io.BytesIO(png_bytes(figure)))
    assert png.width > png.height


def test_a_thick_structure_has_contours_and_a_thin_one_is_filled_by_right_and_wrong():
    thick = torch.zeros(1, 60, 90, 1, dtype=torch.uint8)
    thick[0, 20:40, 30:50] = 1
    pixels, _, is_filled = case_panels(photograph(thick), thick.roll(5, 2))[0]
    assert not is_filled and has(pixels, REFERENCE) and has(pixels, PREDICTION)
    thin = torch.zeros(1, 600, 900, 1, dtype=torch.uint8)
    thin[0, 300:303] = 1
    predicted = thin.clone()
    predicted[0, :, 600:] = 0
    predicted[0, 100:103, :300] = 1
    image = volume(torch.zeros(3, 600, 900, 1), thin)
    pixels, _, is_filled = case_panels(image, predicted)[0]
    assert is_filled and all(has(pixels, colour) for colour in (TRUE_POSITIVE, FALSE_POSITIVE, FALSE_NEGATIVE))


def test_a_vessel_below_a_pixel_of_the_panel_survives():
    vessel = torch.zeros(1, 3000, 2400, 1, dtype=torch.uint8)
    vessel[0, :, 1200:1203] = 1
    pixels, _, is_filled = case_panels(volume(torch.zeros(3, 3000, 2400, 1), vessel), vessel, box=(480, 480))[0]
    assert is_filled and pixels.shape == (480, 384, 3)
    assert (pixels.max(axis=(1, 2)) > 100).all()


def test_an_empty_case_is_not_cropped_and_a_far_false_positive_is_shown():
    empty = torch.zeros(1, 60, 90, 1, dtype=torch.uint8)
    pixels, note, _ = case_panels(photograph(empty), empty)[0]
    assert pixels.shape == (320, 480, 3) and note == "no reference, no prediction"
    mask, far = empty.clone(), empty.clone()
    mask[0, 5:15, 5:15] = far[0, 45:59, 70:89] = 1
    assert case_panels(photograph(mask), far)[0][0].shape == (320, 480, 3)
    (cropped,) = case_panels(photograph(mask), far, 1, by_reference=True)
    assert cropped[0].shape == (480, 480, 3) and cropped[1] == "prediction continues outside"


def test_panels_around_the_reference_have_the_same_pixels_whatever_was_predicted_except_the_masks():
    """The slice is the one with the largest reference area, 2 of 0 to 5."""
    far = torch.zeros_like(scan().mask)
    far[0, 10, 1, 2] = 1
    (first,), *others = (case_panels(scan(), mask, 1, by_reference=True) for mask in (scan().mask, far, 0 * far))
    assert first[1] == "slice 3 of 6"
    for ((pixels, _, _),) in others:
        assert pixels.shape == first[0].shape
        assert 0 < (pixels != first[0]).any(axis=2).mean() < 0.2
