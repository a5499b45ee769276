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
from typing import Any

from medfed.planning.fingerprint import Fingerprint

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
    """A network and the values with which it is trained.

    Args:
        reason: why this network was chosen, for a comment.
        whole_steps: at least this many steps of all sites together.
        batch_size: images in a batch, if each site has as many.
        learning_rate: of Adam for this batch size; the step size falls to 0 over the rounds.
        side_step: the side of the images is a multiple of this number of pixels, because the network halves it.
        min_side: smallest side of the images in pixels.
        step_s_per_pixel: seconds of one core for one training step per image and pixel, rounded up from CPU times of
            images of the largest size on a slow machine; small images need more per pixel.
        detail_side: largest side in pixels for thin structures; classes have none.
        min_epochs: every image is seen at least this often, also if there are many.
    """

    name: str
    network: Mapping[str, Any]
    reason: str
    whole_steps: int
    batch_size: int
    learning_rate: float
    side_step: int
    min_side: int
    step_s_per_pixel: float
    detail_side: int = 0
    min_epochs: int = 20


WIDE = Recipe(
    "unet",
    {"features": [32, 32, 64, 128, 256, 32]},
    "segments images, with random weights",
    whole_steps=3000,
    batch_size=4,
    learning_rate=0.002,
    side_step=16,
    min_side=32,
    step_s_per_pixel=1.6e-5,
    detail_side=160,
)
USUAL = Recipe(
    "unet",
    {"features": [16, 16, 32, 64, 128, 16]},
    "segments images, with random weights",
    whole_steps=3000,
    batch_size=4,
    learning_rate=0.002,
    side_step=16,
    min_side=32,
    step_s_per_pixel=7.5e-6,
    detail_side=160,
)
PRETRAINED_UNET = Recipe(
    "efficientnet_unet",
    {},
    "its encoder starts from ImageNet weights; BatchNorm keeps their statistics",
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
    "classifies images; small, with random weights",
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
    "starts from ImageNet weights; BatchNorm keeps their statistics",
    whole_steps=800,
    batch_size=16,
    learning_rate=0.0003,
    side_step=32,
    min_side=64,
    step_s_per_pixel=4.5e-6,
    min_epochs=5,
)

RECIPES = (WIDE, USUAL, PRETRAINED_UNET, DENSENET, PRETRAINED_CLASSIFIER)
PRETRAINED = frozenset({PRETRAINED_UNET.name, PRETRAINED_CLASSIFIER.name})
NETWORK_REASONS = {  # of the settings of the networks
    "features": "channels of the five levels and of the output; small images leave time for twice the usual width",
}


@dataclass(frozen=True)
class Choice:
    """One value of a config by dotted key, with the reason (what was found and why the value follows) for a comment."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Plan:
    """The settings of a run that follow from a fingerprint.

    Args:
        choices: in the order in which a config lists them.
        site_steps: training steps of each site in the whole run.
        minutes: estimated time on two cores, with the method FedAvg.
    """

    choices: tuple[Choice, ...]
    site_steps: Mapping[str, int]
    minutes: float

    @property
    def values(self) -> dict[str, Any]:
        """The chosen values by dotted key."""
        return {choice.key: choice.value for choice in self.choices}

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
    detail = _needs_detail(fingerprint, recipe)
    size = _image_size(fingerprint, recipe, detail)
    side = fixed.get(size.key, size.value)
    batch = _batch_size(fingerprint, recipe)
    n_batch = fixed.get(batch.key, batch.value)
    epochs, reason = _epochs(fingerprint, recipe, n_batch, side, detail)
    steps = {site.name: max(1, math.ceil(site.n_training / n_batch)) for site in fingerprint.sites}
    mean_steps = sum(steps.values()) / len(steps)
    local = max(1, min(epochs, round(ROUND_STEPS / mean_steps)))
    n_local = fixed.get("federation.local_epochs", local)
    rounds = math.ceil(epochs / n_local)
    n_rounds = fixed.get("federation.rounds", rounds)
    site_steps = {name: n * n_local * n_rounds for name, n in steps.items()}
    counts = {"smallest": min(site_steps.values()), "whole": sum(site_steps.values())}
    rate = round(recipe.learning_rate * math.sqrt(n_batch / recipe.batch_size), 5)
    choices = (
        size,
        Choice("network.name", recipe.name, recipe.reason),
        *(Choice(f"network.{key}", value, NETWORK_REASONS.get(key, "")) for key, value in recipe.network.items()),
        Choice("training.learning_rate", rate, f"for batches of {n_batch}"),
        Choice("training.schedule", "cosine", "the step size falls to 0, so that the last round is the best to keep"),
        batch,
        Choice("federation.rounds", rounds, reason.format(**counts)),
        Choice(
            "federation.local_epochs",
            local,
            f"the sites average their weights after about {round(n_local * mean_steps)} steps each",
        ),
        Choice(
            "federation.validate_every",
            max(1, n_rounds // VALIDATIONS),
            f"about {min(VALIDATIONS, n_rounds)} points of the learning curve in history.csv",
        ),
    )
    n_images = n_rounds * n_local * sum(site.n_training for site in fingerprint.sites)
    seconds = n_images * side**2 * recipe.step_s_per_pixel
    return Plan(choices, site_steps, seconds / CORES / USABLE / 60)


def largest_side(recipe: Recipe) -> int:
    """Largest side of images in pixels with which the time for 100 images is kept."""
    seconds = MINUTES * 60 * CORES * USABLE
    n_images = recipe.whole_steps * recipe.batch_size
    return _multiple(math.sqrt(seconds / (n_images * recipe.step_s_per_pixel)), recipe)


def _multiple(side: float, recipe: Recipe) -> int:
    """The side in pixels rounded down to a multiple that the network accepts."""
    return max(recipe.min_side, int(side) // recipe.side_step * recipe.side_step)


def _median_side(fingerprint: Fingerprint) -> float:
    """Side in pixels of a square with the area of the median image."""
    return math.sqrt(fingerprint.height * fingerprint.width)


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
    recipe = next((recipe for recipe in RECIPES if recipe.name == name), None)
    if recipe is None:
        like = DENSENET if fingerprint.classes else USUAL
        return replace(like, name=name, network={})
    if recipe in (PRETRAINED_UNET, PRETRAINED_CLASSIFIER) and fixed.get("network.pretrained") is False:
        like = DENSENET if fingerprint.classes else USUAL
        return replace(
            recipe,
            reason="your choice, with random weights",
            whole_steps=like.whole_steps,
            learning_rate=like.learning_rate,
        )
    if recipe.name != USUAL.name:
        return recipe
    side = fixed.get("data.image_size", _image_size(fingerprint, USUAL, _needs_detail(fingerprint, USUAL)).value)
    return WIDE if side <= largest_side(WIDE) else USUAL


def _needs_detail(fingerprint: Fingerprint, recipe: Recipe) -> bool:
    """Whether a structure would be too thin in images of the usual size."""
    side = min(largest_side(recipe), _median_side(fingerprint))
    return any(0 < structure.width * side < MIN_STRUCTURE_PIXELS for structure in fingerprint.structures)


def _image_size(fingerprint: Fingerprint, recipe: Recipe, detail: bool) -> Choice:
    """The side of the prepared images in pixels; `detail` allows a larger one for thin structures."""
    usual = largest_side(recipe)
    limit = recipe.detail_side if detail else usual
    side = min(limit, _multiple(_median_side(fingerprint), recipe))
    what = "slice" if fingerprint.depth > 1 else "image"
    found = f"the median {what} has {fingerprint.width} x {fingerprint.height} pixels"
    if side < limit:
        reason = f"{found}; a multiple of {recipe.side_step}, and at least {recipe.min_side}"
    elif detail:
        thin = min(fingerprint.structures, key=lambda structure: structure.width or math.inf)
        reason = (
            f"{found}; '{thin.name}' would be {thin.width * usual:.1f} pixels wide at the usual {usual}, so the images "
            "are larger, with fewer steps"
        )
    else:
        reason = f"{found}; larger images would need more than {MINUTES} minutes for {N_IMAGES} images on two cores"
    return Choice("data.image_size", side, reason)


def _batch_size(fingerprint: Fingerprint, recipe: Recipe) -> Choice:
    """The recipe's batch size, or less if the smallest site has fewer training images."""
    smallest = min(fingerprint.sites, key=lambda site: site.n_training)
    size = min(recipe.batch_size, max(2, smallest.n_training))
    if size == recipe.batch_size:
        return Choice("training.batch_size", size, "small batches give more steps")
    return Choice("training.batch_size", size, f"the site {smallest.name} has only {smallest.n_training} for training")


def _epochs(fingerprint: Fingerprint, recipe: Recipe, batch_size: int, side: int, detail: bool) -> tuple[int, str]:
    """Return how often every training image is seen in the whole run, and the reason.

    The reason has the fields {smallest} and {whole} for the steps in whole rounds, of the smallest site and of all.
    """
    per_epoch = [max(1, math.ceil(site.n_training / batch_size)) for site in fingerprint.sites]
    whole, smallest = sum(per_epoch), min(per_epoch)
    # With detail, the same time as with images of the usual size.
    share = min(1.0, (largest_side(recipe) / side) ** 2) if detail else 1.0
    target = round(share * recipe.whole_steps)
    target_of_smallest = round(SMALLEST_SHARE * target)
    of_whole, of_smallest = math.ceil(target / whole), math.ceil(target_of_smallest / smallest)
    epochs = max(of_whole, min(of_smallest, math.floor(MAX_MORE * of_whole)), recipe.min_epochs)
    reason = (
        "makes {smallest} training steps at the smallest site, {whole} at all together; the rule "
        f"asks for {target_of_smallest} and {target}, because too few steps learn nothing"
        if epochs > recipe.min_epochs or of_whole == recipe.min_epochs
        else f"every image is seen {recipe.min_epochs} times, which makes {{whole}} steps"
    )
    return epochs, reason
