"""The rules that turn a fingerprint into a plan: image size, network, batch size, learning rate, epochs and rounds.

A plan is a pure function of the fingerprint, so that the same images give the same plan on every machine. As in nnU-Net
(Isensee et al., "nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation", Nature
Methods 2021, https://doi.org/10.1038/s41592-020-01008-z), the data decide, not the user.

With ImageNet weights, a network needs fewer and smaller steps than with random weights. Its BatchNorm layers keep the
statistics with which they came, as is usual in domain generalisation (Gulrajani & Lopez-Paz, "In Search of Lost Domain
Generalization", ICLR 2021, https://arxiv.org/abs/2007.01434, appendix D): small batches and a site unlike the others
cannot change them.

Volumes with enough slices and nearly cubic voxels get a 3-D network on patches. As in nnU-Net, the voxel size is the
median one, and it grows if a patch would show too small a part of a volume, the finest axes first; a patch has the
proportions of the volume; and a batch has two patches. nnU-Net's patches fill a GPU, these suit two CPU cores.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from medfed.planning.fingerprint import Fingerprint, Structure
from medfed.tasks.patches import n_patches

# Time. A plan for 100 images is estimated to end within 15 minutes on two cores; patches of 100 volumes take longer.
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

# Volumes.
MIN_SLICES = 32  # volumes with fewer slices are trained as slices
MAX_SPACING_RATIO = 3.0  # so are volumes whose slices are this many times as far apart as their pixels
PATCH_VOXELS = 64 * 64 * 32  # of a patch, at most
MAX_PATCHES = 2.0  # the median volume has at most this many times the voxels of a patch


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
VOLUMES = Recipe(
    "unet",
    {"features": [8, 8, 16, 32, 64, 8]},
    whole_steps=1000,
    batch_size=2,
    learning_rate=0.002,
    side_step=16,
    min_side=16,
    step_s_per_pixel=4e-6,  # and voxel
    min_epochs=5,  # the patches of an epoch overlap, so that most voxels are seen several times in each
)
PRETRAINED = (PRETRAINED_UNET.name, PRETRAINED_CLASSIFIER.name)
THREE_DIMENSIONS = (VOLUMES.name, "monai_network")


@dataclass(frozen=True)
class Plan:
    """The settings of a run that follow from a fingerprint, and the numbers that explain them."""

    values: Mapping[str, Any]  # by dotted key, in the order in which a config lists them
    recipe: Recipe  # the network, with the values from which the plan starts
    thin: Structure | None  # images are larger than usual for it; None if the usual size shows all structures
    min_steps: int  # training steps of all sites together for which the rules ask
    site_steps: Mapping[str, int]  # training steps of each site in the whole run
    minutes: float  # estimated time on two cores, with the method FedAvg
    why_slices: str = ""  # why volumes are trained as slices; empty for images and 3-D networks
    coarser: float = 1.0  # how many times as large as the median the planned voxel size is, along the finest axis

    @property
    def whole_steps(self) -> int:
        """Training steps of all sites together."""
        return sum(self.site_steps.values())


def make_plan(
    fingerprint: Fingerprint,
    fixed: Mapping[str, Any] | None = None,
    pretrained: bool = False,
    dimensions: Container[int] = (2, 3),
) -> Plan:
    """Return the plan of a fingerprint; the user's values in `fixed`, by dotted key, decide the others.

    `pretrained`: ImageNet weights can be used. `dimensions`: those on which the method works.
    """
    fixed = fixed or {}
    why_slices = _why_slices(fingerprint, fixed, dimensions)
    if fingerprint.depth > 1 and not why_slices:
        plan = _plan(fingerprint, fixed, *_volumes(fingerprint, fixed))
        spacing = fixed.get("data.spacing_mm", plan.values.get("data.spacing_mm"))
        pairs = zip(spacing or (), fingerprint.spacing_mm or (), strict=False)
        return replace(plan, coarser=max((planned / median for planned, median in pairs), default=1.0))
    recipe = _recipe(fingerprint, pretrained, fixed)
    thin = _thin_structure(fingerprint, recipe)
    planned_side = _image_size(fingerprint, recipe)
    side = fixed.get("data.image_size", planned_side)
    # Images that are larger for a thin structure get fewer steps, in the time of images of the usual size.
    share = min(1.0, (recipe.largest_side / side) ** 2) if thin else 1.0
    sizes = {"data.image_size": planned_side} | ({"data.patch_size": None} if why_slices else {})
    n_training = {site.name: site.n_training for site in fingerprint.sites}
    plan = _plan(fingerprint, fixed, recipe, sizes, side**2, n_training, round(recipe.whole_steps * share))
    return replace(plan, thin=thin, why_slices=why_slices)


def _plan(
    fingerprint: Fingerprint,
    fixed: Mapping[str, Any],
    recipe: Recipe,
    sizes: Mapping[str, Any],
    n_pixels: int,
    n_training: Mapping[str, int],
    min_steps: int,
) -> Plan:
    """The plan for training samples of n_pixels, of which each site has n_training."""
    # A site with few images decides the batch size.
    planned_batch = min(recipe.batch_size, max(2, min(n_training.values())))
    n_batch = fixed.get("training.batch_size", planned_batch)
    rate = recipe.learning_rate * math.sqrt(n_batch / recipe.batch_size)

    steps = {name: max(1, math.ceil(n / n_batch)) for name, n in n_training.items()}  # in an epoch
    of_whole = math.ceil(min_steps / sum(steps.values()))
    of_smallest = math.ceil(round(SMALLEST_SHARE * min_steps) / min(steps.values()))
    epochs = max(of_whole, min(of_smallest, math.floor(MAX_MORE * of_whole)), recipe.min_epochs)

    planned_local = max(1, min(epochs, round(ROUND_STEPS / fmean(steps.values()))))
    n_local = fixed.get("federation.local_epochs", planned_local)
    planned_rounds = math.ceil(epochs / n_local)
    n_rounds = fixed.get("federation.rounds", planned_rounds)
    n_samples = n_rounds * n_local * sum(n_training.values())
    values = {
        **sizes,
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
        None,
        min_steps,
        {name: n * n_local * n_rounds for name, n in steps.items()},
        n_samples * n_pixels * recipe.step_s_per_pixel / CORES / USABLE / 60,
    )


def _why_slices(fingerprint: Fingerprint, fixed: Mapping[str, Any], dimensions: Container[int]) -> str:
    """Why volumes are trained as slices; empty if they are not, or if the images are 2-D."""
    if fingerprint.depth == 1 or fixed.get("data.patch_size"):
        return ""
    if "data.patch_size" in fixed:
        return "your choice (--set)"
    if "data.image_size" in fixed:
        return "you chose data.image_size, which is for slices"
    if 3 not in dimensions:
        return "the method works on slices only"
    if fixed.get("network.name", VOLUMES.name) not in THREE_DIMENSIONS:
        return "the network has two dimensions"
    if fingerprint.classes:
        return "images with classes are trained as slices"
    shape, median_mm = (fingerprint.height, fingerprint.width, fingerprint.depth), fingerprint.spacing_mm
    if median_mm is None:
        return "no file stores the size of its voxels, which a 3-D network needs"
    # Slices were acquired along the axis with the largest distance, which need not be the superior one.
    n_slices = min(fingerprint.depth, shape[median_mm.index(max(median_mm))])
    if n_slices < MIN_SLICES:
        return f"the median volume has {n_slices} slices; 3-D patches are planned for {MIN_SLICES} or more"
    ratio = max(median_mm) / min(median_mm)
    if ratio >= MAX_SPACING_RATIO:
        return (
            f"the slices are {ratio:.2g} times as far apart as their pixels; 3-D patches are planned below "
            f"{MAX_SPACING_RATIO:g} times"
        )
    spacing = _spacing(fingerprint)
    side_mm, in_plane_mm = math.sqrt(math.prod(shape[:2]) * math.prod(median_mm[:2])), min(spacing[:2])
    for structure in fingerprint.structures:
        is_thin = 0 < structure.width * side_mm / in_plane_mm < MIN_STRUCTURE_PIXELS
        if is_thin and in_plane_mm > 1.01 * min(median_mm[:2]):
            return f"'{structure.name}' would be too thin with the {in_plane_mm:.2g} mm of a voxel in 3-D"
    return ""


def _spacing(fingerprint: Fingerprint) -> tuple[float, ...]:
    """The voxel size in mm: the median one, and coarser along the finest axes until a volume has few enough voxels."""
    assert fingerprint.spacing_mm is not None
    spacing: tuple[float, ...] = fingerprint.spacing_mm
    shape, finest = (fingerprint.height, fingerprint.width, fingerprint.depth), min(spacing)
    volume_mm3 = math.prod(shape) * math.prod(spacing)
    while volume_mm3 / math.prod(spacing) > MAX_PATCHES * PATCH_VOXELS:
        finest *= 1.01
        spacing = tuple(max(finest, mm) for mm in fingerprint.spacing_mm)
    return tuple(float(f"{mm:.3g}") for mm in spacing)


def _patch_size(shape: Sequence[float]) -> list[int]:
    """The size of a patch in voxels: the whole volume, without the voxels of each axis that the others need more."""
    step = VOLUMES.side_step
    size = [step * math.ceil(n / step) for n in shape]
    while math.prod(size) > PATCH_VOXELS:
        size[max(range(3), key=lambda axis: (size[axis] - step) / shape[axis])] -= step
    return size


def _volumes(
    fingerprint: Fingerprint, fixed: Mapping[str, Any]
) -> tuple[Recipe, dict[str, Any], int, dict[str, int], int]:
    """The arguments of `_plan` for patches of volumes."""
    shape: Sequence[float] = (fingerprint.height, fingerprint.width, fingerprint.depth)
    spacing = fixed.get("data.spacing_mm", fingerprint.spacing_mm and _spacing(fingerprint))
    sizes: dict[str, Any] = {}
    if spacing and fingerprint.spacing_mm:
        shape = [n * mm / planned for n, mm, planned in zip(shape, fingerprint.spacing_mm, spacing)]
        sizes = {"data.spacing_mm": list(spacing)}
    size = fixed.get("data.patch_size") or _patch_size(shape)
    per_volume = n_patches([math.ceil(max(n, length)) for n, length in zip(shape, size)], size)
    n_training = {site.name: site.n_training_images * per_volume for site in fingerprint.sites}
    name = str(fixed.get("network.name", VOLUMES.name))
    recipe = VOLUMES if name == VOLUMES.name else replace(VOLUMES, name=name, network={})
    return recipe, {"data.patch_size": size} | sizes, math.prod(size), n_training, recipe.whole_steps


def network_name(classifies: bool, pretrained: bool, fixed: Mapping[str, Any]) -> str:
    """Return the user's network, otherwise the best one; ImageNet weights only if they accept the user's images."""
    with_weights = PRETRAINED_CLASSIFIER if classifies else PRETRAINED_UNET
    wished = fixed.get("data.image_size", with_weights.min_side)
    fits = isinstance(wished, int) and wished >= with_weights.min_side and wished % with_weights.side_step == 0
    fits &= fixed.get("data.image_channels", 3) in (1, 3)
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
