"""A site whose answer did not count goes on from where its last one that counted left it."""

import warnings
from collections.abc import Collection
from dataclasses import dataclass, replace

import pytest
from conftest import Toy

from medfed.engines.in_process import InProcess
from medfed.federation import coordinator
from medfed.federation.coordinator import federate
from medfed.federation.message import digest, failed
from medfed.federation.settings import Federation, Training

GOING_ON = Federation(rounds=4, quorum=1)


@dataclass
class Dropping(InProcess):
    """Its sites work, and some answers are lost on the way: `lost` holds (round, site)."""

    lost: Collection[tuple[int, str]] = ()

    def exchange(self, kind, messages):
        answers = super().exchange(kind, messages)
        lost = [site for site, m in messages.items() if kind == "train" and (m.facts["round"], site) in self.lost]
        return {**answers, **dict.fromkeys(lost, failed("its line broke"))}


def states(toy, fedavg, folder, lost=()):
    engine = Dropping(toy.engine(fedavg).members, folder, lost=lost)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [digest(replace(done.state, memory={}).to_bytes())
                for done in federate(fedavg, engine, toy.start(fedavg), GOING_ON, 0)]  # fmt: skip


@pytest.fixture
def never_asked(monkeypatch):
    """South is not asked in the rounds that this is called with."""

    def ask(*without: int) -> None:
        rounds = iter(range(1, 5))
        monkeypatch.setattr(coordinator, "_choose",
                            lambda sites, *_: [s for s in sites if s != "south"] if next(rounds) in without else sites)

    return ask


@pytest.mark.parametrize("state", ["keep", "reset"])
@pytest.mark.parametrize("without", [(2,), (2, 3), (1,), (1, 2, 3)])
def test_an_update_that_did_not_count_is_as_if_it_had_not_been_asked_for(fedavg, tmp_path, never_asked, state, without):
    toy = Toy(training=Training(batch_size=4, optimizer_state=state))
    found = states(toy, fedavg, tmp_path / "dropped", {(number, "south") for number in without})
    never_asked(*without)
    assert found == states(toy, fedavg, tmp_path / "never")


def test_losing_what_a_site_kept_would_show(toy, fedavg, tmp_path, monkeypatch):
    """The control: a site that goes on from the round that did not count gives other bits."""
    monkeypatch.setattr(InProcess, "_memory_after", lambda self, name, last: {})
    found = states(toy, fedavg, tmp_path / "dropped", {(2, "south")})
    monkeypatch.undo()
    rounds = iter(range(1, 5))
    monkeypatch.setattr(coordinator, "_choose",
                        lambda sites, *_: [s for s in sites if s != "south"] if next(rounds) == 2 else sites)
    assert found != states(toy, fedavg, tmp_path / "never")


def test_the_file_of_the_round_that_counted_is_kept_as_long_as_none_other_counts(toy, fedavg, tmp_path):
    states(toy, fedavg, tmp_path, {(2, "south"), (3, "south"), (4, "south")})
    names = lambda site: sorted(path.name for path in (tmp_path / site).iterdir())  # noqa: E731
    assert names("south") == [f"round_0000{number}.site" for number in (1, 3, 4)]
    assert names("north") == ["round_00003.site", "round_00004.site"]
