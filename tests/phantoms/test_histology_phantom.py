"""Tests of the histology phantom: file layout, appearance of the classes, and differences between sites."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import label as connected

from medfed.datasets.collections.camelyon17 import Camelyon17
from medfed.phantoms.camelyon17_phantom import Camelyon17Phantom
from medfed.phantoms.synthesis import histology, histology_background
from medfed.phantoms.synthesis.common import stream
from medfed.phantoms.synthesis.histology import patch_table, simulate_patch
from medfed.phantoms.synthesis.histology_cells import NucleusType, draw_nuclei, jittered_lattice
from medfed.phantoms.synthesis.histology_fields import smooth_field
from medfed.phantoms.synthesis.histology_microscope import scan_slide, stain_vectors, transmittance
from medfed.phantoms.synthesis.histology_patient import HistologyPatient
from medfed.phantoms.synthesis.histology_section import make_section
from medfed.phantoms.synthesis.histology_sites import SITES, HistologySite

REFERENCE = HistologySite()


def make_phantom(root: Path, patches_per_site: int) -> Path:
    numbers = {"patches_per_site": patches_per_site, "patients_per_site": 2, "phantom_seed": 3}
    Camelyon17Phantom(root=str(root), **numbers).ensure_available()
    return root


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Path:
    return make_phantom(tmp_path_factory.mktemp("phantom") / "c17", patches_per_site=4)


@pytest.fixture(scope="module")
def patches() -> list:
    """Return (image, tumour mask, label) of 8 patches of each site, one site after another."""
    return [(*simulate_patch(20 * h + k % 4, k, k % 2), k % 2) for h in range(5) for k in range(8)]


def digests(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_files_have_the_format_of_wilds_and_the_real_dataset_class_reads_them(collection):
    lines = (collection / "metadata.csv").read_text().splitlines()
    assert lines[0] == ",patient,node,x_coord,y_coord,tumor,slide,center,split" and len(lines) == 21
    index, patient, node, x, y, *_ = lines[1].split(",")
    slide = f"patient_{patient}_node_{node}"
    path = collection / "patches" / slide / f"patch_{slide}_x_{x}_y_{y}.png"
    assert (index, patient) == ("0", "000") and Image.open(path).mode == "RGBA" and Image.open(path).size == (96, 96)
    data = Camelyon17(root=str(collection))
    assert data.site_names() == sorted(SITES) and data.is_phantom
    cases = data.cases("hospital_3")
    assert [case.label for case in cases].count(1) == 2 and {case.patient for case in cases} == {"040", "041"}
    notices = []
    assert data.read_image(cases[0], notices).shape == (3, 96, 96, 1) and notices == []


def test_more_patches_do_not_change_the_existing_ones(tmp_path, collection):
    few, more = digests(collection), digests(make_phantom(tmp_path / "more", patches_per_site=6))
    assert len(more) == len(few) + 10
    assert all(more[name] == value for name, value in few.items() if name.endswith(".png"))


def test_the_class_is_that_of_the_central_third_of_the_patch(patches):
    assert all(bool(tumour[32:64, 32:64].any()) == bool(label) for _, tumour, label in patches)
    assert any(tumour.any() and not label for _, tumour, label in patches)  # it may come near
    assert any(not tumour.all() and label for _, tumour, label in patches)


def test_the_mean_colour_of_a_patch_does_not_reveal_its_class():
    """The best threshold on one colour channel classifies less than 85 % of the same patches correctly."""
    means = {label: np.array([simulate_patch(k % 6, k, label)[0].mean((0, 1)) for k in range(30)]) for label in (0, 1)}
    for channel in range(3):
        values = np.r_[means[0][:, channel], means[1][:, channel]]
        truth = np.repeat([0, 1], 30)
        right = [
            max(np.mean((values > threshold) == truth), np.mean((values <= threshold) == truth)) for threshold in values
        ]
        assert max(right) < 0.85


def test_tumour_nuclei_are_larger_than_lymphocytes():
    """Compare the median areas of connected dark regions; the nuclei are sparse, so they do not overlap."""
    patient = HistologyPatient.sample(stream(0, "test"))

    def median_area(radius_um: float) -> float:
        canvas = np.zeros((192, 192), np.float32)
        kind = NucleusType(radius_um, 0.1, (1, 1.3), 0.1, 1.0, 0.1)
        draw_nuclei(canvas, jittered_lattice(stream(1, "places"), 96, 22), kind, 0.5, stream(2, "looks"))
        pieces, _ = connected(canvas > 0.5)
        return float(np.median(np.bincount(pieces.ravel())[1:]))

    assert median_area(patient.nucleus_um) > 1.3 * median_area(patient.lymphocyte_um)


def test_a_round_nucleus_has_the_area_of_its_circle():
    """pi * 4^2 um^2 / (0.25 um^2 per pixel) = 201 pixels."""
    canvas = np.zeros((64, 64), np.float32)
    draw_nuclei(canvas, np.array([[16.2, 15.9]]), NucleusType(4.0, 0.0, (1, 1), 0.0, 1.0, 0.0), 0.5, stream(0, "one"))
    assert (canvas / canvas.max()).sum() == pytest.approx(201, rel=0.03)


@pytest.mark.parametrize("name", sorted(histology_background.BACKGROUNDS))
def test_every_background_is_finite_and_its_stain_is_not_negative(name):
    patient = HistologyPatient.sample(stream(0, name))
    background = histology_background.BACKGROUNDS[name](patient, stream(1, name), 192, 0.5)
    assert all(np.isfinite(one).all() for one in (background.lymphocytes, background.spindle, background.large))
    assert min(background.eosin.min(), background.blood.min()) >= 0 and background.eosin.shape == (192, 192)


def test_stain_is_never_negative():
    patient = HistologyPatient.sample(stream(0, "stain"))
    for k in range(12):
        stain, _ = make_section(patient, k % 2, stream(k, "section"), 192, 0.5)
        assert stain.dtype == np.float32 and stain.min() >= 0 and np.isfinite(stain).all()


def test_transmitted_light_follows_the_beer_lambert_law_with_blue_haematoxylin_and_pink_eosin():
    """Twice the stain squares the transmitted fraction of the light; without stain all light passes."""
    vectors = stain_vectors(REFERENCE)
    once = transmittance(np.array([[[0.7, 0.2, 0.0]]]), vectors)
    np.testing.assert_allclose(transmittance(np.array([[[1.4, 0.4, 0.0]]]), vectors), once**2, rtol=1e-12)
    np.testing.assert_array_equal(transmittance(np.zeros((1, 1, 3)), vectors), 1)
    vectors = stain_vectors(REFERENCE)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
    haematoxylin, eosin = np.exp(-vectors[:2])
    assert haematoxylin.argmax() == 2 and eosin.argmax() == 0 and eosin.argmin() == 1
    redder = stain_vectors(replace(REFERENCE, haematoxylin_turn=10.0))
    assert redder[0, 0] < vectors[0, 0] and redder[0] @ vectors[0] == pytest.approx(np.cos(np.radians(10)))


def test_empty_glass_has_the_white_of_the_scanner():
    for site in SITES.values():
        quiet = replace(site, noise=0.0, gamma=1.0, saturation=1.0, jpeg_quality=95)
        image = scan_slide(np.ones((96, 96, 3), np.float32), quiet, stream(0, "glass"))
        np.testing.assert_allclose(image.mean((0, 1)) / 255, site.white, atol=0.01)


def test_sites_differ_in_colour_more_than_their_patients(patches, monkeypatch):
    """Compare the median colours of the sites; with the reference scanner only the patients differ."""

    def spread(images) -> float:
        colours = np.array([image.mean((0, 1)) for image in images]).reshape(5, 8, 3)
        return float(np.std(np.median(colours, axis=1), axis=0).mean())

    monkeypatch.setattr(histology, "SITES", dict.fromkeys(SITES, REFERENCE))
    same_scanner = [simulate_patch(20 * h + k % 4, k, k % 2)[0] for h in range(5) for k in range(8)]
    assert spread([image for image, _, _ in patches]) > 1.5 * spread(same_scanner)


def test_smooth_fields_have_mean_0_and_variance_1():
    field = smooth_field(stream(0, "field"), 192, 6.0)
    assert abs(field.mean()) < 0.15 and field.std() == pytest.approx(1, abs=0.12)
    assert np.abs(np.diff(field, axis=0)).mean() < 0.3


def test_patches_are_assigned_to_the_patients_in_turn():
    table = list(patch_table(7, 3, 0))
    first = [row for row in table if row.centre == 0]
    assert [sum(row.patient == k for row in first) for k in range(3)] == [3, 2, 2]
    assert len({row.file for row in table}) == 35 and {row.split for row in patch_table(60, 3, 0)} == {0, 1}
