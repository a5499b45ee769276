"""Updates of a site (weights after local training) for the audit, as replies of the site itself (`Site.reply`).

Optimiser, batches, clipping and noise are therefore those of the plan. To keep the attack short, and to make it easier,
the images have 64 x 64 pixels, and augmentation, the method's changes of images and its further loss terms are left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from medfed.auditing.inversion import SIDE, Observation
from medfed.auditing.sharing import ImageSet, evenly_spaced, images_by_patient
from medfed.core.batch import Batch
from medfed.federation.local_round import Samples, Task
from medfed.federation.message import Kind, Message
from medfed.federation.method import Tensors
from medfed.federation.privacy import Privacy
from medfed.federation.settings import Training
from medfed.federation.site import Site
from medfed.methods.fedavg import FedAvg

MAX_TARGETS = 4  # largest number of images that are reconstructed together
MAX_IMAGES = 96  # largest number of images in the audit's round of the plan


@dataclass(frozen=True)
class Chosen:
    """The images of a site that the attacks on its updates use, at 64 x 64 pixels."""

    targets: ImageSet  # the images that the attacks try to reconstruct, at most four
    others: ImageSet | None  # images of other patients, for the negative controls; None if there are none
    round_with: ImageSet  # images of the audit's round of the plan: the targets and further images of the site
    round_without: ImageSet | None  # those of patients without a target; None if there are none

    @classmethod
    def of_site(cls, samples: Samples) -> Chosen:
        """Choose four targets: middle images of at most four and half of the patients, then others of their images."""
        patients = images_by_patient(samples)
        attacked = evenly_spaced(patients, max(1, min(MAX_TARGETS, len(patients) // 2)))
        targets = _four_images(attacked)
        others = _four_images([patient for patient in patients if patient not in attacked])[: len(targets)]
        rest = [index for patient in patients for index in patient if index not in targets]
        in_round = targets + evenly_spaced(rest, MAX_IMAGES - len(targets))
        of_attacked = {index for patient in attacked for index in patient}
        without = [index for index in in_round if index not in of_attacked]
        return cls(
            small_images(samples, targets),
            small_images(samples, others) if others else None,
            small_images(samples, in_round),
            small_images(samples, without) if without else None,
        )


def _four_images(patients: Sequence[Sequence[int]]) -> list[int]:
    """The middle image of each of up to four patients, then further images of these patients, up to four."""
    first = [patient[len(patient) // 2] for patient in evenly_spaced(patients, MAX_TARGETS)]
    further = [index for patient in patients for index in patient if index not in first]
    return first + evenly_spaced(further, MAX_TARGETS - len(first))


def small_images(samples: Samples, indices: Sequence[int]) -> ImageSet:
    """Images at these indices with their labels, resized to 64 x 64 pixels, each of a patient of its own."""
    batch = samples.batch(indices)
    image = F.interpolate(batch.image, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)
    is_mask = batch.label.ndim == 4
    label = F.interpolate(batch.label.float(), (SIDE, SIDE), mode="nearest-exact") if is_mask else batch.label
    return ImageSet(image, label.to(batch.label.dtype), len(indices), batch.moments)


def plan_site(site: Site, images: ImageSet) -> Site:
    """A copy of the site, with nothing of earlier rounds, that trains as planned on these images, not augmented."""
    nothing: dict[str, Any] = {"memory": {}, "progress": None, "_expanded": None, "_on_device": None}
    settings, network = replace(site.settings, augment=False), deepcopy(site.network)
    return replace(
        site, method=FedAvg(), network=network, training=images, validation=None, settings=settings, **nothing
    )


def one_step_site(site: Site, images: ImageSet) -> Site:
    """A copy of the site whose update, of one SGD step without clipping and noise, is the gradient of the loss."""
    settings = Training(optimizer="sgd", learning_rate=1.0, batch_size=len(images), augment=False)
    copy = plan_site(site, images)
    return replace(copy, settings=settings, local_epochs=1, privacy=Privacy(), local_keys=frozenset())


def update_of(site: Site, weights: Tensors) -> Message:
    return site.reply(Message(Kind.TRAIN, weights, {}, {"round": 1, "last": 0}))


def observe(site: Site, weights: Tensors, update: Message, known: ImageSet) -> Observation:
    """What the coordinator can compute from an update: how the weights changed, and the loss of any images.

    To make the attack stronger, it also gets the labels and the moments of the images `known`, but not their pixels.
    """
    network = with_weights(site, weights).train()
    trained = {
        name: entry for name, entry in network.named_parameters() if entry.requires_grad and name in update.weights
    }
    device = next(network.parameters()).device
    change = [(weights[name].to(device) - update.weights[name].to(device)).float() for name in trained]
    batch = known.batch(range(len(known))).to(device)

    def loss(images: Tensor) -> Tensor:
        return task_loss(network, site.task, replace(batch, image=images))

    return Observation(loss, list(trained.values()), change, site.settings.optimizer == "adam")


def with_weights(site: Site, weights: Tensors) -> nn.Module:
    """A copy of the site's network with other weights."""
    network = deepcopy(site.network)
    network.load_state_dict(weights)  # copies them to the network's device
    return network


def task_loss(network: nn.Module, task: Task, batch: Batch) -> Tensor:
    """The task's loss of images in [0, 1], which are standardised first."""
    return task.loss(network(task.standardise(batch.image, batch.moments)), batch.label)
