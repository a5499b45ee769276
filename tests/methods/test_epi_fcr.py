import copy

import pytest
import torch
from toy_runs import batch_of, local_round, rounds_of, shared_run, shared_weights

from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation.local_round import LocalRound, Output
from medfed.federation.message import Message, State
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation, Training
from medfed.methods.epi_fcr import DOMAIN, RANDOM_HEAD, STEPS, EpiFCR
from medfed.methods.fedavg import FedAvg
from medfed.methods.stable_fdg import StableFDG
from medfed.methods.stack import Stack

ONE_STEP = Training(batch_size=6)  # all images of a site in one batch
ZERO = {"foreign_classifier": 0.0, "foreign_features": 0.0, "random_classifier": 0.0}


def plain_network(toy, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return toy.architecture.build(toy.task.channels, toy.task.out_channels).train()


def started(toy, method, foreign: torch.nn.Module | None = None) -> LocalRound:
    tensors = {DOMAIN + name: entry for name, entry in foreign.state_dict().items()} if foreign else {}
    local = local_round(toy, method, tensors)
    method.on_round_start(local)
    return local


def term(toy, method, foreign=None) -> tuple[torch.Tensor, LocalRound]:
    """Return the regulariser of six images, and the round."""
    batch, local = batch_of(toy), started(toy, method, foreign)
    return method.regulariser(local, Output(batch.image, batch.label, torch.zeros(1))), local


def with_entries_of(network, other, names) -> torch.nn.Module:
    made = copy.deepcopy(network)
    entries = other.state_dict()
    made.load_state_dict({**made.state_dict(), **{name: entries[name] for name in names}})
    return made


def test_the_terms_equal_those_of_networks_combined_by_hand(any_toy):
    """g_j(F x): the network with the other head. G(f_j x): the other network, in evaluation mode, with this head."""
    method, foreign = EpiFCR(), plain_network(any_toy, 7)
    for norm in (m for m in foreign.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.running_mean += 0.1  # so that the statistics differ
    actual, local = term(any_toy, method, foreign)
    network, batch = any_toy.network(FedAvg()).train(), batch_of(any_toy)
    network.load_state_dict({n: e for n, e in local.network.state_dict().items() if n in network.state_dict()})
    head = [name for name in network.state_dict() if name.startswith(any_toy.architecture.head + ".")]
    guess = copy.deepcopy(network)
    guess.get_submodule(any_toy.architecture.head).load_state_dict(getattr(local.network, RANDOM_HEAD).state_dict())
    image = any_toy.task.standardise(batch.image)
    losses = [
        any_toy.task.loss(one(image), batch.label)
        for one in (with_entries_of(network, foreign, head), with_entries_of(foreign, network, head).eval(), guess)
    ]
    expected = 2.0 * losses[0] + 0.05 * losses[1] + 0.1 * losses[2]
    assert len({round(float(loss.detach()), 4) for loss in losses}) == 3
    assert torch.allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "of_head"), [("foreign_classifier", False), ("foreign_features", True), ("random_classifier", False)]
)
def test_each_term_gives_gradients_to_one_half_of_the_network_only(any_toy, name, of_head):
    method = EpiFCR(**{**ZERO, name: 1.0})
    total, local = term(any_toy, method, plain_network(any_toy, 7))
    total.backward()
    head = any_toy.architecture.head + "."
    taught = {n for n, p in local.network.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert taught and all(n.startswith(head) == of_head for n in taught)
    assert not any(n.startswith(RANDOM_HEAD) for n in taught)
    assert all(entry.grad is None for entry in local.message.tensors.values())
    assert all(entry.grad is None and not entry.requires_grad for entry in local.memory.values())


def test_the_extra_passes_change_neither_statistics_nor_modes(any_toy):
    method, foreign = EpiFCR(), plain_network(any_toy, 7)
    local = started(any_toy, method, foreign)
    quiet = local.network.get_submodule(any_toy.architecture.head).eval()  # as after a method that freezes a part
    before = {name: entry.clone() for name, entry in local.network.state_dict().items()}
    sent = {name: entry.clone() for name, entry in local.message.tensors.items()}
    batch = batch_of(any_toy)
    method.regulariser(local, Output(batch.image, batch.label, torch.zeros(1)))
    assert all(torch.equal(entry, before[name]) for name, entry in local.network.state_dict().items())
    assert all(torch.equal(entry, sent[name]) for name, entry in local.message.tensors.items())
    assert local.network.training and not quiet.training


def test_a_sites_own_model_equals_one_trained_by_adam_on_its_batches(any_toy):
    """Three steps of `torch.optim.Adam` on a separate network give the same weights and BatchNorm statistics."""
    method = EpiFCR()
    local, batches = started(any_toy, method), [range(4), range(4, 8), range(2, 6)]
    separate = any_toy.network(FedAvg()).train()
    optimiser = torch.optim.Adam(separate.parameters(), 1e-3)
    for indices in batches:
        batch = any_toy.samples("north").batch(indices)
        method.regulariser(local, Output(batch.image, batch.label, torch.zeros(1)))
        optimiser.zero_grad()
        any_toy.task.loss(separate(any_toy.task.standardise(batch.image)), batch.label).backward()
        optimiser.step()
    sent = method.on_round_end(local)
    assert sent.keys() == {DOMAIN + name for name in separate.state_dict()} and local.memory[STEPS] == 3
    for name, entry in separate.state_dict().items():
        assert torch.allclose(sent[DOMAIN + name], entry, atol=1e-5), name


def test_a_sites_own_model_continues_from_round_to_round(any_toy):
    rounds, engine = shared_run(any_toy, EpiFCR(), 2)
    site = engine.local_sites[0]
    assert site.memory[STEPS] == 4, "two batches of six images, in two rounds"
    last = rounds[1].state.memory
    assert all(
        torch.equal(last[f"{DOMAIN}{site.name}/{name.removeprefix(DOMAIN)}"], entry)
        for name, entry in site.memory.items()
        if name.startswith(DOMAIN)
    )


def bytes_of(rounds, direction: str, wanted) -> list[int]:
    """Return, for each round, one site's bytes of the tensors whose names are `wanted`."""
    return [
        sum(
            row["bytes"]
            for row in one.ledger
            if row["direction"] == direction
            and row["site"] == "north"
            and row["kind"] == "train"
            and row["content"] != "fact"
            and wanted(row["name"])
        )
        for one in rounds
    ]


def test_two_models_are_sent_and_from_round_two_on_two_are_received(any_toy):
    method, any_toy.settings = EpiFCR(random_classifier=0.0), ONE_STEP
    rounds = list(federate(method, any_toy.engine(method), any_toy.start(method), Federation(rounds=3), 0))
    one = sum(entry.numel() * entry.element_size() for entry in rounds[0].state.weights.values())
    assert bytes_of(rounds, "up", lambda name: True) == [2 * one] * 3
    assert bytes_of(rounds, "down", lambda name: name.startswith(DOMAIN)) == [0, one, one]
    # From round 2 on, the site has the other one, the global model, since it validated it at the end of the last round.
    assert bytes_of(rounds, "down", lambda name: True) == [one, one, one]


@pytest.mark.parametrize(("used", "sends_head"), [("foreign_classifier", True), ("foreign_features", False)])
def test_only_the_used_half_of_the_own_model_is_sent(any_toy, used, sends_head):
    any_toy.settings = ONE_STEP
    rounds = shared_run(any_toy, EpiFCR(**{**ZERO, used: 1.0}), 2).rounds
    names = [name for name in rounds[1].state.memory if name.startswith(f"{DOMAIN}north/")]
    head = f"{DOMAIN}north/{any_toy.architecture.head}."
    assert names and all(name.startswith(head) == sends_head for name in names)
    sent = [row["n"] for row in rounds[1].ledger if (row["direction"], row["name"]) == ("up", f"{DOMAIN}*")]
    assert sent == [len(names)] * 3


def test_no_own_model_is_sent_during_the_warm_up(any_toy):
    any_toy.settings = ONE_STEP
    rounds = rounds_of(any_toy, EpiFCR(warm_up=2), 3)
    assert [size > 0 for size in bytes_of(rounds, "up", lambda name: name.startswith(DOMAIN))] == [False, True, True]
    assert [size > 0 for size in bytes_of(rounds, "down", lambda name: name.startswith(DOMAIN))] == [False, False, True]


def received_from(n: int, seed: int, asking=()) -> dict[str, int]:
    """Return whose model each of n sites receives, and each of those in `asking`."""
    method = EpiFCR()
    updates = {f"s{i}": Message("train", {}, {DOMAIN + "w": torch.tensor([float(i)])}, {}) for i in range(n)}
    state = State(1, {}, method.remember(State(0, {}), updates, stream(seed, "remember")))
    senders = {site: method.broadcast(state, site) for site in [*updates, *asking]}
    return {site: int(actual[DOMAIN + "w"]) for site, actual in senders.items() if actual}


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_each_site_receives_one_model_and_never_its_own_and_every_other_one_is_equally_likely(n):
    """With four sites, s0 receives from each other site in a third of 900 draws: 300 +- 4 * 14. A new site can receive
    from all four: 225 +- 4 * 13."""
    draws = [received_from(n, seed, ["new"]) for seed in range(900 if n == 4 else 30)]
    heard, new = (torch.tensor([one[site] for one in draws]).bincount(minlength=n) for site in ("s0", "new"))
    for senders in draws:
        del senders["new"]
        assert sorted(senders.values()) == list(range(n))
        assert all(site != f"s{sender}" for site, sender in senders.items())
    assert n != 4 or ((heard[1:] - 300).abs().max() < 57 and (new - 225).abs().max() < 53)
    assert received_from(1, 0, ["new"]) == {"new": 0}, "s0 has no other site to receive from"


def test_the_random_head_is_the_same_at_all_sites_and_is_not_trained(any_toy):
    method = EpiFCR()
    start, last = any_toy.start(method).weights, shared_weights(any_toy, method, 2)
    names = [name for name in start if name.startswith(RANDOM_HEAD)]
    assert names and all(torch.equal(start[name], last[name]) for name in names)
    own, random_weight = start[f"{any_toy.architecture.head}.weight"], start[f"{RANDOM_HEAD}.weight"]
    assert own.shape == random_weight.shape and not torch.equal(own, random_weight)
    plain = any_toy.start(FedAvg()).weights
    assert all(torch.equal(entry, start[name]) for name, entry in plain.items()), "the random head comes last"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_attention_at_the_head_is_rejected(toy_of_classes, order):
    methods = EpiFCR(), StableFDG(min_patients=1, stages=(1, 2))
    with pytest.raises(UserError, match="adds a layer to it .*set attention to false"):
        rounds_of(toy_of_classes, Stack(tuple(methods[i] for i in order)))
