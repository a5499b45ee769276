"""FedDG-GA (Zhang et al., CVPR 2023): a hospital that the common model serves worse than its own gets more say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from medfed.federation.local_round import LocalRound, Samples, SiteData, Task
from medfed.federation.message import Message, State
from medfed.federation.method import EVERY_ROUND, Method, Tensors
from medfed.functional.aggregation import add_new_clients, adjust_client_weights
from medfed.functional.weights import average

SAY, LOCAL = "say/", "local_loss/"
AT_ONCE = 16  # images looked at together


@dataclass(frozen=True)
class FedDGGA(Method):
    """Generalisation adjustment: aggregation weights that follow the generalisation gaps.

        G_k = loss_k(global model) - loss_k(the site's own model before it was averaged)
        a_k <- a_k + d_t (G_k - mean G) / max |G - mean G|,  then cut at 0 and brought to sum 1
        d_t = (1 - t / T) d,  t = 0 the first time
        w   <- sum_k a_k w_k,  a_k = 1 / K at first

    A site sends the loss of the model that it trained, with it, and before the next round that of the average which
    came of it: two numbers a round (8 bytes), both over its validation images (its training images, where it keeps
    none apart), in evaluation mode. The model comes down twice a round: to be measured, and to be trained.

    Args:
        step: d, at least 0. 0 leaves the average uniform. Of few sites it is large: the site with the largest distance
            from the mean gap moves by d_t, however small the gaps are.
        rounds: T; set it to `federation.rounds`. 0 does not let the step shrink.

    A site that takes no part keeps its weight; those that do share what they held together, and average with it in
    proportion. The gap of a site that was away compares its model of then. One that comes for the first time enters
    with the mean weight, and its first gap is known a round later. Equal gaps change nothing.

    The paper's formula with the absolute maximum, which bounds a change by d_t, and where it is 0 no change. The
    public code leaves out the centring, divides by a further K, which is fixed at 3, compares accuracies, and turns
    equal gaps into NaN; we do not. It measures on validation images, as we do; the paper on those of training.
    """

    step: float = 0.2
    rounds: int = 0

    def __post_init__(self) -> None:
        for name in ("step", "rounds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    @property
    def shares(self) -> str:
        return EVERY_ROUND

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """loss: (1,), of the model that came."""
        return {"loss": mean_loss(network, site.task, site.validation or site.samples)}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """The sites' weights `say/SITE`, float64, after the gaps of those that are asked."""
        say = add_new_clients(
            {n.removeprefix(SAY): float(e) for n, e in state.memory.items() if n.startswith(SAY)}, shared
        )
        gaps = {
            site: float(tensors["loss"]) - float(state.memory[LOCAL + site])
            for site, tensors in shared.items()
            if LOCAL + site in state.memory
        }
        say = adjust_client_weights(say, sorted(shared), gaps, self.step_after(state.round))
        losses = {name: entry for name, entry in state.memory.items() if name.startswith(LOCAL)}
        return losses | {SAY + site: torch.tensor([a], dtype=torch.float64) for site, a in sorted(say.items())}

    def on_round_end(self, local: LocalRound) -> Tensors:
        """loss: (1,), of the model that was trained here."""
        return {"loss": mean_loss(local.network, local.task, local.validation or local.training)}

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        return {**state.memory, **{LOCAL + site: update.tensors["loss"] for site, update in updates.items()}}

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        say = torch.tensor([float(state.memory[SAY + site]) for site in updates], dtype=torch.float64)
        say = say if say.sum() > 0 else torch.ones_like(say)
        return average([update.weights for update in updates.values()], say / say.sum())

    def facts(self, state: State) -> dict[str, Any]:
        """The sites' weights in the end."""
        say = {n.removeprefix(SAY): round(float(e), 4) for n, e in state.memory.items() if n.startswith(SAY)}
        return {"aggregation_weights": say} if say else {}

    def step_after(self, rounds_done: int) -> float:
        """d_t: in full after the first round, d / T after round T."""
        return self.step * max(0.0, 1 - max(0, rounds_done - 1) / self.rounds) if self.rounds else self.step


@torch.no_grad()
def mean_loss(network: nn.Module, task: Task, samples: Samples) -> Tensor:
    """(1,) float32: the task's loss over all images, in evaluation mode, each batch by its size."""
    was_training, device, total = network.training, next(network.parameters()).device, 0.0
    network.eval()
    for part in torch.arange(len(samples)).split(AT_ONCE):
        batch = samples.batch(part.tolist()).to(device)
        total += len(part) * float(task.loss(network(task.standardise(batch.image)), batch.label))
    network.train(was_training)
    return torch.tensor([total / len(samples)])
