"""FedDyn (Acar et al., ICLR 2021): regularise each site's loss so that its minimum agrees with the global minimum.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama: "Federated Learning Based on
Dynamic Regularization", ICLR 2021, https://arxiv.org/abs/2111.04263.

Idea: each site subtracts from its loss a linear term, the gradient that it had at the end of its last round. A minimum
of the mean loss over the sites is then a fixed point of the training. Sites send the same messages as FedAvg; the
gradient estimate of a site never leaves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from medfed.core.bounds import NonNegativeFloat
from medfed.federation.local_round import LocalRound, Output
from medfed.federation.message import Message, State
from medfed.federation.method import ALL_DIMENSIONS, Method, Tensors
from medfed.functional.weights import add_scaled, select_prefix, squared_distance

GRADIENT = "gradient/"  # prefix of g_k in a site's memory, followed by the name of the parameter
H = "h/"  # prefix of h in the coordinator's memory, followed by the name of the parameter


@dataclass(frozen=True)
class FedDyn(Method):
    """FedAvg with a loss term that aligns each site's minimum with the global one (Algorithm 1).

    Site k keeps g_k, an estimate of the gradient of its loss L_k; the coordinator keeps h. Both start at 0. In round t
    the sites P_t take part; m is the number of all sites that train, not only of those in P_t.

        site k in P_t   theta_k  =  argmin L_k(theta) - <g_k, theta> + alpha / 2 ||theta - theta^{t-1}||^2
                        g_k     <-  g_k - alpha (theta_k - theta^{t-1})
        other sites     g_k stays as it is
        coordinator     h       <-  h - alpha / m * sum over P_t of (theta_k - theta^{t-1})
                        theta^t  =  1 / |P_t| * sum over P_t of theta_k  -  h / alpha

    The round's training, which starts from theta^{t-1}, approximates the argmin. Its objective has <g_k, theta -
    theta^{t-1}> instead of <g_k, theta>: the difference is constant, and the reported loss starts at the task's loss.
    After every round, h is the mean of g_k over all m sites.

    Only trainable parameters have g_k and h. BatchNorm statistics are averaged, with equal weights, so they belong to
    the average of theta_k and not to theta^t. Entries that stay at a site (`federation.batch_norm: local`) train
    without either term. Each site and the coordinator store one additional model. With `privacy` noise, h follows the
    noisy updates and g_k the weights without noise, so h is the mean of g_k plus noise.

    The correction h / alpha does not vanish when alpha approaches 0, because h is proportional to alpha. If all sites
    take part in round 1, theta^1 is twice the average minus theta^0, for any alpha above 0. Small values of alpha
    therefore do not approach plain averaging.

    Departures: the authors' code (https://github.com/alpemreacar/FedDyn) stores -g_k / alpha, divides alpha at site k
    by n_k * m / N (n_k images of N), clips gradients to norm 10, and also scores the plain average of the sites'
    weights. We follow the paper: one alpha, no clipping, and the model that is scored is theta^t. The paper trains with
    plain SGD. With Adam, the estimate g_k is correct if the local training comes close to its minimum.

    Args:
        alpha: weight of the quadratic term (alpha in the paper), at least 0. The paper requires alpha > 0. For 0 we
            define h / alpha as 0: the method is then the uniform average, bit-identical to FedAvg with equal site
            weights, and nothing is stored. The default 0.01 is the value of the authors' example on CIFAR-10.
    """

    alpha: NonNegativeFloat = 0.01

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    site_weights = "uniform"

    def on_round_start(self, local: LocalRound) -> None:
        """Move g_k to the network's device; in the site's first round, set it to 0."""
        if self.alpha:
            for name, entry in local.sent_parameters().items():
                local.memory[GRADIENT + name] = local.memory.get(GRADIENT + name, torch.zeros_like(entry)).to(entry)

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """Return -<g_k, theta - theta^{t-1}> + alpha / 2 ||theta - theta^{t-1}||^2."""
        total = super().regulariser(local, output)
        if self.alpha:
            entries, start = local.sent_parameters(), local.start_weights
            for name, entry in entries.items():
                total = total - (local.memory[GRADIENT + name] * (entry - start[name])).sum()  # Alg. 1: theta_k
            total = total + self.alpha / 2 * squared_distance(entries, start)  # Alg. 1: theta_k
        return total

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Update g_k in the site's memory."""
        if self.alpha:
            for name, entry in local.sent_parameters().items():
                drift = entry.detach() - local.start_weights[name]
                gradient = local.memory[GRADIENT + name] - self.alpha * drift  # Alg. 1: g_k
                local.memory[GRADIENT + name] = gradient.cpu()
        return {}

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Update h, as `h/NAME` for each parameter."""
        if not self.alpha:
            return state.memory
        memory = dict(state.memory)
        scales = [-self.alpha / len(state.plan.sites)] * len(updates)
        for name in next(iter(updates.values())).weights:
            if name in state.parameters:
                start = state.weights[name]
                before = memory.get(H + name, torch.zeros_like(start))
                drifts = (update.weights[name].double() - start.double() for update in updates.values())
                memory[H + name] = add_scaled(before, drifts, scales)  # Alg. 1: h
        return memory

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Return theta^t: the uniform average minus h / alpha."""
        weights = super().aggregate(state, updates)
        for name, h in select_prefix(state.memory, H).items():  # h does not exist if alpha is 0
            weights[name] = add_scaled(weights[name], [h], [-1 / self.alpha])  # Alg. 1: theta^t
        return weights
