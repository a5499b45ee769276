"""Defaults and choices of flags that other modules need as well; importing them takes no time."""

from __future__ import annotations

# audit
N_IMAGES, N_GALLERY = 3, 60  # number of images to reconstruct, and size of the re-identification gallery
N_WEIGHTS_STEPS = 100  # number of steps of the attack on an update
# init
METHOD = "fedavg"
# aggregate: names of methods
RULES = ("coordinate_median", "fedavg", "norm_clipping", "trimmed_mean")
