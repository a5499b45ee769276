"""Several methods at once, as papers combine them: a style bank with another method's loss, say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.federation.local_round import Architecture, LocalRound, Output, Samples, SiteData
from medfed.federation.message import Message, State
from medfed.federation.method import NEVER, Method, SiteWeights, Tensors, UnseenBatchNorm
from medfed.functional.weights import add_prefix, select_prefix

EXCLUSIVE = ("loss", "aggregate")  # hooks that replace FedAvg's own; everything else adds up


@dataclass(frozen=True)
class Stack(Method):
    """What each of several methods changes, together: `methods: [{name: ccst, k: 2}, {name: elcfs}]`.

    One of them may replace the loss and one the aggregation. All else composes, in the given order: networks are
    wrapped, samples expanded and batches augmented by one after the other, regularisers are added, and what each
    shares, keeps and sends goes under its own number, so that none sees another's. A stack of one is that method, to
    the bit, but for the names of what it shares.

    Args:
        methods: at least one; no stack within a stack.
    """

    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.methods:
            raise ValueError("methods must name at least one method")
        if any(isinstance(method, Stack) for method in self.methods):
            raise ValueError("methods: a stack cannot hold another stack; list all methods in one")
        for hook in EXCLUSIVE:
            owners = [type(method).__name__ for method in self.methods if _overrides(method, hook)]
            if len(owners) > 1:
                raise ValueError(f"{' and '.join(owners)} each define '{hook}'; a stack has room for one")
        self._check_site_weights()
        if twice := [type(method).__name__ for method in self.methods if self.methods.count(method) > 1]:
            raise ValueError(f"methods: {twice[0]} is there twice with the same settings; name it once")
        if len({method.shares for method in self._sharers()}) > 1:
            words = [f"{type(method).__name__} {method.shares}" for method in self._sharers()]
            raise ValueError(f"methods share at different times ({', '.join(words)}); a stack cannot serve both")

    @property
    def site_weights(self) -> SiteWeights:
        """Those of the methods that have this setting, which must agree."""
        return next((method.site_weights for method in self.methods if "site_weights" in vars(method)), "examples")

    @property
    def shares(self) -> str:
        """When the methods that share at all are asked to."""
        return next((method.shares for method in self._sharers()), NEVER)

    @property
    def unseen_bn(self) -> UnseenBatchNorm:
        """The setting of the first method whose setting is not "average"."""
        return next((method.unseen_bn for method in self.methods if method.unseen_bn != "average"), "average")

    @property
    def files(self) -> tuple[str, ...]:
        """The files of all methods, each once."""
        return tuple(sorted({name for method in self.methods for name in method.files}))

    def with_files(self, names: Mapping[str, str]) -> Stack:
        """A copy whose methods read other files."""
        return replace(self, methods=tuple(method.with_files(names) for method in self.methods))

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        """Refuse what any of the methods refuses."""
        for method in self.methods:
            method.check(image_size, channels, standardised)

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network wrapped by one method after the other, last by those that read what others change."""
        for method in sorted(self.methods, key=lambda one: one.reads_features):
            network = method.wrap_network(network, architecture)
        return network

    def local_keys(self, network: nn.Module) -> frozenset[str]:
        """The entries that any of the methods keeps at the sites."""
        return frozenset().union(*(method.local_keys(network) for method in self.methods))

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """What each method shares, as NUMBER/NAME."""
        return _joined(method.share(site, network) if method.shares != NEVER else {} for method in self.methods)

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """The memory of each method, as NUMBER/NAME."""
        return _joined(
            method.combine(own, {site: select_prefix(sent, f"{i}/") for site, sent in shared.items()}, rng)
            if method.shares != NEVER
            else own.memory
            for i, method in enumerate(self.methods)
            for own in [_own(state, i)]
        )

    def broadcast(self, state: State, site: str) -> Tensors:
        """What each method sends, as NUMBER/NAME."""
        return _joined(method.broadcast(_own(state, i), site) for i, method in enumerate(self.methods))

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """The samples expanded by one method after the other."""
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                samples = method.expand(own, samples, rng)
        return samples

    def on_round_start(self, local: LocalRound) -> None:
        """Prepare each method; first those that fill the network, so that the others see what will be trained.

        `local.start_weights` holds the filled network then.
        """
        for i, method in sorted(enumerate(self.methods), key=lambda one: not one[1].fills_network):
            with _view(local, i) as own:
                method.on_round_start(own)
            if method.fills_network:
                local.start_weights = {n: e.detach().clone() for n, e in local.network.state_dict().items()}

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """The batch augmented by one method after the other."""
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                batch = method.augment(own, batch)
        return batch

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """The loss of the method that defines one, or FedAvg's."""
        for i, method in enumerate(self.methods):
            if _overrides(method, "loss"):
                with _view(local, i) as own:
                    return method.loss(own, batch)
        return super().loss(local, batch)

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        """The sum of the methods' regularisers."""
        total = super().regulariser(local, output)
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                total = total + method.regulariser(own, output)
        return total

    def on_round_end(self, local: LocalRound) -> Tensors:
        """What each method sends with the weights, as NUMBER/NAME."""
        sent = []
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                sent.append(method.on_round_end(own))
        return _joined(sent)

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        """The memory of each method, as NUMBER/NAME."""
        return _joined(method.remember(*_own_round(state, updates, i), rng) for i, method in enumerate(self.methods))

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """The weights of the method that defines an aggregation, or FedAvg's."""
        for i, method in enumerate(self.methods):
            if _overrides(method, "aggregate"):
                return method.aggregate(*_own_round(state, updates, i))
        return super().aggregate(state, updates)

    def facts(self, state: State) -> dict[str, Any]:
        """The facts of all methods."""
        facts = (method.facts(_own(state, i)) for i, method in enumerate(self.methods))
        return {name: fact for each in facts for name, fact in each.items()}

    def score_maps(self, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
        """The maps of the first method that has any."""
        found = (method.score_maps(network, architecture, image) for method in self.methods)
        return next((maps for maps in found if maps is not None), None)

    def styles(self, state: State, image: Tensor) -> Tensors:
        """The styles of the first method that has any."""
        found = (method.styles(_own(state, i), image) for i, method in enumerate(self.methods))
        return next((styles for styles in found if styles), {})

    def _check_site_weights(self) -> None:
        """One average serves all, and a method that aggregates makes its own."""
        asked = [method for method in self.methods if "site_weights" in vars(method)]
        if len({method.site_weights for method in asked}) > 1:
            words = ", ".join(f"{type(method).__name__} {method.site_weights}" for method in asked)
            raise ValueError(f"methods average in different ways (site_weights: {words}); a stack has room for one")
        for owner in (method for method in self.methods if _overrides(method, "aggregate")):
            if other := [method for method in asked if method.site_weights == "uniform" and method is not owner]:
                raise ValueError(
                    f"{type(owner).__name__} defines 'aggregate', and site_weights of {type(other[0]).__name__} is "
                    "uniform; set that to examples"
                )

    def _sharers(self) -> list[Method]:
        return [method for method in self.methods if method.shares != NEVER]


def _overrides(method: Method, hook: str) -> bool:
    return getattr(type(method), hook) is not getattr(Method, hook)


def _joined(parts: Iterable[Tensors]) -> Tensors:
    """One dictionary, NUMBER/NAME, of what each method returned."""
    return {name: entry for i, part in enumerate(parts) for name, entry in add_prefix(part, f"{i}/").items()}


def _own(state: State, i: int) -> State:
    """The state as method number i sees it: its own memory, under the names that it gave."""
    return replace(state, memory=select_prefix(state.memory, f"{i}/"))


def _own_round(state: State, updates: Mapping[str, Message], i: int) -> tuple[State, dict[str, Message]]:
    """The state and the updates as method number i sees them."""
    own = {site: replace(update, tensors=select_prefix(update.tensors, f"{i}/")) for site, update in updates.items()}
    return _own(state, i), own


@contextmanager
def _view(local: LocalRound, i: int) -> Iterator[LocalRound]:
    """The round as method number i sees it; what it writes to its memory is kept under its number."""
    prefix = f"memory {i}/"
    memory = select_prefix(local.memory, prefix)
    message = replace(local.message, tensors=select_prefix(local.message.tensors, f"{i}/"))
    yield replace(local, message=message, memory=memory)
    for name in [name for name in local.memory if name.startswith(prefix)]:
        del local.memory[name]
    local.memory.update(add_prefix(memory, prefix))
