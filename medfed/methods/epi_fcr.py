"""Epi-FCR (Li et al., ICCV 2019): train features and classifier together with partners that another site trained.

D. Li, J. Zhang, Y. Yang, C. Liu, Y.-Z. Song, T. M. Hospedales: "Episodic Training for Domain Generalization", ICCV
2019, https://arxiv.org/abs/1902.00113.

Idea: at an unseen site, features and classifier meet inputs that they do not fit well. Training simulates this: the
features must work with a classifier of another site, and the classifier with features of another site. Besides the
weights, a site sends a second model, which it trains on its own images only, and receives that of another site; a part
that the loss does not use is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.adam import adam

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from medfed.core.errors import UserError
from medfed.core.seeds import stream_seed
from medfed.federation.local_round import Architecture, LocalRound, Output
from medfed.federation.message import Message, State
from medfed.federation.method import Method, Tensors, has_too_few_patients
from medfed.federation.sent import WEIGHTS, Sent
from medfed.functional.hooks import add_submodule, capture_features, evaluation_mode
from medfed.functional.weights import add_prefix, select_prefix

# Prefixes and names of tensors in messages and memories.
DOMAIN = "domain/"  # a site's own model: in its memory, in messages, and by site at the coordinator
FIRST, SECOND, STEPS = "first moment/", "second moment/", "steps"
CIRCLE = "circle"
ADAM_STEP = partial(adam, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False)
RANDOM_HEAD = "random_head"  # name of the submodule, and so of its state-dict entries


@dataclass(frozen=True)
class EpiFCR(Method):
    """Episodic training: train features and classifier also with classifiers and features of other sites.

    All sites share the network (F, G): G is the network's head and F everything before it, so for masks F is encoder
    and decoder. In addition, each site k trains its own model (f_k, g_k) of the same architecture on its own images
    (eq. 2). The sites that took part in a round are put into a random circle, and in the next round each site receives
    the own model of its successor, frozen. A site that did not take part gets the model at a fixed place in the circle,
    which follows from its name.

        L = L_task(G(F x)) + foreign_classifier L_task(g_j(F x)) + foreign_features L_task(G(f_j x))
            + random_classifier L_task(g_rand(F x))                                                (eq. 6)

    F is trained by the second (eq. 3) and the fourth term (eq. 5), G by the third (eq. 4). g_rand is a random head, the
    same for all sites, that is never trained. The additional forward passes do not change BatchNorm's running
    statistics.

    A site's own model starts from the first global weights that the site receives. This model takes one Adam step
    (betas 0.9, 0.999) on the task's loss of every batch and stays in the site's memory, with two moments per weight.
    The coordinator keeps the own models of the last round's sites. Only the head is sent if `foreign_features` is 0 (66
    numbers for the ELCFS U-Net with disc and cup), and all but the head if `foreign_classifier` is 0.

    Departures: the paper trains on pooled data of all domains; the federated version is ours. The sites' own models are
    trained with Adam, whatever the site's optimiser is: the paper's SGD with 0.001 starts from pretrained weights. The
    other site's features are computed with that site's BatchNorm statistics and without dropout (the code freezes
    BatchNorm completely). The weights of the terms are those of the authors' script; the code's argument parser has 0.8
    for all three.

    Args:
        foreign_classifier: weight of the loss with another site's classifier on the site's features, at least 0. 2.0 in
            the authors' script. If all three weights are 0, the method is FedAvg.
        foreign_features: weight of the loss with the site's classifier on another site's features, at least 0. 0.05 in
            the authors' script.
        random_classifier: weight of the loss with a random, frozen classifier on the site's features, at least 0. 0.1
            in the authors' script.
        warm_up: first round after which a site sends its own model, at least 1. Until another site's model has arrived,
            the terms that need it are left out. The authors' code trains the own models alone for 500 of 3001
            iterations.
        domain_learning_rate: step size for the sites' own models, above 0. The default 0.001 is the authors' learning
            rate.
        min_patients: a site with fewer training patients than this does not send its own model, because the other sites
            would receive a model of single patients. Such a site still receives the models of others. At least 1. Not
            in the paper.
    """

    foreign_classifier: NonNegativeFloat = 2.0
    foreign_features: NonNegativeFloat = 0.05
    random_classifier: NonNegativeFloat = 0.1
    warm_up: PositiveInt = 1
    domain_learning_rate: PositiveFloat = 1e-3
    min_patients: PositiveInt = 3

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """Train the own model for one step; return eq. 3-5, of which eq. 3-4 need another site's model."""
        batch, total = Batch(output.image, output.label, moments=output.moments), super().regulariser(local, output)
        if self._exchanges:
            self._train_own(local, batch)
        received = select_prefix(local.message.tensors, DOMAIN)
        foreign = {name: entry.to(local.device) for name, entry in received.items()}
        network, head = local.network, local.network.get_submodule(local.architecture.head)
        if self.random_classifier or (self.foreign_classifier and foreign):
            features = _features(local, batch)  # F x
        if self.foreign_classifier and foreign:
            foreign_head = select_prefix(foreign, f"{local.architecture.head}.")
            logits = functional_call(head, foreign_head, (features,))  # g_j(F x)
            total = total + self.foreign_classifier * local.task.loss(logits, batch.label)  # eq. 3
        if self.foreign_features and foreign:
            with evaluation_mode(network), torch.no_grad():
                foreign_features = _features(local, batch, foreign)
            logits = head(foreign_features)  # G(f_j x)
            total = total + self.foreign_features * local.task.loss(logits, batch.label)  # eq. 4
        if self.random_classifier:
            logits = network.get_submodule(RANDOM_HEAD)(features)  # g_rand(F x)
            total = total + self.random_classifier * local.task.loss(logits, batch.label)  # eq. 5
        return total

    def _train_own(self, local: LocalRound, batch: Batch) -> None:
        """Take one Adam step of the site's own model. Its BatchNorm statistics change, those of the network do not."""
        memory, names = local.memory, _trained(local.network)
        own = select_prefix(memory, DOMAIN)
        own |= {name: own[name].detach().requires_grad_() for name in names}
        logits = functional_call(local.network, own, (local.task.standardise(batch.image, batch.moments),))
        loss = local.task.loss(logits, batch.label)  # eq. 2
        by_position = torch.autograd.grad(loss, [own[name] for name in names], allow_unused=True)
        used = {name: gradient for name, gradient in zip(names, by_position, strict=True) if gradient is not None}
        values, first, second = ([memory[kind + name] for name in used] for kind in (DOMAIN, FIRST, SECOND))
        gradients, counters = list(used.values()), [memory[STEPS].clone() for _ in used]
        with torch.no_grad():
            ADAM_STEP(values, gradients, first, second, [], counters, lr=self.domain_learning_rate)
        memory[STEPS] = memory[STEPS] + 1

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Send the used parts of the own model, `domain/ENTRY`."""
        if not self._exchanges:
            return {}
        _move(local.memory, torch.device("cpu"))
        if local.round < self.warm_up:
            return {}
        if has_too_few_patients(local.site, local.training, self.min_patients, "model of its own"):
            return {}
        head, tensors = local.architecture.head + ".", {}
        for name in self._model(local.network):
            weight_of_part = self.foreign_classifier if name.startswith(head) else self.foreign_features
            if weight_of_part:
                tensors[DOMAIN + name] = local.memory[DOMAIN + name].clone()
        local.n_patients.update(dict.fromkeys(tensors, local.training.n_patients))
        return tensors

    def _model(self, network: nn.Module) -> Tensors:
        """Copies of the network's state-dict entries, without those of the random head."""
        entries = network.state_dict().items()
        return {name: entry.detach().clone() for name, entry in entries if not name.startswith(RANDOM_HEAD + ".")}

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Keep the own models, `domain/SITE/ENTRY`, and draw the `circle`: indices (n,) into their sorted sites."""
        memory: Tensors = {}
        for site, update in updates.items():
            memory |= add_prefix(select_prefix(update.tensors, DOMAIN), f"{DOMAIN}{site}/")
        n = len(_senders(memory))
        return {**memory, CIRCLE: torch.randperm(n, generator=rng)} if n else {}

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send the own model of the site's successor in the circle, `domain/ENTRY`."""
        senders = _senders(state.memory)
        circle = [senders[i] for i in state.memory[CIRCLE].tolist()] if senders else []
        place = circle.index(site) + 1 if site in circle else stream_seed(0, "place", site)
        if not set(circle) - {site}:
            return {}
        return add_prefix(select_prefix(state.memory, f"{DOMAIN}{circle[place % len(circle)]}/"), DOMAIN)

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Add the random head g_rand, which the network's forward pass does not use."""
        if self.random_classifier > 0:
            head = copy.deepcopy(network.get_submodule(architecture.head)).requires_grad_(False)
            for part in head.modules():
                if callable(reset := getattr(part, "reset_parameters", None)):
                    reset()
            add_submodule(network, head, RANDOM_HEAD)
        return network

    def on_round_start(self, local: LocalRound) -> None:
        """Create the site's own model in its first round, and move it to the network's device."""
        if not self._exchanges and not self.random_classifier:
            return
        if local.local_keys:
            raise UserError(
                "method: Epi-FCR sends each site's own model with its BatchNorm to another site, but FedBN or "
                "federation.batch_norm: local keeps BatchNorm at the sites; remove Epi-FCR, or remove FedBN and "
                "federation.batch_norm: local"
            )
        if local.network.get_submodule(local.architecture.head)._forward_hooks:
            raise UserError(
                "method: Epi-FCR exchanges the network's head, but another method of the stack adds a layer to it "
                "(StableFDG's attention); set attention to false for that method, or remove one of the two methods"
            )
        if not self._exchanges:
            return
        if STEPS not in local.memory:
            local.memory.update(add_prefix(self._model(local.network), DOMAIN))
            moments = {name: torch.zeros_like(local.memory[DOMAIN + name]) for name in _trained(local.network)}
            local.memory.update(add_prefix(moments, FIRST) | add_prefix(moments, SECOND))
            local.memory[STEPS] = torch.zeros(())
        _move(local.memory, local.device)

    @property
    def _exchanges(self) -> bool:
        """True if a term of the loss needs another site's own model."""
        return self.foreign_classifier > 0 or self.foreign_features > 0

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {}, "released": {}}
    sent: ClassVar[Mapping[str, Sent]] = {
        f"{DOMAIN}*": Sent("weights of the site's own network", WEIGHTS.reveals, "of another site")
    }


def _features(local: LocalRound, batch: Batch, entries: Mapping[str, Tensor] | None = None) -> Tensor:
    """Return the head's input, (B, D), or (B, C, H, W) for masks, of the network or of another model's `entries`.

    The network's BatchNorm statistics stay unchanged.
    """
    place = local.head_input
    if entries is None:
        features = local.forward(batch, (place,), local.parameters()).features[place]
    else:
        with capture_features(local.network, (place,)) as captured:
            functional_call(local.network, dict(entries), (local.task.standardise(batch.image, batch.moments),))
        features = captured[place]
    return features.flatten(1) if local.architecture.embedding else features


def _trained(network: nn.Module) -> list[str]:
    """Names of the network's trained parameters."""
    return [name for name, entry in network.named_parameters() if entry.requires_grad]


def _senders(memory: Mapping[str, Tensor]) -> list[str]:
    """The sites whose own models are in the coordinator's memory, sorted."""
    return sorted({name.partition("/")[0] for name in select_prefix(memory, DOMAIN)})


def _move(memory: dict[str, Tensor], device: torch.device) -> None:
    """Move the own model and its moments in a site's memory; the step counter stays on the CPU."""
    for name, entry in memory.items():
        if name.startswith((DOMAIN, FIRST, SECOND)):
            memory[name] = entry.to(device, copy=True)
