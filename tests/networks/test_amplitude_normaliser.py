import copy

import pytest
import torch

from medfed.functional.fourier import low_frequency_window
from medfed.networks.densenet import DenseNetwork
from medfed.networks.parts.amplitude_normaliser import AmplitudeNormaliser, alpha_for_half_width, prepend_normaliser
from medfed.networks.unet import UNet


def random_images(n: int = 2, channels: int = 3, side: int = 32, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return 0.3 + 0.4 * torch.rand(n, channels, side, side, dtype=torch.float64, generator=rng)


def normaliser(window: torch.Tensor) -> AmplitudeNormaliser:
    normaliser_layer = AmplitudeNormaliser(window.shape[0], window.shape[-1] // 2).double()
    normaliser_layer.window.copy_(window)
    return normaliser_layer


@pytest.mark.parametrize("half_width", [0, 1, 3, 15])
def test_an_image_s_own_amplitudes_leave_it_unchanged(half_width):
    image = random_images(1)
    own = low_frequency_window(image, alpha_for_half_width(half_width, 32))[0]
    assert own.shape == (3, 2 * half_width + 1, 2 * half_width + 1)
    assert torch.allclose(normaliser(own)(image), image, atol=1e-14)


def test_the_result_has_the_common_amplitudes_and_the_phase_of_the_image():
    image, other = random_images(), random_images(1, seed=1)
    window = low_frequency_window(other, alpha_for_half_width(3, 32))[0]
    result = normaliser(window)(image)
    before, after = torch.fft.fft2(image), torch.fft.fft2(result)
    low = torch.cat([torch.arange(4), torch.arange(-3, 0)])
    rows, columns = torch.meshgrid(low, low, indexing="ij")
    wanted = torch.fft.fft2(other)[..., rows, columns].abs().expand(2, -1, -1, -1)
    assert torch.allclose(after[..., rows, columns].abs(), wanted)
    assert torch.allclose(after / after.abs(), before / before.abs())
    assert torch.allclose(after[..., 4:-3, :], before[..., 4:-3, :]), "other frequencies stay"


def test_images_pass_unchanged_before_the_window_is_set_and_stay_in_range_afterwards():
    image = random_images()
    fresh = AmplitudeNormaliser(3, 2)
    assert torch.equal(fresh(image), image)
    bright = normaliser(torch.full((3, 1, 1), 0.9, dtype=torch.float64))(image)
    assert bright.max() == 1.0 and bright.min() >= 0


def wrapped(settings, channels: int) -> torch.nn.Module:
    torch.manual_seed(0)
    network = settings.build(channels, 2).eval()
    prepend_normaliser(network, 3)
    windows = low_frequency_window(random_images(1, channels).float(), alpha_for_half_width(3, 32))
    network.amplitude.window.copy_(windows[0])
    return network


SMALL = [(DenseNetwork(init_features=8, growth_rate=4, blocks=(2, 2)), 3), (UNet(features=(4, 4, 4, 8, 8, 4)), 1)]


@pytest.mark.parametrize(("settings", "channels"), SMALL, ids=["densenet", "unet"])
def test_the_network_gets_the_normalised_image_and_no_entry_is_renamed(settings, channels):
    network, plain = wrapped(settings, channels), settings.build(channels, 2).eval()
    entries = network.state_dict()
    assert set(entries) - set(plain.state_dict()) == {"amplitude.window"}
    plain.load_state_dict({name: entries[name] for name in plain.state_dict()})
    image = random_images(3, channels, seed=5).float()
    assert torch.equal(network(image), plain(network.amplitude(image)))
    assert not torch.equal(network(image), plain(image))


def test_a_copy_has_its_own_window():
    network = wrapped(*SMALL[0])
    image = random_images().float()
    before, other = network(image), copy.deepcopy(network)
    other.amplitude.window.zero_()
    assert torch.equal(network(image), before) and not torch.equal(other(image), before)


def test_a_window_larger_than_the_image_is_rejected():
    with pytest.raises(ValueError, match="from 0 to 3 for images of 8 pixels, got 4"):
        normaliser(torch.ones(3, 9, 9))(random_images(side=8))
