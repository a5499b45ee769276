import copy

import pytest
import torch

from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation.local_round import LocalRound, Output
from medfed.federation.message import Message, State, digest
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods.elcfs import ELCFS
from medfed.methods.epi_fcr import DOMAIN, RANDOM_HEAD, STEPS, EpiFCR
from medfed.methods.fedavg import FedAvg
from medfed.methods.stable_fdg import StableFDG
from medfed.methods.stack import Stack

ZERO = {"foreign_classifier": 0.0, "foreign_features": 0.0, "random_classifier": 0.0}


def rounds_of(toy, method, n: int = 1, **settings) -> list:
    return list(federate(method, toy.engine(method), toy.start(method), Federation(rounds=n, **settings), 0))


def plain_network(toy, seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return toy.architecture.build(toy.channels, toy.n_logits).train()


def local_round(toy, method, foreign: torch.nn.Module | None = None) -> LocalRound:
    tensors = {DOMAIN + name: entry for name, entry in foreign.state_dict().items()} if foreign else {}
    local = LocalRound("a", 1, toy.network(method).train(), toy.architecture, toy.task,
                       Message("train", {}, tensors, {"round": 1}), {}, stream(0, "x"), torch.device("cpu"),
                       toy.samples("a"))  # fmt: skip
    method.on_round_start(local)
    return local


def term(toy, method, foreign=None) -> tuple[torch.Tensor, LocalRound]:
    """The regulariser of six images, and the round."""
    batch, local = toy.samples("north").batch(range(6)), local_round(toy, method, foreign)
    return method.regulariser(local, Output(batch.image, batch.label, torch.zeros(1))), local


def with_entries_of(network, other, names) -> torch.nn.Module:
    made = copy.deepcopy(network)
    entries = other.state_dict()
    made.load_state_dict({**made.state_dict(), **{name: entries[name] for name in names}})
    return made


def test_without_its_terms_it_is_fedavg_to_the_bit(any_toy):
    found, plain = (State(2, rounds_of(any_toy, m, 2)[1].state.weights) for m in (EpiFCR(**ZERO), FedAvg()))
    assert digest(found.to_bytes()) == digest(plain.to_bytes())
    for name in ZERO:
        other = rounds_of(any_toy, EpiFCR(**{**ZERO, name: 1.0}), 2)[1].state.weights
        assert any(not torch.equal(entry, other[n]) for n, entry in plain.weights.items()), name


def test_the_terms_are_those_of_networks_put_together_by_hand(any_toy):
    """g_j on F: the network with the other's head. G on f_j: the other, in evaluation mode, with the network's head."""
    method, foreign = EpiFCR(), plain_network(any_toy, 7)
    for norm in (m for m in foreign.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.running_mean += 0.1  # statistics of its own
    found, local = term(any_toy, method, foreign)
    network, batch = any_toy.network(FedAvg()).train(), any_toy.samples("north").batch(range(6))
    network.load_state_dict({n: e for n, e in local.network.state_dict().items() if n in network.state_dict()})
    head = [name for name in network.state_dict() if name.startswith(any_toy.architecture.head + ".")]
    guess = copy.deepcopy(network)
    guess.get_submodule(any_toy.architecture.head).load_state_dict(getattr(local.network, RANDOM_HEAD).state_dict())
    image = any_toy.task.standardise(batch.image)
    losses = [any_toy.task.loss(one(image), batch.label) for one in (
        with_entries_of(network, foreign, head), with_entries_of(foreign, network, head).eval(), guess)]  # fmt: skip
    expected = 2.0 * losses[0] + 0.05 * losses[1] + 0.1 * losses[2]
    assert len({round(float(loss.detach()), 4) for loss in losses}) == 3
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("name", "of_head"), [("foreign_classifier", False), ("foreign_features", True),
                                               ("random_classifier", False)])  # fmt: skip
def test_each_term_teaches_one_half_of_the_network_and_nothing_foreign(any_toy, name, of_head):
    method = EpiFCR(**{**ZERO, name: 1.0})
    total, local = term(any_toy, method, plain_network(any_toy, 7))
    total.backward()
    head = any_toy.architecture.head + "."
    taught = {n for n, p in local.network.named_parameters() if p.grad is not None and bool(p.grad.any())}
    assert taught and all(n.startswith(head) == of_head for n in taught)
    assert not any(n.startswith(RANDOM_HEAD) for n in taught)
    assert all(entry.grad is None for entry in local.message.tensors.values())
    assert all(entry.grad is None and not entry.requires_grad for entry in local.memory.values())


def test_the_extra_passes_move_no_statistics_and_every_part_keeps_its_mode(any_toy):
    method, foreign = EpiFCR(), plain_network(any_toy, 7)
    local = local_round(any_toy, method, foreign)
    quiet = local.network.get_submodule(any_toy.architecture.head).eval()  # as a method that freezes a part leaves it
    before = {name: entry.clone() for name, entry in local.network.state_dict().items()}
    sent = {name: entry.clone() for name, entry in local.message.tensors.items()}
    batch = any_toy.samples("north").batch(range(6))
    method.regulariser(local, Output(batch.image, batch.label, torch.zeros(1)))
    assert all(torch.equal(entry, before[name]) for name, entry in local.network.state_dict().items())
    assert all(torch.equal(entry, sent[name]) for name, entry in local.message.tensors.items())
    assert local.network.training and not quiet.training


def test_a_sites_own_model_is_one_that_adam_trains_on_its_batches(any_toy):
    """Three steps of `torch.optim.Adam` on a network apart, to the same weights and BatchNorm statistics."""
    method = EpiFCR()
    local, batches = local_round(any_toy, method), [range(4), range(4, 8), range(2, 6)]
    apart = any_toy.network(FedAvg()).train()
    optimiser = torch.optim.Adam(apart.parameters(), 1e-3)
    for indices in batches:
        batch = any_toy.samples("north").batch(indices)
        method.regulariser(local, Output(batch.image, batch.label, torch.zeros(1)))
        optimiser.zero_grad()
        any_toy.task.loss(apart(any_toy.task.standardise(batch.image)), batch.label).backward()
        optimiser.step()
    sent = method.on_round_end(local)
    assert sent.keys() == {DOMAIN + name for name in apart.state_dict()} and local.memory[STEPS] == 3
    for name, entry in apart.state_dict().items():
        assert torch.allclose(sent[DOMAIN + name], entry, atol=1e-5), name


def test_a_sites_own_model_goes_on_from_round_to_round(any_toy):
    method = EpiFCR()
    engine = any_toy.engine(method)
    rounds = list(federate(method, engine, any_toy.start(method), Federation(rounds=2), 0))
    site = engine.local_sites[0]
    assert site.memory[STEPS] == 6, "three batches of ten images, twice"
    last = rounds[1].state.memory
    assert all(torch.equal(last[f"{DOMAIN}{site.name}/{name.removeprefix(DOMAIN)}"], entry)
               for name, entry in site.memory.items() if name.startswith(DOMAIN))  # fmt: skip


def bytes_of(rounds, direction: str, wanted) -> list[int]:
    """Of each round, one site's bytes of tensors that are `wanted` by name."""
    return [sum(row["bytes"] for row in one.ledger if row["direction"] == direction and row["site"] == "north"
                and row["kind"] == "train" and row["dtype"] != "fact" and wanted(row["name"]))
            for one in rounds]  # fmt: skip


def test_two_models_go_up_and_from_the_second_round_two_come_down(any_toy):
    rounds = rounds_of(any_toy, EpiFCR(random_classifier=0.0), 3)
    one = sum(entry.numel() * entry.element_size() for entry in rounds[0].state.weights.values())
    assert bytes_of(rounds, "up", lambda name: True) == [2 * one] * 3
    assert bytes_of(rounds, "down", lambda name: True) == [one, 2 * one, 2 * one]


@pytest.mark.parametrize(("unused", "sends_head"), [("foreign_features", True), ("foreign_classifier", False)])
def test_only_the_half_that_others_use_is_sent(any_toy, unused, sends_head):
    rounds = rounds_of(any_toy, EpiFCR(**{unused: 0.0}), 2)
    names = {row["name"] for row in rounds[1].ledger if str(row["name"]).startswith(DOMAIN)}
    head = DOMAIN + any_toy.architecture.head + "."
    assert names and all(name.startswith(head) == sends_head for name in names)


def test_before_the_warm_up_is_over_nothing_is_sent(any_toy):
    rounds = rounds_of(any_toy, EpiFCR(warm_up=2), 3)
    assert [size > 0 for size in bytes_of(rounds, "up", lambda name: name.startswith(DOMAIN))] == [False, True, True]
    assert [size > 0 for size in bytes_of(rounds, "down", lambda name: name.startswith(DOMAIN))] == [False, False, True]


def test_a_model_of_single_people_is_not_sent(any_toy):
    with pytest.warns(UserWarning, match="north: has 5 training patients and shares no model of its own"):
        rounds = rounds_of(any_toy, EpiFCR(min_patients=6), 2)
    assert not any(bytes_of(rounds, way, lambda name: name.startswith(DOMAIN)) != [0, 0] for way in ("up", "down"))


def givers(n: int, seed: int, asking=()) -> dict[str, int]:
    """Whose model each of n sites gets, and those in `asking`."""
    method = EpiFCR()
    updates = {f"s{i}": Message("train", {}, {DOMAIN + "w": torch.tensor([float(i)])}, {}) for i in range(n)}
    state = State(1, {}, method.remember(State(0, {}), updates, stream(seed, "remember")))
    got = {site: method.broadcast(state, site) for site in [*updates, *asking]}
    return {site: int(found[DOMAIN + "w"]) for site, found in got.items() if found}


@pytest.mark.parametrize("n", [2, 3, 5])
def test_models_go_one_to_one_and_never_home(n):
    for seed in range(30):
        got = givers(n, seed)
        assert sorted(got.values()) == list(range(n)) and all(site != f"s{giver}" for site, giver in got.items())


def test_each_other_site_is_as_likely_a_giver_and_a_newcomer_gets_one_too():
    """Of four sites s0 hears of each other in a third of 900 draws: 300 +- 4 * 14."""
    found = [givers(4, seed, ["new"]) for seed in range(900)]
    heard, new = (torch.tensor([one[site] for one in found]).bincount(minlength=4) for site in ("s0", "new"))
    assert heard[0] == 0 and (heard[1:] - 300).abs().max() < 57
    assert (new - 225).abs().max() < 53
    assert givers(1, 0, ["new"]) == {"new": 0}, "s0 has nobody to hear of"


def test_the_random_head_is_the_same_everywhere_and_never_learns(any_toy):
    method = EpiFCR()
    start, last = any_toy.start(method).weights, rounds_of(any_toy, method, 2)[1].state.weights
    names = [name for name in start if name.startswith(RANDOM_HEAD)]
    assert names and all(torch.equal(start[name], last[name]) for name in names)
    own, drawn = start[f"{any_toy.architecture.head}.weight"], start[f"{RANDOM_HEAD}.weight"]
    assert own.shape == drawn.shape and not torch.equal(own, drawn)
    plain = any_toy.start(FedAvg()).weights
    assert all(torch.equal(entry, start[name]) for name, entry in plain.items()), "drawn after its own weights"


def test_it_adds_to_another_methods_loss(toy):
    elcfs = ELCFS(alpha=0.1)
    both, alone = (rounds_of(toy, Stack(methods), 2)[1].state.weights for methods in ((elcfs, EpiFCR()), (elcfs,)))
    assert any(not torch.equal(entry, both[name]) for name, entry in alone.items())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_attention_at_the_head_is_refused_with_a_sentence(any_toy, order):
    if any_toy.architecture.decoder_levels:
        pytest.skip("there is no attention on masks")
    methods = EpiFCR(), StableFDG(min_patients=1, stages=(1, 2))
    with pytest.raises(UserError, match="adds to the head .*set attention to false"):
        rounds_of(any_toy, Stack(tuple(methods[i] for i in order)))


@pytest.mark.parametrize("wrong", [{"foreign_classifier": -1.0}, {"foreign_features": -1.0}, {"warm_up": 0},
                                   {"random_classifier": -0.1}, {"domain_learning_rate": 0.0}])  # fmt: skip
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EpiFCR(**wrong)
