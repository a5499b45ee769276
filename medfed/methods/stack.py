"""Several methods in one: for example CCST's restyled images together with ELCFS's loss.

Stack is a tool of medfed and has no paper of its own; the methods in it have theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.federation.local_round import Architecture, LocalRound, Output, Samples, SiteData
from medfed.federation.message import Message, State
from medfed.federation.method import NEVER, Effort, Matcher, Method, SiteWeights, Tensors, UnseenBatchNorm
from medfed.functional.weights import add_prefix, select_prefix

EXCLUSIVE = ("loss", "aggregate", "result_weights")  # hooks that only one method of a stack may override


@dataclass(frozen=True)
class Stack(Method):
    """Combine several methods, such as `methods: [{name: ccst, k: 2}, {name: elcfs}]` in a config.

    At most one of the methods may replace the loss, and at most one the aggregation. Everything else is combined in the
    given order: networks are wrapped, samples expanded and batches augmented by one method after the other, and
    regularisers are added. Tensors that a method shares, stores and sends have the prefix of its number ("0/", "1/",
    ...), so that no method sees those of another. A stack of one method gives bit-identical weights to the method
    alone.

    Communication: what the methods send, each with its prefix.

    Args:
        methods: the combined methods, at least one, all different, and no stack among them.

    Raises:
        ValueError: if the methods cannot be combined.
    """

    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        """Check that the methods can be combined; ValueError otherwise."""
        super().__post_init__()
        if not self.methods:
            raise ValueError("methods is empty; name at least one method")
        if any(isinstance(method, Stack) for method in self.methods):
            raise ValueError("methods contains another stack; list all methods in one stack")
        for hook in EXCLUSIVE:
            owners = [type(method).__name__ for method in self.methods if _overrides(method, hook)]
            if len(owners) > 1:
                raise ValueError(
                    f"{' and '.join(owners)} each define '{hook}', but only one of the combined methods may define it; "
                    "remove the other methods"
                )
        self._check_site_weights()
        if repeated := [type(method).__name__ for method in self.methods if self.methods.count(method) > 1]:
            raise ValueError(f"methods contains {repeated[0]} twice with the same settings; name it once")
        if len({method.shares for method in self._sharers()}) > 1:
            times = [f"{type(method).__name__} {method.shares}" for method in self._sharers()]
            raise ValueError(
                f"methods share at different times ({', '.join(times)}), which a stack cannot do; use only one of them"
            )

    @property
    def site_weights(self) -> SiteWeights:
        """Rule for the weights of the sites in the average: "examples" (by numbers of images) or "uniform".

        The value is that of the first method in the stack with a setting `site_weights`. The value is "examples" if no
        method has this setting.
        """
        return next((method.site_weights for method in self.methods if "site_weights" in vars(method)), "examples")

    @property
    def shares(self) -> str:
        """When the coordinator asks the sites for statistics: `NEVER`, `ONCE` or `EVERY_ROUND`.

        The value is that of the methods in the stack that share statistics, and is the same for all of them. The value
        is `NEVER` if no method shares statistics.
        """
        return next((method.shares for method in self._sharers()), NEVER)

    @property
    def share_reads_network(self) -> bool:
        """Whether `share` reads the network's weights: True if the `share` of at least one method reads them."""
        return any(method.share_reads_network for method in self._sharers())

    @property
    def unseen_bn(self) -> UnseenBatchNorm:
        """Rule for the BatchNorm entries of a site that did not train: "average", "batch_stats" or "nearest".

        The value is that of the first method in the stack whose value is not "average". The value is "average" if there
        is no such method.
        """
        return next((method.unseen_bn for method in self.methods if method.unseen_bn != "average"), "average")

    @property
    def statistic_ranges(self) -> Mapping[str, tuple[float, float]]:
        """The ranges of the tensors that sites send, under the names `NUMBER/NAME` (see `share`)."""
        return {
            f"{i}/{name}": limits
            for i, method in enumerate(self.methods)
            for name, limits in method.statistic_ranges.items()
        }

    @property
    def row_tensors(self) -> frozenset[str]:
        """The names that the methods declare, as `NUMBER/NAME`."""
        return frozenset(f"{i}/{name}" for i, method in enumerate(self.methods) for name in method.row_tensors)

    def effort(self, n_sites: int) -> Effort:
        """Return the product of the methods' steps; each method adds its own copies to the images of a step.

        Args:
            n_sites: number of sites that train.
        """
        efforts = [method.effort(n_sites) for method in self.methods]
        steps = math.prod(effort.steps for effort in efforts)
        return Effort(steps, steps * (1 + sum(effort.images / effort.steps - 1 for effort in efforts)))

    @property
    def match_kinds(self) -> frozenset[str]:
        """The values of `evaluation.match` that at least one method allows."""
        return frozenset().union(*(method.match_kinds for method in self.methods))

    @property
    def fact_names(self) -> frozenset[str]:
        """The names that the methods declare, without prefixes."""
        return frozenset().union(*(method.fact_names for method in self.methods))

    @property
    def patients_advice(self) -> str:  # type: ignore[override]
        """What the methods advise if too few patients are behind a shared statistic, joined by "or"."""
        return ", or ".join(method.patients_advice for method in self.methods if method.patients_advice)

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files that the methods of the stack read at the sites, sorted and without repetition."""
        return tuple(sorted({name for method in self.methods for name in method.files}))

    def with_files(self, names: Mapping[str, str]) -> Stack:
        """Return a copy of the stack whose methods read their files from other paths.

        Args:
            names: dictionary from the present path of a file to its new path. A file that is not in the dictionary
                keeps its path.
        """
        return replace(self, methods=tuple(method.with_files(names) for method in self.methods))

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Raise UserError if one of the methods cannot work on images of this size and form.

        Args:
            image_size: height and width of the images in pixels.
            channels: number of channels of the images.
            standardised: True if the network receives standardised images, False if it receives images in [0, 1].

        Raises:
            UserError: if a method rejects the images.
        """
        for method in self.methods:
            method.check(image_size, channels, standardised)

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Let each method add its own layers to the network, in the order of the stack; return the network.

        Exception: methods with `reads_features` True come last, because their layers read feature maps, which the
        layers of other methods may change.

        Args:
            network: the network, which may be changed in place.
            architecture: names of the network's submodules, such as the encoder's stages and the head (the last layer).
        """
        for method in sorted(self.methods, key=lambda method: method.reads_features):
            network = method.wrap_network(network, architecture)
        return network

    def local_keys(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the state-dict entries that at least one of the methods keeps at the sites.

        These entries never leave a site.

        Args:
            network: the network after `wrap_network`.
        """
        return frozenset().union(*(method.local_keys(network) for method in self.methods))

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Compute the statistics that the methods of the stack share at a site.

        Args:
            site: name, images and random generator of the site.
            network: the network in evaluation mode, with the global weights if a method reads them.

        Returns:
            Tensors by name `NUMBER/NAME`. NUMBER is the position of the method in the stack, from 0, and NAME is the
            method's own name for the tensor. For example, `0/mean` is the tensor `mean` of the first method.
        """
        shared = []
        for i, method in enumerate(self.methods):
            own = replace(site, n_patients={})
            shared.append(method.share(own, network) if method.shares != NEVER else {})
            site.n_patients.update({f"{i}/{name}": n for name, n in own.n_patients.items()})
        return _joined(shared)

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Compute the coordinator's new memory of each method from the tensors that the sites shared.

        Args:
            state: the state before the round.
            shared: what each site returned from `share`, by name of the site.
            rng: CPU generator, which the methods use one after the other.

        Returns:
            The new memory: tensors by name `NUMBER/NAME`. NUMBER is the position of the method in the stack, from 0,
            and NAME is the method's own name for the tensor. For example, `0/mean` is the tensor `mean` of the first
            method.
        """
        return _joined(
            method.combine(own, {site: select_prefix(tensors, f"{i}/") for site, tensors in shared.items()}, rng)
            if method.shares != NEVER
            else own.memory
            for i, method in enumerate(self.methods)
            for own in [_own(state, i)]
        )

    def broadcast(self, state: State, site: str) -> Tensors:
        """Return the tensors that the methods of the stack send to one site together with the global weights.

        Args:
            state: the coordinator's state.
            site: name of the site that receives the tensors.

        Returns:
            Tensors by name `NUMBER/NAME`. NUMBER is the position of the method in the stack, from 0, and NAME is the
            method's own name for the tensor. For example, `0/mean` is the tensor `mean` of the first method.
        """
        return _joined(method.broadcast(_own(state, i), site) for i, method in enumerate(self.methods))

    def expand_input(self, tensors: Tensors) -> Tensors:
        """Select the broadcast tensors that the methods of the stack read to expand the samples.

        Args:
            tensors: the tensors that the site received, by name `NUMBER/NAME` (see `broadcast`).
        """
        return _joined(method.expand_input(select_prefix(tensors, f"{i}/")) for i, method in enumerate(self.methods))

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """Return the samples to train on: each method expands the samples that the method before it returned.

        Args:
            local: the site's round of training that is about to start.
            samples: the site's own training samples, which the first method receives.
            rng: CPU generator, which the methods use one after the other.
        """
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                samples = method.expand(own, samples, rng)
        return samples

    def on_round_start(self, local: LocalRound) -> None:
        """Let each method of the stack prepare the site's round.

        Methods that write entries of the network (`fills_network`) come first. `local.start_weights` is then replaced
        by a copy of the changed network, so that the other methods see the weights with which the training starts.

        Args:
            local: the site's round of training, changed in place.
        """
        for i, method in sorted(enumerate(self.methods), key=lambda numbered: not numbered[1].fills_network):
            with _view(local, i) as own:
                method.on_round_start(own)
            if method.fills_network:
                entries = local.network.state_dict().items()
                local.start_weights = {name: entry.detach().clone() for name, entry in entries}

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """Return the batch to train on: each method changes the batch that the method before it returned.

        Args:
            local: the site's round of training.
            batch: images (B, C, H, W) in [0, 1], not standardised, and their class indices (B,) int64 or masks (B, S,
                H, W) of 0 and 1 for S structures.
        """
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                batch = method.augment(own, batch)
        return batch

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return the training loss of a batch.

        At most one method of the stack has its own loss. If there is one, this method computes the loss. Otherwise the
        result is the task's loss.

        Args:
            local: the site's round of training.
            batch: images (B, C, H, W) in [0, 1], not standardised, and their class indices (B,) int64 or masks (B, S,
                H, W) of 0 and 1 for S structures.

        Returns:
            The loss, a scalar, and the network's output for the images.
        """
        for i, method in enumerate(self.methods):
            if _overrides(method, "loss"):
                with _view(local, i) as own:
                    return method.loss(own, batch)
        return super().loss(local, batch)

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """Return the sum of the terms that the methods of the stack add to the loss, a scalar.

        Args:
            local: the site's round of training.
            output: the network's output for the batch, as `loss` returned it.
        """
        total = super().regulariser(local, output)
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                total = total + method.regulariser(own, output)
        return total

    def on_round_end(self, local: LocalRound) -> Tensors:
        """Return the tensors that the methods of the stack send together with the site's weights.

        Args:
            local: the site's round of training, with the trained network. `local.memory` is changed in place.

        Returns:
            Tensors by name `NUMBER/NAME`. NUMBER is the position of the method in the stack, from 0, and NAME is the
            method's own name for the tensor. For example, `0/mean` is the tensor `mean` of the first method.
        """
        tensors = []
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                tensors.append(method.on_round_end(own))
        return _joined(tensors)

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """Return the coordinator's memory of each method after a round.

        Args:
            state: the state before the round, with the old memory.
            updates: each site's update (its weights after local training), by name of the site.
            rng: CPU generator, which the methods use one after the other.

        Returns:
            The new memory: tensors by name `NUMBER/NAME`. NUMBER is the position of the method in the stack, from 0,
            and NAME is the method's own name for the tensor. For example, `0/mean` is the tensor `mean` of the first
            method.
        """
        return _joined(method.remember(*_own_round(state, updates, i), rng) for i, method in enumerate(self.methods))

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """Return the new global weights.

        At most one method of the stack has its own aggregation. If there is one, this method computes the new weights.
        Otherwise they are the average of the sites' weights, in which each site counts as `site_weights` says.

        Args:
            state: the state with the old global weights, and with the memory that `remember` has returned in this
                round.
            updates: each site's update (its weights after local training), by name of the site.

        Returns:
            Tensors by state-dict name.
        """
        for i, method in enumerate(self.methods):
            if _overrides(method, "aggregate"):
                return method.aggregate(*_own_round(state, updates, i))
        return super().aggregate(state, updates)

    def result_weights(self, state: State) -> Tensors:
        """Return the weights that are the result of the run.

        At most one method of the stack chooses them. Otherwise they are the global weights.

        Args:
            state: the state after the round that is the result.
        """
        for i, method in enumerate(self.methods):
            if _overrides(method, "result_weights"):
                return method.result_weights(_own(state, i))
        return super().result_weights(state)

    def matcher(self, state: State, kind: str, ratio: float) -> Matcher | None:
        """Return the function of the first method in the stack whose shared statistics allow this kind of matching.

        Args:
            state: the coordinator's state after the round that is the result.
            kind: "window" or "style", one of `match_kinds`.
            ratio: weight of the federation's appearance, in [0, 1].

        Returns:
            A function from images (B, C, H, W) in [0, 1] to the changed images. None if no site shared statistics.
        """
        i, method = next((i, method) for i, method in enumerate(self.methods) if kind in method.match_kinds)
        return method.matcher(_own(state, i), kind, ratio)

    def facts(self, state: State) -> dict[str, Any]:
        """Return the values that the methods of the stack add to the run's summary, by name.

        If two methods use the same name, the value of the later one is returned.

        Args:
            state: the coordinator's state after the last round.
        """
        facts: dict[str, Any] = {}
        for i, method in enumerate(self.methods):
            facts |= method.facts(_own(state, i))
        return facts

    def score_maps(self, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
        """Return for each image a map of the positions that the network attends to.

        The maps are those of the first method of the stack that has such maps. The maps are used for figures only.

        Args:
            network: the trained network.
            architecture: names of the network's submodules.
            image: (B, C, H, W), standardised.

        Returns:
            (B, h, w), for a feature map of h x w positions. Each map is non-negative and has sum 1. None if no method
            has maps.
        """
        all_maps = (method.score_maps(network, architecture, image) for method in self.methods)
        return next((maps for maps in all_maps if maps is not None), None)

    def styles(self, state: State, image: Tensor) -> Tensors:
        """Return copies of images in the style of each site, from the first method of the stack that has styles.

        Args:
            state: the coordinator's state after the last round.
            image: (B, C, H, W), in [0, 1].

        Returns:
            (B, C, H, W) in [0, 1] by name of the site, or by "all sites" for one common style. Empty if no method has
            styles.
        """
        all_styles = (method.styles(_own(state, i), image) for i, method in enumerate(self.methods))
        return next((styles for styles in all_styles if styles), {})

    def interpolations(
        self, state: State, site: str, image: Tensor, ratio: float | None, rng: torch.Generator
    ) -> Tensors:
        """Return images mixed with the styles of other sites, from the first method of the stack that mixes styles.

        Args:
            state: the coordinator's state after the last round.
            site: name of the site to which the images belong.
            image: (B, C, H, W), in [0, 1].
            ratio: weight of the other site's style, in [0, 1]. None draws it from U(0, 1) for each image.
            rng: CPU generator.

        Returns:
            (B, C, H, W) in [0, 1] by name of the other site. Empty if no method mixes styles.
        """
        own = ((_own(state, i), method) for i, method in enumerate(self.methods))
        mixed = (method.interpolations(of_method, site, image, ratio, rng) for of_method, method in own)
        return next((images for images in mixed if images), {})

    def _check_site_weights(self) -> None:
        """Check that the methods agree about the average; ValueError otherwise.

        There is one average for all methods, and a method with an aggregation of its own does not use `site_weights` of
        others.
        """
        adjustable = [method for method in self.methods if "site_weights" in vars(method)]
        if len({method.site_weights for method in adjustable}) > 1:
            settings = ", ".join(f"{type(method).__name__} {method.site_weights}" for method in adjustable)
            raise ValueError(
                f"the combined methods have different site_weights ({settings}), but the sites' updates "
                "are averaged only once; set the same site_weights for all of these methods"
            )
        for owner in (method for method in self.methods if _overrides(method, "aggregate")):
            if others := [method for method in adjustable if method.site_weights == "uniform" and method is not owner]:
                raise ValueError(
                    f"{type(others[0]).__name__} has site_weights 'uniform', but {type(owner).__name__} has its own "
                    f"aggregation; set site_weights of {type(others[0]).__name__} to 'examples'"
                )

    def _sharers(self) -> list[Method]:
        """Return the methods that share anything."""
        return [method for method in self.methods if method.shares != NEVER]


def _overrides(method: Method, hook: str) -> bool:
    """Return whether a method's class overrides the hook of this name."""
    return getattr(type(method), hook) is not getattr(Method, hook)


def _joined(parts: Iterable[Tensors]) -> Tensors:
    """Return one dictionary of tensors, as `NUMBER/NAME`, from the dictionaries of the methods in order."""
    return {name: entry for i, part in enumerate(parts) for name, entry in add_prefix(part, f"{i}/").items()}


def _own(state: State, i: int) -> State:
    """Return the state as method number i sees it: with its own memory, under the names that it uses."""
    return replace(state, memory=select_prefix(state.memory, f"{i}/"))


def _own_round(state: State, updates: Mapping[str, Message], i: int) -> tuple[State, dict[str, Message]]:
    """Return the state and the updates as method number i sees them."""
    own_updates = {
        site: replace(update, tensors=select_prefix(update.tensors, f"{i}/")) for site, update in updates.items()
    }
    return _own(state, i), own_updates


@contextmanager
def _view(local: LocalRound, i: int) -> Iterator[LocalRound]:
    """Yield the round as method number i sees it; then store its memory and its numbers of patients under a prefix."""
    prefix = f"memory {i}/"
    memory = select_prefix(local.memory, prefix)
    message = replace(local.message, tensors=select_prefix(local.message.tensors, f"{i}/"))
    own = replace(local, message=message, memory=memory, n_patients={})
    yield own
    local.n_patients.update({f"{i}/{name}": n for name, n in own.n_patients.items()})
    for name in [name for name in local.memory if name.startswith(prefix)]:
        del local.memory[name]
    local.memory.update(add_prefix(memory, prefix))
