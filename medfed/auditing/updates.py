"""Attack several updates of a site, from one image in one step to a round of the plan, each next to a control.

The case "easy" is the positive control: one image, and the exact gradient of a small network. "one" and "batch" are one
SGD step with the network of the plan on one image and on up to four, "round" is a round of local training as planned.
The negative control of each case is the same attack on an update of images of other patients, or on noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medfed.auditing.image_scores import Attempt, scored_channel
from medfed.auditing.inversion import SIDE, Observation, favourable_observation, invert, score
from medfed.auditing.sharing import evenly_spaced, images_by_patient
from medfed.core.batch import Batch
from medfed.core.seeds import seeded_layers, stream
from medfed.federation.device_samples import DeviceSamples
from medfed.federation.local_round import Samples, Task
from medfed.federation.message import Kind, Message, State
from medfed.federation.method import Tensors
from medfed.federation.privacy import Privacy
from medfed.federation.settings import Training
from medfed.federation.site import Site
from medfed.methods.fedavg import FedAvg

MAX_TARGETS = 4  # largest number of images that are reconstructed together
MAX_IMAGES = 96  # largest number of images in the audit's round of the plan
EASY_STEPS = 400  # steps of the attack on the small network
ONE_IMAGE_FACTOR = 4  # a single image is attacked with this many times the steps, which takes as long as four images
SUCCESS, MARGIN = 0.5, 0.1  # a detail correlation that counts as success, and how far above its control it must be
UPDATE, CONTROL = "update", "control"  # what was attacked: an update of the images, or one without them
Case = tuple[dict[str, Any], list[Attempt]]  # properties and scores as plain JSON values; one attempt for each image


@dataclass(frozen=True)
class Chosen:
    """The images of a site that the attacks on its updates use, at 64 x 64 pixels."""

    targets: DeviceSamples  # the images that the attacks try to reconstruct, at most four
    others: DeviceSamples | None  # images of other patients, for the negative controls; None if there are none
    round_with: DeviceSamples  # images of the audit's round of the plan: the targets and further images of the site
    round_without: DeviceSamples | None  # those of patients without a target; None if there are none

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


def small_images(samples: Samples, indices: Sequence[int]) -> DeviceSamples:
    """Images at these indices with their labels, resized to 64 x 64 pixels, each of a patient of its own."""
    batch = samples.batch(indices)
    image = F.interpolate(batch.image, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)
    is_mask = batch.label.ndim == 4
    label = F.interpolate(batch.label.float(), (SIDE, SIDE), mode="nearest-exact") if is_mask else batch.label
    return DeviceSamples(replace(batch, image=image, label=label.to(batch.label.dtype)), len(indices))


def plan_site(site: Site, images: DeviceSamples) -> Site:
    """A copy of the site, with nothing of earlier rounds, that trains as planned on these images, not augmented."""
    nothing: dict[str, Any] = {"memory": {}, "progress": None, "_expanded": None, "_on_device": None}
    settings, network = replace(site.settings, augment=False), deepcopy(site.network)
    return replace(
        site, method=FedAvg(), network=network, training=images, validation=None, settings=settings, **nothing
    )


def one_step_site(site: Site, images: DeviceSamples) -> Site:
    """A copy of the site whose update, of one SGD step without clipping and noise, is the gradient of the loss."""
    settings = Training(optimizer="sgd", learning_rate=1.0, batch_size=len(images), augment=False)
    copy = plan_site(site, images)
    return replace(copy, settings=settings, local_epochs=1, privacy=Privacy(), local_keys=frozenset())


def update_of(site: Site, weights: Tensors) -> Message:
    return site.reply(Message(Kind.TRAIN, weights, {}, {"round": 1, "last": 0}))


def statistics_with_update(site: Site, start: State, shared: Mapping[str, Tensors]) -> Tensors:
    """The tensors that the site would send with its update of round 1, after one step; `shared` are those of the sites
    before training. The attacks do not use them."""
    state = replace(start, memory=site.method.combine(start, shared, stream(site.seed, "combine", 1)))
    request = Message(Kind.TRAIN, state.weights, site.method.broadcast(state, site.name), {"round": 1, "last": 0})
    nothing: dict[str, Any] = {"memory": {}, "progress": None, "_expanded": None, "_on_device": None}
    short = replace(site, network=deepcopy(site.network), max_steps=1, local_epochs=1, **nothing)
    return short.reply(request).tensors


def observe(site: Site, weights: Tensors, update: Message, known: DeviceSamples) -> Observation:
    """What the coordinator can compute from an update: how the weights changed, and the loss of any images.

    To make the attack stronger, it also gets the labels and the moments of the images `known`, but not their pixels.
    """
    network = with_weights(site, weights).train()
    trained = {
        name: entry for name, entry in network.named_parameters() if entry.requires_grad and name in update.weights
    }
    device = next(network.parameters()).device
    change = [(weights[name].to(device) - update.weights[name].to(device)).float() for name in trained]
    batch = known.all.to(device)

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


def attack_updates(site: Site, weights: Tensors, n_steps: int, quiet: bool = True) -> list[Case]:
    """Try to reconstruct images of a site, which stays unchanged, from updates with and without these images."""
    chosen = Chosen.of_site(site.training)
    one, other = _first(chosen.targets), chosen.others and _first(chosen.others)
    easy = [favourable_observation(images.all.image, site.seed) for images in (one, other) if images]
    small = {"n_images": 1, "n_steps": 1, "optimizer": "sgd", "privacy": False}
    cases = [_attack("easy", small, one, easy, EASY_STEPS, site.seed, quiet)]
    plan = {
        "one": (one, one, other),
        "batch": (chosen.targets, chosen.targets, chosen.others),
        "round": (chosen.targets, chosen.round_with, chosen.round_without),
    }
    for name, (known, trained_on, without) in plan.items():
        make = plan_site if name == "round" else one_step_site
        trained = [make(site, images) for images in (trained_on, without) if images]
        updates = [update_of(each, weights) for each in trained]
        observations = [observe(each, weights, update, known) for each, update in zip(trained, updates, strict=True)]
        about = {
            "n_images": len(trained_on),
            "n_steps": updates[0].facts["steps"],
            "optimizer": trained[0].settings.optimizer,
            "privacy": trained[0].privacy != Privacy(),
        }
        factor = ONE_IMAGE_FACTOR if name == "one" else 1
        cases.append(_attack(name, about, known, observations, factor * n_steps, site.seed, quiet))
    details = {about["case"]: (_mean(about["scores"]), _mean(about["control_scores"])) for about, _ in cases}
    return [({**about, "verdict": verdict(about["case"], details)}, attempts) for about, attempts in cases]


def verdict(name: str, details: Mapping[str, tuple[float, float]]) -> str:
    """What the result of a case means. `details`: by case, the mean detail correlation and that of its control."""
    easy, control_of_easy = details["easy"]
    if easy < SUCCESS or control_of_easy > SUCCESS - MARGIN:
        return "the attack is too weak here to say anything: its positive control failed"
    if details[name][0] > details[name][1] + MARGIN:
        return (
            "image details were reconstructed"
            if details[name][0] >= SUCCESS
            else "some image details were reconstructed"
        )
    if name != "one" and details["one"][0] <= details["one"][1] + MARGIN:
        return (
            "nothing was reconstructed, but the attack also failed on one image and one step with this network, so "
            "this case says nothing"
        )
    if name == "one":
        return "nothing was reconstructed: this attack is too weak for this network, which proves nothing"
    return "nothing was reconstructed, which does not prove that no attack can succeed"


def _attack(
    name: str,
    about: dict[str, Any],
    known: DeviceSamples,
    observations: Sequence[Observation],
    n_steps: int,
    seed: int,
    quiet: bool,
) -> Case:
    """Attack an update and its negative control, which is the second observation or else noise; score both results."""
    originals = known.all.image
    attempts = [Attempt(original, {}, {}) for original in originals[:, scored_channel(originals)]]
    for kind, attacked in zip((UPDATE, CONTROL), (*observations, _noise(observations[0], seed))):
        # Layers that draw random numbers in training mode, such as dropout, draw the same ones in every audit.
        with seeded_layers(seed, "inversion layers", name, kind):
            images, distance = invert(attacked, originals.shape, n_steps, stream(seed, "inversion", name), quiet)
        for attempt, (image, scores) in zip(attempts, score(images, originals, distance), strict=True):
            attempt.images[kind], attempt.scores[kind] = image, scores
    scores_of = {kind: [attempt.scores[kind] for attempt in attempts] for kind in (UPDATE, CONTROL)}
    about = {"case": name, **about, "attack_steps": n_steps}
    return {**about, "scores": scores_of[UPDATE], "control_scores": scores_of[CONTROL]}, attempts


def _mean(scores: Sequence[Mapping[str, float]]) -> float:
    return fmean(each["detail_correlation"] for each in scores)


def _first(images: DeviceSamples) -> DeviceSamples:
    return DeviceSamples(images.batch([0]), 1)


def _noise(observation: Observation, seed: int) -> Observation:
    """The observation with a change that is Gaussian noise of the same norm."""
    rng = stream(seed, "inversion", "noise")
    noise = [torch.randn(change.shape, generator=rng).to(change.device) for change in observation.change]
    norms = [torch.stack([entry.norm() for entry in tensors]).norm() for tensors in (observation.change, noise)]
    return replace(observation, change=[entry * (norms[0] / norms[1]) for entry in noise])
