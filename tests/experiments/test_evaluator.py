import torch

from medfed.experiments.evaluation import unseen_weights
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.testing.small_unet import SmallUNet
from medfed.testing.toy import ToySegmentation

BATCH_NORM = SmallUNet(norm="batch")


def test_an_unseen_site_gets_the_average_of_the_local_entries(fedavg):
    toy = ToySegmentation(architecture=BATCH_NORM)
    engine = toy.engine(fedavg, local_batch_norm=True)
    (done,) = federate(fedavg, engine, toy.start(fedavg), Federation(rounds=1), 0)
    result = unseen_weights(engine.local_sites, done.state.weights)
    name = next(n for n in engine.local_sites[0].local_keys if n.endswith("running_mean"))
    kept = torch.stack([site.memory["local/" + name] for site in engine.local_sites])
    assert torch.allclose(result[name], kept.mean(dim=0)) and not torch.allclose(result[name], done.state.weights[name])
    shared = [n for n in result if n not in engine.local_sites[0].local_keys]
    assert shared and all(torch.equal(result[n], done.state.weights[n]) for n in shared)


def test_without_local_entries_an_unseen_site_gets_the_global_weights(toy, fedavg):
    engine = toy.engine(fedavg)
    weights = toy.start(fedavg).weights
    assert unseen_weights(engine.local_sites, weights) == weights
