"""Every fault at every set of sites: a round ends with the result of the other sites, or with an error.

The sites compute a sum instead of training a network, so that the whole table takes a second.
"""

import time
import warnings
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
import torch

from medfed.core.errors import UserError
from medfed.federation.message import WEIGHTS_NEEDED, Message, State, digest, failed_reply
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.fedavg import FedAvg

SITES = ("east", "north", "south", "west")
SUBSETS = [some for n in range(1, 5) for some in combinations(SITES, n)]
NEVER_STARTS, DIES, LATE = "never starts", "dies in training", "late"
TWICE, OLD = "replies twice", "replies for an old round"
START = State(0, {"w": torch.zeros(4, dtype=torch.float64), "count": torch.zeros((), dtype=torch.int64)},
              parameters=frozenset({"w"}))
DEADLINE_S = 20


@dataclass
class Sites:
    """Four sites, some of which have a fault in round 2."""

    faulty: frozenset[str] = frozenset()
    fault: str = ""

    def sites(self):
        return list(SITES)

    def exchange(self, kind, messages):
        if not next(iter(messages.values())).weights:  # these sites keep nothing, so the fault comes with the weights
            return dict.fromkeys(messages, Message(WEIGHTS_NEEDED))
        replies = {site: self._reply(site, kind, message) for site, message in messages.items()}
        number = next(iter(messages.values())).facts["round"]
        for site in sorted(self.faulty & set(messages)) if number == 2 else ():
            replies |= self._wrong(site, kind, messages[site])
            if self.fault == NEVER_STARTS and kind == "train":
                del replies[site]
        return replies

    def _reply(self, site, kind, message):
        number, facts = message.facts["round"], {"round": message.facts["round"]}
        if kind == "validate":
            return Message("validate", facts={"score": float(message.weights["w"].mean())})
        step = torch.tensor([SITES.index(site) + 1, number, 1, 0.1], dtype=torch.float64)
        weights = {"w": message.weights["w"] * 0.9 + step, "count": message.weights["count"] + 1}
        return Message(kind, weights, {}, {**facts, "examples": 3 + SITES.index(site), "steps": 2, "loss": 0.5})

    def _wrong(self, site, kind, message):
        update = self._reply(site, "train", message)
        if kind == "validate":  # its update is received again
            return {site: update} if self.fault == TWICE else {}
        return {
            DIES: {site: failed_reply("its process was killed")},
            LATE: {site: failed_reply("did not reply within 5 s")},
            OLD: {site: replace(update, facts={**update.facts, "round": 1})},
        }.get(self.fault, {})


def finish(engine, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [digest(done.state.to_bytes()) for done in
                federate(FedAvg(), engine, START, Federation(rounds=3, **settings), 0)]  # fmt: skip


def never_asked(monkeypatch, faulty):
    """Return the result of a run in which the faulty sites are not asked in round 2."""
    rounds = iter(range(1, 4))
    with monkeypatch.context() as patch:
        patch.setattr("medfed.federation.rounds.choose_sites",
                      lambda sites, *_: [site for site in sites if site not in faulty] if next(rounds) == 2 else sites)
        return finish(Sites())


@pytest.mark.parametrize("stops", [False, True], ids=["drop", "stop"])
@pytest.mark.parametrize("fault", [NEVER_STARTS, DIES, LATE, TWICE, OLD])
@pytest.mark.parametrize("faulty", SUBSETS, ids="+".join)
def test_every_fault_at_every_set_of_sites(faulty, fault, stops, monkeypatch):
    engine, start = Sites(frozenset(faulty), fault), time.monotonic()
    settings = {"quorum": 2, "on_bad_update": "stop" if stops else "drop"}
    is_bad = fault in (TWICE, OLD)  # a reply is received and rejected; with the other faults none is received
    kind = "score" if fault == TWICE else "update"
    if stops and is_bad:
        with pytest.raises(UserError, match=f"^{min(faulty)}: its {kind} of round 2 .*on_bad_update to drop"):
            finish(engine, **settings)
    elif len(SITES) - len(faulty) < 2:
        sentence = f"^round 2: {4 - len(faulty)} of 4 sites .*quorum needs 2 .*{min(faulty)}: its {kind}"
        with pytest.raises(UserError, match=sentence):
            finish(engine, **settings)
    else:
        assert finish(engine, **settings) == never_asked(monkeypatch, () if fault == TWICE else faulty)
    assert time.monotonic() - start < DEADLINE_S


@pytest.mark.parametrize("fault", [NEVER_STARTS, DIES, LATE])
def test_without_a_quorum_one_missing_site_ends_the_run(fault):
    with pytest.raises(UserError, match="^round 2: 3 of 4 sites .* federation.quorum needs all .south: its update"):
        finish(Sites(frozenset({"south"}), fault))
