"""The amplitude exchange against closed forms and against two full FFTs of numpy."""

import math

import pytest
import torch
from brute_force import full_fft

from medfed.functional import fourier

SIZES = [(32, 32), (33, 33), (32, 45), (45, 32), (16, 17, 18)]
ALPHA = 0.13  # half widths of 4, 4, 4, 4 and 2


def images_of(size, seed=0, batch=2, channels=3):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(batch, channels, *size, generator=rng, dtype=torch.float64) * 255


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_two_full_ffts(size):
    images, others = images_of(size), images_of(size, seed=1)
    ratio = torch.tensor([0.3, 1.0], dtype=torch.float64)
    ours = fourier.exchange_amplitude(images, fourier.low_frequency_window(others, ALPHA), ratio, ALPHA)
    torch.testing.assert_close(ours, full_fft(images, others, ratio, ALPHA), rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", SIZES)
def test_window_is_the_middle_of_the_shifted_spectrum(size):
    images = images_of(size)
    dims = tuple(range(2, images.ndim))
    whole = torch.fft.fftshift(torch.fft.fftn(images, dim=dims).abs(), dim=dims) / math.prod(size)
    half = fourier.window_half_width(size, ALPHA)
    middle = whole[(..., *(slice(n // 2 - half, n // 2 + half + 1) for n in size))]
    torch.testing.assert_close(fourier.low_frequency_window(images, ALPHA), middle, rtol=0, atol=1e-12)


def test_a_cosine_has_half_its_amplitude_at_its_two_frequencies():
    """2 cos(2 pi 3 x / 40) along the columns: amplitude 1 at (0, 3) and at (0, -3), nothing elsewhere."""
    wave = 2 * torch.cos(2 * math.pi * 3 * torch.arange(40, dtype=torch.float64) / 40)
    window = fourier.low_frequency_window(wave.expand(1, 1, 32, 40), 0.1)
    expected = torch.zeros(7, 7, dtype=torch.float64)
    expected[3, 0] = expected[3, 6] = 1
    torch.testing.assert_close(window[0, 0], expected)


@pytest.mark.parametrize("size", SIZES)
def test_ratio_zero_and_the_image_s_own_amplitude_return_the_image(size):
    images = images_of(size)
    for seed, ratio in ((1, (0.0, 0.0)), (0, (0.4, 1.0))):
        window = fourier.low_frequency_window(images_of(size, seed), ALPHA)
        torch.testing.assert_close(fourier.exchange_amplitude(images, window, torch.tensor(ratio), ALPHA), images)


def test_alpha_zero_and_ratio_one_exchange_only_the_mean():
    """The window of one number is the mean of a non-negative image: x - mean(x) + mean(other)."""
    images, others = images_of((32, 45)), images_of((32, 45), seed=1)
    ours = fourier.exchange_amplitude(images, fourier.low_frequency_window(others, 0.0), torch.ones(2), 0.0)
    means = [batch.mean(dim=(2, 3), keepdim=True) for batch in (images, others)]
    torch.testing.assert_close(ours, images - means[0] + means[1])


@pytest.mark.parametrize("shape", ["constant", "bar", "half"])
@pytest.mark.parametrize("side", [32, 45, 96])
def test_where_the_amplitude_is_zero_the_phase_is_zero_in_every_precision(shape, side):
    """A constant image has one amplitude, its mean; a bar and a half have no waves along the rows.

    Against the closed form: at each frequency whose own amplitude is 0, the other amplitude is a wave of phase 0.
    """
    image = torch.zeros(1, 1, side, side, dtype=torch.float64)
    image[..., {"constant": slice(None), "bar": slice(3, 10), "half": slice(side // 2)}[shape]] = 0.5004
    alpha, half, place = 3.5 / side, 3, torch.arange(side, dtype=torch.float64)
    window = fourier.low_frequency_window(images_of((side, side), 1, 1, 1), alpha) / 255
    expected = image.clone()
    for u in range(-half, half + 1):
        for v in range(-half, half + 1):
            waves = torch.outer(*(torch.exp(2j * math.pi * f * place / side) for f in (u, v)))
            own = (image[0, 0] * waves.conj()).mean()
            phase = own / own.abs() if own.abs() > 1e-12 else 1
            expected[0, 0] += ((window[0, 0, half + u, half + v] - own.abs()) * phase * waves).real
    for kind, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        actual = fourier.exchange_amplitude(image.to(kind), window.to(kind), torch.ones(1), alpha)
        assert (actual - expected).abs().max() < tolerance


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
def test_every_precision_keeps_its_dtype_and_accuracy(kind, tolerance):
    images, others = images_of((384, 384)).to(kind), images_of((384, 384), seed=1).to(kind)
    ratio = torch.tensor([0.3, 1.0])
    styled = fourier.exchange_amplitude(images, fourier.low_frequency_window(others, ALPHA), ratio, ALPHA)
    expected = full_fft(images.double(), others.double(), ratio.double(), ALPHA)
    assert styled.dtype == kind
    assert (styled.double() - expected).abs().max() < tolerance * 255


def test_autocast_does_not_reduce_the_precision():
    images, window = images_of((32, 32)).float(), fourier.low_frequency_window(images_of((32, 32), 1), ALPHA).float()
    plain = fourier.exchange_amplitude(images, window, torch.ones(2), ALPHA)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fourier.exchange_amplitude(images, window, torch.ones(2), ALPHA), plain)


def test_gradient_reaches_the_image():
    images = images_of((8, 9), batch=1, channels=1).requires_grad_()
    window = fourier.low_frequency_window(images_of((8, 9), 1, 1, 1), ALPHA)
    assert torch.autograd.gradcheck(
        lambda x: fourier.exchange_amplitude(x, window, torch.full((1,), 0.5), ALPHA), images, fast_mode=True
    )


def test_a_window_packs_into_its_unique_numbers_and_back():
    """7 x 7 numbers are 24 pairs and the middle, 25."""
    window = fourier.low_frequency_window(images_of((64, 64)), 0.05)
    packed = fourier.pack_window(window)
    assert packed.shape == (2, 3, 25)
    torch.testing.assert_close(fourier.unpack_window(packed), window)


@pytest.mark.parametrize(
    ("alpha", "shape", "half"), [(0.01, (384, 384), 3), (0.0, (8, 8), 0), (0.29, (100, 200), 29), (0.4999, (8, 9), 3)]
)
def test_half_width_is_the_floor_of_alpha_times_the_shortest_side(alpha, shape, half):
    """0.29 * 100 is 28.999999999999996 in floating point, and means 29."""
    assert fourier.window_half_width(shape, alpha) == half


def exchanged(window=(2, 3, 9, 9), ratio=(0.5, 0.5)):
    return fourier.exchange_amplitude(images_of((32, 32)), torch.ones(window), torch.tensor(ratio), ALPHA)


def of_other_images():
    analysis = fourier.low_frequency_spectrum(images_of((32, 33)), ALPHA)
    return fourier.mix_amplitude(images_of((32, 32)), analysis, torch.ones(2, 3, 9, 9), torch.ones(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda alpha=a: fourier.low_frequency_window(images_of((16, 16)), alpha), "alpha must be in")
            for a in (-0.01, 0.5, 1.0, math.nan)
        ),
        (lambda: fourier.low_frequency_spectrum(torch.zeros(3, 16, 16), ALPHA), "images must be floating point"),
        (lambda: fourier.low_frequency_spectrum(images_of((16, 16)).byte(), ALPHA), "images must be floating point"),
        (lambda: exchanged(window=(2, 3, 7, 7)), r"window must be \(2, 3, 9, 9\)"),
        (lambda: exchanged(window=(2, 1, 9, 9)), r"window must be \(2, 3, 9, 9\)"),
        (lambda: exchanged(ratio=(0.5,)), "one for each image"),
        *((lambda ratio=r: exchanged(ratio=(0.5, ratio)), r"in \[0, 1\]") for r in (-0.1, 1.1, math.nan)),
        (of_other_images, "the spectrum belongs to images"),
        (lambda: fourier.unpack_window(torch.ones(1, 24)), "24 values do not fit a window"),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()
