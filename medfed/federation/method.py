"""The protocol of a federated method: the base class `Method` is FedAvg, and a subclass overrides some of its hooks.

FedAvg: H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, https://arxiv.org/abs/1602.05629.

A federation calls the hooks in this order. "Site" means: once at every site that takes part.

    set-up       check                          coordinator and sites, before anything is written
                 wrap_network, local_keys       coordinator and sites, when the network is built
    sharing      share                          site; network in evaluation mode, with the global weights, or without
                                                them (`share_reads_network`)
                 combine                        coordinator; its result becomes `state.memory`
    each round   broadcast                      coordinator, once per site
                 expand                         site; in its first round, and when the broadcast tensors that it reads
                                                (`expand_reads`) change
                 on_round_start                 site; network in training mode, with the weights of `start_weights`
                 augment, loss, regulariser     site; in this order, once per training step
                 on_round_end                   site; after the last step
                 remember                       coordinator; its result becomes `state.memory`
                 aggregate                      coordinator; sees the new memory and the old weights
    afterwards   result_weights                 coordinator; the weights that are scored, saved and sent to the sites
                 matcher                        for the test images of sites that did not train (`evaluation.match`)
                 summarise                      for the summary of a run

Sharing takes place never, once before the first round, or before every round (`shares`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from medfed.core import bounds
from medfed.core.batch import Batch
from medfed.federation.local_round import Architecture, LocalRound, Output, Samples, SiteData
from medfed.federation.message import Message, State
from medfed.federation.sent import Sent
from medfed.functional import weights as weight_maths

Tensors = dict[str, Tensor]
Matcher = Callable[[Tensor], Tensor]  # (B, C, H, W) in [0, 1], not standardised, to the same
SiteWeights = Literal["examples", "uniform"]
UnseenBatchNorm = Literal["average", "batch_stats"]
ALL_DIMENSIONS = frozenset({2, 3})  # images and slices; patches of volumes
NEVER, ONCE, EVERY_ROUND = "never", "once", "every round"
MAX_FEATURE = 1e5  # above every feature of VGG on intensities from 0 to 255, which are the largest here
STYLE_RANGES = {"mean": (-MAX_FEATURE, MAX_FEATURE), "std": (0.0, MAX_FEATURE)}


class Effort(NamedTuple):
    """Optimiser steps and training images of a site in a round, in multiples of FedAvg's.

    Restyled and added copies of images count; a second forward pass of the same images does not. If the number of
    images is random, `images` is the largest possible one.
    """

    steps: float = 1
    images: float = 1


@dataclass(frozen=True)
class Method:
    """A federated method: functions (hooks) that the training calls at fixed times. By default, they are FedAvg.

    A method object holds hyper-parameters and nothing else. What changes during training enters a hook as an argument
    and leaves it as a return value. The same object therefore works in one process, in several processes, on the
    machines of several hospitals, and after a restart from a checkpoint.

    A subclass is a frozen dataclass. Its fields are the settings of the `method` block of a config: the annotation of a
    field states the allowed range (`medfed.core.bounds`), and the `Args` section of the class docstring its meaning.
    `__post_init__` checks the ranges; a subclass that overrides it calls `super().__post_init__()`.

    Rules for all hooks:

    * Tensors in `state`, in messages and in the results of `share`, `combine`, `broadcast`, `on_round_end`, `remember`
      and `aggregate` are on the CPU. So are tensors in `local.memory` outside of a round. During a round a site works
      on `local.device`.
    * Random numbers come from the generator that the hook receives (`rng`, `site.rng`, `local.rng`), a CPU generator
      that is seeded for this site, round and purpose. Draw on the CPU, then move the result to the device: results are
      then reproducible, and the same on every device up to rounding.
    * Only `local.memory`, `local.facts` and `local.network` may be changed in place.
    * A method's own names in `local.memory` must not begin with "optimizer/" or "local/": the site stores the optimiser
      and its local network entries there.
    * At the coordinator, `state.plan` holds the sites, the number of rounds and the training settings, and
      `state.parameters` the names of those entries of the weights that are parameters (the others are buffers).

    Attributes:
        presets: named settings, selected by `method.preset` in a config. By convention "medfed" holds our recommended
            settings, "paper" those of the paper, with the values of the authors' code where the paper has none, and
            "released" those of the authors' public code.
        reads_features: True if `wrap_network` adds a layer that reads a feature map, and other methods may change this
            feature map. A stack (several methods in one, `Stack`) calls `wrap_network` of such a method last.
        fills_network: True if `on_round_start` writes entries of the network. A stack calls `on_round_start` of such a
            method first.
        dimensions: numbers of dimensions of the images on which the method works: 2 for images and slices, 3 for
            patches of volumes (`data.patch_size`).
        patients_advice: which settings of the method to change if a hospital refuses a shared statistic because too few
            patients are behind one of its numbers (`SiteData.n_patients`), as a clause that begins with a verb; "" if
            there is no such setting.
        sent: what the method's tensors and facts in messages are, and what they could reveal about patients; a report
            shows it. The keys are the names of the ledger's rows ("windows", "style/*") and of facts.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"medfed": {}}
    reads_features: ClassVar[bool] = False
    fills_network: ClassVar[bool] = False
    dimensions: ClassVar[frozenset[int]] = frozenset({2})
    patients_advice: ClassVar[str] = ""
    sent: ClassVar[Mapping[str, Sent]] = {}

    def __post_init__(self) -> None:
        """Check that every field lies in the range of its annotation; ValueError otherwise."""
        bounds.check(self)

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Add the method's own layers to a new network, in place or not. Default: add nothing.

        Called wherever a network is built.

        Returns:
            The network with the added layers. Its state dict has all entries of `network` under their old names, and
            may have more.

        Raises:
            UserError: if the method cannot work on such a network.
        """
        return network

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Compute the statistics that a site shares, at the times given by `shares`. Default: none.

        The hook also writes to `site.n_patients` from how many patients each number of a tensor is computed: all
        patients of the site for a mean over all images, 1 for one row per image, the patients of the smallest class for
        class means. A hospital refuses to send a statistic of fewer patients than it agreed to. A tensor that is
        missing in `site.n_patients` counts as a statistic of one patient.

        Args:
            site: name, images and random generator of the site.
            network: the network in evaluation mode, with the global weights, on the site's device. If
                `share_reads_network` is False, its weights are unspecified.

        Returns:
            Tensors by name, on the CPU. All of them are sent to the coordinator and listed in the ledger, the run's
            table of everything that was sent.
        """
        return {}

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Compute the coordinator's new memory from the tensors that the sites shared. Called after each sharing.

        Args:
            state: the state before the round.
            shared: by name of the site, what `share` returned there; an empty dictionary for a site that shared
                nothing. A site whose reply is missing or was rejected is not included.

        Returns:
            The new `state.memory`, which the method keeps between rounds: tensors by name, on the CPU. Default: the old
            memory.
        """
        return state.memory

    def broadcast(self, state: State, site: str) -> Tensors:
        """Select the tensors that one site receives together with the global weights. Called in each round.

        Args:
            state: the coordinator's state before the round. If the sites shared statistics, `state.memory` is the
                result of `combine`.

        Returns:
            Tensors by name, on the CPU. The site finds them in `local.message.tensors`. Default: none.
        """
        return {}

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """Return the samples to train on. By default they are the site's own training samples.

        A method can return other samples, for example the site's images redrawn in several styles. The hook is called
        at a site before `on_round_start`: in the site's first round, and again in each round in which one of the
        broadcast tensors of `expand_reads` has changed. The samples are used for all rounds in between.

        Args:
            local: the site's round of training that is about to start. Its `message.tensors` are those that
                `expand_reads` names.
            samples: the site's own training samples.
            rng: CPU random generator of this site. It has the same seed in every call, so that a resumed run trains on
                the same samples.
        """
        return samples

    def on_round_start(self, local: LocalRound) -> None:
        """Prepare `local.memory` and `local.network` for a site's round. Default: do nothing.

        Called before the first training step, after `expand`.
        """

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """Return a batch to train on in place of the given one. Called once per training step. Default: the same batch.

        The hook is called before the gradients of the previous step are cleared.

        Args:
            batch: images (B, C, H, W) in [0, 1] that are not standardised yet, and their labels, on the site's device.
                The augmentation of `training.augment` is already applied.
        """
        return batch

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Compute the training loss of one batch. Called once per step, after `augment`. Default: the task's loss.

        Args:
            batch: images (B, C, H, W) in [0, 1], not standardised, and their labels, on the site's device.

        Returns:
            The loss, a scalar, and the output of the network for these images, which `regulariser` receives.
        """
        output = local.forward(batch)
        return local.task.loss(output.logits, batch.label), output

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """Compute a scalar that is added to the loss. Called once per step, with the output of `loss`. Default: 0."""
        return output.logits.new_zeros(())

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Return the tensors that a site sends together with its weights. Called after the last training step.

        The hook also writes to `local.n_patients` from how many patients each number of a tensor is computed, as
        `share` does.

        A tensor whose name is or ends in the name of a network entry, as in `change/ENTRY`, has the shape and dtype of
        this entry and is checked like it: a running variance must not be negative. The difference of two running
        variances needs another name.

        Args:
            local: the site's round of training. Its network holds the trained weights. After this hook, all tensors
                that the method keeps in `local.memory` must be on the CPU.

        Returns:
            Tensors by name, on the CPU, which are listed in the ledger. The coordinator finds them in
            `updates[site].tensors`. Default: none.
        """
        return {}

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Return the coordinator's memory after a round. Called before `aggregate`. Default: the memory stays as it is.

        Args:
            state: the state before the round, with the old weights and the old memory.
            updates: the accepted updates by name of the site. An update has the `weights` after local training, the
                `tensors` of `on_round_end`, and in `facts` the numbers "examples" (number of training images), "steps"
                (number of training steps), "loss" (mean over the steps), and those that the method added to
                `local.facts`.

        Returns:
            The new `state.memory`: tensors by name, on the CPU.
        """
        return state.memory

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Compute the new global weights from the sites' weights. Default: their weighted average.

        Called after `remember`. The default is w = sum_k a_k w_k, where w_k are the weights of site k after local
        training, and a_k is the weight of site k in the average (`site_fractions`).

        Args:
            state: the state with the old global weights. Its memory is already the result of `remember`.
            updates: the accepted updates by name of the site, at least one, as `remember` receives them.

        Returns:
            The new weights by state-dict name, on the CPU. An entry that is missing in the result keeps its old value.
        """
        trained_weights = [update.weights for update in updates.values()]
        return weight_maths.average(trained_weights, site_fractions(updates, self.site_weights))  # FedAvg, Alg. 1

    def result_weights(self, state: State) -> Tensors:
        """Return all entries of the weights that are the result of the run. Default: the global weights.

        The hook is called once, after the last round.

        Args:
            state: the state after the round that is the result, as `federation.selection` chooses it. Its plan is empty
                if it was read from a checkpoint.
        """
        return dict(state.weights)

    def matcher(self, state: State, kind: str, ratio: float) -> Matcher | None:
        """Return a function that changes images towards the mean appearance of the federation. Default: None.

        The function is applied to test images of sites that did not train, if the setting `evaluation.match` says so.
        It uses only the statistics that the sites shared for training; each site has the same weight in their mean.

        Args:
            state: the coordinator's state after the round that is the result.
            kind: one of `match_kinds`.
            ratio: weight of the federation's appearance, in [0, 1]. 0 keeps the image's own appearance.

        Returns:
            A function from images (B, C, H, W) in [0, 1], not standardised, to changed images of the same shape and
            range. It changes every image on its own. None if no site shared statistics.
        """
        return None

    # What a federation asks about the method, beside its algorithm.

    @property
    def expand_reads(self) -> tuple[str, ...]:
        """How the names of the broadcast tensors that `expand` reads begin. Default: ("",), which means all tensors.

        A method that also broadcasts tensors that change in every round names those that `expand` needs, because the
        samples are expanded again whenever one of these changes.
        """
        return ("",)

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Check, before a run writes any file, that the method can work on such images. Default: accept all images.

        Args:
            image_size: height and width of the images in pixels.
            standardised: True if the network receives standardised images, False if it receives images in [0, 1].

        Raises:
            UserError: if the method cannot work on such images.
        """

    def local_keys(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the state-dict entries that never leave a site. Default: none.

        A site leaves these entries out of its updates and keeps them between rounds (FedBN: all entries of BatchNorm).
        The network is the one after `wrap_network`.
        """
        return frozenset()

    @property
    def site_weights(self) -> SiteWeights:
        """Rule for the weights of the sites in the average: "examples" or "uniform". Default: "examples".

        "examples" gives site k the weight n_k / N, where n_k is the site's number of training images and N is the sum
        of n_k over the K sites whose updates were accepted. "uniform" gives each of these K sites the weight 1 / K. A
        method may override this property by a field of the same name, so that a config can choose the rule.
        """
        return "examples"

    @property
    def unseen_bn(self) -> UnseenBatchNorm:
        """Rule for the BatchNorm entries of a site that did not train: "average" or "batch_stats".

        The rule is used only if BatchNorm entries stay at the sites that train (`local_keys`), as in `FedBN`.
        "average", the default, uses the mean of the entries over the sites that train. "batch_stats" uses this mean for
        the weights and biases only, and normalises each batch of test images by the mean and variance of the batch.
        """
        return "average"

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that the method reads at the sites, from the method's settings. Default: none.

        An example is the file of a style codec (an encoder and a decoder that redraw images). In a real federation,
        every site receives a copy of these files.
        """
        return ()

    def with_files(self, names: Mapping[str, str]) -> Method:
        """Return a copy of the method that reads the same files from other paths. Default: the method itself.

        Args:
            names: the new path of each file, by its present path in `files`. A file that is missing here keeps its
                path.
        """
        return self

    @property
    def shares(self) -> str:
        """When the coordinator asks the sites for statistics (`share`): `NEVER`, `ONCE` or `EVERY_ROUND`.

        `ONCE` means before the first round, `EVERY_ROUND` before each round. Default: `ONCE` if the class overrides
        `share`, else `NEVER`. A method that does not need the statistics with its present settings returns `NEVER`, so
        that nothing leaves a site without need.
        """
        return NEVER if type(self).share is Method.share else ONCE

    @property
    def share_reads_network(self) -> bool:
        """Whether `share` reads the network's weights. Default: True.

        If False, the request to share does not contain the weights; `share` receives a network with arbitrary weights
        and may use only its device.
        """
        return True

    @property
    def statistic_ranges(self) -> Mapping[str, tuple[float, float]]:
        """The lowest and the highest possible number in each tensor that sites send, by name. Default: none declared.

        A name that ends in "/" is the beginning of names. The coordinator rejects a reply with a number outside of its
        range. If noise on shared statistics (`privacy.statistics_noise`) moves a number out of its range, the site
        sends the end of the range; this weakens no guarantee, because it depends only on the number with the noise.
        """
        return {}

    @property
    def row_tensors(self) -> frozenset[str]:
        """Names of the tensors that sites send with one row per image or style, so that the number of rows may differ.

        Every other tensor has the same shape at all sites that send it. Default: none.
        """
        return frozenset()

    @property
    def match_kinds(self) -> frozenset[str]:
        """The values of `evaluation.match` that the shared statistics allow: "window", "style". Default: none.

        "window" needs low-frequency amplitudes of images, "style" means and standard deviations of their features.
        """
        return frozenset()

    @property
    def fact_names(self) -> frozenset[str]:
        """Names of the numbers that the method reports with an update (`LocalRound.facts`). Default: none.

        A hospital sends no facts other than these and those of every method: number of images, number of steps, mean
        loss.
        """
        return frozenset()

    def effort(self, n_sites: int) -> Effort:
        """Return how many optimiser steps and images each site takes, in multiples of FedAvg's. Default: 1 and 1.

        A method whose `expand` returns more samples takes more steps; a method that adds copies to a batch takes more
        images. A comparison shows both numbers, and can run FedAvg with as many (`fedavg@steps=METHOD`).
        """
        return Effort()

    def summarise(self, state: State) -> dict[str, Any]:
        """Return values that a reader of a run's scores should know, such as a number of clusters. Default: none.

        Args:
            state: the coordinator's state after the last round.

        Returns:
            JSON values by name, which `summary.json` lists under `method_summary`.
        """
        return {}


def site_fractions(updates: Mapping[str, Message], rule: SiteWeights) -> Tensor:
    """Return the weight of each of the K sites in the average, (K,) float64 with sum 1 (`Method.site_weights`)."""
    if rule == "uniform":
        return torch.full((len(updates),), 1 / len(updates), dtype=torch.float64)
    examples = torch.tensor([float(update.facts["examples"]) for update in updates.values()], dtype=torch.float64)
    return examples / examples.sum()  # FedAvg, Alg. 1: n_k / n


def has_too_few_patients(
    site: str, samples: Samples, min_patients: int, content: str, key: str = "method.min_patients"
) -> bool:
    """Return whether a site has fewer training patients than `min_patients`, so that it must share no statistics.

    Statistics of very few patients could be traced back to one of them. The site still trains. A warning names
    `content`, what the site would share (a plural or a mass noun), and `key`, the setting of `min_patients`.
    """
    if samples.n_patients >= min_patients:
        return False
    warnings.warn(
        f"{site}: has {samples.n_patients} training patients, fewer than {key} ({min_patients}), so the site shares "
        f"no {content}; it takes part in training as usual",
        stacklevel=3,
    )
    return True
