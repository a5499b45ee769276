"""Every fault at every set of sites: a round ends with the result of the other sites, or with an error.

The sites compute a sum instead of training a network, so that the whole table takes a second.
"""

import re
import time
import warnings
from dataclasses import dataclass, replace
from itertools import combinations
from unittest.mock import patch

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
FAULTS = (NEVER_STARTS, DIES, LATE, TWICE, OLD)
WEIGHTS = {"w": torch.zeros(4, dtype=torch.float64), "count": torch.zeros((), dtype=torch.int64)}
START = State(0, WEIGHTS, parameters=frozenset({"w"}))
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
            return Message("validate", facts={"score": float(message.weights["w"].mean()) / 100})
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
        rounds = federate(FedAvg(), engine, START, Federation(rounds=3, **settings), 0)
        return [digest(done.state.to_bytes()) for done in rounds]


def never_asked(faulty):
    """Return the result of a run in which the faulty sites are not asked in round 2."""
    rounds = iter(range(1, 4))

    def choose(sites, *_):
        return [site for site in sites if site not in faulty] if next(rounds) == 2 else sites

    with patch("medfed.federation.rounds.choose_sites", choose):
        return finish(Sites())


def deviation(faulty, fault: str, stops: bool) -> str:
    """Return how a run with a fault at some sites differs from what the round loop promises; "" if it does not.

    `stops`: whether a bad reply ends the run (`federation.on_bad_update: stop`).
    """
    start, reply = time.monotonic(), "score" if fault == TWICE else "update"
    sentence = ""
    if stops and fault in (TWICE, OLD):  # a reply is received and rejected; with the other faults none is received
        sentence = f"^{min(faulty)}: its {reply} of round 2 .*on_bad_update to drop"
    elif len(SITES) - len(faulty) < 2:
        left = " ".join(rf"\({site}\)" for site in SITES if site not in faulty)
        each = ".*; ".join(f"{site}: its {reply}" for site in faulty)
        sentence = rf"^round 2: {4 - len(faulty)} of 4 sites {left}.*quorum needs 2 \({each}.*--resume"
    try:
        result = finish(Sites(frozenset(faulty), fault), quorum=2, on_bad_update="stop" if stops else "drop")
    except UserError as error:
        return "" if sentence and re.search(sentence, str(error)) else f"ended with {error}"
    if sentence:
        return f"did not end, but the sentence {sentence} was expected"
    if result != never_asked(() if fault == TWICE else faulty):
        return "another result than without the faulty sites"
    return "" if time.monotonic() - start < DEADLINE_S else f"took more than {DEADLINE_S} s"


@pytest.mark.parametrize("stops", [False, True], ids=["drop", "stop"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("faulty", SUBSETS, ids="+".join)
def test_every_fault_at_every_set_of_sites(faulty, fault, stops):
    assert deviation(faulty, fault, stops) == ""
