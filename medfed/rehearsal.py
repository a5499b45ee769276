"""What would leave a site: one round on a few of its images, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from medfed.batch import Batch
from medfed.federation import ledger
from medfed.federation.local import Samples
from medfed.federation.message import Message, State
from medfed.federation.method import Method
from medfed.federation.seeds import stream
from medfed.federation.site import Site

BATCHES = 2  # of training, in a rehearsal


@dataclass(frozen=True)
class _First:
    """The first so many of a site's samples."""

    samples: Samples
    n: int

    @property
    def n_patients(self) -> int:
        return self.samples.n_patients

    def __len__(self) -> int:
        return min(self.n, len(self.samples))

    def batch(self, indices: Sequence[int]) -> Batch:
        return self.samples.batch(indices)


def rehearse(site: Site, start: State, seed: int) -> list[dict[str, object]]:
    """The rows of the ledger (`medfed.federation.ledger`) that the first round would have, of what goes up.

    The site shares what it would share, of all its images, and validates on all that it would; it trains for two batches.
    As the only site of a federation it gets nothing from others, so answers whose number depends on those of others are
    not foreseen.
    """
    few = replace(site, training=_First(site.training, BATCHES * site.settings.batch_size), local_epochs=1, memory={})
    method, rows, state = site.method, [], start
    if type(method).share is not Method.share:
        shared = site.answer(Message("share", state.weights, {}, {"round": 1}))
        state = replace(state, memory=method.combine(state, {site.name: shared.tensors}, stream(seed, "combine", 1)))
        rows += ledger.entries(1, "up", {site.name: shared})
    letter = Message("train", state.weights, method.broadcast(state, site.name), {"round": 1, "last": 0})
    rows += ledger.entries(1, "up", {site.name: few.answer(letter)})
    asked = Message("validate", state.weights, {}, {"round": 1})
    return [*rows, *ledger.entries(1, "up", {site.name: site.answer(asked)})]
