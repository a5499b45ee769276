import warnings

import pytest
import torch
from toy_runs import rounds_of, shared_run

from medfed.federation.message import Message, digest
from medfed.functional.weights import batch_norm_entries
from medfed.methods.fedavg import FedAvg
from medfed.methods.fedbn import FedBN
from medfed.methods.fedprox import FedProx
from medfed.methods.stack import Stack
from medfed.testing.toy import ToyClassification, ToySegmentation


@pytest.mark.filterwarnings("ignore:.*FedBN")
def test_without_batch_norm_it_is_bit_identical_to_fedavg():
    toy = ToySegmentation(n_images=6)
    actual, plain = (shared_run(toy, method, 2).rounds[-1].state for method in (FedBN(), FedAvg()))
    assert digest(actual.to_bytes()) == digest(plain.to_bytes())


def test_only_a_network_without_batch_norm_gives_a_warning():
    with pytest.warns(UserWarning, match="FedBN: this network has no BatchNorm layer"):
        ToySegmentation().network(FedBN())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ToyClassification().network(FedBN())


def test_batch_norm_stays_at_the_sites_and_everything_else_is_averaged():
    """After a round, each site starts from its own BatchNorm and the averaged other weights."""
    toy = ToyClassification(n_images=4)
    engine = toy.engine(FedBN())
    done = rounds_of(toy, FedBN(), 2, engine)[-1]
    local = batch_norm_entries(toy.network(FedAvg()))
    sent = {row["n"] for row in done.ledger if (row["direction"], row["content"]) == ("up", "weight")}
    assert local and engine.local_sites[0].local_keys == local and sent == {len(done.state.weights) - len(local)}
    loaded = []
    for site in engine.local_sites:
        local_entries = site.local_entries()
        site.load(done.state.weights)
        actual = {name: entry.clone() for name, entry in site.network.state_dict().items()}
        assert set(local_entries) == local and all(torch.equal(actual[name], local_entries[name]) for name in local)
        loaded.append(actual)
    one, other = loaded[:2]
    assert all(torch.equal(one[name], other[name]) for name in one if name not in local)
    assert any(not torch.equal(one[name], other[name]) for name in local)


def test_a_stack_uses_the_unseen_bn_of_its_method():
    assert Stack((FedProx(), FedBN(unseen_bn="batch_stats"))).unseen_bn == "batch_stats"
    assert Stack((FedProx(), FedBN())).unseen_bn == FedAvg().unseen_bn == "average"


def test_a_round_equals_a_second_implementation():
    """The sites' own replies, averaged entry by entry in float64; BatchNorm of the coordinator stays as it was."""
    toy, settings = ToyClassification(n_images=4), FedBN()
    start = toy.start(settings)
    done = rounds_of(toy, settings)[0].state.weights
    request = Message("train", start.weights, {}, {"round": 1, "last": 0})
    sites = toy.engine(settings).local_sites
    replies = [Message.from_bytes(site.reply(request).to_bytes()) for site in sites]
    total = sum(reply.facts["examples"] for reply in replies)
    local = batch_norm_entries(toy.network(FedAvg()))
    for name, entry in start.weights.items():
        if name in local:
            assert torch.equal(done[name], entry) and name not in replies[0].weights
        else:
            mean = sum(reply.weights[name].double() * reply.facts["examples"] / total for reply in replies)
            assert torch.allclose(done[name].double(), mean, atol=1e-7), name
