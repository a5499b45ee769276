"""Patches in the layout of Camelyon17-WILDS for tests of runs, which do not look at the tissue: drawn in no time."""

from pathlib import Path
from unittest import mock

import numpy as np
from numpy import ndarray

from medfed.datasets.base import PHANTOM_MARK
from medfed.phantoms.synthesis import histology
from medfed.phantoms.synthesis.common import stream


def quick_patch(patient: int, number: int, label: int, seed: int = 0) -> tuple[ndarray, ndarray]:
    """Draw a patch of 36 random colours around the colour of its patient; tumour is darker. Return it and its mask."""
    colour = stream(seed, "colour", patient).uniform(120, 230, 3)
    squares = colour + stream(seed, "squares", patient, number).normal(0, 20, (6, 6, 3)) - 40 * label
    image = np.kron(squares.clip(0, 255).astype(np.uint8), np.ones((16, 16, 1), np.uint8))
    return image, np.full(image.shape[:2], bool(label))


def make_quick_patches(root: Path, patches_per_site: int, patients_per_site: int) -> None:
    """Write the folder of the histology phantom with these numbers, with other images."""
    root.mkdir(parents=True)
    with mock.patch.object(histology, "simulate_patch", quick_patch):
        histology.write_patches(root, patches_per_site, patients_per_site, 0, lambda cases: cases)
    (root / PHANTOM_MARK).write_text('{"synthetic": true}')
