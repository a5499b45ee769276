"""The training run that several checks of a method look at."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import tempfile
import weakref
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

SETTINGS = Federation(rounds=3)
UNSCORED = Federation(rounds=3, validate_every=3)  # the same training; no sites validate before round 3
N_ROUNDS = 2  # of the three rounds are trained
HOOKS = (  # that receive tensors which they must not change in place
    "combine",
    "broadcast",
    "expand",
    "on_round_start",
    "augment",
    "loss",
    "regulariser",
    "on_round_end",
    "remember",
    "aggregate",
)


@dataclass
class Trial:
    """One method in one small simulated federation, with a training run whose result several checks use.

    `is_stacked`: whether the method runs inside a stack (a combination of several methods).
    """

    definition: Method | type[Method]
    toy: ToyFederation
    is_stacked: bool

    @cached_property
    def method(self) -> Method:
        """The given method itself, or a stack that contains only this method."""
        method = self.definition() if isinstance(self.definition, type) else self.definition
        return Stack((method,)) if self.is_stacked else method

    @cached_property
    def start(self) -> State:
        """The coordinator's state before the first round."""
        task = self.toy.task
        self.toy.architecture.check_image_size(task.image_size)
        self.method.check(task.image_size, self.toy.channels, False)  # the images lie in [0, 1]
        return self.toy.start(self.method)

    def first_round(self, engine: InProcess, seed: int = 0) -> Round:
        """Train one round with all sites of an engine, from new weights, and return its result."""
        start = self.start if seed == 0 else self.toy.start(self.method, seed)
        return next(federate(self.method, engine, start, UNSCORED, seed))

    def train(self, engine: InProcess, state: State | None = None) -> list[Round]:
        """Train with all sites until round 2, from `state` (None: new weights), and return the result of each round."""
        state = state or self.start
        return list(islice(federate(self.method, engine, state, UNSCORED, 0), N_ROUNDS - state.round))

    @cached_property
    def outgoing(self) -> Sequence[Outgoing]:
        """What a dry run at the first site shows."""
        return dry_run(self.toy.engine(self.method, SITES[:1]).local_sites[0], self.start, 0)

    @cached_property
    def run(self) -> CompleteRun:
        """The result of training for two rounds, after which the sites validate; the first access trains."""
        folder = Path(tempfile.mkdtemp(prefix="medfed-check-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        settings = snapshot(self.method)
        engine = self.toy.engine(self.method, folder=folder / "sites")
        samples = engine.local_sites[0].training
        before = copy.deepcopy(samples.batch(range(len(samples))))
        with _watched_hooks(type(self.method)) as changes:
            rounds = []
            for done in islice(federate(self.method, engine, self.start, SETTINGS, 0), N_ROUNDS):
                rounds.append(done)
                if len(rounds) == 1 and (folder / "sites").is_dir():
                    shutil.copytree(folder / "sites", folder / "sites_after_round_1")
        after = samples.batch(range(len(samples)))
        return CompleteRun(rounds, folder / "sites_after_round_1", settings, before, after, changes)


@dataclass(frozen=True)
class CompleteRun:
    """The result of a training run that was not interrupted.

    Args:
        rounds: result of each round.
        sites_folder: folder with a copy of what the sites stored in round 1.
        settings: the attributes of the method before the run, as text.
        batch_before, batch_after: all training images and labels of one site, before and after the run.
        changes: tensors that hooks changed in place although they only received them, such as "`loss` changes label".
    """

    rounds: list[Round]
    sites_folder: Path
    settings: str
    batch_before: Batch
    batch_after: Batch
    changes: list[str]


@contextmanager
def _watched_hooks(cls: type[Method]) -> Iterator[list[str]]:
    """List which hooks of a class change, inside the `with` block, a tensor in place that they received.

    torch counts the in-place changes of every tensor (`_version`), so nothing is copied.
    """
    changes: list[str] = []

    def watch(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a hook so that in-place changes of its arguments are recorded."""

        def watched(*arguments: Any, **keywords: Any) -> Any:
            before = [(part, tensor, tensor._version) for part, tensor in _tensors([*arguments, *keywords.values()])]
            result = hook(*arguments, **keywords)
            changes.extend(f"`{name}` changes {part}" for part, tensor, version in before if tensor._version > version)
            return result

        return watched

    with ExitStack() as patches:
        for name in HOOKS:
            if (hook := getattr(cls, name)) is not getattr(Method, name):
                patches.enter_context(mock.patch.object(cls, name, watch(name, hook)))
        yield changes


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a hook must not change in place, each with the name of its attribute or entry."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Batch | Output | State | Message):
        for part, entry in vars(value).items():
            yield from _tensors(entry, part)
    elif isinstance(value, LocalRound):
        yield from _tensors(value.message)
        yield from _tensors(value.start_weights, "start_weights")
    elif isinstance(value, Mapping | list):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(entry, name)


def snapshot(method: Method) -> str:
    """Return the attributes of a method object as text, without the values that a `cached_property` stores."""
    attributes = {entry.name: getattr(method, entry.name) for entry in dataclasses.fields(method)}
    attributes |= getattr(method, "__dict__", {})
    cached = [name for name in attributes if isinstance(getattr(type(method), name, None), cached_property)]
    return repr(sorted((name, value) for name, value in attributes.items() if name not in cached))
