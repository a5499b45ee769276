from types import SimpleNamespace

import torch

from medfed.core.batch import Batch
from medfed.methods.gin import GIN, draw_shallow_networks, random_intensity_transform


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


def images(n=3, channels=2, side=8) -> torch.Tensor:
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_weight_zero_returns_the_image_and_an_image_of_zeros_stays_zero_without_a_shift():
    image, networks = images(), draw_shallow_networks(3, 2, 4, 2, (3,), torch.Generator().manual_seed(1))
    torch.testing.assert_close(random_intensity_transform(image, networks, torch.zeros(3)), image)
    assert not random_intensity_transform(torch.zeros_like(image), networks, torch.ones(3)).any()


def test_a_network_of_two_layers_by_hand():
    """Pixels 1 and -1: the first layer gives 2x + 1 = 3 and -1, the leaky ReLU 3 and -0.01, the second layer -x.

    With weight 1 the result (-3, 0.01) is scaled to the norm sqrt(2) of the image.
    """
    image = torch.tensor([[[[1.0, -1.0]]]], dtype=torch.float64)
    kernels = (torch.full((1, 1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1, 1), -1.0))
    networks = list(zip(kernels, (torch.ones(1, 1), torch.zeros(1, 1)), strict=True))
    expected = torch.tensor([-3.0, 0.01], dtype=torch.float64)
    expected *= 2**0.5 / expected.norm()
    actual = random_intensity_transform(image, networks, torch.ones(1))
    torch.testing.assert_close(actual.flatten(), expected)


def test_each_image_has_a_network_of_its_own_and_a_batch_equals_one_image_at_a_time():
    image, alpha = images(), torch.tensor([0.2, 0.5, 0.9])
    networks = draw_shallow_networks(3, 2, 3, 4, (1, 3, 5), torch.Generator().manual_seed(2))
    together = random_intensity_transform(image, networks, alpha)
    for i in range(3):
        own = [(kernel[i : i + 1], shift[i : i + 1]) for kernel, shift in networks]
        torch.testing.assert_close(
            random_intensity_transform(image[i : i + 1], own, alpha[i : i + 1]), together[i : i + 1]
        )
    same = random_intensity_transform(image[:1].expand(3, -1, -1, -1), networks, torch.ones(3))
    assert not torch.allclose(same[0], same[1])
