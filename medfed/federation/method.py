"""What a federated method is: FedAvg, plus what its paper changes.

FedAvg: H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from medfed.core import bounds
from medfed.core.batch import Batch
from medfed.federation.local_round import Architecture, LocalRound, Output, Samples, SiteData
from medfed.federation.message import Message, State
from medfed.functional import weights as weight_maths

Tensors = dict[str, Tensor]
SiteWeights = Literal["examples", "uniform"]
UnseenBatchNorm = Literal["average", "batch_stats", "nearest"]
NEVER, ONCE, EVERY_ROUND = "never", "once", "every round"


@dataclass(frozen=True)
class Method:
    """The base class is FedAvg; a paper overrides a few of the hooks.

    A method holds hyper-parameters and nothing else: state comes as an argument and leaves as a return value, so the
    same object works in one process, in several processes, in two hospitals, and after a restart. The ranges of the
    hyper-parameters stand in the annotations of the fields (`medfed.core.bounds`); `__post_init__` checks them, so a
    subclass that overrides `__post_init__` calls `super().__post_init__()`.

    At the coordinator: `combine`, `broadcast`, `remember`, `aggregate`. At a site: `share`, `expand`,
    `on_round_start`, `augment`, `loss`, `regulariser`, `on_round_end`. At both, when the network is built:
    `wrap_network`, `local_keys`.

    The hooks at the coordinator see the sites, the rounds and the training settings in `state.plan`, and the names of
    the parameters in `state.parameters`. In a round `remember` runs before `aggregate`, which sees the new memory and
    the old weights.

    presets: named settings, chosen by `method.preset`: our recommendation, the paper's equations, the authors' code.
    moved: keys that older configs had, each with the sentence that refuses it.
    reads_features: true if a layer that `wrap_network` adds reads a feature map that other methods change. A stack
        wraps the network with this method last.
    fills_network: true if `on_round_start` writes entries of the network. A stack starts this method first.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {}}
    moved: ClassVar[Mapping[str, str]] = {}
    reads_features: ClassVar[bool] = False
    fills_network: ClassVar[bool] = False

    def __post_init__(self) -> None:
        bounds.check(self)

    @property
    def site_weights(self) -> SiteWeights:
        """How the average weights the sites: "examples" (n_k / N) or "uniform" (1 / K). A field where papers differ."""
        return "examples"

    @property
    def unseen_bn(self) -> UnseenBatchNorm:
        """Which BatchNorm entries a site gets that did not train, if `local_keys` keeps them at the sites (FedBN)."""
        return "average"

    @property
    def shares(self) -> str:
        """When sites are asked to `share`: NEVER, ONCE before the first round, or before EVERY_ROUND.

        A method that does not use what sites share under its settings returns NEVER: only what is needed leaves a site.
        """
        return NEVER if type(self).share is Method.share else ONCE

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the method reads at the sites, as its settings name them (style codecs).

        Every site must have the same files, so they travel with the plan of a federation.
        """
        return ()

    def with_files(self, names: Mapping[str, str]) -> Method:
        """A copy that reads other files: `names` maps each of `files` to its new name."""
        return self

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Refuse (UserError), before anything is written, data that the method cannot work on.

        standardised: whether the network sees standardised images, rather than those in [0, 1].
        """

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Add what the method needs to a fresh network; entries may be added, none renamed.

        UserError if the method cannot work on such a network.
        """
        return network

    def local_keys(self, network: nn.Module) -> frozenset[str]:
        """State-dict entries that never leave a site (FedBN)."""
        return frozenset()

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """What a site tells about its images, apart from weights. Everything here lands in the ledger."""
        return {}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Turn what the sites shared into the coordinator's memory."""
        return state.memory

    def broadcast(self, state: State, site: str) -> Tensors:
        """What one site is sent beside the weights."""
        return {}

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """Other training samples than the site's own, such as the same ones in more styles; made once and kept.

        Called before the site's first round, and again whenever what the coordinator sends beside the weights changes.
        `rng` is the same every time, so that a run that was killed gets the same samples again.
        """
        return samples

    def on_round_start(self, local: LocalRound) -> None:
        """Prepare a site's round; may write to `local.memory`."""

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """Change a batch of raw, non-negative images (before they are standardised)."""
        return batch

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """The task loss of a batch (scalar), and the raw images' output for regularisers."""
        output = local.forward(batch)
        return local.task.loss(output.logits, batch.label), output

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """A scalar added to the loss."""
        return output.logits.new_zeros(())

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Named tensors that go to the coordinator with the weights."""
        return {}

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """The coordinator's memory after a round."""
        return state.memory

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """The new global weights: w = sum_k a_k w_k over the K sites that replied (`averaging_weights`)."""
        return weight_maths.average([update.weights for update in updates.values()], self.averaging_weights(updates))

    def averaging_weights(self, updates: Mapping[str, Message]) -> Tensor:
        """(K,) float64, summing to 1: a_k = n_k / N, or 1 / K if `site_weights` is "uniform"."""
        if self.site_weights == "uniform":
            return torch.full((len(updates),), 1 / len(updates), dtype=torch.float64)
        examples = torch.tensor([float(update.facts["examples"]) for update in updates.values()], dtype=torch.float64)
        return examples / examples.sum()

    def facts(self, state: State) -> dict[str, Any]:
        """For the summary of a run: what a reader of its scores should know, as plain JSON values."""
        return {}

    def score_maps(self, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
        """For pictures only: where the network looks in standardised images (B, C, H, W), as (B, h, w) of sum 1."""
        return None

    def styles(self, state: State, image: Tensor) -> Tensors:
        """For pictures only: raw images (B, C, H, W) as they would look at each site, from what the sites shared."""
        return {}


def has_too_few_patients(site: str, samples: Samples, min_patients: int, what: str) -> bool:
    """Whether a site has fewer training patients than `method.min_patients`; warns that it does not share `what`."""
    if samples.n_patients >= min_patients:
        return False
    warnings.warn(
        f"{site}: has {samples.n_patients} training patients and shares no {what}, as method.min_patients is "
        f"{min_patients}; it trains all the same",
        stacklevel=3,
    )
    return True
