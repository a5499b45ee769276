"""The rules that turn a fingerprint into a plan: image size, network, batch size, learning rate, epochs and rounds.

A plan is a pure function of the fingerprint, so that the same images give the same plan on every machine. As in nnU-Net
(Isensee et al., "nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation", Nature
Methods 2021, https://doi.org/10.1038/s41592-020-01008-z), the data decide, not the user.

The numbers of steps are a first choice and not tuned. On colonoscopy frames of three sites, 48 steps at each site
learned nothing, and about 900 steps of all sites together were better than trivial predictions and not yet good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medfed.planning.fingerprint import Fingerprint

# Time. A plan for 100 images is estimated to end within 15 minutes on two cores.
MINUTES, CORES, N_IMAGES = 15, 2, 100
# Assumed part of this time in which both cores train; the rest is reading, waiting, test and figures.
USABLE = 0.6
VALIDATION_RATIO, TEST_RATIO = 0.1, 0.2

# Steps. A step is one batch at one site; the whole is the sum over the sites.
WHOLE_STEPS = {"segmentation": 3000, "classification": 2000}  # at least this many steps of all sites together
SMALLEST_STEPS = 300  # at least this many steps of the smallest site, if this needs at most MAX_MORE times the whole
MAX_MORE = 1.3
MIN_EPOCHS = 20  # every image is seen at least this often, also if there are many
ROUND_STEPS = 20  # steps of an average site between two averages of the weights
VALIDATIONS = 10  # number of validations during a run

# Optimiser: Adam, whose step size falls to 0 over the rounds.
BATCH_SIZE = {"segmentation": 4, "classification": 16}
LEARNING_RATE = 0.002  # for these batch sizes; smaller batches have noisier gradients and take smaller steps

# Image size: a multiple of 16, because the U-Net halves the image four times; the DenseNet needs 32 pixels.
SIDE_STEP, MIN_SIDE = 16, 32
MAX_DETAIL_SIDE = 160  # for thin structures
MIN_STRUCTURE_PIXELS = 2.0  # a structure that is narrower than this after resizing needs larger images

# Networks, and the seconds that one core needs for one training step per image and pixel. They are rounded up from CPU
# times on a busy machine: 4 images of 96 x 96 pixels took 0.16 to 0.25 s with the usual U-Net and 0.59 s with the wide
# one, and 16 images 0.25 s with the DenseNet, without reading and augmentation.
FEATURES = {"wide": [32, 32, 64, 128, 256, 32], "usual": [16, 16, 32, 64, 128, 16]}  # of the U-Net
STEP_S_PER_PIXEL = {"wide": 1.6e-5, "usual": 7.5e-6, "classification": 2.5e-6}
DENSENET = {"init_features": 32, "growth_rate": 16, "blocks": [4, 6, 8]}


@dataclass(frozen=True)
class Choice:
    """One value of a config, and why it was chosen.

    Args:
        key: the dotted key, such as "training.batch_size".
        value: plain data, as in YAML.
        reason: what was found and why the value follows, for a comment.
    """

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Plan:
    """The settings of a run that follow from a fingerprint.

    Args:
        choices: the values, in the order in which a config lists them.
        site_steps: training steps of each site in the whole run, by the name of the site.
        minutes: estimated time in minutes on two cores, with the method FedAvg.
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
        """Number of training steps of all sites together."""
        return sum(self.site_steps.values())


def make_plan(
    fingerprint: Fingerprint, fixed: Mapping[str, Any] | None = None, whole_steps: int | None = None
) -> Plan:
    """Return the plan for a fingerprint.

    Args:
        fingerprint: of the sites that train.
        fixed: values by dotted key that the user has chosen. The other values follow from them: twice the batch size
            halves the steps of an epoch. None if there are none.
        whole_steps: number of training steps of all sites together, for a wish in minutes; None follows the rules. The
            plan has at least one round.
    """
    fixed, task = fixed or {}, "classification" if fingerprint.classes else "segmentation"
    detail = _needs_detail(fingerprint)
    size = _image_size(fingerprint, detail)
    side = fixed.get(size.key, size.value)
    batch = _batch_size(fingerprint, task)
    n_batch = fixed.get(batch.key, batch.value)
    epochs, reason = _epochs(fingerprint, n_batch, side, detail, whole_steps)
    steps = {site.name: max(1, math.ceil(site.n_training / n_batch)) for site in fingerprint.sites}
    mean_steps = sum(steps.values()) / len(steps)
    local = max(1, min(epochs, round(ROUND_STEPS / mean_steps)))
    n_local = fixed.get("federation.local_epochs", local)
    rounds = math.ceil(epochs / n_local)
    n_rounds = fixed.get("federation.rounds", rounds)
    site_steps = {name: n * n_local * n_rounds for name, n in steps.items()}
    counts = {"smallest": min(site_steps.values()), "whole": sum(site_steps.values())}
    rate = round(LEARNING_RATE * math.sqrt(n_batch / BATCH_SIZE[task]), 5)
    choices = (
        size,
        *_network(fingerprint, side),
        Choice("training.learning_rate", rate, f"for batches of {n_batch}"),
        Choice("training.schedule", "cosine", "the step size falls to 0, so that the last round is the best to keep"),
        batch,
        Choice("federation.rounds", rounds, reason.format(**counts)),
        Choice("federation.local_epochs", local,
               f"the sites average their weights after about {round(n_local * mean_steps)} steps each"),
        Choice("federation.validate_every", max(1, n_rounds // VALIDATIONS),
               f"about {min(VALIDATIONS, n_rounds)} points of the learning curve in history.csv"),
    )  # fmt: skip
    n_images = n_rounds * n_local * sum(site.n_training for site in fingerprint.sites)
    seconds = n_images * side**2 * STEP_S_PER_PIXEL[_cost(fingerprint, side)]
    return Plan(choices, site_steps, seconds / CORES / USABLE / 60)


def largest_side(cost: str) -> int:
    """Return the largest side of images in pixels with which the time for 100 images is kept.

    Args:
        cost: key of `STEP_S_PER_PIXEL`.
    """
    task = "classification" if cost == "classification" else "segmentation"
    seconds = MINUTES * 60 * CORES * USABLE
    n_images = WHOLE_STEPS[task] * BATCH_SIZE[task]
    return _multiple(math.sqrt(seconds / (n_images * STEP_S_PER_PIXEL[cost])))


def _multiple(side: float) -> int:
    return max(MIN_SIDE, int(side) // SIDE_STEP * SIDE_STEP)


def _median_side(fingerprint: Fingerprint) -> float:
    return math.sqrt(fingerprint.height * fingerprint.width)


def _cost(fingerprint: Fingerprint, side: int) -> str:
    """Return the key of `STEP_S_PER_PIXEL` of the network that is planned for images of this side."""
    if fingerprint.classes:
        return "classification"
    return "wide" if side <= largest_side("wide") else "usual"


def _needs_detail(fingerprint: Fingerprint) -> bool:
    """Return whether a structure would be too thin in images of the usual size."""
    side = min(largest_side("usual"), _median_side(fingerprint))
    return any(0 < structure.width * side < MIN_STRUCTURE_PIXELS for structure in fingerprint.structures)


def _image_size(fingerprint: Fingerprint, detail: bool) -> Choice:
    is_class = bool(fingerprint.classes)
    limit = MAX_DETAIL_SIDE if detail else largest_side("classification" if is_class else "usual")
    side = min(limit, _multiple(_median_side(fingerprint)))
    what = "slice" if fingerprint.depth > 1 else "image"
    found = f"the median {what} has {fingerprint.width} x {fingerprint.height} pixels"
    if side < limit:
        reason = f"{found}; a multiple of {SIDE_STEP}"
    elif detail:
        thin = min(fingerprint.structures, key=lambda structure: structure.width or math.inf)
        usual = largest_side("usual")
        reason = (
            f"{found}; '{thin.name}' would be {thin.width * usual:.1f} pixels wide at the usual {usual}, so the images "
            "are larger, with fewer steps"
        )
    else:
        reason = f"{found}; larger images would need more than {MINUTES} minutes for {N_IMAGES} images on two cores"
    return Choice("data.image_size", side, reason)


def _network(fingerprint: Fingerprint, side: int) -> tuple[Choice, ...]:
    if fingerprint.classes:
        n_classes = len(fingerprint.classes)
        small = f"a small DenseNet, because nothing is pretrained and there are {n_classes} classes"
        reasons = {"init_features": small, "growth_rate": "", "blocks": ""}
        return (Choice("network.name", "densenet", "classifies images"),
                *(Choice(f"network.{key}", value, reasons[key]) for key, value in DENSENET.items()))  # fmt: skip
    width = _cost(fingerprint, side)
    reason = {
        "wide": f"twice the usual width, because images of {side} pixels leave time for it",
        "usual": "channels of the five levels and of the output; a wider network would need smaller images",
    }[width]
    return Choice("network.name", "unet", "segments images"), Choice("network.features", FEATURES[width], reason)


def _batch_size(fingerprint: Fingerprint, task: str) -> Choice:
    smallest = min(fingerprint.sites, key=lambda site: site.n_training)
    size = min(BATCH_SIZE[task], max(2, smallest.n_training))
    if size == BATCH_SIZE[task]:
        return Choice("training.batch_size", size, "small batches give more steps")
    return Choice("training.batch_size", size, f"the site {smallest.name} has only {smallest.n_training} for training")


def _epochs(
    fingerprint: Fingerprint, batch_size: int, side: int, detail: bool, whole_steps: int | None
) -> tuple[int, str]:
    """Return how often every training image is seen in the whole run, and the reason.

    The reason has the fields {smallest} and {whole} for the steps in whole rounds, of the smallest site and of all.
    """
    per_epoch = [max(1, math.ceil(site.n_training / batch_size)) for site in fingerprint.sites]
    whole, smallest = sum(per_epoch), min(per_epoch)
    if whole_steps is not None:
        epochs = max(1, whole_steps // whole)
        return epochs, "makes {whole} steps at all sites together, about as many as fit into the wished minutes"
    # With detail, the same time as with images of the usual size.
    share = min(1.0, (largest_side("usual") / side) ** 2) if detail else 1.0
    target = round(share * WHOLE_STEPS["classification" if fingerprint.classes else "segmentation"])
    target_of_smallest = round(share * SMALLEST_STEPS)
    of_whole, of_smallest = math.ceil(target / whole), math.ceil(target_of_smallest / smallest)
    epochs = max(of_whole, min(of_smallest, math.floor(MAX_MORE * of_whole)), MIN_EPOCHS)
    reason = (
        "makes {smallest} training steps at the smallest site, {whole} at all together; the rule "
        f"asks for {target_of_smallest} and {target}, because too few steps learn nothing"
        if epochs > MIN_EPOCHS or of_whole == MIN_EPOCHS
        else f"every image is seen {MIN_EPOCHS} times, which makes {{whole}} steps"
    )
    return epochs, reason
