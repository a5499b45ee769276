from contextlib import nullcontext

import pytest
import torch
from toy_runs import batch_of, local_round, rounds_of, shared_run

from medfed.core.errors import UserError
from medfed.federation.message import Message, State, digest
from medfed.functional.weights import add_prefix
from medfed.methods.copa import COPA, HEAD, HEADS, OWN
from medfed.methods.fedavg import FedAvg
from medfed.networks.monai_network import MonaiNetwork
from medfed.testing.toy import ToyClassification, ToySegmentation


def head_of(toy, weights) -> dict:
    return {name: entry for name, entry in weights.items() if name.startswith(toy.architecture.head + ".")}


def heads(toy, *sites) -> dict:
    """Return heads of other sites with random weights."""
    rng = torch.Generator().manual_seed(3)
    own = head_of(toy, toy.start(FedAvg()).weights)
    return {f"{HEADS}{site}/{n}": torch.rand(e.shape, generator=rng) - 0.5 for site in sites for n, e in own.items()}


def test_with_one_site_it_is_bit_identical_to_fedavg(any_toy):
    actual, plain = (
        rounds_of(any_toy, m, 3, any_toy.engine(m, ["north"]))[-1].state.weights for m in (COPA(), FedAvg())
    )
    assert digest(State(1, actual).to_bytes()) == digest(State(1, plain).to_bytes())


def test_the_first_round_is_fedavg_except_that_heads_have_equal_weights(any_toy):
    """All toy sites have ten images, so even the heads agree after the first round; after the second, nothing does."""
    actual, plain = (shared_run(any_toy, method, 2).rounds for method in (COPA(), FedAvg()))
    assert all(torch.allclose(actual[0].state.weights[n], e) for n, e in plain[0].state.weights.items())
    assert any(not torch.allclose(actual[1].state.weights[n], e) for n, e in plain[1].state.weights.items())


def test_every_site_stores_its_head_and_continues_from_it(any_toy):
    method = COPA()
    done, engine = shared_run(any_toy, method, 2)
    heads_by_site = [
        {n.removeprefix(OWN): e for n, e in site.memory.items() if n.startswith(OWN)} for site in engine.local_sites
    ]
    for site, head in zip(engine.local_sites, heads_by_site, strict=True):
        assert all(torch.equal(done[-1].state.memory[f"{HEADS}{site.name}/{n}"], e) for n, e in head.items())
    assert not torch.equal(*[one[f"{any_toy.architecture.head}.weight"] for one in heads_by_site[:2]])
    local = local_round(any_toy, method)
    local.memory.update({OWN + n: e for n, e in heads_by_site[0].items()})
    method.on_round_start(local)
    loaded_head = head_of(any_toy, local.network.state_dict())
    assert all(torch.equal(entry, heads_by_site[0][name]) for name, entry in loaded_head.items())


def test_the_global_head_is_the_mean_of_all_known_heads(any_toy):
    """Site b did not take part: its earlier head counts, but the extractor is averaged over the others."""
    name = f"{any_toy.architecture.head}.weight"
    head = lambda value: {name: torch.full((2, 2), value)}  # noqa: E731
    updates = {
        s: Message("train", {"x": torch.tensor(v), **head(v)}, add_prefix(head(v), HEAD), {"examples": n})
        for s, v, n in (("a", 0.0, 1), ("c", 4.0, 3))
    }
    old = State(1, {}, {f"{HEADS}b/{name}": torch.full((2, 2), 5.0), f"{HEADS}a/{name}": torch.full((2, 2), 99.0)})
    memory = COPA().remember(old, updates, None)
    actual = COPA().aggregate(State(1, {}, memory), updates)
    assert float(actual["x"]) == 3.0, "(1 * 0 + 3 * 4) / 4"
    assert (actual[name] == 3.0).all(), "(0 + 5 + 4) / 3"
    assert set(COPA().broadcast(State(1, {}, memory), "a")) == {f"{HEADS}b/{name}", f"{HEADS}c/{name}"}


@pytest.mark.parametrize(
    "toy",
    [
        ToySegmentation(),
        ToyClassification(),
        ToySegmentation(MonaiNetwork("UNet", {"channels": [4, 8], "strides": [2]})),  # wraps its head
    ],
    ids=["masks", "classes", "monai"],
)
def test_the_loss_equals_the_papers_formula(toy):
    others, batch = heads(toy, "b", "site c"), batch_of(toy)
    method = COPA(weight=0.5)
    total, output = method.loss(local_round(toy, method, others), batch)
    local = local_round(toy, method)
    parameters, each = dict(local.network.named_parameters()), []
    for site in ("b", "site c"):
        mine = {n.rpartition("/")[2]: e for n, e in others.items() if n.startswith(f"{HEADS}{site}/")}
        each.append(toy.task.loss(local.forward(batch, (), {**parameters, **mine}).logits, batch.label))
    own = toy.task.loss(local.forward(batch).logits, batch.label)
    assert torch.allclose(total, own + 0.5 * (each[0] + each[1]) / 2, atol=1e-5) and len(output.logits) == 6


def test_frozen_heads_give_gradients_to_the_extractor_only(any_toy):
    others, batch = heads(any_toy, "b"), batch_of(any_toy)
    gradients = []
    for method in (COPA(), COPA(weight=0.0)):
        local = local_round(any_toy, method, others)
        method.loss(local, batch)[0].backward()
        gradients.append({name: p.grad for name, p in local.network.named_parameters()})
    on_head = head_of(any_toy, gradients[0])
    assert all(entry.grad is None and not entry.requires_grad for entry in others.values())
    assert all(torch.allclose(entry, gradients[1][name], atol=1e-7) for name, entry in on_head.items())
    rest = gradients[0].keys() - on_head.keys()
    assert any(not torch.allclose(gradients[0][n], gradients[1][n]) for n in rest if gradients[0][n] is not None)


def test_only_weights_and_heads_are_sent(any_toy):
    done = shared_run(any_toy, COPA(), 2).rounds
    size = sum(4 * e.numel() for e in head_of(any_toy, done[0].state.weights).values())
    assert sum(row["bytes"] for row in done[1].ledger if str(row["name"]).find(HEADS) >= 0) == 3 * 2 * size


@pytest.mark.parametrize(
    ("name", "arguments", "is_linear"),
    [
        ("UNet", {"channels": [4, 8], "strides": [2]}, True),
        ("UNet", {"channels": [4, 8], "strides": [2], "num_res_units": 2}, False),
        ("DynUNet", {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2]}, True),
        ("FlexibleUNet", {"backbone": "efficientnet-b0"}, True),
        ("SegResNet", {"init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]}, False),
    ],
)
def test_networks_of_monai_are_accepted_if_one_convolution_follows_the_features(name, arguments, is_linear):
    settings = MonaiNetwork(name, arguments)
    with nullcontext() if is_linear else pytest.raises(UserError, match="linear head"):
        COPA().wrap_network(settings.build(1, 1), settings)


def test_a_head_that_is_not_linear_is_rejected(any_toy):
    network = any_toy.network(FedAvg())
    place, _, name = any_toy.architecture.head.rpartition(".")
    setattr(network.get_submodule(place), name, torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))
    with pytest.raises(UserError, match="head is Sequential; choose another network"):
        COPA().wrap_network(network, any_toy.architecture)
