"""Attack several updates of a site, from one image in one step to a round of the plan, each next to a control.

The case "easy" is the positive control: one image, and the exact gradient of a small network. "one" and "batch" are one
SGD step with the network of the plan on one image and on up to four, "round" is a round of local training as planned.
The negative control of each case is the same attack on an update of images of other patients, or on noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from medfed.auditing.image_scores import Attempt, scored_channel
from medfed.auditing.inversion import Observation, favourable_observation, invert, score
from medfed.auditing.sharing import ImageSet
from medfed.auditing.updates import Chosen, observe, one_step_site, plan_site, update_of
from medfed.core.seeds import seeded_layers, stream
from medfed.federation.method import Tensors
from medfed.federation.privacy import Privacy
from medfed.federation.site import Site

EASY_STEPS = 400  # steps of the attack on the small network
ONE_IMAGE_FACTOR = 4  # a single image is attacked with this many times the steps, which takes as long as four images
SUCCESS, MARGIN = 0.5, 0.1  # a detail correlation that counts as success, and how far above its control it must be
UPDATE, CONTROL = "update", "control"  # what was attacked: an update of the images, or one without them


Case = tuple[dict[str, Any], list[Attempt]]  # facts and scores as plain JSON values; one attempt for each image


def attack_updates(site: Site, weights: Tensors, n_steps: int, quiet: bool = True) -> list[Case]:
    """Try to reconstruct images of a site, which stays unchanged, from updates with and without these images."""
    chosen = Chosen.of_site(site.training)
    one, other = _first(chosen.targets), chosen.others and _first(chosen.others)
    easy = [favourable_observation(images.images, site.seed) for images in (one, other) if images]
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
        facts = {
            "n_images": len(trained_on),
            "n_steps": updates[0].facts["steps"],
            "optimizer": trained[0].settings.optimizer,
            "privacy": trained[0].privacy != Privacy(),
        }
        factor = ONE_IMAGE_FACTOR if name == "one" else 1
        cases.append(_attack(name, facts, known, observations, factor * n_steps, site.seed, quiet))
    details = {facts["case"]: (_mean(facts["scores"]), _mean(facts["control_scores"])) for facts, _ in cases}
    return [({**facts, "verdict": verdict(facts["case"], details)}, attempts) for facts, attempts in cases]


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
    facts: dict[str, Any],
    known: ImageSet,
    observations: Sequence[Observation],
    n_steps: int,
    seed: int,
    quiet: bool,
) -> Case:
    """Attack an update and its negative control, which is the second observation or else noise; score both results."""
    attempts = [Attempt(original, {}, {}) for original in known.images[:, scored_channel(known.images)]]
    for kind, attacked in zip((UPDATE, CONTROL), (*observations, _noise(observations[0], seed))):
        # Layers that draw random numbers in training mode, such as dropout, draw the same ones in every audit.
        with seeded_layers(seed, "inversion layers", name, kind):
            images, distance = invert(attacked, known.images.shape, n_steps, stream(seed, "inversion", name), quiet)
        for attempt, (image, scores) in zip(attempts, score(images, known.images, distance), strict=True):
            attempt.images[kind], attempt.scores[kind] = image, scores
    scores_of = {kind: [attempt.scores[kind] for attempt in attempts] for kind in (UPDATE, CONTROL)}
    facts = {"case": name, **facts, "attack_steps": n_steps}
    return {**facts, "scores": scores_of[UPDATE], "control_scores": scores_of[CONTROL]}, attempts


def _mean(scores: Sequence[Mapping[str, float]]) -> float:
    return fmean(each["detail_correlation"] for each in scores)


def _first(images: ImageSet) -> ImageSet:
    batch = images.batch([0])
    return ImageSet(batch.image, batch.label, 1, batch.moments)


def _noise(observation: Observation, seed: int) -> Observation:
    """The observation with a change that is Gaussian noise of the same norm."""
    rng = stream(seed, "inversion", "noise")
    noise = [torch.randn(change.shape, generator=rng).to(change.device) for change in observation.change]
    norms = [torch.stack([entry.norm() for entry in tensors]).norm() for tensors in (observation.change, noise)]
    return replace(observation, change=[entry * (norms[0] / norms[1]) for entry in noise])
