import copy
from dataclasses import replace

import pytest
import torch
from toy_runs import batch_of, local_round

from medfed.federation.local_round import LocalRound
from medfed.federation.message import Message
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.functional.weights import trainable_parameters
from medfed.methods.copa import COPA
from medfed.methods.fedbn import FedBN
from medfed.methods.fedprox import FedProx
from medfed.methods.stack import Stack
from medfed.testing.toy import ToyClassification


def started(toy, method: Method) -> LocalRound:
    """A round in float64 with its start weights."""
    network = toy.network(method).double()
    return local_round(toy, method, network=network, start_weights=copy.deepcopy(network.state_dict()))


@pytest.mark.parametrize("change", [0.0, 0.5])
def test_the_gradient_of_the_term_is_mu_times_the_change_of_the_weights(any_toy, change):
    """If every weight has changed by 0.5, the term is mu / 2 * 0.25 per weight, and its gradient mu * 0.5."""
    method = FedProx(mu=3.0)
    local = started(any_toy, method)
    weights = list(trainable_parameters(local.network).values())
    with torch.no_grad():
        for entry in weights:
            entry += change
    batch = batch_of(any_toy, 2)
    term = method.regulariser(local, local.forward(replace(batch, image=batch.image.double())))
    assert float(term.detach()) == pytest.approx(1.5 * change**2 * sum(entry.numel() for entry in weights), abs=0)
    for gradient in torch.autograd.grad(term, weights):
        assert torch.allclose(gradient, torch.full_like(gradient, 3 * change), atol=1e-8 * (change > 0))


def test_local_entries_are_pulled_to_the_sites_own_start_values(toy_of_classes, monkeypatch):
    """With FedBN the message contains the untrained BatchNorm, which must not attract the weights later."""
    both = Stack((FedProx(mu=1.0), FedBN()))
    engine = toy_of_classes.engine(both)
    rounds = federate(both, engine, toy_of_classes.start(both), Federation(rounds=2), 0)
    next(rounds)
    site = engine.local_sites[0]
    name = next(n for n in sorted(site.local_keys) if n.endswith("weight"))
    own = site.memory["local/" + name].clone()
    seen = []

    def watch(self, local, output):
        seen.append((local.site, local.start_weights[name].clone()))
        return output.logits.new_zeros(())

    monkeypatch.setattr(FedProx, "regulariser", watch)
    next(rounds)
    actual = next(entry for site_name, entry in seen if site_name == site.name)
    assert torch.equal(actual, own) and not torch.equal(own, toy_of_classes.start(both).weights[name])


@pytest.mark.parametrize("fedprox_first", [True, False])
def test_in_a_stack_the_start_weights_contain_what_other_methods_filled_in(toy, fedprox_first):
    """COPA loads the site's own head into the network: the term is 0 there, and not at the received head."""
    methods = (FedProx(mu=1.0), COPA()) if fedprox_first else (COPA(), FedProx(mu=1.0))
    method = Stack(methods)
    local = started(toy, method)
    number = methods.index(COPA())
    head = {name: entry + 1 for name, entry in local.network.state_dict().items() if name.startswith("final_conv")}
    assert head
    local.memory = {f"memory {number}/own_head/{name}": entry for name, entry in head.items()}
    method.on_round_start(local)
    output = local.forward(replace(batch := batch_of(toy, 2), image=batch.image.double()))
    assert method.regulariser(local, output) == 0
    assert all(torch.equal(local.network.state_dict()[name], entry) for name, entry in head.items())


def test_a_training_round_equals_gradient_steps_written_by_hand():
    """Ten images in batches of four, plain SGD: w <- w - 0.1 (dL/dw + mu (w - w_0)), with the site's own batches."""
    toy = ToyClassification(training=Training(optimizer="sgd", learning_rate=0.1, batch_size=4, augment=False))
    method = FedProx(mu=2.0)
    site, start = toy.engine(method).local_sites[0], toy.start(method).weights
    actual = site.reply(Message("train", start, {}, {"round": 1, "last": 0})).weights
    network = toy.network(method)
    network.load_state_dict(start)
    network.train()
    for indices in site._batches(1, len(site.training)):
        batch = site.training.batch(indices)
        loss = toy.task.loss(network(toy.task.standardise(batch.image)), batch.label)
        named = dict(network.named_parameters())
        gradients = torch.autograd.grad(loss, list(named.values()))
        with torch.no_grad():
            for (name, weight), gradient in zip(named.items(), gradients, strict=True):
                weight -= 0.1 * (gradient + 2.0 * (weight - start[name]))
    for name, entry in network.state_dict().items():
        assert torch.allclose(actual[name], entry, atol=1e-6), name
