from types import SimpleNamespace

import torch

from medfed.core.batch import Batch
from medfed.methods.gin import GIN


def changed(method: GIN, image: torch.Tensor) -> torch.Tensor:
    local = SimpleNamespace(rng=torch.Generator().manual_seed(0))
    return method.augment(local, Batch(image, torch.zeros(len(image), dtype=torch.long))).image


def test_images_stay_between_0_and_1_and_a_blank_image_stays_blank():
    image = torch.rand(64, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    image[0] = 0.25
    result = changed(GIN(), image)
    assert result.shape == image.shape and result.min() >= 0 and result.max() <= 1
    torch.testing.assert_close(result[0], image[0], atol=1e-4, rtol=0)
    assert ((result[1:] - image[1:]).abs().mean(dim=(1, 2, 3)) > 0.01).float().mean() > 0.9


def test_the_mean_square_of_the_standardised_image_is_kept_where_nothing_is_clipped():
    """The norm is that of the image minus its mean, divided by its standard deviation."""
    image = 0.5 + 0.01 * torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    result, mean = changed(GIN(), image), image.mean(dim=(2, 3), keepdim=True)
    norms = [(entry - mean).flatten(1).norm(dim=1) for entry in (result, image)]
    torch.testing.assert_close(*norms)


def test_about_a_share_of_the_images_is_changed():
    image = torch.rand(200, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    share = (changed(GIN(probability=0.3), image) != image).flatten(1).any(dim=1).float().mean()
    assert 0.2 < share < 0.4
