"""Attack several updates of a site, from one image in one step to a round of the plan, each next to a control.

    easy   one image, the exact gradient of a small network without normalisation. This positive control shows that
           the attack works on these images.
    one    one image, one SGD step with the network of the plan.
    batch  up to four images, one SGD step with the network of the plan.
    round  the same images, after one round of local training as planned.

The negative control of each case is the same attack on an update that does not contain the images: it is computed from
images of other patients, or, if there are none, it is noise of the same norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
CASES = ("easy", "one", "batch", "round")
UPDATE, CONTROL = "update", "control"  # what was attacked: an update of the images, or one without them


@dataclass(frozen=True)
class Case:
    """One attacked update, and the same attack on an update without the images; one attempt for each image."""

    name: str  # one of `CASES`
    facts: dict[str, Any]  # what the update was computed from, as plain JSON values
    attempts: Sequence[Attempt]

    def scores(self, kind: str) -> list[dict[str, float]]:
        """The scores of all images reconstructed from the `UPDATE` or from its `CONTROL`."""
        return [attempt.scores[kind] for attempt in self.attempts]

    @property
    def detail(self) -> float:
        """Mean detail correlation of the reconstructed images with the originals."""
        return fmean(scores["detail_correlation"] for scores in self.scores(UPDATE))

    @property
    def control_detail(self) -> float:
        """Mean detail correlation of the negative control with the originals."""
        return fmean(scores["detail_correlation"] for scores in self.scores(CONTROL))


def attack_updates(site: Site, weights: Tensors, n_steps: int, quiet: bool = True) -> list[Case]:
    """Try to reconstruct images of a site from updates, and from updates that do not contain the images.

    `n_steps` is for four images and the plan's network; a single image is attacked with four times as many. The site's
    network and memory stay unchanged.
    """
    chosen = Chosen.of_site(site.training)
    one, other = _first(chosen.targets), chosen.others and _first(chosen.others)
    easy = favourable_observation(one.images, site.seed)
    easy_control = favourable_observation(other.images, site.seed) if other else None
    small = {"n_images": 1, "n_steps": 1, "optimizer": "sgd", "privacy": False}
    cases = [_attack("easy", small, one, easy, easy_control, EASY_STEPS, site.seed, quiet)]
    plan = {
        "one": (one, one, other),
        "batch": (chosen.targets, chosen.targets, chosen.others),
        "round": (chosen.targets, chosen.round_with, chosen.round_without),
    }
    for name, (known, trained_on, without) in plan.items():
        make = plan_site if name == "round" else one_step_site
        trained = make(site, trained_on)
        update = update_of(trained, weights)
        observation = observe(trained, weights, update, known)
        control = None
        if without is not None:
            of_others = make(site, without)
            control = observe(of_others, weights, update_of(of_others, weights), known)
        facts = {
            "n_images": len(trained_on),
            "n_steps": update.facts["steps"],
            "optimizer": trained.settings.optimizer,
            "privacy": trained.privacy != Privacy(),
        }
        factor = ONE_IMAGE_FACTOR if name == "one" else 1
        cases.append(_attack(name, facts, known, observation, control, factor * n_steps, site.seed, quiet))
    return cases


def verdict(case: Case, cases: Sequence[Case]) -> str:
    """What a result means, compared with its negative control and with the easier cases."""
    by_name = {each.name: each for each in cases}
    if by_name["easy"].detail < SUCCESS or by_name["easy"].control_detail > SUCCESS - MARGIN:
        return "the attack is too weak here to say anything: its positive control failed"
    if case.detail > case.control_detail + MARGIN:
        return "image details were reconstructed" if case.detail >= SUCCESS else "some image details were reconstructed"
    if case.name != "one" and by_name["one"].detail <= by_name["one"].control_detail + MARGIN:
        return (
            "nothing was reconstructed, but the attack also failed on one image and one step with this network, so "
            "this case says nothing"
        )
    if case.name == "one":
        return "nothing was reconstructed: this attack is too weak for this network, which proves nothing"
    return "nothing was reconstructed, which does not prove that no attack can succeed"


def _attack(
    name: str,
    facts: dict[str, Any],
    known: ImageSet,
    observation: Observation,
    control: Observation | None,
    n_steps: int,
    seed: int,
    quiet: bool,
) -> Case:
    """Attack one update and its negative control, and score both results."""
    found = {}
    for kind, attacked in ((UPDATE, observation), (CONTROL, control or _noise(observation, seed))):
        # Layers that draw random numbers in training mode, such as dropout, draw the same ones in every audit.
        with seeded_layers(seed, "inversion layers", name, kind):
            images, distance = invert(attacked, known.images.shape, n_steps, stream(seed, "inversion", name), quiet)
        found[kind] = score(images, known.images, distance)
    attempts = [
        Attempt(
            original,
            {kind: results[k][0] for kind, results in found.items()},
            {kind: results[k][1] for kind, results in found.items()},
        )
        for k, original in enumerate(known.images[:, scored_channel(known.images)])
    ]
    return Case(name, {**facts, "attack_steps": n_steps}, attempts)


def _first(images: ImageSet) -> ImageSet:
    batch = images.batch([0])
    return ImageSet(batch.image, batch.label, 1, batch.moments)


def _noise(observation: Observation, seed: int) -> Observation:
    """The observation with a change that is Gaussian noise of the same norm."""
    rng = stream(seed, "inversion", "noise")
    noise = [torch.randn(change.shape, generator=rng).to(change.device) for change in observation.change]
    norms = [torch.stack([entry.norm() for entry in tensors]).norm() for tensors in (observation.change, noise)]
    return replace(observation, change=[entry * (norms[0] / norms[1]) for entry in noise])
