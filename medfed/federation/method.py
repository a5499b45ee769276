"""What a federated method is: FedAvg, plus what its paper changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.federation.local_round import Architecture, LocalRound, Output, Samples, SiteData
from medfed.federation.message import Message, State
from medfed.functional import weights as weight_maths

Tensors = dict[str, Tensor]
UNSEEN_BATCH_NORM = ("average", "batch_stats", "nearest")
NEVER, ONCE, EVERY_ROUND = "never", "once", "every round"


@dataclass(frozen=True)
class Method:
    """The base class *is* FedAvg (McMahan et al., AISTATS 2017); a paper overrides a few of the thirteen hooks.

    A method holds hyper-parameters and nothing else: state comes as an argument and leaves as a return value, so the
    same object works in one process, in several, in two hospitals, and after a restart.

    At the coordinator: `combine`, `broadcast`, `remember`, `aggregate`. At a site: `share`, `expand`,
    `on_round_start`, `augment`, `loss`, `regulariser`, `on_round_end`. At both, when the network is built:
    `wrap_network`, `local_keys`.
    """

    # Named settings, chosen by `method.preset`: our recommendation, the paper's equations, the authors' public code.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {}}
    reads_features: ClassVar[bool] = False  # what `wrap_network` adds reads a map that others change: last in a stack
    fills_network: ClassVar[bool] = False  # `on_round_start` puts entries into the network: first in a stack
    site_weights: ClassVar[str] = "examples"  # of the average: n_k / N, or "uniform"; a field where papers differ
    unseen_bn: ClassVar[str] = (
        "average"  # `medfed.experiments.unseen_batch_norm`: whose entries a site that took no part gets
    )

    @property
    def shares(self) -> str:
        """When sites are asked to `share`: NEVER, ONCE before the first round, or before EVERY_ROUND. A method that
        with its settings makes nothing of it says NEVER: only what is needed leaves a site."""
        return NEVER if type(self).share is Method.share else ONCE

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
        """w = sum_k a_k w_k over the K sites that answered; a_k = n_k / N, or 1 / K where `site_weights` says so."""
        examples = torch.tensor([float(update.facts["examples"]) for update in updates.values()], dtype=torch.float64)
        uniform = torch.full_like(examples, 1 / len(updates))
        shares = uniform if self.site_weights == "uniform" else examples / examples.sum()
        return weight_maths.average([update.weights for update in updates.values()], shares)

    def facts(self, state: State) -> dict[str, Any]:
        """For the summary of a run: what a reader of its scores should know, as plain JSON values."""
        return {}

    def score_maps(self, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
        """For pictures only: where the network looks in standardised images (B, C, H, W), as (B, h, w) of sum 1."""
        return None

    def styles(self, state: State, image: Tensor) -> Tensors:
        """For pictures only: raw images (B, C, H, W) as they would look at each site, from what the sites shared."""
        return {}
