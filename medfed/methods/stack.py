"""Several methods in one: for example CCST's restyled images together with ELCFS's loss.

Stack is a tool of medfed and has no paper of its own; the methods in it have theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import chosen_by_name
from medfed.federation.local_round import Architecture, LocalRound, Output, Samples, SiteData
from medfed.federation.message import Message, State
from medfed.federation.method import NEVER, Effort, Matcher, Method, SiteWeights, Tensors, UnseenBatchNorm
from medfed.federation.sent import Sent, sent_in_stack
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

    Args:
        methods: the combined methods, at least one, all different, and no stack among them.

    Raises:
        ValueError: if the methods cannot be combined.
    """

    methods: tuple[Annotated[Method, chosen_by_name("methods")], ...]

    def __post_init__(self) -> None:
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
        """The rule of the first method with such a setting."""
        return next((method.site_weights for method in self.methods if "site_weights" in vars(method)), "examples")

    @property
    def shares(self) -> str:
        """The time at which its methods share, which is the same for all that do."""
        return next((method.shares for method in self._sharers()), NEVER)

    @property
    def share_reads_network(self) -> bool:
        return any(method.share_reads_network for method in self._sharers())

    @property
    def unseen_bn(self) -> UnseenBatchNorm:
        """The first rule that is not "average"."""
        return next((method.unseen_bn for method in self.methods if method.unseen_bn != "average"), "average")

    @property
    def sent(self) -> Mapping[str, Sent]:  # type: ignore[override]
        return sent_in_stack([method.sent for method in self.methods])

    @property
    def statistic_ranges(self) -> Mapping[str, tuple[float, float]]:
        return {
            f"{i}/{name}": limits
            for i, method in enumerate(self.methods)
            for name, limits in method.statistic_ranges.items()
        }

    @property
    def row_tensors(self) -> frozenset[str]:
        return frozenset(f"{i}/{name}" for i, method in enumerate(self.methods) for name in method.row_tensors)

    def effort(self, n_sites: int) -> Effort:
        """Multiply the methods' steps; each method adds its own copies to the images of a step."""
        efforts = [method.effort(n_sites) for method in self.methods]
        steps = math.prod(effort.steps for effort in efforts)
        return Effort(steps, steps * (1 + sum(effort.images / effort.steps - 1 for effort in efforts)))

    @property
    def match_kinds(self) -> frozenset[str]:
        return frozenset().union(*(method.match_kinds for method in self.methods))

    @property
    def fact_names(self) -> frozenset[str]:
        return frozenset().union(*(method.fact_names for method in self.methods))

    @property
    def dimensions(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset.intersection(*(method.dimensions for method in self.methods))

    @property
    def patients_advice(self) -> str:  # type: ignore[override]
        """The advice of all methods, joined by "or"."""
        return ", or ".join(method.patients_advice for method in self.methods if method.patients_advice)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(sorted({name for method in self.methods for name in method.files}))

    def with_files(self, names: Mapping[str, str]) -> Stack:
        return replace(self, methods=tuple(method.with_files(names) for method in self.methods))

    def check(self, image_size: int, channels: int, standardised: bool = True) -> None:
        for method in self.methods:
            method.check(image_size, channels, standardised)

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Methods with `reads_features` come last, because other layers may change the feature maps they read."""
        for method in sorted(self.methods, key=lambda method: method.reads_features):
            network = method.wrap_network(network, architecture)
        return network

    def local_keys(self, network: nn.Module) -> frozenset[str]:
        return frozenset().union(*(method.local_keys(network) for method in self.methods))

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Each method's tensors, under prefixed names."""
        shared = []
        for i, method in enumerate(self.methods):
            own = replace(site, n_patients={})
            shared.append(method.share(own, network) if method.shares != NEVER else {})
            site.n_patients.update({f"{i}/{name}": n for name, n in own.n_patients.items()})
        return _joined(shared)

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        return _joined(
            method.combine(own, {site: select_prefix(tensors, f"{i}/") for site, tensors in shared.items()}, rng)
            if method.shares != NEVER
            else own.memory
            for i, method in enumerate(self.methods)
            for own in [own_state(state, i)]
        )

    def broadcast(self, state: State, site: str) -> Tensors:
        return _joined(method.broadcast(own_state(state, i), site) for i, method in enumerate(self.methods))

    @property
    def expand_reads(self) -> tuple[str, ...]:
        """What each method that overrides `expand` reads."""
        expanding = [(i, method) for i, method in enumerate(self.methods) if _overrides(method, "expand")]
        return tuple(f"{i}/{name}" for i, method in expanding for name in method.expand_reads)

    def expand(self, local: LocalRound, samples: Samples, rng: torch.Generator) -> Samples:
        """Each method expands the samples of the method before it."""
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                samples = method.expand(own, samples, rng)
        return samples

    def on_round_start(self, local: LocalRound) -> None:
        """Methods with `fills_network` come first; the others see their entries in `local.start_weights`."""
        for i, method in sorted(enumerate(self.methods), key=lambda numbered: not numbered[1].fills_network):
            with _view(local, i) as own:
                method.on_round_start(own)
            if method.fills_network:
                entries = local.network.state_dict().items()
                local.start_weights = {name: entry.detach().clone() for name, entry in entries}

    def augment(self, local: LocalRound, batch: Batch) -> Batch:
        """Each method augments the batch of the method before it."""
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                batch = method.augment(own, batch)
        return batch

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """The loss of the only method that defines one, else the task's loss."""
        for i, method in enumerate(self.methods):
            if _overrides(method, "loss"):
                with _view(local, i) as own:
                    return method.loss(own, batch)
        return super().loss(local, batch)

    def regulariser(self, local: LocalRound, output: Output) -> Tensor:
        total = super().regulariser(local, output)
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                total = total + method.regulariser(own, output)
        return total

    def on_round_end(self, local: LocalRound) -> Tensors:
        tensors = []
        for i, method in enumerate(self.methods):
            with _view(local, i) as own:
                tensors.append(method.on_round_end(own))
        return _joined(tensors)

    def remember(self, state: State, updates: Mapping[str, Message], rng: torch.Generator) -> Tensors:
        return _joined(method.remember(*_own_round(state, updates, i), rng) for i, method in enumerate(self.methods))

    def aggregate(self, state: State, updates: Mapping[str, Message]) -> Tensors:
        """The average of the only method that defines one, else the weighted average."""
        for i, method in enumerate(self.methods):
            if _overrides(method, "aggregate"):
                return method.aggregate(*_own_round(state, updates, i))
        return super().aggregate(state, updates)

    def result_weights(self, state: State) -> Tensors:
        """The result of the only method that defines one, else the global weights."""
        for i, method in enumerate(self.methods):
            if _overrides(method, "result_weights"):
                return method.result_weights(own_state(state, i))
        return super().result_weights(state)

    def matcher(self, state: State, kind: str, ratio: float) -> Matcher | None:
        """Use the first method that allows this kind of matching."""
        i, method = next((i, method) for i, method in enumerate(self.methods) if kind in method.match_kinds)
        return method.matcher(own_state(state, i), kind, ratio)

    def summarise(self, state: State) -> dict[str, Any]:
        """Join the values; of two with the same name, the later one counts."""
        summary: dict[str, Any] = {}
        for i, method in enumerate(self.methods):
            summary |= method.summarise(own_state(state, i))
        return summary

    def _check_site_weights(self) -> None:
        """Check that the methods agree about the one average.

        A method with an aggregation of its own does not use the `site_weights` of others.
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
        """The methods that ask the sites for statistics."""
        return [method for method in self.methods if method.shares != NEVER]


def _overrides(method: Method, hook: str) -> bool:
    """Whether a method defines a hook itself."""
    return getattr(type(method), hook) is not getattr(Method, hook)


def _joined(parts: Iterable[Tensors]) -> Tensors:
    """Join the dictionaries of the methods, in order, under the names `NUMBER/NAME`."""
    return {name: entry for i, part in enumerate(parts) for name, entry in add_prefix(part, f"{i}/").items()}


def own_state(state: State, i: int) -> State:
    """The state as method number i sees it: with its own memory, under the names that it uses."""
    return replace(state, memory=select_prefix(state.memory, f"{i}/"))


def _own_round(state: State, updates: Mapping[str, Message], i: int) -> tuple[State, dict[str, Message]]:
    """The state and the updates as method number i sees them."""
    own_updates = {
        site: replace(update, tensors=select_prefix(update.tensors, f"{i}/")) for site, update in updates.items()
    }
    return own_state(state, i), own_updates


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
