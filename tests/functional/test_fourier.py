"""The amplitude exchange against closed forms and against two full FFTs of numpy."""

import dataclasses
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


def test_middle_of_the_window_is_the_mean():
    images = images_of((32, 45))
    window = fourier.low_frequency_window(images, ALPHA)
    torch.testing.assert_close(window[..., 4, 4], images.mean(dim=(2, 3)))


def test_a_cosine_has_half_its_amplitude_at_its_two_frequencies():
    """2 cos(2 pi 3 x / 40) along the columns: amplitude 1 at (0, 3) and at (0, -3), nothing elsewhere."""
    wave = 2 * torch.cos(2 * math.pi * 3 * torch.arange(40, dtype=torch.float64) / 40)
    window = fourier.low_frequency_window(wave.expand(1, 1, 32, 40), 0.1)
    expected = torch.zeros(7, 7, dtype=torch.float64)
    expected[3, 0] = expected[3, 6] = 1
    torch.testing.assert_close(window[0, 0], expected)


@pytest.mark.parametrize("size", SIZES)
def test_ratio_zero_returns_the_image(size):
    images = images_of(size)
    window = fourier.low_frequency_window(images_of(size, seed=1), ALPHA)
    torch.testing.assert_close(fourier.exchange_amplitude(images, window, torch.zeros(2), ALPHA), images)


@pytest.mark.parametrize("size", SIZES)
def test_the_image_s_own_amplitude_returns_the_image_at_any_ratio(size):
    images = images_of(size)
    window = fourier.low_frequency_window(images, ALPHA)
    torch.testing.assert_close(fourier.exchange_amplitude(images, window, torch.tensor([0.4, 1.0]), ALPHA), images)


def test_alpha_zero_and_ratio_one_exchange_only_the_mean():
    """The window of one number is the mean of a non-negative image: x - mean(x) + mean(other)."""
    images, others = images_of((32, 45)), images_of((32, 45), seed=1)
    ours = fourier.exchange_amplitude(images, fourier.low_frequency_window(others, 0.0), torch.ones(2), 0.0)
    means = [batch.mean(dim=(2, 3), keepdim=True) for batch in (images, others)]
    torch.testing.assert_close(ours, images - means[0] + means[1])


def test_a_ratio_moves_the_mean_by_that_fraction():
    images, others = images_of((32, 32)), images_of((32, 32), seed=1) / 3
    ratio = torch.tensor([0.25, 0.75], dtype=torch.float64)
    styled = fourier.exchange_amplitude(images, fourier.low_frequency_window(others, ALPHA), ratio, ALPHA)
    expected = torch.lerp(images.mean(dim=(2, 3)), others.mean(dim=(2, 3)), ratio[:, None])
    torch.testing.assert_close(styled.mean(dim=(2, 3)), expected)


def test_phase_stays_everywhere_and_amplitude_outside_the_window():
    images, others = images_of((32, 33)), images_of((32, 33), seed=1)
    styled = fourier.exchange_amplitude(images, fourier.low_frequency_window(others, ALPHA), torch.ones(2), ALPHA)
    before, after = torch.fft.fft2(images), torch.fft.fft2(styled)
    torch.testing.assert_close(after / after.abs(), before / before.abs())
    changed = ~torch.isclose(after.abs(), before.abs(), rtol=1e-9)
    assert changed[0, 0].sum() == 81  # 9 x 9, and no other
    torch.testing.assert_close(fourier.low_frequency_window(styled, ALPHA), fourier.low_frequency_window(others, ALPHA))


def test_a_black_image_gets_the_amplitude_with_phase_zero():
    """An amplitude of 0 has phase 0, as numpy's angle(0), so all waves have their maximum in the first pixel."""
    black = torch.zeros(1, 1, 32, 32, dtype=torch.float64)
    others = images_of((32, 32), batch=1, channels=1)
    window = fourier.low_frequency_window(others, ALPHA)
    styled = fourier.exchange_amplitude(black, window, torch.ones(1), ALPHA)
    torch.testing.assert_close(styled[0, 0, 0, 0], window.sum())
    torch.testing.assert_close(styled, full_fft(black, others, torch.ones(1), ALPHA))


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


def test_many_views_of_one_spectrum_equal_separate_exchanges():
    images = images_of((32, 45))
    analysis = fourier.low_frequency_spectrum(images, ALPHA)
    ratio = torch.tensor([0.2, 0.9])
    for seed in (1, 2, 3):
        window = fourier.low_frequency_window(images_of((32, 45), seed), ALPHA)
        view = fourier.mix_amplitude(images, analysis, window, ratio)
        torch.testing.assert_close(view, fourier.exchange_amplitude(images, window, ratio, ALPHA), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(32, 45), (16, 17, 18)])
def test_a_batch_equals_image_by_image(size):
    images, window = images_of(size), fourier.low_frequency_window(images_of(size, seed=1), ALPHA)
    ratio = torch.tensor([0.2, 0.9])
    batch = fourier.exchange_amplitude(images, window, ratio, ALPHA)
    for i in range(2):
        single = fourier.exchange_amplitude(images[i : i + 1], window[i : i + 1], ratio[i : i + 1], ALPHA)
        torch.testing.assert_close(batch[i : i + 1], single)


def test_the_same_image_on_more_pixels_has_the_same_window():
    """5 + 2 cos of two waves across the columns, sampled 32 and 64 times: sites may differ in image size."""
    waves = [5 + 2 * torch.cos(2 * math.pi * 2 * torch.arange(n) / n).expand(1, 1, 32, n) for n in (32, 64)]
    small, large = (fourier.low_frequency_window(sampled, 0.1) for sampled in waves)
    torch.testing.assert_close(small, large, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
def test_every_precision_keeps_its_dtype_and_accuracy(kind, tolerance):
    images, others = images_of((64, 64)).to(kind), images_of((64, 64), seed=1).to(kind)
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


@pytest.mark.parametrize(("size", "dims", "count"), [((64, 64), 2, 25), ((48, 49, 50), 3, 63)])
def test_a_window_packs_into_its_unique_numbers_and_back(size, dims, count):
    """7 x 7 numbers are 24 pairs and the middle, 25; 5 x 5 x 5 are 62 pairs and the middle, 63."""
    window = fourier.low_frequency_window(images_of(size), 0.05)
    packed = fourier.pack_window(window, dims)
    assert packed.shape == (2, 3, count)
    torch.testing.assert_close(fourier.unpack_window(packed, dims), window)


def test_an_rgb_image_of_the_paper_shares_300_bytes():
    packed = fourier.pack_window(fourier.low_frequency_window(torch.rand(1, 3, 384, 384), 0.01))
    assert packed.numel() * packed.element_size() == 300


@pytest.mark.parametrize(
    ("alpha", "shape", "half"), [(0.01, (384, 384), 3), (0.0, (8, 8), 0), (0.29, (100, 200), 29), (0.4999, (8, 9), 3)]
)
def test_half_width_is_the_floor_of_alpha_times_the_shortest_side(alpha, shape, half):
    """0.29 * 100 is 28.999999999999996 in floating point, and means 29."""
    assert fourier.window_half_width(shape, alpha) == half


@pytest.mark.parametrize("alpha", [-0.01, 0.5, 1.0, math.nan])
def test_alpha_out_of_range_is_rejected(alpha):
    with pytest.raises(ValueError, match="alpha must be in"):
        fourier.low_frequency_window(images_of((16, 16)), alpha)


@pytest.mark.parametrize("images", [torch.zeros(3, 16, 16), torch.zeros(1, 3, 16, 16, dtype=torch.uint8)])
def test_images_without_a_batch_axis_or_of_integers_are_rejected(images):
    with pytest.raises(ValueError, match="images must be floating point"):
        fourier.low_frequency_spectrum(images, ALPHA)


@pytest.mark.parametrize(
    ("window", "ratio", "message"),
    [
        ((2, 3, 7, 7), (0.5, 0.5), r"window must be \(2, 3, 9, 9\)"),
        ((2, 1, 9, 9), (0.5, 0.5), r"window must be \(2, 3, 9, 9\)"),
        ((2, 3, 9, 9), (0.5,), "one for each image"),
        ((2, 3, 9, 9), (0.5, -0.1), r"in \[0, 1\]"),
        ((2, 3, 9, 9), (0.5, 1.1), r"in \[0, 1\]"),
        ((2, 3, 9, 9), (0.5, math.nan), r"in \[0, 1\]"),
    ],
)
def test_window_and_ratio_that_do_not_fit_are_rejected(window, ratio, message):
    with pytest.raises(ValueError, match=message):
        fourier.exchange_amplitude(images_of((32, 32)), torch.ones(window), torch.tensor(ratio), ALPHA)


def test_a_spectrum_of_other_images_is_rejected():
    analysis = fourier.low_frequency_spectrum(images_of((32, 33)), ALPHA)
    with pytest.raises(ValueError, match="the spectrum belongs to images"):
        fourier.mix_amplitude(images_of((32, 32)), analysis, torch.ones(2, 3, 9, 9), torch.ones(2))


def test_a_number_of_values_that_is_no_half_window_is_rejected():
    with pytest.raises(ValueError, match="24 values do not fit a 2-D window"):
        fourier.unpack_window(torch.ones(1, 24))


def test_a_spectrum_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        fourier.low_frequency_spectrum(images_of((16, 16)), ALPHA).half_width = 1
