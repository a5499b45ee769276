import pytest
import torch
from toy_runs import rounds_of, shared_run

from medfed.core.seeds import stream
from medfed.federation.message import Message, State, digest
from medfed.federation.settings import Training
from medfed.functional.weights import trainable_parameters
from medfed.methods.fedavg import FedAvg
from medfed.methods.scaffold import SCAFFOLD
from medfed.testing.toy import ToyClassification

PLAIN_SGD = Training(batch_size=4, optimizer="sgd", learning_rate=0.05)
SITES = ("north", "south", "west")


def controls(memory) -> dict:
    return {name: entry for name, entry in memory.items() if name.startswith("control/")}


def test_the_first_round_is_bit_identical_to_fedavg_and_the_second_is_not(any_toy):
    actual, plain = (shared_run(any_toy, method, 2).rounds for method in (SCAFFOLD(), FedAvg()))
    one, other = ([State(done.state.round, done.state.weights).to_bytes() for done in two] for two in (actual, plain))
    assert digest(one[0]) == digest(other[0]) and digest(one[1]) != digest(other[1])


def test_the_mean_gradient_is_the_papers_control_for_plain_sgd(any_toy):
    """c_k+ = c_k - c + (x - y) / (steps * learning rate), in a round with a correction."""
    any_toy.settings = PLAIN_SGD
    engine = any_toy.engine(SCAFFOLD())
    site = engine.local_sites[0]
    method, network = SCAFFOLD(), site.network
    names = list(trainable_parameters(network))
    rng = stream(0, "controls")
    common, own = (
        {n: torch.randn(network.get_parameter(n).shape, generator=rng) / 10 for n in names} for _ in range(2)
    )
    site.memory = {"control/" + name: entry.clone() for name, entry in own.items()}
    start = any_toy.start(method).weights
    update = site.reply(Message("train", start, {"control/" + n: entry for n, entry in common.items()}, {"round": 1}))
    assert update.facts["steps"] == 2
    for name in names:
        expected = own[name] - common[name] + (start[name] - update.weights[name]) / (2 * 0.05)
        assert torch.allclose(site.memory["control/" + name], expected, atol=1e-4), name
        assert torch.allclose(update.tensors["change/" + name], expected - own[name], atol=1e-4)
    assert not [name for name in site.memory if name.startswith(("sum/", "correction/"))]


def test_every_step_uses_the_gradient_minus_the_sites_plus_the_global_control(any_toy):
    """After one step of plain SGD, the weights with and without correction differ by exactly lr (c - c_k)."""
    any_toy.settings = Training(batch_size=10, optimizer="sgd", learning_rate=0.5)
    start, answers = any_toy.start(FedAvg()).weights, []
    for corrected in (True, False):
        site = any_toy.engine(SCAFFOLD() if corrected else FedAvg()).local_sites[0]
        names = list(trainable_parameters(site.network))
        if corrected:
            site.memory = {"control/" + name: torch.full_like(start[name], 0.25) for name in names}
        tensors = {"control/" + name: torch.full_like(start[name], 1.0) for name in names} if corrected else {}
        answers.append(site.reply(Message("train", start, tensors, {"round": 1})))
    actual, plain = answers
    for name in start:
        step = -0.5 * 0.75 if name in names else 0
        change = actual.weights[name].double() - plain.weights[name].double()
        assert torch.allclose(change, torch.full_like(change, step), atol=1e-5), name
    assert actual.facts["loss"] == pytest.approx(plain.facts["loss"]), "the term does not change the reported loss"


def test_the_control_of_any_optimiser_is_the_mean_gradient(any_toy):
    """After one step of Adam, (x - y) / lr would be 1 or -1; the control is the gradient itself."""
    any_toy.settings = Training(batch_size=10, optimizer="adam")
    site = any_toy.engine(SCAFFOLD()).local_sites[0]
    update = site.reply(Message("train", any_toy.start(SCAFFOLD()).weights, {}, {"round": 1}))
    gradients = {
        name: entry.grad for name, entry in trainable_parameters(site.network).items() if entry.grad is not None
    }
    assert gradients and all(torch.equal(site.memory["control/" + n], gradient) for n, gradient in gradients.items())
    assert all(torch.equal(update.tensors["change/" + n], gradient) for n, gradient in gradients.items())


@pytest.mark.parametrize("weighing", ["examples", "uniform"])
@pytest.mark.parametrize("per_round", [0, 2])
def test_the_global_control_is_the_mean_of_the_sites_controls(any_toy, weighing, per_round):
    """The mean is over all sites, with 0 for those that never took part."""
    method = SCAFFOLD(site_weights=weighing)
    engine = any_toy.engine(method)
    for site in engine.local_sites[1:]:
        site.training = any_toy.samples(site.name, 2)  # a third of north's images
    last = rounds_of(any_toy, method, 3, engine, clients_per_round=per_round)[-1]
    shares = {"examples": {"north": 0.6, "south": 0.2, "west": 0.2}, "uniform": dict.fromkeys(SITES, 1 / 3)}[weighing]
    common = controls(last.state.memory)
    assert set(common) == {"control/" + name for name in trainable_parameters(engine.local_sites[0].network)}
    for name, entry in common.items():
        mean = sum(shares[site.name] * site.memory.get(name, torch.zeros_like(entry)) for site in engine.local_sites)
        assert torch.allclose(entry, mean, atol=1e-6), name


def test_batch_norm_that_stays_at_the_sites_is_not_corrected():
    toy, method = ToyClassification(n_images=4), SCAFFOLD()
    engine = toy.engine(method, local_batch_norm=True)
    done = rounds_of(toy, method, 3, engine)
    local = engine.local_sites[0].local_keys
    expected = {"control/" + name for name in trainable_parameters(engine.local_sites[0].network) if name not in local}
    assert set(controls(done[-1].state.memory)) == expected
    sent = {row["n"] for one in done for row in one.ledger if row["name"] == "change/*"}
    assert sent == {len(expected)}
