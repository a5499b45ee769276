"""Short runs and single rounds of a method in a toy federation, for tests that read weights and messages."""

from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.engines.in_process import InProcess
from medfed.federation.local_round import LocalRound
from medfed.federation.message import Message, State, digest
from medfed.federation.method import Method
from medfed.federation.rounds import Round, federate
from medfed.federation.settings import Federation
from medfed.networks.densenet import DenseNetwork
from medfed.testing.toy import ToyClassification, ToyFederation


def small_toy(**settings) -> ToyClassification:
    """Return a federation with a network of few entries, whose sites do one training step in a round."""
    return ToyClassification(DenseNetwork(4, 2, (1,)), image_side=16, n_images=4, **settings)


def rounds_of(
    toy: ToyFederation,
    method: Method,
    n: int = 1,
    engine: InProcess | None = None,
    start: State | None = None,
    **settings,
) -> list[Round]:
    """Train n rounds, without validation, and return their results; `settings` are further ones of `Federation`."""
    # The last round is always validated, so the federation has one round more than are trained.
    federation = Federation(rounds=n + 1, validate_every=n + 1, **settings)
    rounds = federate(method, engine or toy.engine(method), start or toy.start(method), federation, 0)
    return list(islice(rounds, n))


def first_round(toy: ToyFederation, method: Method) -> Round:
    """Train one round, without validation, and return its result."""
    return rounds_of(toy, method)[0]


def changing_replies(
    engine: InProcess, change: Callable[[str, dict[str, Message], dict[str, Message]], dict[str, Message]]
) -> InProcess:
    """Return the engine, whose replies of each exchange become `change(kind, requests, replies)`."""
    exchange = engine.exchange
    engine.exchange = lambda kind, messages: change(kind, messages, exchange(kind, messages))
    return engine


class SharedRun(NamedTuple):
    """A run that several tests read and no test changes: the results of its rounds, and its engine after the last."""

    rounds: list[Round]
    engine: InProcess


def shared_run(toy: ToyFederation, method: Method, n: int = 1) -> SharedRun:
    """Train n rounds as `rounds_of` does, but only once in a process for equal federations, methods and n."""
    return _trained(type(toy), toy.architecture, toy.settings, toy.image_side, toy.n_images, toy.task, method, n)


@cache
def _trained(kind, architecture, training, image_side, n_images, task, method, n) -> SharedRun:
    toy = kind(architecture, training, image_side, n_images)
    toy.task = task
    engine = toy.engine(method)
    return SharedRun(rounds_of(toy, method, n, engine), engine)


def shared_weights(toy: ToyFederation, method: Method, n: int = 1) -> dict[str, Tensor]:
    """Return the global weights after n rounds of a `shared_run`."""
    return shared_run(toy, method, n).rounds[-1].state.weights


def shared_bits(toy: ToyFederation, method: Method, n: int = 1) -> str:
    """Return the checksum of the global weights after n rounds of a `shared_run`."""
    return digest(State(n, shared_weights(toy, method, n)).to_bytes())


def batch_of(toy: ToyFederation, n: int = 6) -> Batch:
    """Return the first n images of site north."""
    return toy.samples("north").batch(range(n))


def local_round(
    toy: ToyFederation,
    method: Method,
    tensors: dict[str, Tensor] | None = None,
    network: nn.Module | None = None,
    **others,
) -> LocalRound:
    """Return round 1 at site a before its first step, with the received tensors; equal calls give equal rounds."""
    torch.manual_seed(0)
    fields = {
        "site": "a",
        "round": 1,
        "network": (network or toy.network(method)).train(),
        "architecture": toy.architecture,
        "task": toy.task,
        "message": Message("train", {}, tensors or {}, {"round": 1}),
        "memory": {},
        "rng": stream(0, "x"),
        "device": torch.device("cpu"),
        "training": toy.samples("a"),
    }
    return LocalRound(**{**fields, **others})


def updates_of(**sites: tuple[float, int]) -> dict[str, Message]:
    """Return each site's update: a weight "w", and the number of its images."""
    return {
        site: Message("train", {"w": torch.tensor([value])}, {}, {"examples": n}) for site, (value, n) in sites.items()
    }
