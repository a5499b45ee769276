"""FedDG-GA (Zhang et al., CVPR 2023): a hospital that the common model serves worse than its own gets more weight.

R. Zhang, Q. Xu, J. Yao, Y. Zhang, Q. Tian, Y. Wang: "Federated Domain Generalization with Generalization Adjustment",
CVPR 2023,
https://openaccess.thecvf.com/content/CVPR2023/html/Zhang_Federated_Domain_Generalization_With_Generalization_Adjustment_CVPR_2023_paper.html.
Idea: the weights of the average follow each site's loss of the global model less that of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from medfed.core.bounds import NonNegativeFloat
from medfed.federation.local_round import LocalRound, SiteData, mean_loss
from medfed.federation.message import Message, State
from medfed.federation.method import EVERY_ROUND, Method, Tensors
from medfed.functional.aggregation import add_new_sites, adjust_site_weights
from medfed.functional.weights import add_prefix, average, select_prefix

WEIGHT, LOCAL = "weight/", "local_loss/"  # in the coordinator's memory, by site


@dataclass(frozen=True)
class FedDGGA(Method):
    """Generalisation adjustment: aggregation weights that follow the generalisation gaps.

        G_k = loss_k(global model) - loss_k(the site's own model before it was averaged)
        a_k <- a_k + d_t (G_k - mean G) / max |G - mean G|,  then cut at 0 and brought to sum 1
        d_t = (1 - t / T) d,  t = 0 the first time,  T the number of rounds (`federation.rounds`)
        w   <- sum_k a_k w_k,  a_k = 1 / K at first

    A site sends the loss of the model that it trained, with it, and before the next round that of the average which
    came of it: two numbers a round (8 bytes), both over its validation images (its training images, where it keeps
    none apart), in evaluation mode. The model comes down twice a round: to be measured, and to be trained.

    Args:
        step: d, at least 0. 0 leaves the average uniform. Of few sites it is large: the site with the largest distance
            from the mean gap moves by d_t, however small the gaps are.

    A site that takes no part keeps its weight; those that do share what they held together, and average with it in
    proportion. The gap of a site that was away compares its model of then. One that comes for the first time enters
    with the mean weight, and its first gap is known a round later. Equal gaps change nothing.

    The paper's formula with the absolute maximum, which bounds a change by d_t, and where it is 0 no change. The
    public code leaves out the centring, divides by a further K, which is fixed at 3, compares accuracies, and turns
    equal gaps into NaN; we do not. It measures on validation images, as we do; the paper on those of training.
    """

    step: NonNegativeFloat = 0.2

    moved: ClassVar[Mapping[str, str]] = {"rounds": "FedDG-GA reads federation.rounds now; leave it out"}

    @property
    def shares(self) -> str:
        """Before every round: the loss of the model that came."""
        return EVERY_ROUND

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """loss: (1,), of the model that came."""
        return {"loss": mean_loss(network, site.task, site.validation or site.samples)}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """The sites' weights `weight/SITE`, float64, after the gaps of those that are asked."""
        losses = select_prefix(state.memory, LOCAL)
        known = {site: float(entry) for site, entry in select_prefix(state.memory, WEIGHT).items()}
        gaps = {site: float(sent["loss"]) - float(losses[site]) for site, sent in shared.items() if site in losses}  # G
        step = self.decayed_step(state.round, state.plan.rounds)
        weights = adjust_site_weights(add_new_sites(known, shared), sorted(shared), gaps, step)
        entries = {site: torch.tensor([a], dtype=torch.float64) for site, a in sorted(weights.items())}
        return add_prefix(losses, LOCAL) | add_prefix(entries, WEIGHT)

    def on_round_end(self, local: LocalRound) -> Tensors:
        """loss: (1,), of the model that was trained here."""
        return {"loss": mean_loss(local.network, local.task, local.validation or local.training)}

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """The memory with the losses of the models that came, `local_loss/SITE`."""
        return {**state.memory, **{LOCAL + site: update.tensors["loss"] for site, update in updates.items()}}

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """sum_k a_k w_k over the sites that replied, with their weights scaled to sum 1."""
        weights = torch.tensor([float(state.memory[WEIGHT + site]) for site in updates], dtype=torch.float64)
        weights = weights if weights.sum() > 0 else torch.ones_like(weights)
        return average([update.weights for update in updates.values()], weights / weights.sum())

    def facts(self, state: State) -> dict[str, Any]:
        """The sites' weights in the end."""
        weights = {site: round(float(entry), 4) for site, entry in select_prefix(state.memory, WEIGHT).items()}
        return {"aggregation_weights": weights} if weights else {}

    def decayed_step(self, rounds_done: int, rounds: int) -> float:
        """d_t: d after the first round, d / T after round T = `rounds`; always d where T is 0 (not known)."""
        return self.step * max(0.0, 1 - max(0, rounds_done - 1) / rounds) if rounds else self.step
