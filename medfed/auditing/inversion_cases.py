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
from typing import Any

import torch
from torch import Tensor

from medfed.auditing.inversion import Observation, Tick, favourable_observation, invert, n_ticks, score
from medfed.auditing.reconstruction import scored_channel
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


@dataclass(frozen=True)
class Case:
    """One attacked update, and the same attack on an update without the images.

    Args:
        name: one of `CASES`.
        origin: what the update was computed from, as plain JSON values.
        originals: (B, H, W), one channel of the images.
        estimates: (B, H, W), the images that were reconstructed from the update.
        controls: (B, H, W), the images that the same attack found in an update without the images.
        scores, control_scores: one dict for each image (`medfed.auditing.inversion.score`).
    """

    name: str
    origin: dict[str, Any]
    originals: Tensor
    estimates: Tensor
    controls: Tensor
    scores: list[dict[str, float]]
    control_scores: list[dict[str, float]]

    @property
    def detail(self) -> float:
        """Mean detail correlation of the reconstructed images with the originals."""
        return _mean_detail(self.scores)

    @property
    def control_detail(self) -> float:
        """Mean detail correlation of the negative control with the originals."""
        return _mean_detail(self.control_scores)


def attack_updates(site: Site, weights: Tensors, n_steps: int, tick: Tick = lambda: None) -> list[Case]:
    """Try to reconstruct images of a site from updates, and from updates that do not contain the images; one result per
    case.

    `n_steps` is for four images and the plan's network; a single image is attacked with four times as many. The site's
    network and memory stay unchanged. `tick` is called `total_ticks(n_steps)` times.
    """
    chosen = Chosen.of_site(site.training)
    first = chosen.targets.batch([0])
    one = ImageSet(first.image, first.label, 1, first.moments)
    other = None if chosen.others is None else chosen.others.batch([0])
    one_other = None if other is None else ImageSet(other.image, other.label, 1, other.moments)
    easy = favourable_observation(one.images, site.seed)
    easy_control = None if one_other is None else favourable_observation(one_other.images, site.seed)
    small = {"n_images": 1, "n_steps": 1, "optimizer": "sgd", "privacy": False}
    cases = [_attack("easy", small, one, easy, easy_control, EASY_STEPS, site.seed, tick)]
    plan = {
        "one": (one, one, one_other),
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
        origin = {
            "n_images": len(trained_on),
            "n_steps": update.facts["steps"],
            "optimizer": trained.settings.optimizer,
            "privacy": trained.privacy != Privacy(),
        }
        factor = ONE_IMAGE_FACTOR if name == "one" else 1
        cases.append(_attack(name, origin, known, observation, control, factor * n_steps, site.seed, tick))
    return cases


def total_ticks(n_steps: int) -> int:
    """How often the progress bar advances for all attacks of an audit."""
    return 2 * (n_ticks(EASY_STEPS) + n_ticks(ONE_IMAGE_FACTOR * n_steps) + 2 * n_ticks(n_steps))


def verdict(case: Case, cases: Sequence[Case]) -> str:
    """What a result means, compared with its negative control and with the easier cases; a sentence without a full
    stop."""
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
    origin: dict[str, Any],
    known: ImageSet,
    observation: Observation,
    control: Observation | None,
    n_steps: int,
    seed: int,
    tick: Tick,
) -> Case:
    """Attack one update and its negative control, and score both results."""
    results = []
    for which, attacked in (("update", observation), ("control", control or _noise(observation, seed))):
        # Layers that draw random numbers in training mode, such as dropout, draw the same ones in every audit.
        with seeded_layers(seed, "inversion layers", name, which):
            rng = stream(seed, "inversion", name)
            images, distance = invert(attacked, known.images.shape, n_steps, rng, tick)
        results.append(score(images, known.images, distance))
    (scores, images), (control_scores, control_images) = results
    channel = known.images[:, scored_channel(known.images)]
    return Case(name, {**origin, "attack_steps": n_steps}, channel, images, control_images, scores, control_scores)


def _noise(observation: Observation, seed: int) -> Observation:
    """The observation with a change that is Gaussian noise of the same norm."""
    rng = stream(seed, "inversion", "noise")
    noise = [torch.randn(change.shape, generator=rng).to(change.device) for change in observation.change]
    norms = [torch.stack([entry.norm() for entry in tensors]).norm() for tensors in (observation.change, noise)]
    return replace(observation, change=[entry * (norms[0] / norms[1]) for entry in noise])


def _mean_detail(scores: Sequence[dict[str, float]]) -> float:
    return sum(each["detail_correlation"] for each in scores) / len(scores)
