"""The protocol of a federated method: the base class `Method` is FedAvg, and a subclass overrides some of its hooks.

FedAvg: H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.

A federation calls the hooks in this order. "Site" means: once at every site that takes part.

    set-up       check                          coordinator and sites, before anything is written
                 wrap_network, local_keys       coordinator and sites, when the network is built
    sharing      share                          site; network in evaluation mode, with the global weights
                 combine                        coordinator; its result becomes `state.memory`
    each round   broadcast                      coordinator, once per site
                 expand                         site; in its first round, and when the broadcast tensors change
                 on_round_start                 site; network in training mode, with the weights of `start_weights`
                 augment, loss, regulariser     site; in this order, once per training step
                 on_round_end                   site; after the last step
                 remember                       coordinator; its result becomes `state.memory`
                 aggregate                      coordinator; sees the new memory and the old weights
    afterwards   facts, styles, score_maps      for the summary and the figures of a run

Sharing takes place never, once before the first round, or before every round (`shares`).
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
    """A federated method as a set of hooks. Without overrides, the hooks are FedAvg.

    A method object holds hyper-parameters and nothing else. What changes during training enters a hook as an argument
    and leaves it as a return value. The same object therefore works in one process, in several processes, on the
    machines of several hospitals, and after a restart from a checkpoint.

    A subclass is a frozen dataclass. Its fields are the settings of the `method` block of a config. The allowed range
    of a field stands in its annotation (`medfed.core.bounds`), and its meaning in the `Args` section of the class
    docstring. `__post_init__` checks the ranges; a subclass that overrides it calls `super().__post_init__()`.

    Rules for all hooks:

    * Tensors in `state`, in messages and in the results of `share`, `combine`, `broadcast`, `on_round_end`, `remember`
      and `aggregate` are on the CPU. So are tensors in `local.memory` outside of a round. During a round a site works
      on `local.device`.
    * Random numbers come from the generator that the hook receives (`rng`, `site.rng`, `local.rng`), a CPU generator
      that is seeded for this site, round and purpose. Draw on the CPU, then move the result to the device. Results are
      then reproducible, and the same on every device up to rounding.
    * Batches and tensors that a hook receives are not changed in place, except `local.memory` and `local.network`.
    * Names of a method's own tensors must not begin with "optimizer/" or "local/" in `local.memory`: the site stores
      the optimiser and its local network entries there.
    * At the coordinator, `state.plan` holds the sites, the number of rounds and the training settings, and
      `state.parameters` the names of those entries of the weights that are parameters (the others are buffers).

    Attributes:
        presets: named settings, selected by `method.preset` in a config. By convention "medfed" holds our recommended
            settings, "paper" those of the paper, and "released" those of the authors' public code.
        moved: keys that configs of older versions had, each with the sentence that says what replaces it. A config with
            such a key is rejected with this sentence.
        reads_features: True if a layer that `wrap_network` adds reads a feature map that other methods change. A stack
            wraps the network with such a method last.
        fills_network: True if `on_round_start` writes entries of the network. A stack starts such a method first.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}, "paper": {}}
    moved: ClassVar[Mapping[str, str]] = {}
    reads_features: ClassVar[bool] = False
    fills_network: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check that every field lies in the range of its annotation; ValueError otherwise."""
        bounds.check(self)

    @property
    def site_weights(self) -> SiteWeights:
        """Weight a_k of site k in the average: "examples" for n_k / N, "uniform" for 1 / K.

        n_k is the number of training images of site k and N their sum over the K sites that replied. A method may
        override this property by a field of the same name, so that a config can choose.
        """
        return "examples"

    @property
    def unseen_bn(self) -> UnseenBatchNorm:
        """BatchNorm entries of a site that did not train, for a method whose `local_keys` keep BatchNorm at the sites.

        "average": the mean of the source sites' entries. "batch_stats": the same, but each batch of test images is
        normalised by its own statistics. "nearest": the entries of the most similar source site. See `FedBN`.
        """
        return "average"

    @property
    def shares(self) -> str:
        """When sites are asked to `share`: `NEVER`, `ONCE` before the first round, or before `EVERY_ROUND`.

        Default: `ONCE` if the class overrides `share`, else `NEVER`. A method whose settings make no use of shared
        tensors returns `NEVER`, so that nothing leaves a site without need.
        """
        return NEVER if type(self).share is Method.share else ONCE

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that the method reads at the sites, as its settings name them. Default: none.

        Style codecs are such files. All sites need the same files, so the plan of a federation carries copies of them.
        """
        return ()

    def with_files(self, names: Mapping[str, str]) -> Method:
        """Return a copy of the method that reads other files.

        Args:
            names: the new path of each file of `files`, by its present path.

        Returns:
            The copy. Default, for a method without files: the method itself.
        """
        return self

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Reject data that the method cannot work on. Called before anything is written. Default: accept.

        Args:
            image_size: height and width of the images in pixels.
            channels: number of channels of the images.
            standardised: True if the network receives standardised images, False if it receives images in [0, 1].

        Raises:
            UserError: if the method cannot work on such images.
        """

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Add the method's own layers to a new network. Called wherever a network is built. Default: add nothing.

        Args:
            network: the network; may be changed in place.
            architecture: names of the network's parts.

        Returns:
            The network with the added layers. Its state dict has all entries of the original under their old names,
            and possibly more.

        Raises:
            UserError: if the method cannot work on such a network.
        """
        return network

    def local_keys(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the state-dict entries that never leave a site.

        A site leaves these entries out of its updates and keeps them in its memory between rounds (FedBN: all entries
        of BatchNorm). Default: none.

        Args:
            network: the network after `wrap_network`.
        """
        return frozenset()

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Compute, at a site, the statistics of its images that the method shares. Called as `shares` says.

        Args:
            site: name, images and random generator of the site.
            network: the network in evaluation mode, with the global weights, on the site's device.

        Returns:
            Tensors by name, on the CPU. All of them leave the site and are listed in the ledger. An empty dictionary
            shares nothing. Default: nothing.
        """
        return {}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Turn the tensors that the sites shared into the coordinator's memory. Called after each sharing.

        Args:
            state: the state before the round. Its weights and memory are not to be changed in place.
            shared: what each site returned from `share`, by site; empty for a site that shared nothing. A site whose
                reply is missing or was rejected is not included.
            rng: random generator of this round.

        Returns:
            The new `state.memory`: tensors by name, on the CPU. Default: the memory as it was.
        """
        return state.memory

    def broadcast(self, state: State, site: str) -> Tensors:
        """Select the tensors that one site receives together with the global weights. Called in each round.

        Args:
            state: the state before the round; after sharing, with the result of `combine` in `state.memory`.
            site: name of the site that receives the tensors.

        Returns:
            Tensors by name, on the CPU. The site finds them in `local.message.tensors`. Default: none.
        """
        return {}

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """Return the samples to train on, if these are not simply the site's own, such as the same images restyled.

        Called at a site before `on_round_start`, in the site's first round and again whenever the broadcast tensors
        differ from those of its last round. The result is used for all rounds in between.

        Args:
            local: the round.
            samples: the site's own training samples.
            rng: random generator of this site. It has the same seed in every call, so that a resumed run trains on the
                same samples.

        Returns:
            The training samples of the following rounds. Default: the site's own.
        """
        return samples

    def on_round_start(self, local: LocalRound) -> None:
        """Prepare a site's round. Called after `expand`, before the first training step. Default: do nothing.

        Args:
            local: the round. `local.memory` and `local.network` may be changed.
        """

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """Change a batch before the training step uses it. Called once per step, before the gradients are cleared.

        Args:
            local: the round.
            batch: raw, non-negative images (B, C, H, W) that are not standardised yet, on the site's device, after the
                augmentation of `training.augment`.

        Returns:
            The batch to train on. Default: the same batch.
        """
        return batch

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Compute the training loss of one batch. Called once per step, after `augment`.

        Args:
            local: the round.
            batch: raw images (B, C, H, W) and their labels, on the site's device.

        Returns:
            The loss, a scalar, and the output of the network on the raw images, which `regulariser` receives. Default:
            the task's loss.
        """
        output = local.forward(batch)
        return local.task.loss(output.logits, batch.label), output

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """Compute a term that is added to the loss. Called once per step, after `loss`.

        Args:
            local: the round.
            output: the network's output on the raw images of the batch, as `loss` returned it.

        Returns:
            A scalar. Default: 0.
        """
        return output.logits.new_zeros(())

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Return the tensors that a site sends together with its weights. Called after the last training step.

        Args:
            local: the round. The network holds the trained weights. After this hook, all tensors that the method
                keeps in `local.memory` must be on the CPU.

        Returns:
            Tensors by name, on the CPU. The coordinator finds them in `updates[site].tensors`, and the ledger lists
            them. Default: none.
        """
        return {}

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Return the coordinator's memory after a round. Called before `aggregate`, with the weights before the round.

        Args:
            state: the state before the round, with the old weights and the old memory. Not to be changed in place.
            updates: the accepted updates by site: `weights` after local training, the `tensors` of `on_round_end`, and
                the facts "examples" (number of training images), "steps" and "loss".
            rng: random generator of this round.

        Returns:
            The new `state.memory`: tensors by name, on the CPU. Default: the memory as it was.
        """
        return state.memory

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Compute the new global weights: w = sum_k a_k w_k. Called after `remember`.

        Args:
            state: the old weights, and in `state.memory` the result of `remember`.
            updates: the accepted updates by site, at least one.

        Returns:
            The new weights by state-dict name, on the CPU. Entries that it does not name keep their value. Default: the
            average over the K sites that replied, with the weights a_k of `averaging_weights`.
        """
        trained_weights = [update.weights for update in updates.values()]
        return weight_maths.average(trained_weights, self.averaging_weights(updates))  # FedAvg, Alg. 1

    def averaging_weights(self, updates: Mapping[str, Message]) -> Tensor:
        """Return the weight a_k of each site in the average.

        Args:
            updates: the accepted updates by site.

        Returns:
            (K,) float64, summing to 1, in the order of `updates`: n_k / N, or 1 / K if `site_weights` is "uniform".
        """
        if self.site_weights == "uniform":
            return torch.full((len(updates),), 1 / len(updates), dtype=torch.float64)
        examples = torch.tensor([float(update.facts["examples"]) for update in updates.values()], dtype=torch.float64)
        return examples / examples.sum()  # FedAvg, Alg. 1: n_k / n

    def facts(self, state: State) -> dict[str, Any]:
        """Return facts that a reader of a run's scores should know, such as a number of clusters. Default: none.

        Args:
            state: the state after the last round.

        Returns:
            Plain JSON values by name. They stand in `summary.json` under `method_facts`.
        """
        return {}

    def score_maps(self, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
        """Compute where the network looks in its images. For figures only, never for training. Default: None.

        Args:
            network: the trained network.
            architecture: names of the network's parts.
            image: (B, C, H, W), standardised.

        Returns:
            (B, h, w), each map non-negative with sum 1; None if the method has no such map.
        """
        return None

    def styles(self, state: State, image: Tensor) -> Tensors:
        """Redraw images with the shared statistics of each site. For figures only, never for training.

        Args:
            state: the state after the last round.
            image: (B, C, H, W), raw, in [0, 1].

        Returns:
            (B, C, H, W) in [0, 1] by the name of the site, or by "all sites" for a common style. Default: none.
        """
        return {}


def has_too_few_patients(site: str, samples: Samples, min_patients: int, content: str) -> bool:
    """Return True, with a warning, if a site has fewer training patients than `method.min_patients`.

    Statistics of very few patients could be traced back to one of them, so such a site trains but shares nothing.

    Args:
        site: name of the site.
        samples: the site's training samples.
        min_patients: smallest number of patients whose statistics may leave a site.
        content: what the site would share, as a plural or a mass noun for the warning, such as "frequency windows".
    """
    if samples.n_patients >= min_patients:
        return False
    warnings.warn(
        f"{site}: has {samples.n_patients} training patients, fewer than method.min_patients ({min_patients}), so the "
        f"site shares no {content}; it takes part in training as usual",
        stacklevel=3,
    )
    return True
