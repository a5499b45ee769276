"""The training runs whose results the rules look at."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from medfed.core.batch import Batch
from medfed.deployment.agreement import Outgoing
from medfed.deployment.dry_run import dry_run
from medfed.engines.in_process import InProcess
from medfed.federation.local_round import LocalRound, Output
from medfed.federation.message import Message, State
from medfed.federation.method import Method
from medfed.federation.rounds import Round, federate
from medfed.federation.settings import Federation
from medfed.methods.stack import Stack
from medfed.testing.toy import SITES, ToyFederation

N_ROUNDS = 2
SETTINGS = Federation(rounds=N_ROUNDS + 1, validate_every=N_ROUNDS + 1)  # no site validates in the rounds that train
HOOKS = [name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")]


@dataclass
class Trial:
    """One method in one toy federation, alone or inside a stack, with training runs whose results several rules use."""

    definition: Method | type[Method]
    toy: ToyFederation
    is_stacked: bool

    @cached_property
    def method(self) -> Method:
        method = self.definition() if isinstance(self.definition, type) else self.definition
        method = Stack((method,)) if self.is_stacked else method
        self.first_attributes = attributes(method)  # before any training
        return method

    @cached_property
    def start(self) -> State:
        """The coordinator's state before the first round."""
        self.method.check(self.toy.image_side, self.toy.task.channels, False)  # the images lie in [0, 1]
        return self.toy.start(self.method)

    def train(self, engine: InProcess, n: int = N_ROUNDS, state: State | None = None, seed: int = 0) -> list[Round]:
        """Train n rounds with all sites of an engine, from `state` (None: new weights)."""
        state = state or (self.start if seed == 0 else self.toy.start(self.method, seed))
        return list(islice(federate(self.method, engine, state, SETTINGS, seed), n))

    @cached_property
    def outgoing(self) -> Sequence[Outgoing]:
        """What a dry run at the first site shows."""
        return dry_run(self.toy.engine(self.method, SITES[:1]).local_sites[0], self.start, 0)

    @cached_property
    def rounds(self) -> list[Round]:
        with tempfile.TemporaryDirectory() as folder:
            return self.train(self.toy.engine(self.method, folder=Path(folder)))

    @cached_property
    def interrupted_rounds(self) -> list[Round]:
        """Two rounds with the sites in reverse order, of which the second continues from what was saved.

        Between them, two sites train with another seed, which overwrites what the method keeps outside of its state.
        """
        with tempfile.TemporaryDirectory() as folder:
            first = self.train(self.toy.engine(self.method, SITES[::-1], Path(folder)), 1)[0]
            self.train(self.toy.engine(self.method, SITES[:2], seed=1), 1, seed=1)
            engine = self.toy.engine(self.method, SITES[::-1], Path(folder))
            engine.restore(first.state.took_part)
            return [first, *self.train(engine, 1, State.from_bytes(first.state.to_bytes()))]


@contextmanager
def watched_hooks(cls: type[Method]) -> Iterator[list[str]]:
    """List which hooks change, inside the `with` block, a tensor that they received (torch counts: `_version`)."""
    changes: list[str] = []

    def watch(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            tensors = [pair for value in (*arguments, *keywords.values()) for pair in _tensors(value)]
            before = [(part, tensor, tensor._version) for part, tensor in tensors]
            result = hook(*arguments, **keywords)
            for part, tensor, version in before:
                if tensor._version > version:
                    changes.append(f"`{name}` changes {part} in place: compute a new tensor instead")
            return result

        return watched

    with ExitStack() as patches:
        for name in HOOKS:
            if (hook := getattr(cls, name)) is not getattr(Method, name):
                patches.enter_context(mock.patch.object(cls, name, watch(name, hook)))
        yield changes


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a hook must not change in place, each with the path of its attribute or entry."""
    if isinstance(value, LocalRound):
        value = {"message": value.message, "start_weights": value.start_weights}
    elif isinstance(value, Batch | Output | State | Message):
        value = vars(value)
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _tensors(entry, f"{name}.{key}" if name else str(key))


def attributes(method: Method) -> str:
    """The attributes of a method object as text, without the values that a `cached_property` stores."""
    values = {entry.name: getattr(method, entry.name) for entry in dataclasses.fields(method)}
    values |= getattr(method, "__dict__", {})
    cached = [name for name in values if isinstance(getattr(type(method), name, None), cached_property)]
    return repr(sorted((name, value) for name, value in values.items() if name not in cached))
