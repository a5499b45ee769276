from types import SimpleNamespace

import torch
from conftest import Toy

from medfed.evaluator import batch_statistics, is_transductive, unseen_network
from medfed.networks.unet import UNet

BATCH_NORM = UNet(features=(4, 4, 4, 8, 8, 4), norm="batch")


def test_inside_batch_statistics_a_prediction_depends_on_its_batch_and_nothing_is_kept(fedavg):
    network = Toy(architecture=BATCH_NORM).network(fedavg).eval()
    before = {name: entry.clone() for name, entry in network.state_dict().items()}
    one, other = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0)).split(1)
    with torch.no_grad():
        assert torch.allclose(network(one)[0], network(torch.cat([one, other]))[0], atol=1e-6)
        with batch_statistics(network):
            assert not torch.allclose(network(one)[0], network(torch.cat([one, other]))[0], atol=1e-3)
    assert all(torch.equal(before[name], entry) for name, entry in network.state_dict().items())


def test_only_local_batch_norm_makes_the_unseen_site_transductive(fedavg):
    toy = Toy(architecture=BATCH_NORM)
    for local in (False, True):
        engine = toy.engine(fedavg, local_batch_norm=local)
        simulation = SimpleNamespace(engine=engine, network=engine.members[0].network)
        assert is_transductive(simulation) == local
        with unseen_network(simulation, toy.start(fedavg).weights) as network:
            layers = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
            assert all((layer.running_mean is None) == local for layer in layers)
        assert all(layer.running_mean is not None for layer in layers)
