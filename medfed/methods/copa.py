"""COPA (Wu and Gong, ICCV 2021): average the feature extractor, keep one classifier per site, and predict with all.

G. Wu, S. Gong: "Collaborative Optimization and Aggregation for Decentralized Domain Generalization and Adaptation",
ICCV 2021,
https://openaccess.thecvf.com/content/ICCV2021/html/Wu_Collaborative_Optimization_and_Aggregation_for_Decentralized_Domain_Generalization_and_Adaptation_ICCV_2021_paper.html.

Idea: each site trains the shared feature extractor through its own head and through the frozen heads of the other
sites, so that the features suit the classifiers of all sites. Besides the weights, a site sends its head and receives
the heads of all others.
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
from medfed.federation.sent import WEIGHTS, Sent
from medfed.functional.weights import add_prefix, average, select_prefix

HEADS, OWN, HEAD = "heads/", "own_head/", "head/"  # prefixes in the coordinator's memory, a site's memory, an update


@dataclass(frozen=True)
class COPA(Method):
    """FedAvg with a separate classifier (head) per site: only the feature extractor is averaged.

        L_k = L_task(h_k(F(x))) + weight * mean_{j != k} L_task(h_j(F(x)))

    F is the extractor and h_k the head of site k. The heads h_j of the other sites are frozen: they train the extractor
    only. Each site continues from its own head, which it keeps in its memory. F is averaged with the weights n_k / N.

    The paper predicts with the mean of the outputs of all K heads. Our heads are linear (a 1x1 convolution for masks),
    so the mean of their logits is exactly the logits of the mean head. The global model is therefore F with the mean of
    the newest heads of all sites so far, each counted once: an ordinary network, which is validated, exported and drawn
    as any other. (The mean of K softmax outputs would be a different ensemble.)

    A head has (D + 1) numbers per class (ResNet18 with 7 classes: 14.4 kB). The head is also part of the weights that a
    site sends, so the coordinator learns nothing new. Each site sees the separate heads of the others, of which FedAvg
    shows only the average. With a single site, COPA is FedAvg. If a network has dropout before its head, the other
    sites' heads receive the features without dropout.

    Departures: the paper's feature extractor, with batch and instance normalisation side by side, is not built, because
    no pretrained weights and no bundle would fit it; choose a network with instance normalisation instead. The loss
    through the other heads is a mean instead of a sum, so that it does not grow with the number of sites. There is no
    public code, and we could not check the paper's constants and equation numbers.

    Args:
        weight: weight of the mean loss through the heads of the other sites, at least 0. 0 trains each head on its own
            site only. The default 1 is our choice.
    """

    weight: NonNegativeFloat = 1.0

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send the newest heads of the other sites, `heads/SITE/ENTRY`."""
        return {name: entry for name, entry in state.memory.items() if _site_of(name) != site}

    def on_round_start(self, local: LocalRound) -> None:
        """Continue from the head that this site trained in its last round."""
        with torch.no_grad():
            for name, entry in _head_entries(local).items():
                if OWN + name in local.memory:
                    entry.copy_(local.memory[OWN + name])

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Add the mean of the task's losses through the other sites' frozen heads."""
        if not self.weight or not local.message.tensors:
            return super().loss(local, batch)
        head = local.network.get_submodule(local.architecture.head)
        output = local.forward(batch, (local.head_input,))
        features = output.features[local.head_input]  # F(x)
        features = features.flatten(1) if local.architecture.embedding else features
        frozen_heads = _frozen_heads(local)
        all_logits = [functional_call(head, frozen, (features,), strict=True) for frozen in frozen_heads]  # h_j(F(x))
        mean_loss = torch.stack([local.task.loss(logits, batch.label) for logits in all_logits]).mean()
        return local.task.loss(output.logits, batch.label) + self.weight * mean_loss, output  # L_k

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Send the trained head, `head/ENTRY`."""
        head = {name: entry.detach().cpu().clone() for name, entry in _head_entries(local).items()}
        local.memory.update(add_prefix(head, OWN))
        sent = add_prefix(head, HEAD)
        local.n_patients.update(dict.fromkeys(sent, local.training.n_patients))
        return sent

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Keep the newest head of each site, also of those that were absent in this round."""
        memory = dict(state.memory)
        for site, update in updates.items():
            memory |= add_prefix(select_prefix(update.tensors, HEAD), f"{HEADS}{site}/")
        return dict(sorted(memory.items()))

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Average F over the sites of this round, and the newest heads over all sites."""
        heads: dict[str, Tensors] = {}
        for name, entry in state.memory.items():
            heads.setdefault(_site_of(name), {})[name.rpartition("/")[2]] = entry
        shares = torch.full((len(heads),), 1 / len(heads), dtype=torch.float64)
        return {**super().aggregate(state, updates), **average(list(heads.values()), shares)}  # F, and the mean head

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Check that the head is linear: only then is averaging heads the same as averaging their outputs."""
        head = network.get_submodule(architecture.head)
        leaves = [module for module in head.modules() if not list(module.children())]
        layers = [module for module in leaves if not isinstance(module, nn.Identity)]
        if len(layers) != 1 or not isinstance(layers[0], (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            raise UserError(
                f"method.name: 'copa' needs a network with a linear head, because COPA averages the heads' weights, "
                f"not their outputs, but this network's head is {type(head).__name__}; choose another network.name"
            )
        return network

    fills_network: ClassVar[bool] = True
    sent: ClassVar[Mapping[str, Sent]] = {
        f"{HEAD}*": Sent("weights of the site's own head", WEIGHTS.reveals),
        f"{HEADS}*": Sent("weights of the heads of the other sites", WEIGHTS.reveals),
    }


def _site_of(name: str) -> str:
    """The SITE of heads/SITE/ENTRY; names of entries contain no slash."""
    return name.removeprefix(HEADS).rpartition("/")[0]


def _head_entries(local: LocalRound) -> Tensors:
    """The head's entries of the network's state dict; they share memory with the network."""
    prefix = f"{local.architecture.head}."
    return {name: entry for name, entry in local.network.state_dict().items() if name.startswith(prefix)}


def _frozen_heads(local: LocalRound) -> list[Tensors]:
    """The other sites' heads on the network's device, each by its entries' names within the head."""
    heads: dict[str, Tensors] = {}
    for name, entry in sorted(local.message.tensors.items()):
        site, entry_name = _site_of(name), name.rpartition("/")[2].removeprefix(f"{local.architecture.head}.")
        heads.setdefault(site, {})[entry_name] = entry.to(local.device)
    return list(heads.values())
