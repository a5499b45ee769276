"""Tests of phase retrieval on small images."""

import numpy as np
import pytest
import torch
from monai.metrics.regression import SSIMMetric
from torch.nn import functional

from medfed.auditing.image_scores import align, compare, correlation, detail_correlation, image_detail
from medfed.auditing.phase_retrieval import retrieve_phase


def image_of(side: int = 12) -> torch.Tensor:
    """Return bars on a textured background, (side, side) in [0, 1], float64."""
    image = 0.2 + 0.3 * torch.rand(side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    image[2:5, 1:8] = 0.9
    image[6:, 9] = 0.0
    return image


def as_arrays(*images: torch.Tensor) -> list[np.ndarray]:
    return [image.numpy() for image in images]


def padded_problem(image: torch.Tensor):
    padded = functional.pad(image, (0, image.shape[1], 0, image.shape[0]))
    support = functional.pad(torch.ones_like(image), (0, image.shape[1], 0, image.shape[0])) > 0
    return padded, torch.fft.rfft2(padded).abs(), support


def test_the_full_spectrum_of_a_padded_image_determines_the_image():
    image = image_of()
    padded, amplitude, support = padded_problem(image)
    known = torch.ones_like(amplitude, dtype=torch.bool)
    actual = retrieve_phase(amplitude, known, support, torch.Generator().manual_seed(0), n_steps=2000, n_starts=6)
    again = align(actual.image, padded)[:12, :12]
    assert actual.residual < 1e-3 and actual.image.dtype == torch.float64
    assert detail_correlation(*as_arrays(again, image, image > -1), 1.0) > 0.99


def test_a_few_low_frequencies_do_not_determine_the_image_although_they_fit():
    image = image_of(32)
    amplitude = torch.fft.rfft2(image).abs()
    known = torch.zeros_like(amplitude, dtype=torch.bool)
    known[:3, :3] = known[-2:, :3] = True
    actual = retrieve_phase(amplitude, known, image > -1, torch.Generator().manual_seed(0), n_steps=400, n_starts=3)
    assert actual.residual < 1e-3
    mean = torch.fft.rfft2(actual.image).abs()[0, 0]
    torch.testing.assert_close(mean, amplitude[0, 0], rtol=1e-3, atol=0)
    assert abs(detail_correlation(*as_arrays(align(actual.image, image), image, image > -1), 1.0)) < 0.15


def test_unknown_amplitudes_are_ignored():
    image = image_of()
    amplitude, support = torch.fft.rfft2(image).abs(), image > -1
    known = torch.zeros_like(amplitude, dtype=torch.bool)
    known[0, 0] = True
    wrong = torch.where(known, amplitude, float("nan"))
    actual = retrieve_phase(wrong, known, support, torch.Generator().manual_seed(0), n_steps=250, n_starts=1)
    assert bool(actual.image.isfinite().all())
    assert float(actual.image.mean()) == pytest.approx(float(image.mean()), rel=1e-6)


def test_the_same_seed_gives_the_same_image_which_is_0_outside_the_support_and_within_0_and_1():
    _, amplitude, support = padded_problem(image_of())
    known = torch.ones_like(amplitude, dtype=torch.bool)
    rngs = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    once, again, other = (retrieve_phase(amplitude, known, support, rng, 50, 2) for rng in rngs)
    assert torch.equal(once.image, again.image) and not torch.equal(once.image, other.image)
    assert float(once.image[~support].abs().max()) == 0
    assert 0 <= float(once.image.min()) <= float(once.image.max()) <= 1


@pytest.mark.parametrize("turned", [False, True])
def test_alignment_undoes_a_shift_and_a_rotation_by_180_degrees(turned):
    image = image_of()
    moved = (image.flip(0, 1) if turned else image).roll((3, 5), (0, 1))
    torch.testing.assert_close(align(moved, image), image, rtol=0, atol=0)


def test_detail_is_the_image_minus_its_blur():
    """A constant has no detail; a single pixel keeps 1 minus the central weight, (1 / (1 + 2 sum e^{-k^2/2}))^2."""
    assert float(np.abs(image_detail(np.full((9, 9), 0.4), 1.0)).max()) < 1e-15
    point = np.zeros((9, 9))
    point[4, 4] = 1
    middle = 1 / (1 + 2 * (0.6065306597 + 0.1353352832 + 0.0111089965))
    assert float(image_detail(point, 1.0)[4, 4]) == pytest.approx(1 - middle**2, abs=1e-9)


def test_correlation_has_the_computed_values():
    inside = np.ones((1, 4), dtype=bool)
    a = np.array([[1.0, 2, 3, 4]])
    assert correlation(a, 2 * a + 1, inside) == pytest.approx(1)
    assert correlation(a, -a, inside) == pytest.approx(-1)
    assert correlation(a, np.array([[1.0, 2, 2, 1]]), inside) == pytest.approx(0, abs=1e-12)
    assert correlation(a, np.ones((1, 4)), inside) == 0


def test_a_black_background_does_not_count_as_detail():
    """Two discs with different textures are similar as a whole and different in their details."""
    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    disc = torch.hypot(rows - 20, columns - 20) < 14
    one, other = (disc * (0.7 + 0.1 * torch.rand(40, 40, generator=torch.Generator().manual_seed(s))) for s in (0, 1))
    assert correlation(*as_arrays(one, other, disc | ~disc)) > 0.9
    assert abs(detail_correlation(*as_arrays(one, other, disc), 1.0)) < 0.2


def test_the_similarity_is_that_of_monai():
    image, original = image_of(32), image_of(32).flip(0)
    slope = float(torch.cov(torch.stack([image.flatten(), original.flatten()]))[0, 1] / image.var())
    fitted = slope * (image - image.mean()) + original.mean()
    metric = SSIMMetric(spatial_dims=2, data_range=float(original.max() - original.min()))
    expected = float(metric(fitted[None, None].float(), original[None, None].float()))
    assert compare(image, original)["ssim"] == pytest.approx(expected, abs=1e-4)


def test_new_starts_are_tried_until_one_fits():
    """The success of a single start depends on rounding errors; the success of one of many starts hardly does."""
    _, amplitude, support = padded_problem(image_of())
    known = torch.ones_like(amplitude, dtype=torch.bool)
    for seed in range(6):
        rng = torch.Generator().manual_seed(seed)
        assert retrieve_phase(amplitude, known, support, rng, 300, n_starts=1, n_waves=40).residual < 5e-3
    rng, spent = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    retrieve_phase(amplitude, known, support, rng, n_steps=10, n_starts=1, n_waves=3)
    torch.rand(3, *support.shape, generator=spent, dtype=amplitude.dtype)  # nothing fits in ten steps
    assert torch.equal(rng.get_state(), spent.get_state())
