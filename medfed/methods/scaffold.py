"""SCAFFOLD (Karimireddy et al., ICML 2020): correct each site's gradients by their difference from the mean gradient.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh: "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, https://arxiv.org/abs/1910.06378.

Idea: a site that trains alone drifts towards its own minimum. Each site therefore adds to its gradients the difference
between the mean gradient of all sites and its own mean gradient (the control variates). Before round 1, each site sends
its number of images. From round 2 on, it receives the global control c (one model). In every round, it sends the change
of its control (one model) besides the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.federation.checks.expected import MAX_COUNT
from medfed.federation.local_round import LocalRound, Output, SiteData
from medfed.federation.message import Message, State
from medfed.federation.method import ALL_DIMENSIONS, Method, SiteWeights, Tensors
from medfed.federation.sent import N_IMAGES, WEIGHTS, Sent
from medfed.functional.weights import add_scaled, select_prefix

# Prefixes of tensor names; a parameter's or a site's name follows.
CONTROL, EXAMPLES, CHANGE = "control/", "examples/", "change/"  # in messages and memories
CORRECTION, SUM = "correction/", "sum/"  # in a site's memory, only during a round


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """FedAvg with gradients that are corrected by control variates (stochastic controlled averaging).

    Site k keeps a control c_k, the mean gradient of its last round. The coordinator keeps c = sum_k q_k c_k.

        gradient of a step    g - c_k + c                                                          (eq. 3)
        after the round       c_k+ = mean of g over the round's steps                              (eq. 4)
        coordinator           c <- c + sum over the participating sites of q_k (c_k+ - c_k)        (eq. 5)

    All controls start at 0, so the first round is bit-identical to FedAvg. A site that does not take part keeps c_k.
    The correction is implemented as a linear term of the loss, so it is exact for every optimiser that uses gradients.

    A mean gradient reveals as much about a site's images as the change of its weights. Only trained parameters have
    controls: BatchNorm's statistics are averaged, and BatchNorm that stays at a site (`federation.batch_norm: local`)
    is not corrected. Each site and the coordinator store one additional model. q_k is a share of all sites that train,
    so the coordinator needs the number of images of all of them before round 1, whoever takes part in a round.

    Departures: the paper's c_k+ = c_k - c + (x - y_k) / (steps * learning rate) is the mean gradient only for plain
    SGD. With momentum or Adam, x - y_k is not a sum of gradients. We average the gradients themselves, which is correct
    for every optimiser. With `training.weight_decay`, the paper's form would include its pull; ours does not.
    Convergence is proven for plain SGD. A public benchmark divides by epochs instead of steps and also corrects
    BatchNorm's statistics; we do neither.

    Args:
        site_weights: weights of the sites in the average, and also q_k: "examples" (n_k / N, in proportion to their
            numbers of images) or "uniform" (1 / K, as in the paper). One setting for both, because the corrections of
            the sites only cancel in the average with which c is computed.
    """

    site_weights: SiteWeights = "examples"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {"site_weights": "uniform"}}
    sent: ClassVar[Mapping[str, Sent]] = {
        "examples": N_IMAGES,
        f"{CHANGE}*": Sent("change of the control variates (mean gradients)", WEIGHTS.reveals),
        f"{CONTROL}*": Sent("control variates (mean gradients of all sites)", WEIGHTS.reveals),
    }
    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    share_reads_network = False
    statistic_ranges = {"examples": (1.0, float(MAX_COUNT))}

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return `examples`, (1,), the number of training images."""
        site.n_patients["examples"] = site.samples.n_patients
        return {"examples": torch.tensor([len(site.samples)])}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Keep the number of images of each site, `examples/SITE`."""
        return {EXAMPLES + site: tensors["examples"] for site, tensors in shared.items()}

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send c as `control/NAME` for each parameter."""
        return {name: entry for name, entry in state.memory.items() if name.startswith(CONTROL)}

    def on_round_start(self, local: LocalRound) -> None:
        """Store c - c_k, and clear gradients that another site in this process left in the network."""
        local.network.zero_grad(set_to_none=True)
        for name, entry in local.sent_parameters().items():
            if (global_control := local.message.tensors.get(CONTROL + name)) is not None:
                site_control = local.memory.get(CONTROL + name, torch.zeros_like(global_control))
                local.memory[CORRECTION + name] = (global_control - site_control).to(entry)  # eq. 3: c - c_k

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """Add the gradients of the previous step to the site's sum; they are not cleared yet."""
        self._add_gradients(local)
        return batch

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """Return a term of value 0 whose gradient is c - c_k, so that the reported loss stays the task's loss."""
        total = super().regulariser(local, output)
        for name, entry in local.sent_parameters().items():
            if (correction := local.memory.get(CORRECTION + name)) is not None:
                total = total + (correction * (entry - entry.detach())).sum()  # eq. 3
        return total

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Update c_k and send its change, `change/NAME`."""
        self._add_gradients(local)
        is_first_round, changes = not local.message.tensors, {}
        for name, entry in local.sent_parameters().items():
            mean_gradient = local.memory.pop(SUM + name, torch.zeros_like(entry)) / local.n_steps
            correction = local.memory.pop(CORRECTION + name, None)
            if is_first_round or correction is not None:
                # The gradients of the steps contain the correction; c_k+ is the mean of the gradients without it.
                control = (mean_gradient if correction is None else mean_gradient - correction).detach().cpu()  # eq. 4
                changes[CHANGE + name] = control - local.memory.get(CONTROL + name, torch.zeros_like(control))
                local.memory[CONTROL + name] = control
        local.n_patients.update(dict.fromkeys(changes, local.training.n_patients))
        return changes

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Update c with the changes of the round's sites."""
        n_images = {site: int(entry) for site, entry in select_prefix(state.memory, EXAMPLES).items()}
        weights = n_images if self.site_weights == "examples" else dict.fromkeys(n_images, 1)
        shares = [weights[site] / sum(weights.values()) for site in updates]  # eq. 5: q_k
        memory = dict(state.memory)
        for name in next(iter(updates.values())).weights:
            changes = [update.tensors[CHANGE + name] for update in updates.values() if CHANGE + name in update.tensors]
            if len(changes) == len(updates):
                before = memory.get(CONTROL + name, torch.zeros_like(state.weights[name]))
                memory[CONTROL + name] = add_scaled(before, changes, shares)  # eq. 5
        return memory

    def _add_gradients(self, local: LocalRound) -> None:
        """Add the network's present gradients to `sum/NAME` in the site's memory."""
        for name, entry in local.sent_parameters().items():
            if entry.grad is not None:
                total = local.memory.get(SUM + name)
                local.memory[SUM + name] = entry.grad.clone() if total is None else total + entry.grad
