import gc
import math
import weakref
from dataclasses import dataclass, replace

import pytest
import torch

from medfed.core.errors import UserError
from medfed.federation.message import Message, digest
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.federation.validation_site import ValidationSite
from medfed.testing.small_unet import SmallUNet
from medfed.testing.toy import ToySegmentation, disc_slices


@pytest.fixture
def toy() -> ToySegmentation:
    """Sites with two training steps in a round, on small images."""
    return ToySegmentation(image_side=16, n_images=6)


def finish(engine, start, method, settings, seed=0):
    *_, last = federate(method, engine, start, settings, seed)
    return last


def test_another_seed_gives_another_model(toy, fedavg, two_rounds):
    a, b = (finish(toy.engine(fedavg, seed=s), toy.start(fedavg), fedavg, two_rounds, s).state for s in (0, 1))
    assert digest(a.to_bytes()) != digest(b.to_bytes())


def test_resuming_without_the_optimisers_state_gives_another_result(toy, fedavg):
    """A site continues with the state that its optimiser had after the last round (`optimizer_state: keep`)."""
    settings, engine = Federation(rounds=2), toy.engine(fedavg)
    first, last = federate(fedavg, engine, toy.start(fedavg), settings, 0)
    forgetful = finish(toy.engine(fedavg), first.state, fedavg, settings)
    assert digest(forgetful.state.to_bytes()) != digest(last.state.to_bytes())


def test_one_full_batch_of_sgd_at_each_site_is_one_central_step(fedavg):
    """FedAvg with n_k weights = one step on the pooled gradient of a loss that is a mean over images."""
    toy = ToySegmentation(training=Training(optimizer="sgd", learning_rate=0.1, batch_size=100, augment=False))
    engine, start = toy.engine(fedavg), toy.start(fedavg)
    obtained = finish(engine, start, fedavg, Federation(rounds=1)).state.weights
    network, gradients = toy.network(fedavg), {}
    for site in ("north", "south", "west"):
        network.zero_grad()
        batch = disc_slices(site).batch(range(10))
        toy.task.loss(network(toy.task.standardise(batch.image)), batch.label).backward()
        for name, p in network.named_parameters():
            gradients[name] = gradients.get(name, 0) + p.grad / 3
    for name, p in network.named_parameters():
        assert torch.allclose(obtained[name], p.detach() - 0.1 * gradients[name], atol=1e-6), name


def test_client_sampling_takes_the_set_number_and_varies_over_rounds(toy, fedavg):
    settings = Federation(rounds=6, clients_per_round=2)
    rounds = federate(fedavg, toy.engine(fedavg), toy.start(fedavg), settings, 0)
    takers = [frozenset(row["site"] for row in done.ledger if row["kind"] == "train") for done in rounds]
    assert all(len(t) == 2 for t in takers) and len(set(takers)) > 1


@pytest.fixture
def batch_norm_toy() -> ToySegmentation:
    return ToySegmentation(SmallUNet(norm="batch"), image_side=16)


def test_batch_norm_averages_floats_and_keeps_counters_integer(batch_norm_toy, fedavg):
    toy = batch_norm_toy
    weights = finish(toy.engine(fedavg), toy.start(fedavg), fedavg, Federation(rounds=1)).state.weights
    counters = {name: w for name, w in weights.items() if name.endswith("num_batches_tracked")}
    assert counters and all(w.dtype == torch.int64 and w == math.ceil(10 / 4) for w in counters.values())
    assert any((w != 0).any() for name, w in weights.items() if name.endswith("running_mean"))


def test_local_batch_norm_never_leaves_its_site_and_then_the_validation_site_is_not_asked(
    batch_norm_toy, fedavg, two_rounds
):
    engine = with_validation_site(batch_norm_toy, fedavg, local_batch_norm=True)
    settings = replace(two_rounds, validation_site="east")
    last = finish(engine, batch_norm_toy.start(fedavg), fedavg, settings)
    assert "validation_site_score" not in last.history
    local, sent = engine.local_sites[0].local_keys, [row for row in last.ledger if row["content"] == "weight"]
    assert local and {row["n"] for row in sent if row["direction"] == "up"} == {len(last.state.weights) - len(local)}
    north, south = (site.memory["local/" + sorted(local)[0]] for site in engine.local_sites[:2])
    assert not torch.equal(north, south)


def test_divergence_names_site_round_and_step(fedavg):
    toy = ToySegmentation(training=Training(learning_rate=1e30), image_side=16)
    with pytest.raises(UserError, match="north: training diverged in round 1, step [0-9]: the loss is"):
        finish(toy.engine(fedavg), toy.start(fedavg), fedavg, Federation(rounds=2))


def test_methods_see_the_same_batches_and_augmentations(toy, fedavg):
    """The first images of each batch are the same for a method that samples many random numbers."""
    seen = {}

    @dataclass(frozen=True)
    class Watch(Method):
        draws: int = 0

        def augment(self, local, batch):
            torch.rand(self.draws, generator=local.rng)
            seen.setdefault((self.draws, local.site), []).append(batch.image.sum().item())
            return batch

    for draws in (0, 100):
        method = Watch(draws)
        finish(toy.engine(method), toy.start(method), method, Federation(rounds=1))
    assert all(seen[0, site] == seen[100, site] for site in ("north", "south", "west"))


def test_a_site_refuses_an_unknown_kind_of_request(toy, fedavg):
    with pytest.raises(ValueError, match="north: cannot reply to a request of kind 'gossip'"):
        toy.engine(fedavg).local_sites[0].reply(Message("gossip"))


def with_validation_site(toy, method, **settings):
    engine = toy.engine(method, **settings)
    engine.validation_site = ValidationSite("east", toy.samples("east"), toy.task, engine.local_sites[0].network)
    return engine


def test_a_validation_site_neither_trains_nor_shares_and_changes_neither_weights_nor_mean_score(
    toy, fedavg, two_rounds
):
    reference = finish(toy.engine(fedavg), toy.start(fedavg), fedavg, two_rounds)
    settings = replace(two_rounds, validation_site="east")
    obtained = finish(with_validation_site(toy, fedavg), toy.start(fedavg), fedavg, settings)
    assert digest(obtained.state.to_bytes()) == digest(reference.state.to_bytes())
    own = [row for row in obtained.ledger if row["site"] == "east"]
    assert {row["kind"] for row in own} == {"validate"}
    assert [row["name"] for row in own if row["direction"] == "up"] == ["score"]
    assert 0 <= obtained.history.pop("validation_site_score") <= 1 and obtained.history == reference.history


def test_the_weights_of_two_rounds_are_never_in_memory_at_the_same_time(toy, fedavg, monkeypatch):
    """With a hundred clients in a round they would fill the memory."""
    engine, held = toy.engine(fedavg), []
    exchange = engine.exchange

    def watched(kind, messages):
        gc.collect()
        assert kind != "train" or not any(reply() for reply in held)
        replies = exchange(kind, messages)
        held.extend(weakref.ref(reply.weights["final_conv.bias"]) for reply in replies.values() if kind == "train")
        return replies

    engine.exchange = watched
    gc.freeze()  # collecting then looks at the objects of this test only
    finish(engine, toy.start(fedavg), fedavg, Federation(rounds=3))
    assert len(held) == 9
