"""FedDG-GA (Zhang et al., CVPR 2023): give more weight in the average to sites where the global model is worse.

R. Zhang, Q. Xu, J. Yao, Y. Zhang, Q. Tian, Y. Wang: "Federated Domain Generalization with Generalization Adjustment",
CVPR 2023,
https://openaccess.thecvf.com/content/CVPR2023/html/Zhang_Federated_Domain_Generalization_With_Generalization_Adjustment_CVPR_2023_paper.html.

Idea: the generalisation gap of a site is the loss of the global model minus the loss of the site's own model. Sites
with a larger gap get a larger weight, so that all sites come to fit the global model equally well. In every round, a
site sends the weights and two losses (8 bytes). It receives the weights once, to measure the loss and to train.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from medfed.core.bounds import NonNegativeFloat
from medfed.federation.local_round import LocalRound, SiteData, mean_loss
from medfed.federation.message import Message, State
from medfed.federation.method import ALL_DIMENSIONS, EVERY_ROUND, Method, Tensors
from medfed.federation.sent import MEAN_LOSS, Sent
from medfed.functional.weights import add_prefix, average, select_prefix

WEIGHT, LOCAL = "weight/", "local_loss/"  # prefixes in the coordinator's memory; the site's name follows


@dataclass(frozen=True)
class FedDGGA(Method):
    """FedAvg whose site weights follow the generalisation gaps of the sites (generalisation adjustment).

        G_k = loss_k(global model) - loss_k(the site's own model before averaging)
        a_k <- a_k + d_t (G_k - mean G) / max |G - mean G|,  then clipped at 0 and scaled to sum 1
        d_t = (1 - t / T) d,  t = 0 for the first adjustment,  T the number of rounds (`federation.rounds`)
        w   <- sum_k a_k w_k,  a_k = 1 / K at first

    A site reports the loss of its own model together with its weights, and the loss of the resulting global model
    before the next round. Both are measured on its validation images (on its training images if it has no validation
    patients), in evaluation mode.

    A site that does not take part in a round keeps its weight. The participating sites redistribute the sum of their
    weights, and the average uses their weights scaled to sum 1. A site that was absent compares the global model with
    its own model of the last round in which it took part. A new site starts with the mean weight, and its first gap is
    known one round later. Equal gaps change nothing.

    Departures: the paper measures losses on training images; we use validation images, as the public code does. The
    paper's rule is used with the maximum of the absolute distances, which bounds a change by d_t. The public code
    leaves out the centring, divides in addition by K, which is fixed at 3, compares accuracies, and returns NaN for
    equal gaps. We could not check the equation numbers, so lines of the code carry the symbols above.

    Args:
        step: step size with which the sites' weights in the average follow their generalisation gaps (d in the paper),
            at least 0. 0 keeps the average uniform. In each round, the weight of the site whose gap is farthest from
            the mean changes by the step, however small the gaps are, so the effect is strong with few sites. 0.2 in the
            authors' code.
    """

    step: NonNegativeFloat = 0.2

    patients_advice: ClassVar[str] = "increase data.validation_ratio, as the loss is that of the validation patients"
    sent: ClassVar[Mapping[str, Sent]] = {"loss": MEAN_LOSS._replace(title="loss of the network at the site")}
    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    shares = EVERY_ROUND

    statistic_ranges = {"loss": (-1e6, 1e6)}

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return `loss`, (1,): the loss of the global model."""
        samples = site.validation or site.samples
        site.n_patients["loss"] = samples.n_patients
        return {"loss": mean_loss(network, site.task, samples)}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Adjust the site weights by the gaps: `weight/SITE`, (1,); the sites' own losses, `local_loss/SITE`, stay."""
        local_losses = select_prefix(state.memory, LOCAL)
        known_weights = {site: float(entry) for site, entry in select_prefix(state.memory, WEIGHT).items()}
        gaps = {
            site: float(tensors["loss"]) - float(local_losses[site])  # G_k
            for site, tensors in shared.items()
            if site in local_losses
        }
        step = self.decayed_step(state.round, state.plan.rounds)  # d_t
        weights = adjust_site_weights(add_new_sites(known_weights, shared), sorted(shared), gaps, step)  # rule for a_k
        entries = {site: torch.tensor([weight], dtype=torch.float64) for site, weight in sorted(weights.items())}
        return add_prefix(local_losses, LOCAL) | add_prefix(entries, WEIGHT)

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Return `loss`, (1,): the loss of the site's own model."""
        samples = local.validation or local.training
        local.n_patients["loss"] = samples.n_patients
        return {"loss": mean_loss(local.network, local.task, samples)}

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Keep the loss of each site's own model, `local_loss/SITE`, also of those that were absent in this round."""
        return {**state.memory, **{LOCAL + site: update.tensors["loss"] for site, update in updates.items()}}

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Average with the site weights a_k of the round's sites, scaled to sum 1; uniformly if all of them are 0."""
        weights = torch.tensor([float(state.memory[WEIGHT + site]) for site in updates], dtype=torch.float64)
        weights = weights if weights.sum() > 0 else torch.ones_like(weights)
        return average([update.weights for update in updates.values()], weights / weights.sum())  # sum_k a_k w_k

    def summarise(self, state: State) -> dict[str, Any]:
        """Return the final weight of each site, rounded to 4 decimals."""
        weights = {site: round(float(entry), 4) for site, entry in select_prefix(state.memory, WEIGHT).items()}
        return {"aggregation_weights": weights} if weights else {}

    def decayed_step(self, rounds_done: int, rounds: int) -> float:
        """Return d_t, the step size after `rounds_done` rounds; the setting `step` if `rounds` is 0, so not known."""
        return self.step * max(0.0, 1 - max(0, rounds_done - 1) / rounds) if rounds else self.step  # d_t


def add_new_sites(weights: Mapping[str, float], sites: Iterable[str]) -> dict[str, float]:
    """Give each new site the mean weight of the known sites, if there are any, and scale all to sum 1."""
    mean = sum(weights.values()) / len(weights) if weights else 1.0
    extended = {**weights, **{site: mean for site in sites if site not in weights}}
    total = sum(extended[site] for site in sorted(extended))
    return {site: extended[site] / total for site in sorted(extended)}


def adjust_site_weights(
    weights: Mapping[str, float], present: Sequence[str], gaps: Mapping[str, float], step: float
) -> dict[str, float]:
    """Apply the rule for a_k to the sites in `present`, whose weights keep their sum; a site without a gap has the mean
    gap. With fewer than two gaps, equal gaps or step 0 nothing changes."""
    if len(gaps) < 2:
        return dict(weights)
    mean = sum(gaps.values()) / len(gaps)
    largest = max(abs(gap - mean) for gap in gaps.values())
    former_sum = sum(weights[site] for site in present)
    if largest == 0 or step == 0:
        return dict(weights)
    moved = {site: max(0.0, weights[site] + step * (gaps.get(site, mean) - mean) / largest) for site in present}
    total = sum(moved.values())
    return {**weights, **{site: former_sum * a / total for site, a in moved.items()}}
