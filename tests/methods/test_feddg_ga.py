from dataclasses import replace

import pytest
import torch
from toy_runs import rounds_of, updates_of

from medfed.core.seeds import stream
from medfed.federation.local_round import SiteData, mean_loss
from medfed.federation.message import Message, State
from medfed.federation.settings import Plan
from medfed.functional.weights import select_prefix
from medfed.methods.feddg_ga import FedDGGA, add_new_sites, adjust_site_weights


def site_weights(state) -> dict:
    return {site: float(entry) for site, entry in select_prefix(state.memory, "weight/").items()}


def remembered(round_done: int, losses: dict, weights: dict | None = None) -> State:
    weights = weights or dict.fromkeys(losses, 1 / len(losses))
    return State(
        round_done,
        {},
        {f"weight/{site}": torch.tensor([w]) for site, w in weights.items()}
        | {f"local_loss/{site}": torch.tensor([loss]) for site, loss in losses.items()},
    )


def shared(**losses) -> dict:
    return {site: {"loss": torch.tensor([loss])} for site, loss in losses.items()}


@pytest.mark.parametrize(("round_done", "change"), [(1, 0.2), (3, 0.1)])
def test_the_gap_of_global_and_local_loss_changes_the_weights_as_computed_by_hand(round_done, change):
    """Gaps 0.3, 0.1 and 0.2: the extreme sites change by d = 0.2, or by half of it after round 3 of 4."""
    state = replace(remembered(round_done, {"a": 1.0, "b": 2.0, "c": 0.5}), plan=Plan(("a", "b", "c"), 4))
    memory = FedDGGA(step=0.2).combine(state, shared(a=1.3, b=2.1, c=0.7), stream(0, "x"))
    expected = {"a": 1 / 3 + change, "b": 1 / 3 - change, "c": 1 / 3}
    assert site_weights(State(round_done, {}, memory)) == pytest.approx(expected, abs=1e-5)


def test_the_step_decays_from_d_to_d_over_t():
    method = FedDGGA(step=0.2)
    assert [method.decayed_step(t, 4) for t in range(6)] == pytest.approx([0.2, 0.2, 0.15, 0.1, 0.05, 0.0])
    assert method.decayed_step(99, 0) == 0.2, "0: the number of rounds is not known"


def test_the_first_round_is_uniform_and_later_rounds_use_the_weights(any_toy):
    done = rounds_of(any_toy, FedDGGA(step=0.1), 2)
    assert site_weights(done[0].state) == pytest.approx(dict.fromkeys(("north", "south", "west"), 1 / 3))
    actual = site_weights(done[1].state)
    assert max(abs(a - 1 / 3) for a in actual.values()) == pytest.approx(0.1), "by d, of the extreme site"
    assert sum(actual.values()) == pytest.approx(1) and all(a >= 0 for a in actual.values())
    assert FedDGGA().summarise(done[1].state) == {"aggregation_weights": pytest.approx(actual, abs=1e-4)}


def test_the_average_uses_the_weights_and_not_the_numbers_of_images():
    updates = updates_of(a=(0.0, 99), b=(8.0, 1))
    state = remembered(2, {}, {"a": 0.3, "b": 0.1, "c": 0.6})
    assert FedDGGA().aggregate(state, updates)["w"].item() == pytest.approx(2), "8 * 0.1 / 0.4"
    none_left = remembered(2, {}, {"a": 0.0, "b": 0.0, "c": 1.0})
    assert FedDGGA().aggregate(none_left, updates)["w"] == 4


def test_a_site_sends_two_losses_on_its_validation_images_per_round(any_toy):
    method = FedDGGA()
    engine = any_toy.engine(method)
    done = rounds_of(any_toy, method, 1, engine)[0]
    extra = [row for row in done.ledger if (row["direction"], row["content"]) == ("up", "statistic")]
    assert {row["name"] for row in extra} == {"loss"}
    assert [(row["kind"], row["bytes"]) for row in extra] == [("share", 4)] * 3 + [("train", 4)] * 3
    network = any_toy.network(method)
    for site in engine.local_sites:
        site.load(any_toy.start(method).weights)
        data = SiteData(site.name, site.training, site.task, site.architecture, stream(0, "x"), site.validation)
        batch = site.validation.batch(range(len(site.validation)))
        network.load_state_dict(any_toy.start(method).weights)
        with torch.no_grad():
            expected = site.task.loss(network.eval()(site.task.standardise(batch.image)), batch.label)
        assert torch.allclose(method.share(data, site.network)["loss"], expected)
        without = method.share(replace(data, validation=None), site.network)["loss"]
        assert torch.equal(without, mean_loss(network, site.task, site.training))
        assert not torch.allclose(without, expected)


def test_the_local_loss_is_that_of_the_sent_model(any_toy):
    method = FedDGGA()
    site = any_toy.engine(method).local_sites[0]
    update = site.reply(Message("train", any_toy.start(method).weights, {}, {"round": 1}))
    network = any_toy.network(method)
    network.load_state_dict(update.weights)
    assert torch.equal(update.tensors["loss"], mean_loss(network, site.task, site.validation))


def test_an_absent_site_keeps_its_weight_and_its_loss():
    state = remembered(3, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 0.2, "b": 0.5, "c": 0.3})
    memory = FedDGGA(step=0.1).combine(state, shared(a=2.0, c=1.0), stream(0, "x"))
    assert site_weights(State(3, {}, memory)) == pytest.approx({"a": 0.3, "b": 0.5, "c": 0.2})
    assert "local_loss/b" in memory
    first = FedDGGA().combine(State(0, {}), shared(a=1.0, b=3.0), stream(0, "x"))
    assert site_weights(State(0, {}, first)) == {"a": 0.5, "b": 0.5}


THREE = {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}
ALL = ("a", "b", "c")


@pytest.mark.parametrize(
    "gaps, step",
    [({"a": 0.5, "b": 0.5, "c": 0.5}, 0.2), ({"a": 0.9, "b": 0.1, "c": 0.4}, 0.0), ({}, 0.2), ({"a": 3.0}, 0.2)],
)
def test_equal_gaps_no_step_or_nothing_to_compare_change_nothing(gaps, step):
    assert adjust_site_weights(THREE, ALL, gaps, step) == THREE


def test_weights_are_clipped_at_zero_and_keep_their_sum():
    """.1 - .2 is cut to 0; .1 + .1 = .2 and .8 + .1 = .9 share 1: 2/11 and 9/11."""
    result = adjust_site_weights({"a": 0.1, "b": 0.1, "c": 0.8}, ALL, {"a": 0.0, "b": 3.0, "c": 3.0}, 0.2)
    assert result == pytest.approx({"a": 0.0, "b": 2 / 11, "c": 9 / 11})


def test_a_site_without_a_gap_stays_where_it_is():
    result = adjust_site_weights(THREE, ALL, {"a": 1.0, "b": 0.0}, 0.1)
    assert result == pytest.approx({"a": 1 / 3 + 0.1, "b": 1 / 3 - 0.1, "c": 1 / 3})


def test_new_sites_get_the_mean_weight():
    assert add_new_sites({}, ["b", "a", "c", "d"]) == pytest.approx(dict.fromkeys("abcd", 0.25))
    assert add_new_sites({"a": 0.8, "b": 0.2}, ["b", "c"]) == pytest.approx(
        {"a": 0.8 / 1.5, "b": 0.2 / 1.5, "c": 1 / 3}
    )
