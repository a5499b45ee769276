from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d
from scipy.special import erf

from medfed.transforms.big_aug import IMAGE_KEY, BigAugRanges, RandFunctiond, _add_noise, build_big_aug

SIDE = 48
STILL = BigAugRanges(
    blur=(0.25, 0.25),
    sharpening=(0.0, 0.0),
    noise=(0.0, 0.0),
    brightness=(0.0, 0.0),
    contrast=(1.0, 1.0),
    perturbation=(0.0, 0.0),
    rotation_deg=(0.0, 0.0),
    scaling=(1.0, 1.0),
    deformation=0.0,
)
GEOMETRY = {"rotation_deg": (15.0, 15.0), "scaling": (0.6, 0.6), "deformation": 0.05}


def scene(channels: int = 1) -> dict:
    """Return a bright square off the centre, and its mask."""
    mask = torch.zeros(1, SIDE, SIDE, dtype=torch.uint8)
    mask[:, 12:30, 20:40] = 1
    ground = 0.2 + 0.1 * torch.rand(channels, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return {IMAGE_KEY: ground + 0.6 * mask, "mask": mask, "view": 0.9 - 0.6 * mask.float()}


def run(ranges: BigAugRanges, seed: int = 0, probability: float = 1.0, data: dict | None = None) -> dict:
    steps = build_big_aug(ranges, SIDE, probability, ["view"], ["mask"]).set_random_state(seed)
    return {key: torch.as_tensor(entry).as_subclass(torch.Tensor) for key, entry in steps(data or scene()).items()}


def test_with_probability_zero_the_output_is_bit_identical():
    assert all(torch.equal(entry, scene()[key]) for key, entry in run(BigAugRanges(), probability=0.0).items())


def test_neutral_ranges_change_nothing_but_a_slight_blur_and_no_rim_is_darkened():
    flat = {**scene(), IMAGE_KEY: torch.full((3, SIDE, SIDE), 0.5)}
    blurred = run(replace(STILL, blur=(1.5, 1.5), sharpening=(30.0, 30.0)), data=flat)[IMAGE_KEY]
    assert (blurred - 0.5).abs().max() < 1e-3, "MONAI's Gaussians by themselves take half of the corner away"
    result = run(replace(STILL, deformation=1e-9))
    assert (result[IMAGE_KEY] - scene()[IMAGE_KEY]).abs().max() < 0.15 and torch.equal(result["mask"], scene()["mask"])
    assert (result["view"] - scene()["view"]).abs().max() < 1e-5


@pytest.mark.parametrize("name", [entry.name for entry in fields(BigAugRanges)])
def test_each_of_the_nine_transforms_acts_and_intensity_transforms_do_not_change_mask_and_views(name):
    moved = {
        **GEOMETRY,
        "blur": (1.5, 1.5),
        "sharpening": (20.0, 20.0),
        "noise": (0.1, 0.1),
        "brightness": (0.1, 0.1),
        "contrast": (3.0, 3.0),
        "perturbation": (0.1, 0.1),
    }
    result, still = run(replace(STILL, **{name: moved[name]})), run(STILL)
    assert (result[IMAGE_KEY] - still[IMAGE_KEY]).abs().max() > 0.05
    for key in ("mask", "view"):
        assert torch.equal(result[key], still[key]) == (name not in GEOMETRY), key


@pytest.mark.parametrize("name", GEOMETRY)
def test_mask_and_view_are_moved_with_the_image(name):
    """Where the mask is, the image is bright and the view dark; only along the edge, by a pixel, may they differ."""
    result = run(replace(STILL, **{name: GEOMETRY[name]}), seed=3)
    inside = result["mask"][0].bool()
    assert not torch.equal(inside, scene()["mask"][0].bool()) and inside.sum() > 50
    assert ((result[IMAGE_KEY][0] > 0.55) == inside).float().mean() > 0.97
    assert ((result["view"][0] < 0.6) == inside).float().mean() > 0.97
    assert set(result["mask"].unique().tolist()) == {0, 1}


def test_a_factor_above_one_enlarges():
    area = scene()["mask"].sum()
    assert run(replace(STILL, scaling=(1.4, 1.4)))["mask"].sum() > 1.3 * area
    assert run(replace(STILL, scaling=(0.5, 0.5)))["mask"].sum() < 0.4 * area


def test_noise_has_the_standard_deviation_that_was_drawn():
    """Over 300 draws the deviations cover 0.1 to 1; MONAI's noise would start at 0."""
    noisy = RandFunctiond(IMAGE_KEY, [(0.1, 1.0)], _add_noise, 1.0).set_random_state(0)
    spread = torch.stack([noisy({IMAGE_KEY: torch.zeros(1, 64, 64)})[IMAGE_KEY].std() for _ in range(300)])
    assert 0.09 < spread.min() < 0.13 and 0.95 < spread.max() < 1.03 and abs(spread.mean() - 0.55) < 0.06


def test_images_stay_in_their_range_and_finite():
    for seed in range(15):
        result = run(BigAugRanges(), seed)[IMAGE_KEY]
        assert torch.isfinite(result).all() and 0 <= result.min() and result.max() <= 1


def test_the_same_seed_gives_identical_results_whatever_was_drawn_before():
    steps = build_big_aug(BigAugRanges(), SIDE, 0.5, ["view"], ["mask"])
    first = [steps.set_random_state(7)(scene()) for _ in range(1)][0]
    steps(scene())
    torch.rand(3)
    again = steps.set_random_state(7)(scene())
    assert all(torch.equal(torch.as_tensor(first[key]), torch.as_tensor(again[key])) for key in first)
    assert not torch.equal(run(BigAugRanges(), 1, 0.5)[IMAGE_KEY], run(BigAugRanges(), 2, 0.5)[IMAGE_KEY])


def test_each_transform_is_drawn_independently():
    """Of brightness (0.1), perturbation (1.1 x + 0.1) and scaling all eight combinations occur in 40 draws."""
    ranges = replace(STILL, brightness=(0.1, 0.1), scaling=(0.6, 0.6), perturbation=(0.1, 0.1))
    flat = {**scene(), IMAGE_KEY: torch.full((1, SIDE, SIDE), 0.3)}
    seen = set()
    for seed in range(40):
        result = run(ranges, seed, 0.5, flat)
        seen.add((round(float(result[IMAGE_KEY].median()), 2), bool(torch.equal(result["mask"], flat["mask"]))))
    assert seen == {(level, still) for level in (0.3, 0.4, 0.43, 0.54) for still in (True, False)}


def test_the_stacked_intensity_transforms_equal_their_formulas_in_numpy():
    """Blur, sharpening, brightness, contrast and perturbation with fixed parameters, in this order, each clipped."""
    ranges = replace(
        STILL,
        blur=(1.2, 1.2),
        sharpening=(2.0, 2.0),
        brightness=(0.05, 0.05),
        contrast=(1.7, 1.7),
        perturbation=(0.1, 0.1),
    )

    def smooth(image):  # Gaussian of 1.2 pixels, integrated over each pixel, up to 4 standard deviations
        places = np.arange(-5, 6)
        weights = (erf((places + 0.5) / (1.2 * 2**0.5)) - erf((places - 0.5) / (1.2 * 2**0.5))) / 2
        return correlate1d(correlate1d(image, weights, 1, mode="nearest"), weights, 2, mode="nearest")

    x = smooth(scene()[IMAGE_KEY].double().numpy())
    once = smooth(x)
    x = (once + 2 * (once - smooth(once))).clip(0, 1)
    x = (x + 0.05).clip(0, 1)
    x = ((x - x.min()) / (x.max() - x.min())) ** 1.7 * (x.max() - x.min()) + x.min()
    expected = (x.clip(0, 1) * 1.1 + 0.1).clip(0, 1)
    np.testing.assert_allclose(run(ranges)[IMAGE_KEY].numpy(), expected, atol=2e-3)
