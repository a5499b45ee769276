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
