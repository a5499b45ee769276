"""Synthetic prostate with its zones, bladder, seminal vesicles and rectum, sampled on any grid in millimetres."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from medfed.phantoms.synthesis.pelvis_anatomy import SIDES, Part, paint, pelvis
from medfed.phantoms.synthesis.prostate_patient import FocalStructure, Patient
from medfed.phantoms.synthesis.shapes import Grid, band, bend, coverage, ellipse, ellipsoid, random_field


@dataclass(frozen=True)
class Gland:
    """Signed distances (Z, Y, X) to the surfaces of the prostate and of its transition zone in mm, negative inside."""

    surface: ndarray
    transition: ndarray


def add_textures(patient: Patient, grid: Grid) -> Grid:
    """Return the grid deformed for one patient, with the random fields by which T2 varies inside tissues."""
    rng = np.random.default_rng(patient.texture_seed)

    def field(z_mm: float, y_mm: float, x_mm: float) -> ndarray:
        return random_field(grid, rng, (z_mm, y_mm, x_mm))

    bent = bend(grid, 2.6 * field(26, 26, 26) + 0.8 * field(9, 9, 9), 2.0 * field(26, 26, 26) + 0.8 * field(9, 9, 9))
    fine, middle, coarse, broad = field(3.5, 1.7, 1.7), field(4, 2.6, 2.6), field(6, 5, 5), field(20, 22, 22)
    septa = -3.5 * np.exp(-((coarse / 0.10) ** 2)) * (0.25 + np.clip(broad, 0, 1))
    fields = {
        "fine": fine,
        "middle": middle,
        "coarse": coarse,
        "broad": broad,
        "septa": septa + 0.5 * broad,
        "streaks": 0.7 * fine + 5 * np.clip(field(9, 8, 1.4) - 1.2, 0, 1),
        "spongy": 0.6 * fine + 0.8 * coarse,
        "strands": 0.6 * middle + septa,
        "glandular": 0.7 * fine + 0.6 * coarse,
        "nodular": 0.6 * middle + 0.8 * coarse,
    }
    return replace(bent, fields=fields)


def sample_gland(patient: Patient, grid: Grid) -> Gland:
    """Compute a rounded trapezium, narrow in front and with a groove behind, a conical apex and a blunt base."""
    width, thick, length = (side / 2 for side in patient.gland_mm)
    t = grid.z / length
    below, above = (patient.widest - t) / (1 + patient.widest), (t - patient.widest) / (1 - patient.widest)
    size = np.sqrt(np.clip(1 - np.clip(below, 0, None) ** 1.8 - np.clip(above, 0, None) ** 3.2, 0, 1))
    y = grid.y + patient.dent_mm * np.exp(-((grid.x / 11) ** 2)) * np.clip(grid.y / thick, 0, 1)
    wide = np.maximum(width * size, 0.1) * (1 - 0.30 * np.clip(-y / thick, 0, 1) ** 1.5)
    u, v = np.abs(grid.x) / wide, np.abs(y) / np.maximum(thick * (0.25 + 0.75 * size) * (size > 0), 0.1)
    surface = ((u**2.3 + v**2.3) ** np.float32(1 / 2.3) - 1) * np.minimum(wide, thick)
    surface = np.maximum(surface, (np.abs(t) - 1) * length)
    return Gland(surface, _transition(patient, grid, size))


def _transition(patient: Patient, grid: Grid, size: ndarray) -> ndarray:
    """Signed distance to the transition zone: two lobes next to the urethra that grow towards the base."""
    width, thick, length = (side / 2 for side in patient.gland_mm)
    grow = grid.along_z((-0.75 * length, 0.05), (-0.3 * length, 0.8), (0.2 * length, 1.0), (length, 0.95)) * size
    lobes = [
        ellipse(
            grid,
            (side * 0.42 * ratio * width * grow, -0.20 * thick),
            (0.62 * ratio * width * grow, (0.30 + 0.48 * ratio) * thick * grow),
        )
        for side, ratio in zip(SIDES, patient.lobes)
    ]
    return np.minimum(*lobes)


def anatomy(patient: Patient, grid: Grid) -> Iterator[Part]:
    """Yield all structures of pelvis and prostate, in the order of drawing; `grid` comes from `add_textures`."""
    yield from pelvis(patient.body, grid)
    yield from _rectum(patient, grid)
    yield from _bladder(patient, grid)
    yield from _seminal_vesicles(patient, grid)
    width, thick, length = (side / 2 for side in patient.gland_mm)
    near = grid.crop((-width - 6, width + 6), (-thick - 8, thick + 8), (-length - 14, length + 6))
    gland = sample_gland(patient, near)
    yield from _surroundings(patient, near, gland)
    yield from _prostate(patient, near, gland)


def _rectum(patient: Patient, grid: Grid) -> Iterator[Part]:
    """Anal canal and rectum; the balloon of an endorectal coil widens the rectum and compresses the mucosa."""
    apex, behind, r = patient.body.apex_mm, patient.gland_mm[1] / 2 - 0.6 * patient.dent_mm, patient.rectum_mm
    tube = grid.crop((-26, 26), (0, 75))
    upper = -apex + 12
    low = 0.9 * r if patient.balloon else 10
    radius = tube.along_z((apex - 8, 8.5), (apex + 3, low), (apex + 14, r), (upper, r * 1.1))
    drop = tube.along_z((apex - 8, 16), (apex + 8, 1.5), (-apex, 1.5), (upper + 15, 9))
    out = ellipse(tube, (0, behind + drop + radius * 0.9), (radius * (1.12 if patient.balloon else 1.0), radius * 0.9))
    yield paint("smooth_muscle", tube, out)
    if not patient.balloon:  # a balloon compresses the mucosa until it is invisible
        yield paint("mucosa", tube, out + 3.0)
    wall = 2.2 if patient.balloon else 4.2
    inside = tube.along_z((apex - 2, 0.15), (apex + 12, 1.0))
    yield paint(patient.content, tube, out + wall + 3.0 * (1 - inside), inside)


def _bladder(patient: Patient, grid: Grid) -> Iterator[Part]:
    """Wall and urine of the bladder, above and in front of the prostate's base."""
    wide, deep, tall = patient.bladder_mm
    thick, base = patient.gland_mm[1] / 2, -patient.body.apex_mm
    centre = (patient.body.lean_mm, -0.55 * thick - 0.45 * deep, base + 0.62 * tall)
    box = grid.crop((-wide - 6, wide + 6), (centre[1] - deep - 6, centre[1] + deep + 6), (centre[2] - tall - 6, 100))
    inner = ellipsoid(box, centre, (wide, deep, tall))
    yield paint("smooth_muscle", box, inner - 4.0 - 0.6 * box.fields["coarse"])
    yield paint("urine", box, inner)


def _seminal_vesicles(patient: Patient, grid: Grid) -> Iterator[Part]:
    """Convoluted bright tubes behind the bladder, above the base of the prostate."""
    base, back = -patient.body.apex_mm, 0.30 * patient.gland_mm[1]
    box = grid.crop((-42, 42), (back - 16, back + 22), (base - 8, base + 30))
    rise = box.along_z((base - 5, 0.1), (base + 3, 1.0), (base + 16, 0.9), (base + 26, 0.1))
    for side in SIDES:
        bow = band(box, (side * 5, back), (side * 28, back - 2), 7.5 * rise) - 1.2 * box.fields["coarse"]
        yield paint("seminal_wall", box, bow, np.sqrt(rise), soft_mm=2.0)
        tubes = 0.8 - 2.0 * np.abs(box.fields["middle"])
        yield paint("seminal_lumen", box, np.maximum(bow + 1.0, tubes), np.sqrt(rise))


def _surroundings(patient: Patient, grid: Grid, gland: Gland) -> Iterator[Part]:
    """Veins in front of the gland and at its sides, neurovascular bundles, and the sphincter below the apex."""
    width, thick, length = (side / 2 for side in patient.gland_mm)
    collar = np.maximum(gland.surface - 4.5, grid.y - 0.5 * thick)
    yield paint("vein", grid, np.maximum(collar, 1.3 - 1.6 * grid.fields["middle"]), 0.7, soft_mm=2.5)
    yield paint("levator", grid, np.maximum(collar, 2.2 + 1.4 * grid.fields["middle"]), 0.7, soft_mm=2.5)
    for side in SIDES:
        bundle = ellipse(grid, (side * 0.72 * width, 0.92 * thick), (4.5, 3.0), side * -35)
        yield paint("nerve", grid, bundle, 0.7, soft_mm=2.5)
    below = grid.along_z((-length - 14, 0.7), (-length, 0.9), (-length + 0.2 * length, 1.0))
    ring = ellipse(grid, (0, -0.05 * thick), (9.0 * below, 8.5 * below))
    fade = grid.along_z((-length - 14, 0.9), (-length + 4, 0.9), (-0.7 * length, 0))
    yield paint("smooth_muscle", grid, ring, fade, soft_mm=2.0)
    yield paint("mucosa", grid, ring + 4.5, fade, soft_mm=2.0)


def _prostate(patient: Patient, grid: Grid, gland: Gland) -> Iterator[Part]:
    """The structures of the prostate from the capsule inwards."""
    width, thick, length = (side / 2 for side in patient.gland_mm)
    inside = coverage(gland.surface, grid.edge_mm)
    apex = grid.along_z((-length, 0.45), (-0.72 * length, 1.0))  # transition to the sphincter
    neck = grid.along_z((0.8 * length, 1.0), (length, 0.55))  # transition to the bladder neck
    clear = np.clip(0.55 + 0.35 * grid.fields["coarse"], 0.1, 0.95) * np.clip(0.7 + 0.6 * grid.y / thick, 0.3, 1.0)
    yield paint("capsule", grid, gland.surface, apex * neck * clear)  # thin, interrupted, weakest in front
    yield paint("peripheral", grid, gland.surface + 0.9, apex * neck)
    middle = ellipse(grid, (0, 0.35 * thick), (0.55 * width, 0.5 * thick))
    yield Part(
        "central", coverage(middle, 6.0) * inside * grid.along_z((0.2 * length, 0), (0.65 * length, 0.9)), grid.box
    )
    zone = np.maximum(gland.transition, gland.surface + 0.9)
    yield paint("capsule", grid, zone, np.clip(0.6 + 0.3 * grid.fields["coarse"], 0.1, 0.9))
    yield paint("transition", grid, zone + 1.0)
    for blob in patient.blobs:
        yield from _blob(blob, grid, gland)
    front = ellipse(grid, (0, -1.0 * thick), (0.42 * width, 0.42 * thick))
    dense = grid.along_z((-length, 0.5), (-0.4 * length, 0.95), (length, 0.8))
    yield Part("stroma", coverage(front, 4.0) * inside * dense, grid.box)
    y = grid.along_z((-length, -0.05 * thick), (0, 0.05 * thick), (length, -0.35 * thick))
    duct = ellipse(grid, (0, y), (3.2, 3.2))
    yield Part("stroma", coverage(duct, 1.5) * inside * 0.8, grid.box)
    yield Part("mucosa", coverage(np.hypot(grid.x, grid.y - y) - 1.7, 1.2) * inside * 0.9, grid.box)


def _blob(blob: FocalStructure, grid: Grid, gland: Gland) -> Iterator[Part]:
    """A nodule with a dark rim, limited to the transition zone, or a lesion with a soft edge."""
    x_mm, y_mm, z_mm = ((c - r - 2, c + r + 2) for c, r in zip(blob.centre, blob.radii))
    start = [part.start for part in grid.box]
    box = grid.crop(x_mm, y_mm, z_mm)
    local = tuple(slice(p.start - s, p.stop - s) for p, s in zip(box.box, start))
    distance = ellipsoid(box, blob.centre, blob.radii)
    if blob.tissue == "lesion":
        yield Part(
            "lesion", coverage(np.maximum(distance, gland.surface[local] + 1.0), 2.5) * np.float32(0.85), box.box
        )
        return
    distance = np.maximum(distance, gland.transition[local] + 1.0)
    yield paint("capsule", box, distance, 0.75)
    yield paint(blob.tissue, box, distance + 0.9, 0.9)


def zone_coverage(patient: Patient, grid: Grid) -> tuple[ndarray, ndarray]:
    """Return the fraction of each voxel, (Z, Y, X), in the whole prostate, and in its transition zone."""
    gland = sample_gland(patient, grid)
    whole = coverage(gland.surface, grid.edge_mm)
    return whole, coverage(np.maximum(gland.transition, gland.surface), grid.edge_mm)
