"""The rules that turn a fingerprint into a plan: image size, network, batch size, learning rate, epochs and rounds.

A plan is a pure function of the fingerprint, so that the same images give the same plan on every machine. As in nnU-Net
(Isensee et al., "nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation", Nature
Methods 2021, https://doi.org/10.1038/s41592-020-01008-z), the data decide, not the user.

With ImageNet weights, a network needs fewer and smaller steps than with random weights. Its BatchNorm layers keep the
statistics with which they came, as is usual in domain generalisation (Gulrajani & Lopez-Paz, "In Search of Lost Domain
Generalization", ICLR 2021, https://arxiv.org/abs/2007.01434, appendix D): small batches and a site unlike the others
cannot change them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from medfed.planning.fingerprint import Fingerprint, Structure

# Time. A plan for 100 images is estimated to end within 15 minutes on two cores.
MINUTES, CORES, N_IMAGES = 15, 2, 100
# Assumed part of this time in which both cores train; the rest is reading, waiting, test and figures.
USABLE = 0.6
VALIDATION_RATIO, TEST_RATIO = 0.1, 0.2

# Steps. A step is one batch at one site; the whole is the sum over the sites.
SMALLEST_SHARE = 0.1  # the smallest site takes at least this part of the whole, if this needs at most MAX_MORE of it
MAX_MORE = 1.3
ROUND_STEPS = 20  # steps of an average site between two averages of the weights
VALIDATIONS = 10  # number of validations during a run

MIN_STRUCTURE_PIXELS = 2.0  # a structure that is narrower than this after resizing needs larger images


@dataclass(frozen=True)
class Recipe:
    """A network and the values with which it is trained."""

    name: str  # of the network
    network: Mapping[str, Any]  # its further settings
    whole_steps: int  # at least this many steps of all sites together
    batch_size: int  # if each site has as many images
    learning_rate: float  # of Adam for this batch size; the step size falls to 0 over the rounds
    side_step: int  # the side of the images is a multiple of this number of pixels, because the network halves it
    min_side: int  # smallest side of the images in pixels
    step_s_per_pixel: float  # of one core for one step per image and pixel, rounded up from CPU times of large images
    detail_side: int = 0  # largest side in pixels for thin structures; classes have none
    min_epochs: int = 20  # every image is seen at least this often, also if there are many

    @property
    def largest_side(self) -> int:
        """Largest side of images in pixels with which the time for 100 images is kept."""
        seconds = MINUTES * 60 * CORES * USABLE
        return self.multiple(math.sqrt(seconds / (self.whole_steps * self.batch_size * self.step_s_per_pixel)))

    def multiple(self, side: float) -> int:
        """The side in pixels rounded down to a multiple that the network accepts."""
        return max(self.min_side, int(side) // self.side_step * self.side_step)


USUAL = Recipe(
    "unet",
    {"features": [16, 16, 32, 64, 128, 16]},
    whole_steps=3000,
    batch_size=4,
    learning_rate=0.002,
    side_step=16,
    min_side=32,
    step_s_per_pixel=7.5e-6,
    detail_side=160,
)
WIDE = replace(USUAL, network={"features": [32, 32, 64, 128, 256, 32]}, step_s_per_pixel=1.6e-5)
PRETRAINED_UNET = Recipe(
    "efficientnet_unet",
    {},
    whole_steps=1200,
    batch_size=4,
    learning_rate=0.001,
    side_step=32,
    min_side=64,
    step_s_per_pixel=8e-6,
    detail_side=224,
    min_epochs=5,
)
DENSENET = Recipe(
    "densenet",
    {"init_features": 32, "growth_rate": 16, "blocks": [4, 6, 8]},
    whole_steps=2000,
    batch_size=16,
    learning_rate=0.002,
    side_step=16,
    min_side=32,
    step_s_per_pixel=2.5e-6,
)
PRETRAINED_CLASSIFIER = Recipe(
    "efficientnet_lite",
    {},
    whole_steps=800,
    batch_size=16,
    learning_rate=0.0003,
    side_step=32,
    min_side=64,
    step_s_per_pixel=4.5e-6,
    min_epochs=5,
)
PRETRAINED = (PRETRAINED_UNET.name, PRETRAINED_CLASSIFIER.name)


@dataclass(frozen=True)
class Plan:
    """The settings of a run that follow from a fingerprint, and the numbers that explain them."""

    values: Mapping[str, Any]  # by dotted key, in the order in which a config lists them
    recipe: Recipe  # the network, with the values from which the plan starts
    thin: Structure | None  # images are larger than usual for it; None if the usual size shows all structures
    min_steps: int  # training steps of all sites together for which the rules ask
    site_steps: Mapping[str, int]  # training steps of each site in the whole run
    minutes: float  # estimated time on two cores, with the method FedAvg

    @property
    def whole_steps(self) -> int:
        """Training steps of all sites together."""
        return sum(self.site_steps.values())


def make_plan(
    fingerprint: Fingerprint,
    fixed: Mapping[str, Any] | None = None,
    pretrained: bool = False,
) -> Plan:
    """Return the plan of a fingerprint; the user's values in `fixed`, by dotted key, decide the others.

    For example, twice the batch size halves the steps of an epoch. `pretrained`: ImageNet weights can be used.
    """
    fixed = fixed or {}
    recipe = _recipe(fingerprint, pretrained, fixed)
    thin = _thin_structure(fingerprint, recipe)
    planned_side = _image_size(fingerprint, recipe)
    side = fixed.get("data.image_size", planned_side)

    # A site with few images decides the batch size.
    planned_batch = min(recipe.batch_size, max(2, min(site.n_training for site in fingerprint.sites)))
    n_batch = fixed.get("training.batch_size", planned_batch)
    rate = recipe.learning_rate * math.sqrt(n_batch / recipe.batch_size)

    # Images that are larger for a thin structure get fewer steps, in the time of images of the usual size.
    min_steps = round(recipe.whole_steps * (min(1.0, (recipe.largest_side / side) ** 2) if thin else 1.0))
    steps = {site.name: max(1, math.ceil(site.n_training / n_batch)) for site in fingerprint.sites}  # in an epoch
    of_whole = math.ceil(min_steps / sum(steps.values()))
    of_smallest = math.ceil(round(SMALLEST_SHARE * min_steps) / min(steps.values()))
    epochs = max(of_whole, min(of_smallest, math.floor(MAX_MORE * of_whole)), recipe.min_epochs)

    planned_local = max(1, min(epochs, round(ROUND_STEPS / fmean(steps.values()))))
    n_local = fixed.get("federation.local_epochs", planned_local)
    planned_rounds = math.ceil(epochs / n_local)
    n_rounds = fixed.get("federation.rounds", planned_rounds)
    n_images = n_rounds * n_local * sum(site.n_training for site in fingerprint.sites)
    values = {
        "data.image_size": planned_side,
        "network.name": recipe.name,
        **{f"network.{key}": value for key, value in recipe.network.items()},
        "training.learning_rate": round(rate, 5),
        "training.schedule": "cosine",
        "training.batch_size": planned_batch,
        "federation.rounds": planned_rounds,
        "federation.local_epochs": planned_local,
        "federation.validate_every": max(1, n_rounds // VALIDATIONS),
    }
    return Plan(
        values,
        recipe,
        thin,
        min_steps,
        {name: n * n_local * n_rounds for name, n in steps.items()},
        n_images * side**2 * recipe.step_s_per_pixel / CORES / USABLE / 60,
    )


def network_name(classifies: bool, pretrained: bool, fixed: Mapping[str, Any]) -> str:
    """Return the user's network, otherwise the best one; ImageNet weights only if they accept the user's image size."""
    with_weights = PRETRAINED_CLASSIFIER if classifies else PRETRAINED_UNET
    wished = fixed.get("data.image_size", with_weights.min_side)
    fits = isinstance(wished, int) and wished >= with_weights.min_side and wished % with_weights.side_step == 0
    best = with_weights if pretrained and fits else DENSENET if classifies else USUAL
    return str(fixed.get("network.name", best.name))


def _recipe(fingerprint: Fingerprint, pretrained: bool, fixed: Mapping[str, Any]) -> Recipe:
    """The recipe of the network: the chosen one, or the usual one for this task and image size."""
    name = network_name(bool(fingerprint.classes), pretrained, fixed)
    if name == USUAL.name:
        side = fixed.get("data.image_size", _image_size(fingerprint, USUAL))
        return WIDE if side <= WIDE.largest_side else USUAL
    random = DENSENET if fingerprint.classes else USUAL
    recipes = {recipe.name: recipe for recipe in (PRETRAINED_UNET, DENSENET, PRETRAINED_CLASSIFIER)}
    recipe = recipes.get(name, replace(random, name=name, network={}))
    if fixed.get("network.pretrained") is False:
        return replace(recipe, whole_steps=random.whole_steps, learning_rate=random.learning_rate)
    return recipe


def _median_side(fingerprint: Fingerprint) -> float:
    """Side in pixels of a square with the area of the median image."""
    return math.sqrt(fingerprint.height * fingerprint.width)


def _thin_structure(fingerprint: Fingerprint, recipe: Recipe) -> Structure | None:
    """The thinnest structure, if it would be too thin in images of the usual size."""
    shown = [structure for structure in fingerprint.structures if structure.width > 0]
    thinnest = min(shown, key=lambda structure: structure.width, default=None)
    side = min(recipe.largest_side, _median_side(fingerprint))
    return thinnest if thinnest and thinnest.width * side < MIN_STRUCTURE_PIXELS else None


def _image_size(fingerprint: Fingerprint, recipe: Recipe) -> int:
    """The side of the prepared images in pixels: that of the median image, or the largest that the time allows."""
    limit = recipe.detail_side if _thin_structure(fingerprint, recipe) else recipe.largest_side
    return min(limit, recipe.multiple(_median_side(fingerprint)))
