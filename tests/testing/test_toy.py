"""Toy federations: the rounds and the hooks that a method's author looks at."""

import pytest
import torch

from medfed.methods import ELCFS, FedAvg, FedProx
from medfed.testing import ToyClassification, ToySegmentation


def test_a_toy_federation_trains_the_method_that_it_is_given():
    toy = ToySegmentation()
    assert toy.train(FedProx(mu=0)).to_bytes() == toy.train(FedAvg()).to_bytes() != toy.train(FedProx(mu=1)).to_bytes()


def test_another_seed_trains_from_other_weights():
    toy = ToySegmentation()
    assert toy.train(FedAvg(), seed=1).to_bytes() != toy.train(FedAvg()).to_bytes()


@pytest.mark.parametrize("kind", [ToySegmentation, ToyClassification])
def test_a_local_round_gives_the_hooks_a_network_at_its_start_weights(kind):
    local = kind().local_round(FedProx(mu=0.5))
    loss, output = FedProx().loss(local, local.training.batch(range(4)))
    loss.backward()
    assert all(weight.grad is not None for weight in local.trainable().values())
    assert FedProx(mu=0.5).regulariser(local, output) == 0
    with torch.no_grad():
        for weight in local.trainable().values():
            weight += 0.1
    n = sum(weight.numel() for weight in local.trainable().values())
    expected = 0.5 / 2 * n * 0.1**2  # eq. 2 of FedProx, if every weight has moved by 0.1
    assert float(FedProx(mu=0.5).regulariser(local, output)) == pytest.approx(expected, rel=1e-4)


def test_a_local_round_has_the_tensors_that_the_site_receives():
    local = ToySegmentation().local_round(ELCFS(), "south", {"bank/north": torch.rand(3, 1, 25)})
    assert local.site == "south" and local.message.tensors.keys() == {"bank/north"}
    assert local.message.weights.keys() == local.start_weights.keys()
