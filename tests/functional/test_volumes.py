"""What papers define on 2-D images, on patches of volumes (B, C, X, Y, Z)."""

import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage

from medfed.functional.contrastive import masked_mean, pool_levels
from medfed.functional.regions import background_ring, boundary
from medfed.functional.slices import as_slices, from_slices
from medfed.functional.style import adain, channel_mean_std

RNG = torch.Generator().manual_seed(0)
MASK = (F.interpolate(torch.rand(2, 2, 4, 5, 3, generator=RNG), (12, 15, 9), mode="trilinear") > 0.5).float()


def test_slices_of_patches_and_back():
    patches = torch.rand(2, 3, 4, 5, 6)
    slices = as_slices(patches)
    assert torch.equal(slices[7], patches[1, :, :, :, 1]) and torch.equal(from_slices(slices, patches), patches)
    images = torch.rand(2, 3, 4, 5)
    assert as_slices(images) is images and from_slices(images, images) is images


def test_the_boundary_and_the_ring_of_a_volume_are_those_of_scipy():
    for number, structure in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        mask = MASK[number, structure].numpy() > 0
        inner = mask & ~ndimage.binary_erosion(mask)
        assert (boundary(MASK)[number, structure].numpy() == inner).all()
        ring = ndimage.binary_dilation(mask, iterations=3) & ~mask
        assert (background_ring(MASK, 3)[number, structure].numpy() == ring).all()


@pytest.mark.parametrize(("ratio", "n_slices"), [(0.5, 2), (0.3, 1), (0.2, 0), (1.0, 4)])
def test_a_ring_of_thick_slices_covers_fewer_slices(ratio, n_slices):
    mask = torch.zeros(1, 1, 15, 15, 15)
    mask[0, 0, 7, 7, 7] = 1
    ring = background_ring(mask, 4, ratio)[0, 0]
    assert ring[7, 7].nonzero()[:, 0].tolist() == [z for z in range(7 - n_slices, 8 + n_slices) if z != 7]
    assert ring[:, 7, 7].sum() == 8, "four voxels on each side in the plane"


def test_features_of_a_region_are_the_mean_of_the_enlarged_map():
    small = torch.rand(2, 3, 6, 5, 3, generator=RNG, dtype=torch.float64)
    region = MASK[:, 0].double()
    enlarged = F.interpolate(small, region.shape[1:], mode="trilinear")
    expected, present = masked_mean(enlarged, region)
    assert bool(present.all())
    torch.testing.assert_close(pool_levels([small], region), expected, rtol=1e-6, atol=1e-7)


def test_the_style_of_a_volume_is_that_of_all_its_voxels():
    features, mean, std = torch.rand(2, 3, 4, 5, 6), torch.rand(2, 3), 0.1 + torch.rand(2, 3)
    own = channel_mean_std(features)
    torch.testing.assert_close(own[0], features.flatten(2).mean(dim=2))
    flat = adain(features.flatten(3), mean, std, torch.tensor([0.3, 1.0]))
    assert torch.equal(adain(features, mean, std, torch.tensor([0.3, 1.0])).flatten(3), flat)
