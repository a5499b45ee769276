"""The request "quality": what a site sends, what the coordinator accepts, and that training does not change."""

from dataclasses import replace

import pytest
import torch
from toy_runs import rounds_of

from medfed.core.errors import UserError
from medfed.federation.message import Message
from medfed.federation.quality import ask_quality, check_json, read_reply, to_json
from medfed.federation.quality_facts import quality_facts, with_site_names
from medfed.federation.settings import Federation
from medfed.functional.dice_prediction import PairSums
from medfed.functional.image_facts import NAMES


class FixedMasks:
    """A task with two structures and two cases; the masks depend only on which weights were loaded."""

    reference = [torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]).bool(), torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]).bool()]

    def __init__(self):
        self.loaded = ""

    def load(self, weights):
        self.loaded = {0: "federated", 1: "B", 2: "C"}[int(weights["w"])]

    def predict_samples(self, network, samples):
        by_model = {"federated": "1100", "B": "1100", "C": "0110"}
        first = torch.tensor([int(sign) for sign in by_model[self.loaded]]).bool()
        return [torch.stack([first, torch.zeros(4).bool()]), torch.stack([first, first])]

    def sample_masks(self, samples):
        return self.reference

    def describe_samples(self, samples):
        values = torch.zeros(2, len(NAMES), dtype=torch.float64)
        values[:, 0], values[0, 1] = torch.tensor([4.0, 6.0]), torch.nan
        return values, [0, 1]


def facts_of(min_patients):
    task = FixedMasks()
    request = Message("quality", {"w": torch.tensor(0)}, {"B/w": torch.tensor(1), "C/w": torch.tensor(2)}, {"round": 2})
    return quality_facts(task, None, task.load, request, "training", "validation", min_patients)


def test_a_site_sends_sums_of_agreement_and_dice_and_leaves_out_empty_masks():
    reply = read_reply(facts_of(1), 2)
    # The federated mask of structure 0 has a Dice of 1 with B's and 0.5 with C's, and of 1 with the reference.
    assert reply.sums[0] == PairSums.of([(0.75, 1.0), (0.75, 1.0)])
    assert reply.sums[1] == PairSums.of([(0.75, 2 / 3)])  # in the first case, the federated mask is empty
    assert reply.images["height"] == {"n": 2, "mean": 5.0, "sd": 1.414}, "four digits"
    assert reply.images["width"]["n"] == 1


def test_numbers_of_fewer_patients_than_the_minimum_stay_at_the_site():
    reply = read_reply(facts_of(2), 2)
    assert set(reply.sums) == {0} and "height" in reply.images and "width" not in reply.images
    assert facts_of(3) == {}


GOOD = {"0.n": 2, "0.x": 1.0, "0.y": 1.2, "0.xx": 0.6, "0.xy": 0.68, "0.yy": 0.8}


@pytest.mark.parametrize(
    "change",
    [
        {"0.n": 0},
        {"0.n": 1.5},
        {"0.x": 2.5},
        {"0.xx": 1.4},
        {"0.yy": 0.1},
        {"0.xy": -0.1},
        {"0.z": 1.0},
        {"image.height.n": 3},
        {"image.age.n": 3, "image.age.mean": 1.0, "image.age.sd": 1.0},
        {"patient": 7},
        {"0.n": 10**18},
        {"0.x": 10**400},
        {"image.height.n": 3, "image.height.mean": 10**400, "image.height.sd": 1.0},
        {"image.height.n": 3, "image.height.mean": 5.0, "image.height.sd": -1.0},
        {"0.xx": 0.5, "0.yy": 0.72},  # the products of numbers that are all equal
        *({name.replace("0.", group): number for name, number in GOOD.items()} for group in ("57.", "00.", "\u0663.")),
    ],
)
def test_the_coordinator_refuses_what_are_no_sums_over_dice_values(change):
    assert read_reply(GOOD, 1).sums[0].n == 2
    with pytest.raises(ValueError, match="reports"):
        read_reply({**GOOD, **change}, 1)


def engine_of(toy, method):
    engine = toy.engine(method)
    for site in engine.local_sites:
        site.min_patients = 2  # as many as have validation images
    return engine


def test_training_is_bit_identical_and_each_site_is_asked_with_the_models_of_the_others(toy, fedavg):
    plain, kept = (rounds_of(toy, fedavg, 1, predict_quality=is_kept)[0] for is_kept in (False, True))
    assert plain.local_models == {} and sorted(kept.local_models) == toy.engine(fedavg).sites()
    assert plain.state.to_bytes() == kept.state.to_bytes() and plain.history == kept.history
    assert plain.ledger == kept.ledger
    engine = engine_of(toy, fedavg)
    by_site, ledger = ask_quality(engine, Federation(), kept.state, kept.local_models, 2, 1)
    assert all(reply.sums[0].n == 2 and set(reply.images) >= {"brightness", "contrast"} for reply in by_site.values())
    for site in engine.sites():
        sent = {
            row["name"].partition("/")[0]
            for row in ledger
            if row["site"] == site and row["direction"] == "down" and "/" in row["name"]
        }
        assert sent == set(engine.sites()) - {site}
    assert {row["content"] for row in ledger if row["direction"] == "up"} == {"fact"}
    assert all(row["round"] == 2 for row in ledger)


def test_equal_local_models_agree_completely(toy, fedavg):
    start = toy.start(fedavg)
    same = dict.fromkeys(toy.engine(fedavg).sites(), start.weights)
    by_site, _ = ask_quality(engine_of(toy, fedavg), Federation(), start, same, 1, 1)
    assert [reply.sums[0].x == reply.sums[0].n == 2 for reply in by_site.values()] == [True] * 3


def test_a_bad_reply_is_refused_by_name(toy, fedavg):
    engine = toy.engine(fedavg)
    start = toy.start(fedavg)
    bad = engine.sites()[0]
    exchange = engine.exchange

    def changed(kind, messages):
        replies = exchange(kind, messages)
        return replies | {bad: replace(replies[bad], facts={"0.n": 3, "0.x": 9.0})}

    engine.exchange = changed
    with pytest.raises(UserError, match=bad):
        ask_quality(engine, Federation(), start, dict.fromkeys(engine.sites(), start.weights), 1, 1)


def test_the_file_of_the_sums_is_checked():
    content = to_json({"A": read_reply(facts_of(1), 2)}, ("x", "y"), round=2)
    check_json(content, "quality.json")
    content["sites"]["A"]["calibration"]["x"]["xx"] = 9.0
    with pytest.raises(ValueError, match="quality.json: does not hold the sums of sites"):
        check_json(content, "quality.json")


@pytest.mark.parametrize("damage", [{"x": 1e200}, {"x": 10**400}, {"n": -3}, {"xy": float("nan")}])
def test_numbers_that_are_no_sums_in_a_file_of_others_end_in_one_sentence(damage):
    content = to_json({"A": read_reply(facts_of(1), 2)}, ("x", "y"))
    content["sites"]["A"]["calibration"]["x"] |= damage
    with pytest.raises(ValueError, match="does not hold the sums of sites"):
        check_json(content, "quality.json")


def test_a_name_of_a_site_in_a_file_of_others_cannot_write_to_the_terminal():
    with pytest.raises(ValueError, match="does not hold the sums of sites"):
        check_json({"sites": {"\x1b[31mEVIL": {"calibration": {}, "images": {}}}}, "quality.json")


def test_local_models_have_the_names_of_their_sites():
    assert set(with_site_names({"A": {"w": torch.zeros(1)}, "B": {"w": torch.ones(1)}})) == {"A/w", "B/w"}
