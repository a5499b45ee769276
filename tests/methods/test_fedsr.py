import pytest
import torch
from torch.nn import functional
from toy_runs import batch_of, local_round, rounds_of

from medfed.core.errors import UserError
from medfed.methods.fedavg import FedAvg
from medfed.methods.fedsr import NAME, PRIVATE, FedSR, spread_to_std
from medfed.networks.unet import UNet


def test_the_loss_equals_the_papers_formula(toy_of_classes):
    """Two classes with different r, and C = 2: z, mu and sigma are computed by hand with the same noise."""
    method = FedSR(l2=0.3, cmi=0.2)
    local, batch = local_round(toy_of_classes, method), batch_of(toy_of_classes)
    private = getattr(local.network, PRIVATE)
    with torch.no_grad():
        private.mean[1] = 0.5
        private.spread[1] = 2.0
        private.scale.fill_(2.0)
    torch.manual_seed(7)
    total, output = method.loss(local, batch)
    plain = toy_of_classes.network(FedAvg()).train()
    seen = {}
    plain.class_layers.flatten.register_forward_hook(lambda m, i, o: seen.update(mu=o))
    plain(toy_of_classes.task.standardise(batch.image))
    mu, y = seen["mu"], batch.label
    sigma = functional.softplus(getattr(local.network, NAME).spread(mu))
    torch.manual_seed(7)
    z = mu + sigma * torch.randn(mu.shape)
    m, s = torch.tensor([[0.0], [0.5]])[y], functional.softplus(torch.tensor([[1.0], [2.0]]))[y]
    terms = s.log() - (2 * sigma).log() + ((2 * sigma) ** 2 + (2 * mu - m) ** 2) / (2 * s**2) - 0.5
    divergence = terms.sum(dim=1).mean()
    task = functional.cross_entropy(plain.class_layers.out(z), y)
    by_hand = task + 0.3 * z.square().sum(dim=1).sqrt().mean() + 0.2 * divergence
    assert torch.allclose(total, by_hand, rtol=1e-5)
    assert torch.allclose(output.logits, plain.class_layers.out(z), atol=1e-5)


def test_r_and_c_stay_in_the_memory_of_their_site(toy_of_classes):
    method = FedSR(cmi=0.1)
    engine = toy_of_classes.engine(method)
    done = rounds_of(toy_of_classes, method, 2, engine)
    end = done[-1].state
    assert not any(PRIVATE in name for name in (*end.weights, *end.memory))
    assert not [row for one in done for row in one.ledger if row["content"] == "statistic"]
    assert {row["n"] for one in done for row in one.ledger if row["content"] == "weight"} == {len(end.weights)}
    private = [{n: e for n, e in site.memory.items() if n.startswith(PRIVATE)} for site in engine.local_sites]
    assert all(set(one) == {f"{PRIVATE}/{name}" for name in ("mean", "spread", "scale")} for one in private)
    means = [one[f"{PRIVATE}/mean"] for one in private]
    assert all(mean.abs().sum() > 0 for mean in means) and not torch.equal(means[0], means[1]), "different sites"


def test_a_small_or_negative_scale_stays_finite(toy_of_classes):
    method = FedSR(cmi=1.0)
    local, batch = local_round(toy_of_classes, method), batch_of(toy_of_classes)
    torch.nn.init.constant_(getattr(local.network, PRIVATE).scale, -0.01)
    torch.nn.init.constant_(getattr(local.network, NAME).spread.bias, -200.0)
    loss, _ = method.loss(local, batch)
    loss.backward()
    assert torch.isfinite(loss) and float(spread_to_std(torch.tensor(-200.0)).log()) > -20
    assert all(torch.isfinite(p.grad).all() for p in local.network.parameters() if p.grad is not None)


def test_masks_and_cmi_without_a_distribution_are_rejected(toy_of_classes):
    with pytest.raises(UserError, match="'fedsr' needs one class per image"):
        FedSR().wrap_network(torch.nn.Module(), UNet())
    with pytest.raises(UserError, match="method.cmi"):
        toy_of_classes.network(FedSR(stochastic=False))
