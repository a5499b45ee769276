"""Short runs of a method in a toy federation, for tests that read weights and messages, and no validation scores."""

from __future__ import annotations

from itertools import islice

from medfed.engines.in_process import InProcess
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.rounds import Round, federate
from medfed.federation.settings import Federation
from medfed.testing.toy import ToyFederation


def rounds_of(
    toy: ToyFederation, method: Method, n: int = 1, engine: InProcess | None = None, start: State | None = None,
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
