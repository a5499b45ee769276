"""Boundaries and rings against scipy.ndimage, whose default structuring element is the 2-D cross."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from medfed.functional import regions


def square():
    mask = torch.zeros(1, 1, 40, 40)
    mask[..., 15:25, 15:25] = 1
    return mask


def random_blobs():
    """Return irregular shapes, some of which touch the image border."""
    rng = np.random.default_rng(0)
    fields = ndimage.gaussian_filter(rng.normal(size=(3, 2, 37, 41)), (0, 0, 3, 3))
    return torch.from_numpy((fields > 0).astype(np.uint8))


def slice_by_slice(operation, mask):
    return torch.from_numpy(np.stack([[operation(channel) for channel in case] for case in mask.bool().numpy()]))


def test_ten_by_ten_square_has_36_rim_pixels_and_240_ring_pixels():
    """Boundary: 10^2 - 8^2. Ring of L1 width 5: four sides of 10 x 5, four corner steps of 1 + 2 + 3 + 4."""
    assert regions.boundary(square()).sum() == 36
    assert regions.background_ring(square(), width=5).sum() == 4 * 50 + 4 * 10


def test_boundary_equals_scipy_binary_erosion():
    mask = random_blobs()
    expected = slice_by_slice(lambda y: y & ~ndimage.binary_erosion(y), mask)
    assert torch.equal(regions.boundary(mask).bool(), expected)


@pytest.mark.parametrize("width", [1, 5])
def test_ring_equals_scipy_binary_dilation(width):
    mask = random_blobs()
    expected = slice_by_slice(lambda y: ndimage.binary_dilation(y, iterations=width) & ~y, mask)
    assert torch.equal(regions.background_ring(mask, width).bool(), expected)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.uint8, torch.bool])
def test_the_dtype_of_the_mask_stays(kind):
    mask = square().to(kind)
    assert regions.boundary(mask).dtype == regions.background_ring(mask).dtype == kind


def test_wrong_arguments_are_rejected():
    with pytest.raises(ValueError, match="mask must be"):
        regions.boundary(torch.zeros(9, 9))
    with pytest.raises(ValueError, match="width must be"):
        regions.background_ring(square(), width=0)


def test_edge_agreement_ignores_brightness_and_detects_other_edges():
    rng = torch.Generator().manual_seed(0)
    image, other = torch.rand(2, 1, 3, 24, 24, generator=rng)
    mask = torch.zeros(1, 1, 24, 24)
    mask[..., 6:18, 6:18] = 1
    assert regions.edge_agreement(image, 0.3 * image + 0.5, mask) == pytest.approx(1.0)
    assert abs(regions.edge_agreement(image, other, mask)) < 0.4
    assert regions.edge_agreement(image, torch.zeros_like(image), mask) is None
