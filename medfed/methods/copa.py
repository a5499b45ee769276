"""COPA (Wu and Gong, ICCV 2021): average the feature extractor, keep one classifier per site, and predict with all.

G. Wu, S. Gong: "Collaborative Optimization and Aggregation for Decentralized Domain Generalization and Adaptation",
ICCV 2021,
https://openaccess.thecvf.com/content/ICCV2021/html/Wu_Collaborative_Optimization_and_Aggregation_for_Decentralized_Domain_Generalization_and_Adaptation_ICCV_2021_paper.html.

Idea: each site trains the shared feature extractor through its own head and through the frozen heads of the other
sites, so that the features suit the classifiers of all sites.

Communication per round and site: the weights and the heads of all other sites down; the weights and the site's head up.

Departures: the paper's feature extractor, with batch and instance normalisation side by side, is not built, because no
pretrained weights and no bundle would fit it; choose a network with instance normalisation instead. The loss through
the other heads is a mean instead of a sum, so that it does not grow with the number of sites. There is no public code,
and we could not check the paper's constants and equation numbers.
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

HEADS, OWN, HEAD = "heads/", "own_head/", "head/"  # prefixes in the coordinator's memory, a site's memory, an update


@dataclass(frozen=True)
class COPA(Method):
    """FedAvg with a separate classifier (head) per site: only the feature extractor is averaged.

        L_k = L_task(h_k(F(x))) + weight * mean_{j != k} L_task(h_j(F(x)))

    F is the extractor and h_k the head of site k. The heads h_j of the other sites are frozen: they train the extractor
    only. Each site continues from its own head, which it keeps in its memory. F is averaged with the weights n_k / N.

    The paper predicts with the mean of the outputs of all K heads. Our heads are linear (a 1x1 convolution for masks),
    so the mean of their logits is exactly the logits of the mean head. The global model is therefore F with the mean of
    all known heads, each counted once. The global model is an ordinary network, which is validated, exported and drawn
    as any other. (The mean of K softmax outputs would be a different ensemble.) Sites validate this model, too.

    A head has (D + 1) numbers per class (ResNet18 with 7 classes: 14.4 kB). The head is also part of the weights that a
    site sends, so the coordinator learns nothing new. Each site sees the separate heads of the others, of which FedAvg
    shows only the average.

    With a single site, COPA is FedAvg. If a network has dropout before its head, the other sites' heads receive the
    features without dropout.

    Args:
        weight: weight of the mean loss through the heads of the other sites, at least 0. 0 trains each head on its own
            site only. The default 1 is our choice.
    """

    weight: NonNegativeFloat = 1.0

    fills_network: ClassVar[bool] = True

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Return the network unchanged, after a check that its head (the last layer) is linear.

        COPA averages the heads of the sites. Only for a linear head is this the same as averaging the outputs of the
        heads.

        Args:
            network: the network.
            architecture: names of the network's submodules, such as the head.

        Raises:
            UserError: if the head is more than one linear layer or convolution.
        """
        head = network.get_submodule(architecture.head)
        leaves = [module for module in head.modules() if not list(module.children())]
        layers = [module for module in leaves if not isinstance(module, nn.Identity)]
        if len(layers) != 1 or not isinstance(layers[0], (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
            raise UserError(
                f"method.name: 'copa' needs a network with a linear head, because COPA averages the heads' weights, "
                f"not their outputs, but this network's head is {type(head).__name__}; choose another network.name"
            )
        return network

    def broadcast(self, state: State, site: str) -> Tensors:
        """Return the heads (last layers) of all other sites, which one site receives with the global weights.

        Args:
            state: the coordinator's state, whose memory holds the heads of all sites.
            site: name of the site that receives the heads. This site's own head is left out.

        Returns:
            `heads/SITE/ENTRY`, where ENTRY is the state-dict name of an entry of the head, such as `fc.weight` (K, D)
            for K classes and D features. Empty if no other site has sent its head yet.
        """
        return {name: entry for name, entry in state.memory.items() if _site_of(name) != site}

    def on_round_start(self, local: LocalRound) -> None:
        """Replace the network's head (its last layer) by the head that this site trained in its last round.

        In the site's first round, the network keeps the head of the global weights.

        Args:
            local: the site's round of training. `local.network` is changed in place.
        """
        with torch.no_grad():
            for name, entry in _head_entries(local).items():
                if OWN + name in local.memory:
                    entry.copy_(local.memory[OWN + name])

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return the task's loss through the site's own head (last layer), plus a loss through the other sites' heads.

        For the second loss, the same features pass through the head of each other site. The second loss is `weight`
        times the mean of the task's losses of these predictions. The other sites' heads are frozen, so the second loss
        trains only the layers before the head. The second loss is left out if `weight` is 0 or if no other site's head
        is known yet, as in round 1.

        Args:
            local: the site's round of training.
            batch: images (B, C, H, W) in [0, 1], not standardised, and their class indices (B,) int64 or masks (B, S,
                H, W) of 0 and 1 for S structures.

        Returns:
            The loss, a scalar, and the network's output for the images, through the site's own head.
        """
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
        """Return the site's trained head (the last layer), to be sent, and store a copy of it in the site's memory.

        Args:
            local: the site's round of training, with the trained network. `local.memory` is changed in place.

        Returns:
            `head/ENTRY` on the CPU, where ENTRY is the state-dict name of an entry of the head, such as `fc.weight` (K,
            D) for K classes and D features.
        """
        head = {name: entry.detach().cpu().clone() for name, entry in _head_entries(local).items()}
        local.memory.update(add_prefix(head, OWN))
        sent = add_prefix(head, HEAD)
        local.n_patients.update(dict.fromkeys(sent, local.training.n_patients))
        return sent

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Return the newest known head of each site, which the coordinator stores.

        For a site that took part in this round, the new head replaces the old one. For any other site, the head of its
        last round stays.

        Args:
            state: the state before the round, with the heads known so far.
            updates: each site's update, by name of the site, with `head/ENTRY` in its tensors.
            rng: not used.

        Returns:
            `heads/SITE/ENTRY`, where ENTRY is the state-dict name of an entry of the head, such as `fc.weight` (K, D)
            for K classes and D features.
        """
        memory = dict(state.memory)
        for site, update in updates.items():
            memory |= add_prefix(select_prefix(update.tensors, HEAD), f"{HEADS}{site}/")
        return dict(sorted(memory.items()))

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Return the new global weights: averages over this round's sites, and for the head over all sites.

        All layers before the head are averaged over the sites of this round, in proportion to their numbers of training
        images. The head (the last layer) is the mean, with equal weights, of the newest heads of all sites that have
        taken part so far.

        Args:
            state: the state with the heads in its memory, as `remember` returned them.
            updates: each site's update (its weights after local training), by name of the site.

        Returns:
            Tensors by state-dict name.
        """
        heads: dict[str, Tensors] = {}
        for name, entry in state.memory.items():
            heads.setdefault(_site_of(name), {})[name.rpartition("/")[2]] = entry
        shares = torch.full((len(heads),), 1 / len(heads), dtype=torch.float64)
        return {**super().aggregate(state, updates), **average(list(heads.values()), shares)}  # F, and the mean head


def _site_of(name: str) -> str:
    """Return SITE of the name heads/SITE/ENTRY. Names of entries contain no slash."""
    return name.removeprefix(HEADS).rpartition("/")[0]


def _head_entries(local: LocalRound) -> Tensors:
    """Return the head's entries of the network's state dict, by name. They share memory with the network."""
    prefix = f"{local.architecture.head}."
    return {name: entry for name, entry in local.network.state_dict().items() if name.startswith(prefix)}


def _frozen_heads(local: LocalRound) -> list[Tensors]:
    """Return the other sites' heads on the network's device, each by its entries' names within the head."""
    heads: dict[str, Tensors] = {}
    for name, entry in sorted(local.message.tensors.items()):
        site, entry_name = _site_of(name), name.rpartition("/")[2].removeprefix(f"{local.architecture.head}.")
        heads.setdefault(site, {})[entry_name] = entry.to(local.device)
    return list(heads.values())
