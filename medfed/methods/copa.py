"""COPA (Wu & Gong, ICCV 2021): one feature extractor for all, which every site's own classifier must read.

G. Wu, S. Gong: "Collaborative Optimization and Aggregation for Decentralized Domain Generalization and Adaptation",
ICCV 2021,
https://openaccess.thecvf.com/content/ICCV2021/html/Wu_Collaborative_Optimization_and_Aggregation_for_Decentralized_Domain_Generalization_and_Adaptation_ICCV_2021_paper.html.
Idea: each site trains the shared extractor through its own head and through the frozen heads of the other sites.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output
from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors
from medfed.functional.weights import add_prefix, average, select_prefix

HEADS, OWN, HEAD = "heads/", "own_head/", "head/"  # in the coordinator's memory, a site's, and an answer


@dataclass(frozen=True)
class COPA(Method):
    """Collaborative optimisation and aggregation: extractor F, averaged, and a head h_k of each site k, which is not.

        L_k = L_task(h_k(F(x))) + weight * mean_{j != k} L_task(h_j(F(x)))

    The other sites' heads, as the coordinator last had them, are frozen: they teach the extractor only. Each site goes
    on from its own head, which it keeps in its memory. F is averaged by n_k / N.

    **The model.** The paper predicts with the mean of the K heads' outputs. Heads here are linear (a 1x1 convolution
    for masks), so the mean of their logits is the logits of the mean head, exactly; the global model is therefore F
    with the mean of all heads known, each counted once, and is one ordinary network: it is validated, exported and
    drawn as any other. (The mean of K softmaxes would be another ensemble, and no such network.) Sites are validated
    with it as well.

    Beside the weights the other sites' heads are sent down, and the site's own up, (D + 1) numbers a class each
    (ResNet18 with 7 classes: 14.4 kB). It tells nothing that the weights do not hold; it tells the coordinator which of
    them are the head. Each site sees every other's head by itself, where FedAvg shows it their average.

    Args:
        weight: of the mean loss through the others' heads; 0 still keeps the heads apart. A mean, not a sum, so that it
            does not grow with the number of sites: our choice, as there is no public code and the paper's constants
            could not be checked.

    Of one site alone this is FedAvg. Not built: the paper's extractor of batch and instance normalisation side by side.
    It is another network, whose entries would have other names, so that no pretrained weights and no bundle would fit;
    choose a network with instance normalisation where it has one.

    Where a network has dropout before its head, the others' heads see the features without.
    """

    weight: NonNegativeFloat = 1.0

    fills_network: ClassVar[bool] = True

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network as it is.

        Raises:
            UserError: if its head is not linear, so that heads could not be averaged in place of their outputs.
        """
        head = network.get_submodule(architecture.head)
        if not isinstance(head, (nn.Linear, nn.Conv2d)):
            raise UserError(
                "method.name: 'copa' averages heads in place of their outputs, which needs a linear one, and this "
                f"network's is {type(head).__name__}; choose another network.name"
            )
        return network

    def broadcast(self, state: State, site: str) -> Tensors:
        """heads/SITE/ENTRY of the other sites."""
        return {name: entry for name, entry in state.memory.items() if _site_of(name) != site}

    def on_round_start(self, local: LocalRound) -> None:
        """The site's own head, as its last round left it; before that, the one that came."""
        with torch.no_grad():
            for name, entry in _head_entries(local).items():
                if OWN + name in local.memory:
                    entry.copy_(local.memory[OWN + name])

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """L_k: the task loss through the site's own head, plus weight times its mean through the other sites' heads."""
        if not self.weight or not local.message.tensors:
            return super().loss(local, batch)
        head = local.network.get_submodule(local.architecture.head)
        output = local.forward(batch, (local.head_input,))
        features = output.features[local.head_input]  # F(x)
        features = features.flatten(1) if local.architecture.embedding else features
        logits = [functional_call(head, frozen, (features,), strict=True) for frozen in _frozen(local)]  # h_j(F(x))
        others = torch.stack([local.task.loss(one, batch.label) for one in logits]).mean()
        return local.task.loss(output.logits, batch.label) + self.weight * others, output

    def on_round_end(self, local: LocalRound) -> Tensors:
        """head/ENTRY with the names of the state dict, as the coordinator knows no network; and into memory."""
        head = {name: entry.detach().cpu().clone() for name, entry in _head_entries(local).items()}
        local.memory.update(add_prefix(head, OWN))
        return add_prefix(head, HEAD)

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """heads/SITE/ENTRY of all sites that ever took part, as they last were."""
        memory = dict(state.memory)
        for site, update in updates.items():
            memory |= add_prefix(select_prefix(update.tensors, HEAD), f"{HEADS}{site}/")
        return dict(sorted(memory.items()))

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """The mean extractor by n_k / N over those that answered, with the mean head over all that are known."""
        heads: dict[str, Tensors] = {}
        for name, entry in state.memory.items():
            heads.setdefault(_site_of(name), {})[name.rpartition("/")[2]] = entry
        shares = torch.full((len(heads),), 1 / len(heads), dtype=torch.float64)
        return {**super().aggregate(state, updates), **average(list(heads.values()), shares)}


def _site_of(name: str) -> str:
    """SITE of heads/SITE/ENTRY; entries have no slash."""
    return name.removeprefix(HEADS).rpartition("/")[0]


def _head_entries(local: LocalRound) -> Tensors:
    """The head's part of the network's state dict, sharing its memory."""
    prefix = f"{local.architecture.head}."
    return {name: entry for name, entry in local.network.state_dict().items() if name.startswith(prefix)}


def _frozen(local: LocalRound) -> list[Tensors]:
    """The other sites' heads, each by the names that the head itself gives its entries."""
    heads: dict[str, Tensors] = {}
    for name, entry in sorted(local.message.tensors.items()):
        heads.setdefault(_site_of(name), {})[name.rpartition(".")[2]] = entry.to(local.device)
    return list(heads.values())
