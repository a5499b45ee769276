"""Resizing of slices: checked against Pillow, and by properties."""

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from PIL import Image

from medfed.transforms import ResizeSlicesd


def random_volume(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(2, 45, 38, 3), (1, 7, 90, 2), (3, 200, 150, 1)])
def test_every_slice_and_channel_equals_pillows_bilinear_resize(shape):
    volume = random_volume(*shape)
    resized = ResizeSlicesd("image", 32)({"image": MetaTensor(volume)})["image"]
    assert resized.shape == (shape[0], 32, 32, shape[3])
    for channel in range(shape[0]):
        for depth in range(shape[3]):
            expected = Image.fromarray(volume[channel, :, :, depth].numpy()).resize((32, 32), Image.Resampling.BILINEAR)
            assert np.abs(resized[channel, :, :, depth].numpy() - np.asarray(expected)).max() < 1e-6


def test_a_volume_of_the_final_size_does_not_change():
    volume = random_volume(2, 24, 24, 3)
    assert torch.equal(ResizeSlicesd("image", 24)({"image": MetaTensor(volume)})["image"].as_tensor(), volume)


def test_the_inverse_has_the_original_shape_and_restores_a_linear_ramp():
    """Factors 3 and 4: linear interpolation keeps a ramp, except at the border, where the outside is unknown."""
    ramp = torch.linspace(0, 1, 60)[:, None] + torch.linspace(0, 2, 80)
    volume = MetaTensor(torch.stack([ramp, 3 - ramp], dim=-1)[None])
    resize = ResizeSlicesd("image", 20)
    restored = resize.inverse(resize({"image": volume}))["image"]
    assert restored.shape == volume.shape and not restored.applied_operations
    assert torch.allclose(restored[:, 5:-5, 8:-8].as_tensor(), volume[:, 5:-5, 8:-8].as_tensor(), atol=1e-5)
