"""One site of four sends a bad reply: the model stays finite and the error names the site, for every method."""

from dataclasses import replace

import pytest
import torch
from poisoned_updates import (
    ANY_SIZE,
    BAD,
    DROP,
    FINITE,
    INF,
    INVALID,
    METHODS,
    NAN,
    ROBUST,
    SITES,
    Recorded,
    all_finite,
    digest_without_bad_site,
    everything,
    facts,
    honest_spread,
    learned,
    one_round,
    poisoned,
    recorded,
)

from medfed.core.errors import UserError
from medfed.federation.message import digest, failed_reply
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.functional.aggregation import change_norm
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.feddg_ga import FedDGGA
from medfed.methods.fedgma import FedGMA
from medfed.methods.norm_clipping import NormClipping
from medfed.methods.scaffold import SCAFFOLD
from medfed.methods.stable_fdg import StableFDG


def named(methods):
    return pytest.mark.parametrize("method", methods, ids=lambda method: type(method).__name__)


@named(METHODS)
@pytest.mark.parametrize("poison", INVALID)
def test_an_invalid_update_is_dropped_and_the_model_is_that_of_the_other_sites(method, poison):
    change, reason = INVALID[poison]
    done, warned = one_round(method, poisoned(change))
    assert all_finite(done) and digest(done.state.to_bytes()) == digest_without_bad_site(method)
    assert done.state.took_part == {site: 1 for site in SITES if site != BAD}
    (sentence,) = [text for text in warned if text.startswith(BAD)]
    pytest.raises(UserError, one_round, method, poisoned(change), Federation(rounds=1)).match(
        f"^{BAD}: its update of round 1 {reason}.*; "
    )
    assert sentence.startswith(f"{BAD}: its update of round 1 ") and sentence.endswith("; the run continues without it")


@named(METHODS)
@pytest.mark.parametrize("poison", FINITE)
def test_finite_updates_give_a_finite_model(method, poison):
    start, _ = recorded(method)
    done, _ = one_round(method, poisoned(FINITE[poison](start.weights)), ANY_SIZE)
    assert all_finite(done)


@named(METHODS)
@pytest.mark.parametrize("poison", ["reversed", "huge"])
def test_a_change_far_above_the_median_is_dropped(method, poison):
    start, _ = recorded(method)
    change = poisoned(FINITE[poison](start.weights))
    done, warned = one_round(method, change)
    assert digest(done.state.to_bytes()) == digest_without_bad_site(method)
    assert any("south: its update of round 1 changes the weights by" in text for text in warned)


@named(METHODS)
def test_honest_updates_are_all_accepted(method):
    plain, warned = one_round(method, settings=ANY_SIZE)
    checked, also = one_round(method, settings=Federation(rounds=1))
    assert not warned and not also and digest(plain.state.to_bytes()) == digest(checked.state.to_bytes())
    assert set(checked.state.took_part) == set(SITES)


@named(ROBUST[:2])
@pytest.mark.parametrize("poison", FINITE)
def test_the_median_and_the_trimmed_mean_lie_between_the_honest_sites(method, poison):
    start, _ = recorded(method)
    done, _ = one_round(method, poisoned(FINITE[poison](start.weights)), ANY_SIZE)
    for name, entry in done.state.weights.items():
        if entry.is_floating_point():
            low, high = honest_spread(method, name)
            assert bool(((entry >= low) & (entry <= high)).all()), name


@pytest.mark.parametrize("poison", FINITE)
def test_the_clipped_change_is_not_longer_than_the_honest_ones(poison):
    method = NormClipping()
    state, replies = recorded(method)
    done, _ = one_round(method, poisoned(FINITE[poison](state.weights)), ANY_SIZE)
    longest = max(change_norm(state.weights, learned(replies["train"][site].weights)) for site in SITES if site != BAD)
    assert change_norm(state.weights, learned(done.state.weights)) <= longest


@pytest.mark.parametrize("poison", ["reversed", "huge"])
def test_fedavg_does_not_lie_between_the_honest_sites(poison):
    """Control of the two tests above."""
    start, _ = recorded(FedAvg())
    done, _ = one_round(FedAvg(), poisoned(FINITE[poison](start.weights)), ANY_SIZE)
    low, high = honest_spread(FedAvg(), "features.conv0.weight")
    entry = done.state.weights["features.conv0.weight"]
    assert not bool(((entry >= low) & (entry <= high)).all())


def test_updates_whose_sum_overflows_are_refused():
    """A quarter of 9e5 is finite; 1e34 times that is beyond float32."""
    method = FedGMA(tau=0.0, step=1e34)
    with pytest.raises(UserError, match="^south: after round 1, .* infinite values, .* changes the weights most"):
        one_round(method, poisoned(everything(lambda w: w + 9e5)), ANY_SIZE)


@named([SCAFFOLD(), FedDGGA(), ELCFS(alpha=0.1, min_patients=1), StableFDG(min_patients=1, stages=(1,))])
def test_shared_statistics_are_checked_too(method):
    """A site whose statistics are rejected before round 1 never trains; before a later round, not in that round."""
    poison = poisoned(lambda m: replace(m, tensors={n: e.double() * NAN for n, e in m.tensors.items()}), "share")
    done, warned = one_round(method, poison)
    assert all_finite(done) and any(text.startswith("south: its share of round 1 is not finite") for text in warned)
    assert {site for site, number in done.state.took_part.items() if number} == set(SITES) - {BAD}
    assert not any(row["site"] == BAD and row["kind"] == "train" for row in done.ledger)
    with pytest.raises(UserError, match="^south: its share of round 1 is not finite"):
        one_round(method, poison, Federation(rounds=1))


@pytest.mark.parametrize("score", [NAN, INF, "good", None, True])
def test_a_score_that_is_not_a_finite_number_is_dropped(score):
    poison = poisoned(facts(score=score), "validate")
    done, warned = one_round(FedAvg(), poison)
    assert "validation_score/south" not in done.history and "validation_score/north" in done.history
    assert [text for text in warned if text.startswith("south: its score of round 1 reports ")]
    with pytest.raises(UserError, match="^south: its score of round 1 reports "):
        one_round(FedAvg(), poison, Federation(rounds=1))


def test_facts_of_a_site_replace_no_column_of_the_history_also_not_one_of_another_site():
    """With 1.0 as the round, `--resume` would look for the checkpoint of a round that does not exist."""
    honest, _ = one_round(FedAvg())
    names = {"round": 1, "train_loss": 9.0, "validation_score": 9.0}
    for kind in ("train", "validate"):
        done, warned = one_round(FedAvg(), poisoned(facts(**names), kind))
        assert not warned and type(done.history["round"]) is int
        assert {name: done.history[name] for name in names} == {name: honest.history[name] for name in names}
    done, warned = one_round(FedAvg(), poisoned(facts(**{"validation_score/north": 9.0}), "validate"))
    assert "validation_score/south" not in done.history and done.history["validation_score/north"] != 9.0
    assert "reports a number with the name 'validation_score/north'" in warned[0]


def test_the_reason_of_a_failed_reply_stays_on_its_line():
    forged = poisoned(lambda m: failed_reply("late\nnorth: its update of round 1 is not finite"))
    _, warned = one_round(FedAvg(), forged)
    assert "south: its update of round 1 was not received: late north: its" in warned[0] and "\n" not in warned[0]


def test_a_reply_that_lacks_what_the_method_needs_is_dropped():
    """FedDG-GA needs a tensor with the loss; other methods may do without it, so that no check rejects the reply."""
    done, warned = one_round(FedDGGA(), poisoned(lambda m: replace(m, tensors={})))
    assert digest(done.state.to_bytes()) == digest_without_bad_site(FedDGGA())
    why = "cannot be used by the method (KeyError: \"'loss'\")"
    assert f"south: its update of round 1 {why}; the run continues without it" in warned


def test_an_error_in_the_method_is_raised():
    class Broken(FedAvg):
        def aggregate(self, state, updates):
            raise KeyError("mine")

    start, replies = recorded(FedAvg())
    with pytest.raises(KeyError, match="mine"):
        list(federate(Broken(), Recorded(replies), start, DROP, 0))


def test_a_rejected_update_is_in_the_ledger():
    done, _ = one_round(FedAvg(), poisoned(lambda m: replace(m, weights={**m.weights, "backdoor": torch.ones(2)})))
    rows = [row for row in done.ledger if row["site"] == BAD and row["direction"] == "up" and row["name"] == "backdoor"]
    assert [(row["kind"], row["shape"], row["bytes"]) for row in rows] == [("train", "2", 8)]
    assert "train_loss/south" not in done.history
