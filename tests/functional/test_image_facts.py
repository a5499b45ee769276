import math

import torch

from medfed.functional.image_facts import facts_as_read, facts_of_prepared


def test_size_voxel_size_and_percentiles_of_an_image_as_read():
    image = torch.arange(101, dtype=torch.float32).reshape(1, 101, 1, 1)
    assert facts_as_read(image, (0.5, 0.6, 3.0)).tolist() == [101, 1, 1, 0.5, 0.6, 3.0, 5, 50, 95]
    without = facts_as_read(image, None).tolist()
    assert without[:3] + without[6:] == [101, 1, 1, 5, 50, 95] and all(map(math.isnan, without[3:6]))


def test_brightness_contrast_and_sharpness_of_a_chequerboard_are_known():
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2
    brightness, contrast, sharpness, low = facts_of_prepared(board[None, None].float()).tolist()
    assert (brightness, contrast, sharpness) == (0.5, 0.5, 1.0)
    assert math.isclose(low, math.log1p(32) / 9)  # of the window, only the mean of the image has an amplitude: 64 * 0.5


def test_no_fact_changes_if_the_axes_are_exchanged():
    image = torch.rand(3, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(facts_of_prepared(image), facts_of_prepared(image.mT))
