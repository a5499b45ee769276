"""Scaling intensities gives the bits of MONAI's transforms, with which exported bundles prepare images."""

import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import ScaleIntensityRanged, ScaleIntensityRangePercentilesd

from medfed.transforms import ScalePercentilesd
from medfed.transforms.scale_intensity import ScaleRanged


def test_the_percentiles_become_0_and_1_and_what_lies_outside_is_clipped():
    image = torch.arange(11.0).reshape(1, 11)
    scaled = ScalePercentilesd("image", 20, 70)({"image": image, "other": 3})
    assert scaled["image"].flatten().tolist() == pytest.approx([0, 0, 0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1])
    assert scaled["other"] == 3 and image.max() == 10, "the given image is not changed"


@pytest.mark.parametrize("shape", [(1, 30, 30, 7), (3, 20, 10, 1), (1, 1000, 1001, 1)])
def test_all_bits_and_the_affine_are_those_of_monai(shape):
    """MONAI computes the percentiles of the last image, which has more than a million voxels, in another way."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).exp() * 1000
    image = MetaTensor(values, affine=torch.diag(torch.tensor([2.0, 3.0, 4.0, 1.0])))
    monai = ScaleIntensityRangePercentilesd("image", 0.5, 99.5, b_min=0.0, b_max=1.0, clip=True)({"image": image})
    ours = ScalePercentilesd("image", 0.5, 99.5)({"image": image})
    assert torch.equal(ours["image"].as_tensor(), monai["image"].as_tensor())
    assert torch.equal(ours["image"].affine, monai["image"].affine)
    assert ours["image"].applied_operations == monai["image"].applied_operations


def test_a_constant_image_becomes_0():
    assert not ScalePercentilesd("image", 0.5, 99.5)({"image": torch.full((1, 4, 4, 2), 7.0)})["image"].any()


@pytest.mark.parametrize(("low", "high"), [(0.0, 255.0), (-150.0, 250.0), (0.1, 0.7)])
def test_all_bits_with_a_fixed_range_are_those_of_monai(low, high):
    image = MetaTensor(torch.randn(2, 30, 20, 3, generator=torch.Generator().manual_seed(1)) * 300)
    before = image.clone()
    monai = ScaleIntensityRanged("image", low, high, b_min=0.0, b_max=1.0, clip=True)({"image": image})["image"]
    ours = ScaleRanged("image", low, high)({"image": image})["image"]
    assert torch.equal(ours.as_tensor().view(torch.int32), monai.as_tensor().view(torch.int32))
    assert torch.equal(ours.affine, monai.affine) and torch.equal(image, before)
