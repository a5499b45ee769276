"""Epi-FCR (Li et al., ICCV 2019): features and classifier must each work with a partner that knows another hospital.

D. Li, J. Zhang, Y. Yang, C. Liu, Y.-Z. Song, T. M. Hospedales: "Episodic Training for Domain Generalization", ICCV
2019, https://arxiv.org/abs/1902.00113. Idea: train the features with a classifier that another site trained, and the
classifier on features that another site trained.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from medfed.core.errors import UserError
from medfed.core.seeds import stream_seed
from medfed.federation.local_round import Architecture, LocalRound, Output
from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors, has_too_few_patients
from medfed.functional.hooks import add_submodule, capture_features, evaluation_mode
from medfed.functional.meta_learning import adam_step
from medfed.functional.weights import add_prefix, select_prefix

DOMAIN = "domain/"  # a site's own model: at the site, on the wire, and by site at the coordinator
FIRST, SECOND, STEPS = "first moment/", "second moment/", "steps"
CIRCLE = "circle"
RANDOM_HEAD = "random_head"  # as a part of the network, and so in its state dict


@dataclass(frozen=True)
class EpiFCR(Method):
    """Episodic training of features, classifier, random classifier: our federated port, as the paper pools all domains.

    Beside the network (F, G) that all share, every site k trains a model (f_k, g_k) of its own, of the same
    architecture, on its own images alone. A round's participants send theirs with the update; they stand in a random
    circle, and in the next round each gets that of its neighbour, frozen:

        L = L_task(G(F x)) + foreign_classifier L_task(g_j(F x)) + foreign_features L_task(G(f_j x))
            + random_classifier L_task(g_rand(F x))

    F learns from the second and fourth term, G from the third. G and g are the network's head, F and f all before it,
    so for masks F is encoder and decoder. g_rand is drawn once, the same for all sites, and never trained.

    Traffic a round and site: two models up (the update, and its own model), two down. Of its own model goes only the
    head where `foreign_features` is 0 (66 numbers of the ELCFS U-Net for disc and cup), and all but the head where
    `foreign_classifier` is. The coordinator keeps the models of the last round's participants, and a site its own with
    two moments for every weight.

    Args:
        foreign_classifier, foreign_features, random_classifier: weights of the terms; all 0 is FedAvg.
        warm_up: rounds after which a site's own model is first sent, at least 1. (The public code has 500 iterations of
            3001.) Until then, and wherever nobody else has sent one, the second and third term are left out.
        domain_learning_rate: of the sites' own models.
        min_patients: a site with fewer training patients sends no model of its own: one trained on single people would
            come to another site unmixed. It hears of the others all the same.

    A site's own model starts from the weights that it is first sent, takes one Adam step (betas 0.9, 0.999) on the task
    loss of every batch that the network itself sees, and stays in the site's memory; what it sends is named in the
    ledger. Adam, whatever the site's optimiser: the paper's SGD of 1e-3 starts from pretrained weights.
    A foreign f_j runs with its own BatchNorm statistics and without dropout (the code freezes BatchNorm altogether).
    None of the extra passes moves the network's statistics. A site that was not among the last participants gets the
    model of a fixed place in the random circle.

    The code's weights are the default; its argument parser has 0.8 for all three. Stacked with StableFDG's attention,
    which joins the head, it is refused.
    """

    foreign_classifier: NonNegativeFloat = 2.0
    foreign_features: NonNegativeFloat = 0.05
    random_classifier: NonNegativeFloat = 0.1
    warm_up: PositiveInt = 1
    domain_learning_rate: PositiveFloat = 1e-3
    min_patients: PositiveInt = 3

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {}, "released": {}}

    @property
    def _exchanges(self) -> bool:
        return self.foreign_classifier > 0 or self.foreign_features > 0

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with a frozen random head beside its own, which no forward pass uses."""
        if self.random_classifier > 0:
            head = copy.deepcopy(network.get_submodule(architecture.head)).requires_grad_(False)
            for part in head.modules():
                if callable(reset := getattr(part, "reset_parameters", None)):
                    reset()
            add_submodule(network, head, RANDOM_HEAD)
        return network

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """The models that came, by site, and the circle in which these stand."""
        memory: Tensors = {}
        for site, update in updates.items():
            memory |= add_prefix(select_prefix(update.tensors, DOMAIN), f"{DOMAIN}{site}/")
        n = len(_givers(memory))
        return {**memory, CIRCLE: torch.randperm(n, generator=rng)} if n else {}

    def broadcast(self, state: State, site: str) -> Tensors:
        """The model of the next one in the circle."""
        givers = _givers(state.memory)
        circle = [givers[i] for i in state.memory[CIRCLE].tolist()] if givers else []
        place = circle.index(site) + 1 if site in circle else stream_seed(0, "place", site)
        if not set(circle) - {site}:
            return {}
        return add_prefix(select_prefix(state.memory, f"{DOMAIN}{circle[place % len(circle)]}/"), DOMAIN)

    def on_round_start(self, local: LocalRound) -> None:
        """Bring the site's own model, or the weights that it starts from, to the device."""
        if not self._exchanges and not self.random_classifier:
            return
        if local.local_keys:
            raise UserError(
                "method: Epi-FCR sends a site's own model to another, and here BatchNorm must stay at its site (FedBN, "
                "or federation.batch_norm: local); use one of the two"
            )
        if local.network.get_submodule(local.architecture.head)._forward_hooks:
            raise UserError(
                "method: Epi-FCR swaps heads, and another of the stack adds to the head (StableFDG's attention); set "
                "attention to false there, or leave one of the two out"
            )
        if not self._exchanges:
            return
        if STEPS not in local.memory:
            local.memory.update(add_prefix(self._model(local.network), DOMAIN))
            moments = {name: torch.zeros_like(local.memory[DOMAIN + name]) for name in _trained(local.network)}
            local.memory.update(add_prefix(moments, FIRST) | add_prefix(moments, SECOND))
            local.memory[STEPS] = torch.zeros(())
        _move(local.memory, local.device)

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """The three terms of a batch; and the site's own model takes its step on it."""
        batch, total = Batch(output.image, output.label), super().regulariser(local, output)
        if self._exchanges:
            self._train_own(local, batch)
        foreign = {n: e.to(local.device) for n, e in select_prefix(local.message.tensors, DOMAIN).items()}
        network, head = local.network, local.network.get_submodule(local.architecture.head)
        if self.random_classifier or (self.foreign_classifier and foreign):
            features = _features(local, batch)
        if self.foreign_classifier and foreign:
            foreign_head = select_prefix(foreign, f"{local.architecture.head}.")
            logits = functional_call(head, foreign_head, (features,))  # g_j(F x)
            total = total + self.foreign_classifier * local.task.loss(logits, batch.label)
        if self.foreign_features and foreign:
            with evaluation_mode(network), torch.no_grad():
                foreign_features = _features(local, batch, foreign)
            logits = head(foreign_features)  # G(f_j x)
            total = total + self.foreign_features * local.task.loss(logits, batch.label)
        if self.random_classifier:
            logits = network.get_submodule(RANDOM_HEAD)(features)  # g_rand(F x)
            total = total + self.random_classifier * local.task.loss(logits, batch.label)
        return total

    def on_round_end(self, local: LocalRound) -> Tensors:
        """The site's own model, or the half of it that others use."""
        if not self._exchanges:
            return {}
        _move(local.memory, torch.device("cpu"))
        if local.round < self.warm_up:
            return {}
        if has_too_few_patients(local.site, local.training, self.min_patients, "model of its own"):
            return {}
        head, sent = local.architecture.head + ".", {}
        for name in self._model(local.network):
            if self.foreign_classifier if name.startswith(head) else self.foreign_features:
                sent[DOMAIN + name] = local.memory[DOMAIN + name].clone()
        return sent

    def _model(self, network: nn.Module) -> Tensors:
        """Copies of a network's entries, but for the random head's."""
        return {n: e.detach().clone() for n, e in network.state_dict().items() if not n.startswith(RANDOM_HEAD + ".")}

    def _train_own(self, local: LocalRound, batch: Batch) -> None:
        """One step of the site's own model; its BatchNorm statistics move, those of the network do not."""
        memory, names = local.memory, _trained(local.network)
        own = select_prefix(memory, DOMAIN)
        own |= {name: own[name].detach().requires_grad_() for name in names}
        logits = functional_call(local.network, own, (local.task.standardise(batch.image),))
        loss = local.task.loss(logits, batch.label)
        gradients = torch.autograd.grad(loss, [own[name] for name in names], allow_unused=True)
        used = {name: gradient for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
        values, first, second = ([memory[kind + name] for name in used] for kind in (DOMAIN, FIRST, SECOND))
        memory[STEPS] = adam_step(values, list(used.values()), first, second, memory[STEPS], self.domain_learning_rate)


def _features(local: LocalRound, batch: Batch, entries: Mapping[str, Tensor] | None = None) -> Tensor:
    """What enters the head: (B, D), or (B, C, H, W) for masks; of the network itself, or with another's entries.

    The network's running statistics stay as they are.
    """
    place = local.head_input
    if entries is None:
        features = local.forward(batch, (place,), local.parameters()).features[place]
    else:
        with capture_features(local.network, (place,)) as captured:
            functional_call(local.network, dict(entries), (local.task.standardise(batch.image),))
        features = captured[place]
    return features.flatten(1) if local.architecture.embedding else features


def _trained(network: nn.Module) -> list[str]:
    return [name for name, entry in network.named_parameters() if entry.requires_grad]


def _givers(memory: Mapping[str, Tensor]) -> list[str]:
    """The sites whose models the coordinator holds."""
    return sorted({name.partition("/")[0] for name in select_prefix(memory, DOMAIN)})


def _move(memory: dict[str, Tensor], device: torch.device) -> None:
    """Bring what the method keeps at a site to a device, as copies: the step counter stays on the CPU."""
    for name, entry in memory.items():
        if name.startswith((DOMAIN, FIRST, SECOND)):
            memory[name] = entry.to(device, copy=True)
