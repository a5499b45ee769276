"""Generator of the fundus phantom: photographs of the optic disc and cup in the file layout of the dataset `fundus`.

The images contain no patient data. Scores on them show whether the code works, not how a method performs in a clinic.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray
from PIL import Image

from medfed.datasets.base import Progress
from medfed.phantoms.synthesis.common import stream
from medfed.phantoms.synthesis.fundus_camera import take_photograph
from medfed.phantoms.synthesis.fundus_sites import SITES
from medfed.phantoms.synthesis.retina_anatomy import outlines, reflectance
from medfed.phantoms.synthesis.retina_eye import Eye
from medfed.phantoms.synthesis.shapes import regular_grid

VERSION = 1
CUP, RIM, OUTSIDE = 0, 128, 255  # grey values of a mask, as published
GLAUCOMA_RATIO = 0.6  # cup-to-disc ratio from which an eye is named as glaucoma in its file name


@dataclass(frozen=True, eq=False)
class FundusCase:
    """Image (size, size, 3) uint8 RGB, and mask (size, size) uint8: 0 cup, 128 rest of the disc, 255 elsewhere."""

    image: ndarray
    mask: ndarray
    eye: Eye


def simulate_photograph(site_name: str, number: int, size: int = 192, seed: int = 0) -> FundusCase:
    """Simulate one case, which equal arguments repeat; anatomy and field of view are the same for every `size`."""
    site, rng = SITES[site_name], stream(seed, "fundus camera", site_name, number)
    eye = Eye.sample(stream(seed, "eye", site_name, number), site.melanin_shift)
    camera = site.camera.sample_session(rng)
    pixel_mm = camera.field_mm / size
    across = (np.arange(size) - (size - 1) / 2) * pixel_mm
    right, down = rng.normal(0, 0.05 * camera.field_mm, 2).clip(-0.4, 0.4)  # error of the detector that centres crops
    to_the_temple = 1 if eye.left else -1  # in a photograph of a left eye the temple is on the right
    grid = regular_grid(np.zeros(1), across + down, (across + right) * to_the_temple, pixel_mm)
    x, y = grid.x[0], grid.y[0]
    disc, cup = outlines(eye, x, y)
    image = take_photograph(reflectance(eye, grid, disc, cup), camera, x, y, rng)
    mask = np.where(cup < 0, CUP, np.where(disc < 0, RIM, OUTSIDE)).astype(np.uint8)
    return FundusCase(image, mask, eye)


def write_photographs(folder: Path, images_per_site: int, size: int, seed: int, progress: Progress) -> None:
    """Write the photographs and masks of all sites to a folder, with the settings of `FundusPhantom`."""
    cases = [(name, number) for name, site in SITES.items() for number in site.numbers[:images_per_site]]
    for name, number in progress(cases):
        case, site = simulate_photograph(name, number, size, seed), SITES[name]
        stem = site.file_stem(number, case.eye.cup_ratio >= GLAUCOMA_RATIO, case.eye.left)
        for kind, pixels in (("image", case.image), ("mask", case.mask)):
            part = folder / site.folder / site.published_part(number) / "ROIs" / kind
            part.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(part / f"{stem}.png")
