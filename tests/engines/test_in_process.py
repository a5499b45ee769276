import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from toy_runs import small_toy

from medfed.core.errors import UserError
from medfed.federation.message import Message, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.validation_site import ValidationSite
from medfed.methods.fedavg import FedAvg
from medfed.testing.toy import ToyClassification


@pytest.fixture(scope="module")
def toy() -> ToyClassification:
    return small_toy()


@pytest.fixture(scope="module")
def fedavg() -> FedAvg:
    return FedAvg()


def finish(engine, state, method):
    *_, last = federate(method, engine, state, Federation(rounds=3), 0)
    return digest(last.state.to_bytes())


@pytest.fixture(scope="module")
def whole(toy, fedavg) -> str:
    """The digest of the state after three rounds that were never stopped."""
    return finish(toy.engine(fedavg), toy.start(fedavg), fedavg)


class Killed(Exception):
    pass


def stop_after(engine, n_replies: int):
    """Stop the run when the n-th training reply has been received."""
    count = [0]

    def on_reply(kind, site, index, n_sites):
        count[0] += kind == "train"
        if count[0] == n_replies:
            raise Killed

    engine.on_reply = on_reply
    return engine


def test_a_finished_site_is_not_trained_again(toy, fedavg, tmp_path):
    """After a stop with two of three sites finished, resuming trains the third site only."""
    start = toy.start(fedavg)
    with pytest.raises(Killed):
        list(federate(fedavg, stop_after(toy.engine(fedavg, folder=tmp_path), 2), start, Federation(rounds=1), 0))
    engine = toy.engine(fedavg, folder=tmp_path)
    trained = set()
    for site in engine.local_sites:
        site.progress = lambda name, step, n_steps: trained.add(name)
    list(federate(fedavg, engine, start, Federation(rounds=1), 0))
    assert trained == {"west"}


def test_a_stored_reply_to_another_request_is_not_used(toy, fedavg, whole, tmp_path):
    list(federate(fedavg, toy.engine(fedavg, folder=tmp_path), toy.start(fedavg, seed=1), Federation(rounds=1), 0))
    assert finish(toy.engine(fedavg, folder=tmp_path), toy.start(fedavg, seed=0), fedavg) == whole


def test_a_damaged_and_a_missing_file_are_refused_with_their_names(toy, fedavg, tmp_path):
    finish(toy.engine(fedavg, folder=tmp_path), toy.start(fedavg), fedavg)
    kept = ["round_00002.site", "round_00003.reply", "round_00003.site"]
    assert files(tmp_path / "north") == kept, "the memory of two rounds, and the reply of the last one"
    path = tmp_path / "south" / "round_00003.site"
    data = bytearray(path.read_bytes())
    data[1000] ^= 4
    path.write_bytes(data)
    with pytest.raises(UserError, match="round_00003.site: the file is damaged"):
        toy.engine(fedavg, folder=tmp_path).restore(dict.fromkeys(("north", "south", "west"), 3))
    for remove in (lambda: (tmp_path / "west" / "round_00003.site").unlink(), lambda: shutil.rmtree(tmp_path / "west")):
        remove()
        with pytest.raises(UserError, match="west.round_00003.site: is missing; it holds the state of west"):
            toy.engine(fedavg, folder=tmp_path).restore({"west": 3})


def test_a_file_of_another_site_round_or_seed_is_refused_with_what_was_found(toy, fedavg, tmp_path):
    finish(toy.engine(fedavg, folder=tmp_path / "own"), toy.start(fedavg), fedavg)
    other = toy.engine(fedavg, folder=tmp_path / "other", seed=1)
    list(federate(fedavg, other, toy.start(fedavg), Federation(rounds=3), 1))
    path = tmp_path / "own" / "west" / "round_00003.site"
    for source, found in (
        ("own/south/round_00003", "site south, round 3, seed 0"),
        ("own/west/round_00002", "site west, round 2, seed 0"),
        ("other/west/round_00003", "site west, round 3, seed 1"),
    ):
        before = path.read_bytes()
        path.write_bytes((tmp_path / f"{source}.site").read_bytes())
        with pytest.raises(UserError, match=f"file of {found}, but expected was that of site west, round 3, seed 0; "):
            toy.engine(fedavg, folder=tmp_path / "own").restore({"west": 3})
        path.write_bytes(before)


def test_a_stored_reply_of_another_site_is_not_used(toy, fedavg, tmp_path):
    """The requests and the settings of both sites are equal."""
    expected, *_ = federate(fedavg, toy.engine(fedavg, folder=tmp_path), toy.start(fedavg), Federation(rounds=1), 0)
    for name in ("round_00001.site", "round_00001.reply"):
        (tmp_path / "west" / name).write_bytes((tmp_path / "south" / name).read_bytes())
    again, *_ = federate(fedavg, toy.engine(fedavg, folder=tmp_path), toy.start(fedavg), Federation(rounds=1), 0)
    assert digest(again.state.to_bytes()) == digest(expected.state.to_bytes())


def test_a_stored_reply_of_other_settings_is_not_used(fedavg, tmp_path):
    """The requests are equal, but the learning rates differ."""
    weights = []
    for rate, folder in ((0.1, tmp_path), (1e-6, tmp_path), (1e-6, None)):
        toy = small_toy(training=Training(batch_size=4, learning_rate=rate))
        (done,) = federate(fedavg, toy.engine(fedavg, folder=folder), toy.start(fedavg), Federation(rounds=1), 0)
        weights.append(digest(done.state.to_bytes()))
    assert weights[1] == weights[2] != weights[0]


MANY = [f"client_{n:02d}" for n in range(1, 13)]


def rounds_of(toy, method, folder, n_rounds=4, state=None, engine=None):
    engine = engine or toy.engine(method, MANY, folder=folder)
    start = state or toy.start(method)
    engine.restore(start.took_part) if folder else None
    settings = Federation(rounds=n_rounds, clients_per_round=3, validate_every=2)
    yield from ((engine, done) for done in federate(method, engine, start, settings, 0))


@pytest.fixture(scope="module")
def six_rounds(toy, fedavg) -> str:
    """The digest of the state after six rounds of three of twelve clients, whose memory never left RAM."""
    *_, (_, last) = rounds_of(toy, fedavg, None, 6)
    return digest(last.state.to_bytes())


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("n_replies", [1, 2, 3, 4, 5, 9])
def test_a_run_that_was_stopped_anywhere_is_bit_identical_after_resuming(toy, fedavg, six_rounds, tmp_path, n_replies):
    state, stopped = toy.start(fedavg), stop_after(toy.engine(fedavg, MANY, tmp_path), n_replies)
    with pytest.raises(Killed):
        for _, done in rounds_of(toy, fedavg, tmp_path, 6, engine=stopped):
            state = done.state
    engine = toy.engine(fedavg, MANY, tmp_path)
    engine.restore(state.took_part)
    assert sum(bool(site.memory) for site in engine.local_sites) == (3 if state.round else 0), "of the last round only"
    *_, (_, last) = rounds_of(toy, fedavg, tmp_path, 6, state, engine)
    assert digest(last.state.to_bytes()) == six_rounds


def test_only_the_clients_of_a_round_hold_memory_and_results_are_bit_identical(toy, fedavg, six_rounds, tmp_path):
    """Adam's moments of the other clients are in their files only, and replies are kept of the last round only."""
    for engine, done in rounds_of(toy, fedavg, tmp_path, 6):
        trained = {site for site, number in done.state.took_part.items() if number == done.state.round}
        assert {site.name for site in engine.local_sites if site.memory} == trained
        replies = sorted(tmp_path.glob("*/*.reply"))
        assert replies == [tmp_path / site / f"round_{done.state.round:05d}.reply" for site in sorted(trained)]
    assert len(done.state.took_part) > 6 and digest(done.state.to_bytes()) == six_rounds


def test_replies_threads_and_descriptors_do_not_grow_with_the_number_of_clients(toy, fedavg, tmp_path):
    counts = []
    for names in (MANY[:4], MANY):
        folder = tmp_path / str(len(names))
        engine = toy.engine(fedavg, names, folder=folder)
        for _ in rounds_of(toy, fedavg, folder, engine=engine):
            n_replies, n_open = len(list(folder.glob("*/*.reply"))), len(list(Path("/proc/self/fd").iterdir()))
            counts.append((n_replies, threading.active_count(), n_open))
    assert len(set(counts)) == 1, counts


def test_sites_with_local_entries_always_hold_them(fedavg, tmp_path):
    """The sites validate with them, and the evaluation reads them."""

    toy = small_toy()
    engine = toy.engine(fedavg, MANY[:5], folder=tmp_path, local_batch_norm=True)
    *_, (_, done) = rounds_of(toy, fedavg, tmp_path, engine=engine)
    assert {site.name for site in engine.local_sites if site.local_entries()} == set(done.state.took_part)


def test_the_validation_site_replies_to_validate_only(toy, fedavg):
    engine, network = toy.engine(fedavg), toy.network(fedavg)
    engine.validation_site = ValidationSite("east", toy.samples("east"), toy.task, network)
    assert "east" not in engine.sites()
    weights = toy.start(fedavg).weights
    asked = dict.fromkeys([*engine.sites(), "east"], Message("validate", weights, {}, {"round": 1}))
    assert 0 <= engine.exchange("validate", asked)["east"].facts["score"] <= 1
    for kind in ("train", "share"):
        sentence = f"east: is the validation site and replies to 'validate' only, not to '{kind}'"
        with pytest.raises(ValueError, match=sentence):
            engine.exchange(kind, {"east": replace(asked["east"], kind=kind)})
