"""Synthetic male pelvis around the prostate: skin, fat, muscle, bone and vessels, in the order of drawing.

The origin of the coordinates is the centre of the prostate. Heights are given relative to its apex, which lies behind
the lower edge of the pubic symphysis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from medfed.phantoms.synthesis.shapes import Box, Grid, band, coverage, ellipse, ellipsoid

SIDES = (-1, 1)  # the patient's right, left


@dataclass(frozen=True)
class Part:
    """One anatomical structure: which fraction of each voxel in `box` (z, y and x slices) its tissue covers."""

    tissue: str
    cover: ndarray
    box: Box


def paint(tissue: str, grid: Grid, distance_mm: ndarray, opacity: float | ndarray = 1.0, soft_mm: float = 0.0) -> Part:
    """Draw a structure from the signed distance to its surface, negative inside, with an edge of at least `soft_mm`."""
    return Part(tissue, coverage(distance_mm, max(grid.edge_mm, soft_mm)) * np.float32(opacity), grid.box)


@dataclass(frozen=True)
class Body:
    """Size and shape of one patient's pelvis. Lengths are in mm."""

    apex_mm: float  # z position of the prostate's apex
    fat_mm: float  # thickness of the fat of the abdominal wall
    skin_y_mm: float  # y position of the skin in front
    size: float  # relative size of the bones, about 1
    muscle: float  # relative thickness of the muscles, about 1
    hips_up_mm: float  # height of the femoral heads above the apex
    floor_mm: float  # half the width of the pelvic floor at the level of the gland
    behind_mm: float  # y position where the pelvic floor closes behind the rectum
    lean_mm: float  # x offset of abdomen and bladder

    @classmethod
    def sample(cls, rng: np.random.Generator, gland_mm: tuple[float, float, float], rectum_mm: float) -> Body:
        """Draw a pelvis that a prostate (width, thickness front to back, length) and a rectum (radius) fit into."""
        fat_mm, (width, thick, length) = rng.uniform(12, 34), gland_mm
        return cls(
            apex_mm=-length / 2,
            fat_mm=fat_mm,
            skin_y_mm=-thick / 2 - rng.uniform(44, 52) - fat_mm,
            size=rng.uniform(0.95, 1.06),
            muscle=rng.uniform(0.9, 1.12),
            hips_up_mm=rng.uniform(22, 36),
            floor_mm=width / 2 + rng.uniform(2.5, 5),
            behind_mm=thick / 2 + 1.85 * rectum_mm + rng.uniform(4, 9),
            lean_mm=rng.normal(0, 2),
        )


def pelvis(body: Body, grid: Grid) -> Iterator[Part]:
    """Yield all structures except prostate, bladder and rectum in the order of drawing: later ones cover earlier."""
    yield from _trunk(body, grid)
    yield from _muscles(body, grid)
    yield from _bones(body, grid)
    yield from _joint_and_hips(body, grid)
    yield from _vessels(body, grid)
    yield from _pelvic_floor(body, grid)


def _trunk(body: Body, grid: Grid) -> Iterator[Part]:
    """Skin, fat of the trunk, muscles of the abdominal wall and gluteal cleft."""
    depth = 112.0 * body.size
    skin = ellipse(grid, (body.lean_mm, body.skin_y_mm + depth), (185 * body.size, depth))
    yield paint("skin", grid, skin)
    yield paint("fat", grid, skin + 2.0)
    y = body.skin_y_mm + body.fat_mm
    wall = grid.crop((-60, 60), (y - 8, y + 26))
    level = wall.along_z((body.apex_mm + 8, 0), (body.apex_mm + 18, 1))
    for side in SIDES:
        yield paint("muscle", wall, ellipse(wall, (side * 20, y + 6), (19.5, 5.5 * body.muscle), side * 8), level)
    cleft = grid.crop((-4, 4), (66, 140))
    level = cleft.along_z((body.apex_mm + 25, 1), (body.apex_mm + 45, 0))
    yield paint("skin", cleft, band(cleft, (0, 76), (0, 140), 1.2), level)


def _muscles(body: Body, grid: Grid) -> Iterator[Part]:
    """Muscles of hip and thigh, and the obturator internus on both sides."""
    a, s, bulk = body.apex_mm, body.size, body.muscle
    for side in SIDES:
        lateral = grid.crop(*_sided(side, 84, 190), (-90, 90))
        yield paint("muscle", lateral, ellipse(lateral, (side * 142 * s, -4), (46, 66 * bulk), side * 8), soft_mm=2)
        behind = grid.crop(*_sided(side, 5, 170), (40, 140))
        buttock = ellipse(behind, (side * 88 * s, 88), (70 * bulk, 31 * bulk), side * -15)
        yield paint("muscle", behind, buttock, soft_mm=2)
        front = grid.crop(*_sided(side, 25, 115), (-90, -10))
        yield paint("muscle", front, ellipse(front, (side * 84 * s, -46), (26 * bulk, 17 * bulk), side * 22), soft_mm=2)
        low = grid.crop(*_sided(side, 0, 130), (-75, 45), (-100, a + 24))
        thick = low.along_z((a - 12, 21), (a + 8, 16), (a + 22, -3)) * bulk
        yield paint("muscle", low, band(low, (side * 36, -42), (side * 98, 4), thick), soft_mm=2)
        yield from _obturator(side, body, grid)


def _obturator(side: int, body: Body, grid: Grid) -> Iterator[Part]:
    """The obturator internus of one side, which runs from the pubis backwards along acetabulum and ischium."""
    a, s = body.apex_mm, body.size
    box = grid.crop(*_sided(side, 15, 95), (-60, 75))
    near = body.floor_mm + 8.5 * body.muscle
    x = side * box.along_z((a - 10, 33), (a + 10, near), (a + 28, near + 5), (a + 50, max(near + 8, 56 * s)))
    out = side * np.maximum(66 * s - np.abs(x), 12)
    y = box.along_z((a - 10, -2), (a + 8, -24), (a + 30, -34))
    wide = box.along_z((a - 10, 6), (a + 8, 8.5), (a + 50, 7)) * body.muscle + 0.8 * box.fields["coarse"]
    yield paint("muscle", box, band(box, (x, y), (x + 0.4 * out, 8), wide), soft_mm=2)
    yield paint("muscle", box, band(box, (x + 0.4 * out, 8), (x + out, 46), wide - 1), soft_mm=2)


def _sided(side: int, near_mm: float, far_mm: float) -> tuple[tuple[float, float]]:
    """Bounds of x, as a tuple of one pair, of a structure on one side of the body."""
    near, far = side * near_mm, side * far_mm
    return ((min(near, far), max(near, far)),)


def _bone(grid: Grid, distance_mm: ndarray, cortex_mm: float = 1.4, opacity: float | ndarray = 1.0) -> Iterator[Part]:
    """Dark cortical bone of varying thickness, filled with marrow."""
    uneven = distance_mm + 0.5 * grid.fields["coarse"]
    yield paint("void", grid, uneven, opacity, soft_mm=2.0)
    yield paint("marrow", grid, uneven + cortex_mm, opacity, soft_mm=2.0)


def _bones(body: Body, grid: Grid) -> Iterator[Part]:
    """Pubis, symphysis, pubic rami, ischium and coccyx."""
    a, s = body.apex_mm, body.size
    for side in SIDES:
        low = grid.crop(*_sided(side, 0, 85), (-65, 60), (-100, a + 10))
        ramus = low.along_z((a - 15, 8), (a - 4, 6), (a + 6, -3))
        yield from _bone(low, band(low, (side * 15, -26), (side * 56 * s, 34), ramus))
        yield from _ischium(side, body, grid)
        upper = grid.crop(*_sided(side, 0, 100), (-75, 5), (a, a + 60))
        ramus = upper.along_z((a + 2, -3), (a + 14, 8), (a + 24, 9), (a + 34, -3)) * s
        yield from _bone(upper, band(upper, (side * 20, -46), (side * 78 * s, -22), ramus))
        pubis = grid.crop(*_sided(side, 0, 40), (-85, -10), (a - 15, a + 34))
        tall = pubis.along_z((a - 8, 8), (a + 2, 16), (a + 12, 22), (a + 22, 15)) * s
        there = pubis.along_z((a - 12, 0), (a - 4, 1), (a + 19, 1), (a + 28, 0))
        body_of = np.maximum(ellipse(pubis, (side * 14, -47), (15 * s, tall), side * 24), 1.8 - side * pubis.x)
        yield from _bone(pubis, body_of, opacity=there)
        yield paint("void", pubis, np.maximum(ellipse(pubis, (0, -47), (9, tall)), np.abs(pubis.x) - 2.0), there * 0.8)
    tail = grid.crop((-14, 14), (55, 85), (a + 12, 100))
    centre, wide = tail.along_z((a + 12, 66), (a + 50, 76)), tail.along_z((a + 12, 4), (a + 50, 13))
    yield from _bone(tail, ellipse(tail, (0, centre), (wide, 5.5)), 1.2, tail.along_z((a + 14, 0), (a + 24, 1)))


def _ischium(side: int, body: Body, grid: Grid) -> Iterator[Part]:
    """The ischium of one side, which continues as the posterior column of the hip."""
    a, s = body.apex_mm, body.size
    box = grid.crop(*_sided(side, 45, 105), (0, 75))
    centre = (side * box.along_z((a - 10, 63), (a + 10, 70), (a + 40, 79)) * s, box.along_z((a, 44), (a + 25, 32)))
    radii = (box.along_z((a - 12, 11), (a + 8, 13)), box.along_z((a, 17), (a + 25, 20)))
    yield from _bone(box, ellipse(box, centre, radii, side * -18), 1.8)


def _joint_and_hips(body: Body, grid: Grid) -> Iterator[Part]:
    """Acetabulum, femoral head and femoral neck of both sides."""
    z, s = body.apex_mm + body.hips_up_mm, body.size
    for side in SIDES:
        near = grid.crop(*_sided(side, 52, 150), (-55, 45), (z - 38, z + 45))
        x = side * 96 * s
        yield from _bone(near, ellipsoid(near, (x - side * 22, -28, z + 10), (11.0, 11.0, 34.0)))
        yield from _bone(near, ellipsoid(near, (x, -2, z + 4), (31.0, 32.0, 34.0)), 1.0)
        outside = near.along_z((z - 25, 1), (z + 25, 1))
        yield paint("muscle", near, band(near, (x + side * 34, -30), (x + side * 34, 12), 24.0), outside, soft_mm=3)
        yield paint("void", near, ellipsoid(near, (x, -4, z), (26.4, 26.4, 26.4)), 0.85)
        neck = near.along_z((z - 34, -3), (z - 18, 13), (z, 13), (z + 12, -3))
        yield from _bone(near, band(near, (x + side * 12, -2), (x + side * 45, 8), neck))
        yield from _bone(near, ellipsoid(near, (x, -4, z), (24.8, 24.8, 24.8)), 0.9)


def _vessels(body: Body, grid: Grid) -> Iterator[Part]:
    """Femoral arteries and veins (dark because of blood flow) and spermatic cords."""
    y = body.skin_y_mm + body.fat_mm
    for side in SIDES:
        groin = grid.crop(*_sided(side, 50, 90), (y - 5, y + 40))
        for x, dy, radius in ((74, 16, 4.5), (64, 19, 5.2)):
            vessel = ellipse(groin, (side * x * body.size, y + dy), (radius, radius))
            yield paint("skin", groin, vessel - 1.0)
            yield paint("void", groin, vessel)
        cord = grid.crop(*_sided(side, 15, 50), (y - 25, y + 10), (-100, body.apex_mm + 26))
        ring = ellipse(cord, (side * 31, y - 6), (7.5, 6.0))
        yield paint("levator", cord, ring)
        yield paint("nerve", cord, ring + 1.6)


def _pelvic_floor(body: Body, grid: Grid) -> Iterator[Part]:
    """Pelvic fat, the levator muscle around prostate and rectum, and penile bulb and perineum below the apex."""
    a = body.apex_mm
    inside = grid.crop((-45, 45), (-50, 60), (a, 100))
    wide, there = inside.along_z((a, 15), (a + 12, 27), (a + 40, 44)), inside.along_z((a, 0), (a + 8, 1))
    yield paint("pelvic_fat", inside, ellipse(inside, (0, 0), (wide, wide * 1.15)), there, soft_mm=8.0)
    sling = grid.crop((-52, 52), (-22, 66))
    front = sling.along_z((a - 15, 10), (a, 15), (a + 12, body.floor_mm), (a + 40, body.floor_mm + 7))
    back = sling.along_z((a - 15, 34), (a, 40), (a + 14, body.behind_mm), (a + 40, body.behind_mm + 8))
    along = np.clip((sling.y + 18) / (back + 18), 0, 1)
    half = front * np.sqrt(np.clip(1 - along**2.6, 0, 1))
    thick = sling.along_z((a - 12, 3.4), (a + 10, 2.4), (a + 40, 1.3)) + 0.35 * sling.fields["coarse"]
    wall = np.maximum(np.abs(np.abs(sling.x) - half) * (1 - 0.45 * along**3) - thick, -16 - sling.y)
    filled = np.maximum(np.abs(sling.x) - half, np.maximum(-16 - sling.y, sling.y - back))
    yield paint("levator", sling, filled, sling.along_z((a - 12, 0.9), (a - 2, 0.7), (a + 10, 0)), soft_mm=3.0)
    yield paint("levator", sling, np.maximum(wall, sling.y - back - 3), 0.9, soft_mm=2.0)
    below = grid.crop((-25, 25), (-25, 30), (-100, a + 2))
    wide, there = below.along_z((a - 20, 20), (a - 2, 11)), below.along_z((a - 8, 1), (a, 0))
    yield paint("levator", below, ellipse(below, (0, 4), (wide, 15)), there, soft_mm=3.0)
    yield paint("vein", below, ellipsoid(below, (0, 2, a - 17), (11.0, 9.0, 9.0)))
