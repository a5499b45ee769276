"""Tests of the prostate phantom: file layout, anatomy, and differences between sites."""

from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from medfed.datasets.collections.prostate import Prostate
from medfed.phantoms.prostate_phantom import ProstatePhantom
from medfed.phantoms.synthesis.common import stream
from medfed.phantoms.synthesis.mri_scanner import Scanner, acquire, average_slices, tissue_signal, to_stored_units
from medfed.phantoms.synthesis.prostate import simulate_examination
from medfed.phantoms.synthesis.prostate_anatomy import add_textures, anatomy, zone_coverage
from medfed.phantoms.synthesis.prostate_patient import Patient
from medfed.phantoms.synthesis.prostate_sites import REFERENCE, SITES
from medfed.phantoms.synthesis.shapes import coverage, ellipse, random_field, regular_grid
from medfed.phantoms.synthesis.tissues import TISSUES, Tissue

MATRIX = 48
SMALL = 32  # of the images of the collection, whose tests do not look at the anatomy
ENDORECTAL = [name for name, site in SITES.items() if site.coil == "endorectal"]


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("phantom") / "prostate"
    ProstatePhantom(root=str(root), cases_per_site=2, matrix=SMALL, phantom_seed=5).ensure_available()
    return root


@pytest.fixture(scope="module")
def examinations() -> dict:
    """Return three simulated examinations of every site."""
    return {name: [simulate_examination(name, number, MATRIX) for number in SITES[name].numbers[:3]] for name in SITES}


def volume_ml(examination) -> float:
    return (examination.mask > 0).sum() * abs(np.linalg.det(examination.affine)) / 1000


def gland_box(examination) -> tuple[slice, slice, int]:
    """Return width and height of the gland in its largest slice, and the index of that slice."""
    gland = examination.mask > 0
    level = int(gland.sum((0, 1)).argmax())
    columns, rows = (np.flatnonzero(gland[..., level].any(axis)) for axis in (1, 0))
    return slice(columns[0], columns[-1] + 1), slice(rows[0], rows[-1] + 1), level


def test_a_random_field_does_not_depend_on_the_number_of_threads():
    grid = regular_grid(3.0 * np.arange(8), np.arange(-192.0, 192), np.arange(-192.0, 192), 1.0)
    fields = []
    for n_threads in (1, 2):
        with threadpool_limits(n_threads):
            fields.append(random_field(grid, np.random.default_rng(0), (12.0, 4.0, 4.0)))
    assert np.array_equal(*fields)


def test_the_file_layout_is_the_published_one_and_the_numbers_are_116_patients(collection):
    actual = {path.name: sorted(file.name for file in path.iterdir()) for path in collection.iterdir() if path.is_dir()}
    numbers = {"RUNMC": "00 01", "BMC": "00 01", "I2CVB": "00 01", "UCL": "01 26", "BIDMC": "00 02", "HK": "38 39"}
    assert actual == {
        site: [f"Case{n}{end}.nii.gz" for n in pair.split() for end in ("", SITES[site].suffix)]
        for site, pair in numbers.items()
    }
    assert {site for site in SITES if SITES[site].suffix != "_segmentation"} == {"BMC"}
    assert SITES["BMC"].suffix == "_Segmentation"
    assert {name: len(site.numbers) for name, site in SITES.items()} == Prostate.published_counts


def test_a_case_does_not_depend_on_the_number_of_cases(collection):
    stored = np.asarray(nib.load(collection / "UCL" / "Case26.nii.gz").dataobj)
    np.testing.assert_array_equal(stored, simulate_examination("UCL", 26, SMALL, seed=5).image)


def test_image_and_mask_have_the_same_geometry_and_the_true_spacing(collection):
    for name, site in SITES.items():
        for number in site.numbers[:2]:
            image = nib.load(collection / name / f"Case{number:02d}.nii.gz")
            mask = nib.load(collection / name / f"Case{number:02d}{site.suffix}.nii.gz")
            assert image.shape == mask.shape and np.array_equal(image.affine, mask.affine)
            x, y, z = image.header.get_zooms()
            assert x == pytest.approx(y) and site.fov_mm[0] <= x * SMALL <= site.fov_mm[1]
            assert site.gap_mm[0] - 1e-5 <= z <= site.gap_mm[1] + 1e-5
            np.testing.assert_allclose(nib.affines.voxel_sizes(image.affine), (x, y, z), rtol=1e-5)
            assert nib.aff2axcodes(image.affine) == ("L", "P", "S")
            assert image.header["qform_code"] == image.header["sform_code"] == 1


def test_examinations_have_labels_of_zones_integers_of_a_scanner_and_a_stack_around_the_gland(examinations):
    for name, cases in examinations.items():
        for case in cases:
            assert set(np.unique(case.mask)) == ({0, 1, 2} if SITES[name].zones else {0, 1})
            assert case.mask.dtype == np.uint8 and case.image.dtype == np.float32 and np.isfinite(case.image).all()
            assert np.array_equal(case.image, np.rint(case.image))
            assert case.image.min() >= 0 and (case.image == 4095).mean() < 0.01
            level = (case.mask > 0).any((0, 1))
            assert 12 <= len(level) <= 22 and not level[0] and not level[-1]
            first, last = np.flatnonzero(level)[[0, -1]]
            assert level[first : last + 1].all(), "the gland has no gaps"


def test_gland_volumes_are_realistic(examinations):
    volumes = [volume_ml(case) for cases in examinations.values() for case in cases]
    assert 15 < min(volumes) and max(volumes) < 105 and 35 < np.median(volumes) < 65
    assert max(volumes) > 2 * min(volumes)
    for cases in examinations.values():
        for case in cases:
            columns, rows, _ = gland_box(case)
            pixels = (columns.stop - columns.start, rows.stop - rows.start)
            across, deep = nib.affines.voxel_sizes(case.affine)[:2] * pixels
            assert 33 < across < 75 and 22 < deep < 58 and across > 0.95 * deep


def test_a_patient_is_the_same_at_any_resolution():
    coarse, fine = simulate_examination("BIDMC", 3, 48), simulate_examination("BIDMC", 3, 96)
    assert volume_ml(coarse) == pytest.approx(volume_ml(fine), rel=0.03)
    np.testing.assert_allclose(coarse.affine[:3, 2], fine.affine[:3, 2])


def test_the_peripheral_zone_is_brighter_than_the_transition_zone(examinations):
    """The basic contrast of T2-weighted images. A few patients with a dark peripheral zone are allowed."""
    cases = [*examinations["RUNMC"], *examinations["BMC"]]
    ratios = [case.image[case.mask == 1].mean() / case.image[case.mask == 2].mean() for case in cases]
    assert np.mean(ratios) > 1.15 and min(ratios) > 0.9


def test_an_endorectal_coil_makes_the_rectal_side_bright_and_the_front_dark(examinations):
    """The ratio of the fat signal behind the rectum to that in front of the gland is large with the coil only."""

    def ratio(case) -> float:
        columns, rows, level = gland_box(case)
        low = case.image[columns, rows.stop :, level]
        high = case.image[columns, : rows.start, level]
        return np.percentile(low, 80) / np.percentile(high, 80)

    ratios = {name: np.mean([ratio(case) for case in cases]) for name, cases in examinations.items()}
    with_coil = min(ratios[name] for name in ENDORECTAL)
    without = max(ratio for name, ratio in ratios.items() if name not in ENDORECTAL)
    assert with_coil > 1.5 and with_coil > 1.25 * without and ratios["BIDMC"] > ratios["HK"]


def test_an_endorectal_balloon_flattens_the_gland():
    def thickness(balloon: bool) -> float:
        men = [Patient.sample(stream(0, "test", k), balloon) for k in range(40)]
        return np.mean([man.gland_mm[1] / man.gland_mm[0] for man in men])

    assert thickness(True) < 0.9 * thickness(False)


def test_vendors_have_other_intensity_scales_and_a_narrow_field_of_view_makes_the_gland_large_in_pixels(examinations):
    typical = [np.median([np.percentile(case.image, 90) for case in cases]) for cases in examinations.values()]
    assert max(typical) > 3 * min(typical)

    def pixels_per_mm(name: str) -> float:
        return np.mean([1 / nib.affines.voxel_sizes(case.affine)[0] for case in examinations[name]])

    assert pixels_per_mm("BIDMC") > 1.25 * pixels_per_mm("RUNMC") > 1.3 * pixels_per_mm("I2CVB")


def test_the_signal_equation_has_the_computed_values_and_the_contrast_follows_echo_time_and_field():
    """TE = T2 ln 2 halves the signal and TR = T1 ln 4 leaves three quarters of it: 0.8 * 0.75 * 0.5 = 0.3."""
    tissue = Tissue(proton_density=0.8, t1_ms=1000, t2_ms=100)
    scanner = replace(REFERENCE, te_ms=100 * np.log(2), tr_ms=1000 * np.log(4))
    signal, slope = tissue_signal(tissue, scanner)
    assert signal == pytest.approx(0.3) and slope == pytest.approx(np.log(2))

    def contrast(scanner: Scanner) -> float:
        return tissue_signal(TISSUES["peripheral"], scanner)[0] / tissue_signal(TISSUES["muscle"], scanner)[0]

    assert contrast(replace(REFERENCE, te_ms=140)) > contrast(REFERENCE)
    assert contrast(replace(REFERENCE, field_tesla=1.5)) < contrast(REFERENCE)


def test_noise_in_air_is_rayleigh_distributed_and_follows_the_snr():
    """The magnitude of two noise channels has mean / sd = sqrt(pi / (4 - pi)) = 1.913; half the SNR doubles it."""
    rng = np.random.default_rng(0)
    air = np.zeros((4, 96, 96), np.float32)
    noise = acquire(air, REFERENCE, rng)
    assert noise.mean() / noise.std() == pytest.approx(1.913, rel=0.02)
    assert acquire(air, replace(REFERENCE, snr=13), rng).mean() == pytest.approx(2 * noise.mean(), rel=0.03)


def test_a_truncated_k_space_blurs_an_edge():
    image = np.zeros((1, 64, 64), np.float32)
    image[:, 32:] = 1

    def steepest(sharpness: float) -> float:
        quiet = replace(REFERENCE, snr=1e6, sharpness=sharpness)
        return np.abs(np.diff(acquire(image, quiet, np.random.default_rng(0))[0, 16:48, 0])).max()

    assert steepest(0.5) < steepest(0.9) < 1.0


def test_the_intensity_curve_does_not_change_fat():
    fat = np.float32(tissue_signal(TISSUES["fat"], REFERENCE)[0])
    for gamma in (0.7, 1.0, 1.3):
        stored = to_stored_units(np.array([fat]), replace(REFERENCE, gamma=gamma))
        assert stored[0] == pytest.approx(fat * REFERENCE.gain, abs=1)


def test_slices_are_weighted_means_of_their_sub_slices():
    image = np.arange(6, dtype=np.float32)[:, None, None]
    np.testing.assert_allclose(average_slices(image).ravel(), [1.0, 4.0], rtol=1e-6)


def test_shapes_have_the_area_of_their_formula():
    axis = np.arange(-20, 20.1, 0.5)
    grid = regular_grid(np.zeros(1), axis, axis, 0.5)
    assert coverage(ellipse(grid, (0, 0), (10, 10)), 0.5).sum() * 0.25 == pytest.approx(np.pi * 100, rel=0.01)
    assert coverage(ellipse(grid, (3, 2), (12, 6), 30), 0.5).sum() * 0.25 == pytest.approx(np.pi * 72, rel=0.03)


def test_random_fields_are_standardised_smooth_and_independent_of_resolution():
    axis = np.arange(-100, 100, 2.0)
    field = random_field(regular_grid(np.zeros(1), axis, axis, 1.0), np.random.default_rng(3), (5, 5, 5))
    finer = np.arange(-100, 100, 1.0)
    same = random_field(regular_grid(np.zeros(1), finer, finer, 1.0), np.random.default_rng(3), (5, 5, 5))
    np.testing.assert_allclose(same[:, ::2, ::2], field, atol=1e-5)
    assert abs(field.mean()) < 0.1 and field.std() == pytest.approx(1, abs=0.1)
    assert np.abs(np.diff(same, axis=2)).max() < 1.0


def test_every_part_has_a_known_tissue_and_a_coverage_from_0_to_1():
    patient = Patient.sample(stream(0, "test", "parts"))
    axis = np.arange(-90, 91, 3.0)
    grid = add_textures(patient, regular_grid(np.arange(-30, 31, 5.0), axis, axis, 3.0))
    seen = set()
    for part in anatomy(patient, grid):
        seen.add(part.tissue)
        assert part.tissue in TISSUES and np.isfinite(part.cover).all()
        assert part.cover.size == 0 or (0 <= part.cover.min() and part.cover.max() <= 1 + 1e-6)
    assert {"peripheral", "transition", "stroma", "urine", "seminal_lumen", "marrow", "muscle", "fat"} <= seen


def test_the_transition_zone_lies_within_the_gland():
    patient = Patient.sample(stream(0, "test", "zones"))
    axis = np.arange(-50, 51, 1.0)
    grid = regular_grid(np.arange(-30, 31, 3.0), axis, axis, 1.0)
    whole, transition = zone_coverage(patient, add_textures(patient, grid))
    assert (transition <= whole + 1e-6).all() and 0.2 < transition.sum() / whole.sum() < 0.6
