"""A medfed site behind MONAI's own interface for federated clients."""

import pytest
import torch
from monai.fl.utils.constants import ExtraItems, FlStatistics, WeightType
from monai.fl.utils.exchange_object import ExchangeObject
from torch import nn

from medfed.core.errors import UserError
from medfed.deployment.monai_client import Aborted, MedfedClient
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.functional.weights import average
from medfed.methods.ccst import CCST
from medfed.methods.fedavg import FedAvg


def clients(toy, method):
    return [MedfedClient(site) for site in toy.engine(method).local_sites]


def host(clients, weights, rounds):
    """Train, collect and average, as a host does that knows nothing of medfed."""
    for _ in range(rounds):
        for client in clients:
            client.train(ExchangeObject(weights=weights, weight_type=WeightType.WEIGHTS))
        updates = [client.get_weights() for client in clients]
        n = torch.tensor([float(one.statistics[FlStatistics.DATA_COUNT]) for one in updates], dtype=torch.float64)
        weights = average([one.weights for one in updates], n / n.sum())
    return weights


def test_a_host_that_averages_is_bit_identical_to_medfeds_own_federation(toy):
    method = FedAvg()
    *_, last = federate(method, toy.engine(method), toy.start(method), Federation(rounds=2), 0)
    weights = host(clients(toy, method), toy.start(method).weights, 2)
    assert weights.keys() == last.state.weights.keys()
    assert all(torch.equal(weights[name], entry) for name, entry in last.state.weights.items())


def test_returned_weights_are_copies(toy):
    client = clients(toy, FedAvg())[0]
    client.train(ExchangeObject(weights=toy.start(FedAvg()).weights, weight_type=WeightType.WEIGHTS))
    first = client.get_weights().weights
    for entry in first.values():
        entry.zero_()
    assert any(bool(entry.any()) for entry in client.get_weights().weights.values())


def test_averaged_counters_are_rounded_to_whole_numbers(toy):
    client = clients(toy, FedAvg())[0]
    client._site.network = nn.BatchNorm2d(2)
    averaged = {name: entry.float() + 3.4 for name, entry in client._site.network.state_dict().items()}
    weights = client._weights(averaged)
    assert weights["num_batches_tracked"].dtype == torch.int64 and weights["num_batches_tracked"] == 3
    assert torch.equal(weights["running_mean"], averaged["running_mean"])


def test_the_data_statistics_are_those_that_the_method_shares(toy):
    method = CCST(min_patients=1)
    client = clients(toy, method)[0]
    shared = client.get_data_stats().statistics
    assert shared.pop(FlStatistics.DATA_COUNT) == len(client._site.training)
    assert shared and all(isinstance(entry, torch.Tensor) for entry in shared.values())


def test_abort_ends_the_training_and_the_next_round_works(toy):
    client = clients(toy, FedAvg())[0]
    start = ExchangeObject(weights=toy.start(FedAvg()).weights, weight_type=WeightType.WEIGHTS)
    progress = client._site.progress
    client._site.progress = lambda *step: (client.abort(), progress(*step))
    with pytest.raises(Aborted, match="after step 1"):
        client.train(start)
    client._site.progress = progress
    client.train(start)
    assert client.evaluate(start).metrics is not None


def test_mistakes_of_a_host_are_refused(toy):
    client = clients(toy, FedAvg())[0]
    with pytest.raises(ValueError, match="has not trained yet"):
        client.get_weights()
    with pytest.raises(ValueError, match="expected complete weights"):
        client.train(ExchangeObject(weights=toy.start(FedAvg()).weights, weight_type=WeightType.WEIGHT_DIFF))
    with pytest.raises(UserError, match="holds the images of"):
        client.initialize({ExtraItems.CLIENT_NAME: "elsewhere"})
