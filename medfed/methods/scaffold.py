"""SCAFFOLD (Karimireddy et al., ICML 2020): a hospital corrects its gradients by how they differ from everybody's.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh: "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, https://arxiv.org/abs/1910.06378. Idea: each site adds to its gradients the difference
between the average control variate (mean gradient) of all sites and its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.federation.local_round import LocalRound, Output, SiteData
from medfed.federation.message import Message, State
from medfed.federation.method import Method, SiteWeights, Tensors
from medfed.functional.weights import add_scaled, select_prefix

CONTROL, EXAMPLES, CHANGE = "control/", "examples/", "change/"  # what travels, and stays
CORRECTION, SUM = "correction/", "sum/"  # in a site's memory, during a round only


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """Stochastic controlled averaging.

    Site k keeps a control c_k, the mean gradient of its last round, and the coordinator c = sum_k q_k c_k.

        a step's gradient   g - c_k + c                                                        (eq. 3)
        after the round     c_k+ = mean of g over the round's steps                            (eq. 4)
        coordinator         c <- c + sum over those that took part of q_k (c_k+ - c_k)         (eq. 5)

    The controls start at 0, so the first round is FedAvg, to the bit. A site that took no part keeps c_k.

    The correction is a linear term of the loss, so it is exact for any optimiser that takes gradients. The paper's
    c_k+ = c_k - c + (x - y) / (steps * learning rate) holds for plain SGD alone, where it is the mean above; with
    momentum or Adam, x - y is no sum of gradients, so we sum the gradients themselves, right for all. (With
    `training.weight_decay` the paper's form would count its pull to c_k; ours does not.) Convergence is proven for
    plain SGD.

    Costs one more model each way in every round (down from the second one on), and one at every site and at the
    coordinator. A mean gradient is as telling of a site's images as the change of its weights. Only trained parameters
    have controls: BatchNorm's statistics are averaged, and where BatchNorm stays local (`federation.batch_norm`), it
    is not corrected. (The public benchmark divides by epochs instead of steps, and corrects the statistics; we do
    not.)

    Before the first round each site tells its number of images: the coordinator must know of all sites, as q_k is a
    share of them all, whoever takes part.

    Args:
        site_weights: of the average, and q_k: "examples" (n_k / N), or "uniform", as the paper has it. One for both, as
            the corrections cancel only in the average that c is made with.

        what                         medfed              paper
        weights of sites             by images           uniform
    """

    site_weights: SiteWeights = "examples"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"site_weights": "uniform"}}

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """examples: (1,), the site's number of training images."""
        return {"examples": torch.tensor([len(site.samples)])}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """examples/SITE, of every site."""
        return {EXAMPLES + site: tensors["examples"] for site, tensors in shared.items()}

    def broadcast(self, state: State, site: str) -> Tensors:
        """c, by parameter; nothing before the second round."""
        return {name: entry for name, entry in state.memory.items() if name.startswith(CONTROL)}

    def on_round_start(self, local: LocalRound) -> None:
        """c - c_k, where it is needed. The network may come with gradients of another site, which are cleared."""
        local.network.zero_grad(set_to_none=True)
        for name, entry in local.sent_parameters().items():
            if (common := local.message.tensors.get(CONTROL + name)) is not None:
                own = local.memory.get(CONTROL + name, torch.zeros_like(common))
                local.memory[CORRECTION + name] = (common - own).to(entry)

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """Adds up the gradients of the step before: the optimiser has used them, and they are cleared after this."""
        self._add_gradients(local)
        return batch

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """sum <c - c_k, y>, whose gradient is c - c_k, less its own value: the reported loss stays the task's."""
        total = super().regulariser(local, output)
        for name, entry in local.sent_parameters().items():
            if (correction := local.memory.get(CORRECTION + name)) is not None:
                total = total + (correction * (entry - entry.detach())).sum()  # eq. 3
        return total

    def on_round_end(self, local: LocalRound) -> Tensors:
        """change/NAME: c_k+ - c_k of every parameter that has a control."""
        self._add_gradients(local)
        first, changes = not local.message.tensors, {}
        for name, entry in local.sent_parameters().items():
            mean = local.memory.pop(SUM + name, torch.zeros_like(entry)) / local.n_steps  # eq. 4
            correction = local.memory.pop(CORRECTION + name, None)
            if first or correction is not None:
                mean = (mean if correction is None else mean - correction).detach().cpu()
                changes[CHANGE + name] = mean - local.memory.get(CONTROL + name, torch.zeros_like(mean))
                local.memory[CONTROL + name] = mean
        return changes

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """c, and the sites' numbers of images. Entries that stay at the sites have no c."""
        counts = {site: int(entry) for site, entry in select_prefix(state.memory, EXAMPLES).items()}
        weights = counts if self.site_weights == "examples" else dict.fromkeys(counts, 1)
        shares = [weights[site] / sum(weights.values()) for site in updates]  # q_k
        memory = dict(state.memory)
        for name in next(iter(updates.values())).weights:
            changes = [u.tensors[CHANGE + name] for u in updates.values() if CHANGE + name in u.tensors]
            if len(changes) == len(updates):
                before = memory.get(CONTROL + name, torch.zeros_like(state.weights[name]))
                memory[CONTROL + name] = add_scaled(before, changes, shares)  # eq. 5
        return memory

    def _add_gradients(self, local: LocalRound) -> None:
        for name, entry in local.sent_parameters().items():
            if entry.grad is not None:
                total = local.memory.get(SUM + name)
                local.memory[SUM + name] = entry.grad.clone() if total is None else total + entry.grad
