import pytest
from conftest import Toy

from medfed.errors import UserError
from medfed.federation.coordinator import federate
from medfed.federation.message import digest
from medfed.federation.settings import Federation, Training


def finish(engine, state, method):
    *_, last = federate(method, engine, state, Federation(rounds=3), 0)
    return digest(last.state.to_bytes())


class Killed(Exception):
    pass


def stop_after(engine, n_answers: int):
    """Break off when the n-th training answer has arrived."""
    count = [0]

    def on_answer(kind, site, index, n_sites):
        count[0] += kind == "train"
        if count[0] == n_answers:
            raise Killed

    engine.on_answer = on_answer
    return engine


@pytest.mark.parametrize("n_answers", [1, 2, 3, 4, 5, 8])
def test_a_run_that_was_broken_off_anywhere_ends_with_the_same_bits(toy, fedavg, tmp_path, n_answers):
    whole = finish(toy.engine(fedavg), toy.start(fedavg), fedavg)
    state = toy.start(fedavg)
    with pytest.raises(Killed):
        for done in federate(fedavg, stop_after(toy.engine(fedavg, folder=tmp_path), n_answers), state,
                             Federation(rounds=3), 0):
            state = done.state
    engine = toy.engine(fedavg, folder=tmp_path)
    engine.restore(state.took_part)
    assert finish(engine, state, fedavg) == whole


def test_a_finished_site_is_not_trained_again(toy, fedavg, tmp_path):
    """Broken off after two of three sites: going on trains the third alone."""
    start = toy.start(fedavg)
    with pytest.raises(Killed):
        list(federate(fedavg, stop_after(toy.engine(fedavg, folder=tmp_path), 2), start, Federation(rounds=1), 0))
    engine = toy.engine(fedavg, folder=tmp_path)
    trained = set()
    for site in engine.members:
        site.progress = lambda name, step, n_steps: trained.add(name)
    list(federate(fedavg, engine, start, Federation(rounds=1), 0))
    assert trained == {"west"}


def test_an_answer_to_another_letter_is_not_taken(toy, fedavg, tmp_path):
    list(federate(fedavg, toy.engine(fedavg, folder=tmp_path), toy.start(fedavg, seed=1), Federation(rounds=1), 0))
    kept = toy.engine(fedavg, folder=tmp_path)
    fresh = toy.engine(fedavg)
    start = toy.start(fedavg, seed=0)
    assert finish(kept, start, fedavg) == finish(fresh, start, fedavg)


def test_only_two_rounds_are_kept_on_disk(toy, fedavg, tmp_path):
    finish(toy.engine(fedavg, folder=tmp_path), toy.start(fedavg), fedavg)
    assert sorted(p.name for p in (tmp_path / "north").iterdir()) == ["round_00002.site", "round_00003.site"]


def test_a_damaged_file_is_refused_by_name(toy, fedavg, tmp_path):
    finish(toy.engine(fedavg, folder=tmp_path), toy.start(fedavg), fedavg)
    path = tmp_path / "south" / "round_00003.site"
    data = bytearray(path.read_bytes())
    data[1000] ^= 4
    path.write_bytes(data)
    with pytest.raises(UserError, match="round_00003.site: its checksum does not fit"):
        toy.engine(fedavg, folder=tmp_path).restore(dict.fromkeys(("north", "south", "west"), 3))


def test_a_lost_file_is_told_rather_than_started_over(toy, fedavg, tmp_path):
    finish(toy.engine(fedavg, folder=tmp_path), toy.start(fedavg), fedavg)
    (tmp_path / "west" / "round_00003.site").unlink()
    with pytest.raises(UserError, match="west.round_00003.site: is missing, and with it what west keeps"):
        toy.engine(fedavg, folder=tmp_path).restore({"west": 3})


def test_an_answer_made_on_other_terms_is_not_taken(fedavg, tmp_path):
    """The letter is the same, the learning rate is not."""
    weights = []
    for rate, folder in ((0.1, tmp_path), (1e-6, tmp_path), (1e-6, None)):
        toy = Toy(training=Training(batch_size=4, learning_rate=rate))
        (done,) = federate(fedavg, toy.engine(fedavg, folder=folder), toy.start(fedavg), Federation(rounds=1), 0)
        weights.append(digest(done.state.to_bytes()))
    assert weights[1] == weights[2] != weights[0]
