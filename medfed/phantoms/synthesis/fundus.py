"""The synthetic four-camera collection of optic discs and cups, in the layout of the published one (Wang et al., DoFE).

Nothing in it comes from a patient. Scores on it say whether the code works, never how a method does in a clinic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray
from PIL import Image

from medfed.phantoms.synthesis.collection import atomic_collection, stream
from medfed.phantoms.synthesis.fundus_camera import take_photograph
from medfed.phantoms.synthesis.fundus_sites import REFERENCE, SITES
from medfed.phantoms.synthesis.retina_anatomy import outlines, reflectance
from medfed.phantoms.synthesis.retina_eye import Eye
from medfed.phantoms.synthesis.shapes import regular_grid

VERSION = 1
CUP, RIM, OUTSIDE = 0, 128, 255  # grey values of a mask, as published
GLAUCOMA_RATIO = 0.6  # cup-to-disc ratio from which a file's name says glaucoma


@dataclass(frozen=True, eq=False)
class FundusCase:
    """One simulated case: image (Y, X, 3) uint8, mask (Y, X) uint8 of `CUP`, `RIM` and `OUTSIDE`, and whose it is."""

    image: ndarray
    mask: ndarray
    eye: Eye


def simulate_photograph(
    site_name: str, number: int, size: int = 192, seed: int = 0, severity: float = 1.0
) -> FundusCase:
    """Simulate one case of one site; see `make_fundus_phantom` for the arguments."""
    site, rng = SITES[site_name], stream(seed, "fundus camera", site_name, number)
    eye = Eye.sample(stream(seed, "eye", site_name, number), site.melanin_shift)
    camera = site.camera.interpolate_from(REFERENCE, severity).sample_session(rng)
    pixel_mm = camera.field_mm / size
    across = (np.arange(size) - (size - 1) / 2) * pixel_mm
    right, down = rng.normal(0, 0.05 * camera.field_mm, 2).clip(-0.4, 0.4)  # crops are cut by a detector that errs
    to_the_temple = 1 if eye.left else -1  # a left eye's temple is on the right of its picture
    grid = regular_grid(np.zeros(1), across + down, (across + right) * to_the_temple, pixel_mm)
    x, y = grid.x[0], grid.y[0]
    shape = outlines(eye, x, y)
    image = take_photograph(reflectance(eye, grid, shape), camera, x, y, rng)
    mask = np.where(shape.cup < 0, CUP, np.where(shape.disc < 0, RIM, OUTSIDE)).astype(np.uint8)
    return FundusCase(image, mask, eye)


def make_fundus_phantom(
    root: Path,
    images_per_site: int = 24,
    size: int = 192,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    severity: float = 1.0,
) -> None:
    """Write the collection to `root`, whole or not at all.

    Args:
        root: a folder that does not exist yet, or is empty.
        images_per_site: at most; a site never has more than were published (101, 159, 400 and 400).
        size: rows and columns of a picture. The anatomy and the field of view do not change with it.
        seed: the same arguments give the same bytes.
        progress: called with (cases done, cases in all).
        severity: how far the cameras depart from the first: 0 all alike, 1 as the sites say.

    Raises:
        UserError: if `root` holds something already.
        ValueError: if a count is below 1 (size: 32), or severity is negative.
    """
    if images_per_site < 1 or size < 32 or severity < 0:
        given = f"{images_per_site}, {size} and {severity}"
        raise ValueError(f"need images_per_site >= 1, size >= 32 and severity >= 0, got {given}")
    facts = {"what": "drawn eyes before simulated fundus cameras; no patient", "generator": "medfed fundus phantom",
             "version": VERSION, "seed": seed, "size": size, "images_per_site": images_per_site,
             "severity": severity}  # fmt: skip
    cases = [(name, number) for name, site in SITES.items() for number in site.numbers[:images_per_site]]
    with atomic_collection(root, **facts) as draft:
        for done, (name, number) in enumerate(cases, 1):
            _write(draft, name, number, simulate_photograph(name, number, size, seed, severity))
            if progress:
                progress(done, len(cases))


def _write(root: Path, site_name: str, number: int, case: FundusCase) -> None:
    site = SITES[site_name]
    stem = site.file_stem(number, case.eye.cup_ratio >= GLAUCOMA_RATIO, case.eye.left)
    for kind, pixels in (("image", case.image), ("mask", case.mask)):
        folder = root / site.folder / site.published_part(number) / "ROIs" / kind
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{stem}.png")
