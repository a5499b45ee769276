"""Tests of the fundus phantom: file layout, eyes, and differences between cameras."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from medfed.datasets.base import PHANTOM_MARK
from medfed.datasets.collections.fundus import Fundus
from medfed.phantoms.fundus_phantom import FundusPhantom
from medfed.phantoms.synthesis.common import stream
from medfed.phantoms.synthesis.fundus import CUP, OUTSIDE, RIM, simulate_photograph
from medfed.phantoms.synthesis.fundus_camera import take_photograph
from medfed.phantoms.synthesis.fundus_sites import DRISHTI, SITES
from medfed.phantoms.synthesis.retina_anatomy import outlines, reflectance
from medfed.phantoms.synthesis.retina_eye import Eye
from medfed.phantoms.synthesis.retina_vessels import Vessel, vessel_absorption
from medfed.phantoms.synthesis.shapes import regular_grid

SIZE = 48


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("phantom") / "fundus"
    FundusPhantom(root=str(root), images_per_site=3, size=SIZE, phantom_seed=5).ensure_available()
    return root


@pytest.fixture(scope="module")
def photographs() -> dict:
    """Return six simulated photographs of every site."""
    return {name: [simulate_photograph(name, number, SIZE) for number in range(1, 7)] for name in SITES}


@pytest.fixture(scope="module")
def eyes() -> list[Eye]:
    return [Eye.sample(stream(0, "test", k)) for k in range(60)]


def field_of(pixel_mm: float = 0.02, half_mm: float = 1.6):
    axis = np.arange(-half_mm, half_mm + pixel_mm / 2, pixel_mm)
    return regular_grid(np.zeros(1), axis, axis, pixel_mm)


def height(inside: np.ndarray) -> int:
    return int(inside.any(1).sum())


def test_the_file_layout_and_the_numbers_are_the_published_ones(collection):
    actual = sorted(str(path.relative_to(collection)) for path in (collection / "Domain1").rglob("*.png"))
    files = [f"{part}/ROIs/{kind}/ndrishtiGS_" for part in ("test", "train") for kind in ("image", "mask")]
    numbers = {"test": ("002",), "train": ("001", "003")}
    expected = [f"Domain1/{file}{number}.png" for file in files for number in numbers[file.partition("/")[0]]]
    assert [name.replace("gdr", "ndr") for name in actual] == expected
    names = sorted(path.name for path in collection.iterdir())
    assert names == ["Domain1", "Domain2", "Domain3", "Domain4", PHANTOM_MARK]
    assert {name: len(site.numbers) for name, site in SITES.items()} == Fundus.published_counts
    for site in SITES.values():
        parts = [site.published_part(number) for number in site.numbers]
        assert (parts.count("train"), parts.count("test"), parts[0]) == (site.train, site.test, "train")


def test_a_case_does_not_depend_on_the_number_of_cases(collection):
    stored = np.asarray(Image.open(next((collection / "Domain4").rglob("image/V0003.png"))))
    np.testing.assert_array_equal(stored, simulate_photograph("REFUGE-val", 3, SIZE, seed=5).image)


def test_the_cup_lies_within_the_disc_and_the_disc_within_the_image(photographs):
    for case in (case for cases in photographs.values() for case in cases):
        assert set(np.unique(case.mask)) == {CUP, RIM, OUTSIDE}
        edge = np.concatenate([case.mask[0], case.mask[-1], case.mask[:, 0], case.mask[:, -1]])
        assert (edge == OUTSIDE).all()
        rows, columns = np.nonzero(case.mask == CUP)
        for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            assert (case.mask[rows + down, columns + right] != OUTSIDE).all()


def test_the_mask_has_the_cup_to_disc_ratio_of_the_eye_and_cups_of_all_sizes_occur(eyes):
    """The tolerance covers the irregular outlines and an error of two pixels of 0.02 mm in the height."""
    grid = field_of()
    for eye in eyes[:12]:
        disc, cup = outlines(replace(eye, tilt_degrees=0.0), grid.x[0], grid.y[0])
        ratio = height(cup < 0) / height(disc < 0)
        assert ratio == pytest.approx(eye.cup_ratio, abs=0.07)
    ratios = [eye.cup_ratio for eye in eyes]
    assert 0.2 <= min(ratios) < 0.32 and 0.7 < max(ratios) <= 0.85
    assert 10 < sum(eye.crescent_mm > 0 for eye in eyes) < 40 and 5 < sum(bool(eye.spots) for eye in eyes) < 30


def test_an_eye_is_the_same_at_any_resolution():
    coarse, fine = simulate_photograph("DRISHTI-GS", 1, 64), simulate_photograph("DRISHTI-GS", 1, 128)
    assert (coarse.mask == RIM).mean() == pytest.approx((fine.mask == RIM).mean(), rel=0.05)
    blocks = fine.image.reshape(64, 2, 64, 2, 3).mean((1, 3))
    assert np.abs(blocks - coarse.image).mean() < 6


def test_the_disc_is_brighter_than_the_fundus_and_the_cup_brighter_than_the_rim(photographs):
    """The green channel has the highest contrast. A few eyes with a faint cup are allowed."""
    for cases in photographs.values():
        green = [[case.image[case.mask == value, 1].mean() for value in (CUP, RIM, OUTSIDE)] for case in cases]
        cup, rim, outside = np.mean(green, 0)
        assert cup > 1.05 * rim > 1.1 * outside


def test_cameras_can_be_identified_by_their_colours(photographs):
    """Mean fraction of blue and mean brightness: Canon is pale, Nidek is dark, Zeiss is red."""
    colour = {name: np.mean([case.image.mean((0, 1)) for case in cases], 0) for name, cases in photographs.items()}
    blue = {name: values[2] / values.sum() for name, values in colour.items()}
    assert blue["REFUGE-val"] > 1.3 * max(share for name, share in blue.items() if name != "REFUGE-val")
    assert colour["RIM-ONE-r3"].sum() == min(values.sum() for values in colour.values())
    assert all(20 < values.mean() < 200 for values in colour.values())


def test_eyes_do_not_depend_on_the_camera():
    zeiss, canon = (Eye.sample(stream(0, "any")) for _ in range(2))
    assert zeiss.cup_ratio == canon.cup_ratio
    dark, fair = (Eye.sample(stream(0, "any"), shift) for shift in (0.1, -0.1))
    assert dark.melanin > fair.melanin and dark.cup_ratio == fair.cup_ratio


def test_melanin_darkens_the_eye_and_an_old_lens_absorbs_blue(eyes):
    grid = field_of(0.08)

    def seen(**changes) -> np.ndarray:
        eye = replace(eyes[0], **changes)
        return reflectance(eye, grid, *outlines(eye, grid.x[0], grid.y[0])).mean((0, 1))

    assert (seen(melanin=0.9) < seen(melanin=0.1)).all()
    assert seen(lens=1.0)[2] / seen(lens=1.0)[0] < 0.8 * seen(lens=0.0)[2] / seen(lens=0.0)[0]


def test_absorption_is_largest_in_the_middle_of_a_vessel():
    """A vein with a radius of 0.07 mm has depth 1 in the centre, sqrt(1 - 0.25) halfway to the wall, and 0 outside."""
    along = np.arange(-1, 1, 0.005)
    vein = Vessel(False, np.column_stack([along, 0 * along, 0 * along + 0.07]))
    y = np.array([[0.0, 0.035, 0.08]])
    artery, seen, reflex = vessel_absorption((vein,), np.zeros_like(y), y, 0.01)
    np.testing.assert_allclose(seen, [[1, 0.866, 0]], atol=0.01)
    assert not artery.any() and reflex[0, 0] > reflex[0, 1]


def picture_of(light: float | np.ndarray, **changes) -> np.ndarray:
    """Photograph a grey card with a camera without noise and shading, with exposure 1 and gamma 1."""
    colours = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    plain = {"colours": colours, "white_balance": (1, 1, 1), "exposure": 1.0, "gamma": 1.0, "jpeg_quality": 95}
    plain |= dict.fromkeys(("vignetting", "gradient", "glare", "sharpening", "noise"), 0.0) | {"blur_mm": 1e-3}
    grid = field_of(0.1)
    card = np.ones((*grid.x[0].shape, 3), np.float32) * np.float32(light)
    camera = replace(DRISHTI, **(plain | changes))
    return take_photograph(card, camera, grid.x[0], grid.y[0], np.random.default_rng(0)).astype(float)


def test_a_grey_card_has_the_computed_values_and_vignetting_darkens_it_away_from_the_optical_axis():
    """Half the light gives 127.5; with gamma 0.5 a quarter does too; the white balance halves one channel."""
    assert picture_of(0.5).mean() == pytest.approx(127.5, abs=1)
    assert picture_of(0.25, gamma=0.5).mean() == pytest.approx(127.5, abs=1)
    red, green, blue = picture_of(0.5, white_balance=(1, 1, 0.5)).mean((0, 1))
    assert red == pytest.approx(green, abs=2) and blue == pytest.approx(63.75, abs=2)
    # With the axis at the disc the centre is brightest; with the axis at the macula (positive x) the temporal side.
    centred = picture_of(0.5, vignetting=1.0, axis_mm=0.0)[..., 1]
    assert centred[16, 16] > 1.04 * centred[16, 0] and centred[16, 0] == pytest.approx(centred[16, 32], abs=3)
    towards_macula = picture_of(0.5, vignetting=0.5, axis_mm=4.0)[..., 1]
    assert towards_macula[16, 32] > 1.2 * towards_macula[16, 0]


def test_noise_blur_and_glare_have_their_documented_effects():
    assert picture_of(0.5, noise=0.05).std() > 2 * picture_of(0.5, noise=0.01).std()
    edge = np.zeros((33, 33, 1), np.float32)
    edge[:, 16:] = 0.6
    steepest = [np.abs(np.diff(picture_of(edge, blur_mm=blur)[16, :, 1])).max() for blur in (1e-3, 0.2)]
    assert steepest[1] < 0.5 * steepest[0]
    assert picture_of(0.0, glare=0.1).mean() == pytest.approx(25.5, abs=1)
