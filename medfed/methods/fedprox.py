"""FedProx (Li et al., MLSys 2020): a site stays near the weights that it was given."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from medfed.federation.local_round import LocalRound, Output
from medfed.federation.method import Method, Tensors
from medfed.functional.weights import trainable_parameters

START = "start/"  # in a site's memory, during a round only


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with a proximal term.

        L = L_task(w) + mu / 2 * |w - w_t|^2                                                   (eq. 2)

    over the trained parameters; BatchNorm's statistics are no weights and stay out of it. w_t is what the site starts
    the round from: the weights that it was sent and, where it keeps some to itself (FedBN), its own.

    Args:
        mu: at least 0. 0 is FedAvg, to the bit. The paper tunes it from 0.001 to 1; 0.01 is that of FedBN's and CCST's
            code, which leave the term out in a round's first step, where it is 0 anyway.

    With Adam, whose steps hardly depend on the size of a gradient, mu weighs less than with plain SGD. (A public
    benchmark adds norms that are not squared, whose gradient at w_t is not defined.)
    """

    mu: float = 0.01

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise ValueError(f"mu must be at least 0, got {self.mu}")

    def on_round_start(self, local: LocalRound) -> None:
        if self.mu:
            local.memory.update(
                {START + n: entry.detach().clone() for n, entry in trainable_parameters(local.network).items()}
            )

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        total = super().regulariser(local, output)
        if self.mu:
            for name, entry in trainable_parameters(local.network).items():
                total = total + (entry - local.memory[START + name]).square().sum()
            total = self.mu / 2 * total
        return total

    def on_round_end(self, local: LocalRound) -> Tensors:
        for name in [name for name in local.memory if name.startswith(START)]:
            del local.memory[name]
        return {}
