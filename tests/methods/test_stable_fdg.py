from dataclasses import replace
from functools import reduce

import pytest
import torch
from toy_runs import batch_of, first_round, local_round, rounds_of

from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation.local_round import LocalRound, SiteData
from medfed.federation.message import State, digest
from medfed.functional.feature_style import SiteStyle, shift_style
from medfed.methods.dsu import DSU
from medfed.methods.fedavg import FedAvg
from medfed.methods.stable_fdg import StableFDG
from medfed.methods.stack import Stack
from medfed.networks.resnet import ResidualNetwork
from medfed.networks.unet import UNet
from medfed.tasks.classification import Classification
from medfed.tasks.slices import Slices
from medfed.testing.toy import ToyClassification

STATISTICS = ("mean", "std", "mean_spread", "std_spread")
SMALL = {"min_patients": 1, "stages": (1, 2)}


def applied(changes: list, features: torch.Tensor) -> torch.Tensor:
    """The features after all changes, which are those of one stage."""
    assert len({place for place, _ in changes}) == 1
    return reduce(lambda changed, change: change[1](changed), changes, features)


def styles(n: int, channels: int = 3) -> dict:
    return {
        f"s{i}": {name: torch.full((channels,), 10.0 * i + j) for j, name in enumerate(STATISTICS)} for i in range(n)
    }


def received_from(method: StableFDG, shared: dict, seed: int) -> dict[str, list[int]]:
    """Return, for each site, the numbers of the sites whose styles it receives."""
    memory = method.combine(State(0, {}), shared, stream(seed, "combine"))
    return {
        n.split("/")[1]: [round(float(row[0]) / 10) for row in entry]
        for n, entry in memory.items()
        if n.endswith("/mean")
    }


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_each_site_receives_one_style_and_never_its_own_and_every_other_one_is_equally_likely(n):
    """With four sites, s0 receives from each other site in a third of 900 draws: 300 +- 4 * 14."""
    draws = [received_from(StableFDG(), styles(n), seed) for seed in range(900 if n == 4 else 30)]
    for senders in draws:
        assert sorted(actual[0] for actual in senders.values()) == list(range(n))
        assert all(site != f"s{actual[0]}" for site, actual in senders.items())
    counts = torch.tensor([senders["s0"][0] for senders in draws]).bincount(minlength=n)
    assert n != 4 or (counts[1:] - 300).abs().max() < 57


def test_several_styles_come_from_different_sites_also_for_a_site_without_style():
    shared = {**styles(4), "silent": {}}
    senders = received_from(StableFDG(received=2), shared, 0)
    assert all(len(set(actual)) == 2 for actual in senders.values()) and len(senders) == 5
    senders = received_from(StableFDG(), {**shared, "silent_2": {}}, 0)
    assert senders["silent"] != senders["silent_2"]
    everyone = received_from(StableFDG(received=9), shared, 0)["s1"]
    assert everyone != [] and 1 not in everyone
    shared = {"s0": styles(1)["s0"], "silent": {}}
    assert received_from(StableFDG(), shared, 0) == {"silent": [0]}, "s0 has no other site to receive from"


def test_the_farthest_style_may_be_sent_to_several_sites():
    senders = received_from(StableFDG(sharing="farthest"), styles(4), 0)
    assert senders == {"s0": [3], "s1": [3], "s2": [0], "s3": [0]}


def test_a_resnet18_site_sends_1024_bytes_per_round():
    settings = ResidualNetwork(depth=18)
    samples = Slices(
        torch.rand(4, 3, 64, 64, generator=stream(0, "images")), torch.tensor([0, 1, 0, 1]), torch.arange(4)
    )
    data = SiteData("a", samples, Classification(("x", "y"), 3, 64), settings, stream(0, "share"))
    shared = StableFDG().share(data, settings.build(3, 2).eval())
    assert sum(4 * entry.numel() for entry in shared.values()) == 1024


def test_styles_of_the_networks_features_are_shared_in_every_round(any_toy):
    method = StableFDG(attention=False, **SMALL)
    rounds = rounds_of(any_toy, method, 2)
    up = [[row["name"] for row in done.ledger if row["direction"] == "up"] for done in rounds]
    assert [names.count("mean_spread") for names in up] == [3, 3], "from three sites, in both rounds"
    assert not torch.equal(rounds[0].state.memory["received/north/mean"], rounds[1].state.memory["received/north/mean"])


def test_added_images_balance_the_classes_and_keep_their_labels(any_toy):
    samples = any_toy.samples("north")
    batch = samples.batch(range(6))
    method = StableFDG(probability=1.0, attention=not any_toy.architecture.decoder_levels, **SMALL)
    local = local_round(any_toy, method)
    loss, output = method.loss(local, batch)
    assert len(output.logits) == len(output.label) == len(output.image) == 12 and torch.isfinite(loss)
    if batch.label.ndim == 1:
        few, many = sorted(output.label.bincount(minlength=2).tolist())
        assert many - few <= 1 or many == int(batch.label.bincount().max())
    assert torch.equal(output.label[:6], batch.label)
    blocks = [part for part in local.network.modules() if part.__class__.__name__ == "_DenseBlock"]
    assert not any(len(part._forward_hooks) for part in blocks)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["stable_fdg first", "dsu first"])
def test_attention_reads_the_changed_feature_map(order):
    """The attention reads ResNet's last stage after all changes of styles there, in any order of the methods."""
    toy = ToyClassification(ResidualNetwork(depth=10))
    stable = StableFDG(probability=1.0, stages=(4,), min_patients=1)
    method = Stack(tuple((stable, DSU(stages=(4,), probability=1.0))[i] for i in order))
    local, batch = local_round(toy, method), batch_of(toy)
    read, pooled = [], []
    local.network.highlighter.register_forward_pre_hook(lambda module, given: read.append(given[0]))
    local.network.avgpool.register_forward_pre_hook(lambda module, given: pooled.append(given[0]))
    stable.loss(local, batch)
    assert len(pooled[0]) == 12 and torch.equal(read[0], pooled[0])


def test_with_skip_connections_images_are_added_before_the_first_skip(toy):
    """Stage 1 is inactive: without the added images there, its skip connection would have half of the images."""
    method = StableFDG(attention=False, probability=1.0, stages=(2, 3), min_patients=1)
    toy.architecture = UNet(features=(4, 4, 4, 8, 8, 4))
    _, output = method.loss(local_round(toy, method), batch_of(toy, 4))
    assert len(output.logits) == 8


def test_attention_on_masks_is_rejected(toy):
    with pytest.raises(UserError, match="method.attention: .*predicts masks; set method.attention to false"):
        toy.network(StableFDG(stages=(1, 2)))


def test_a_layer_between_pooling_and_head_is_rejected_before_training():
    settings = ResidualNetwork(depth=10, width=8, embedding_size=16)
    with pytest.raises(UserError, match="method.attention: .*set network.embedding_size to 0"):
        StableFDG().wrap_network(settings.build(3, 2), settings)


def test_without_received_styles_nothing_is_shared_but_styles_are_explored():
    toy = ToyClassification()
    done = first_round(toy, StableFDG(attention=False, received=0, **SMALL))
    plain = first_round(toy, FedAvg())
    assert {row["name"] for row in done.ledger} == {row["name"] for row in plain.ledger} and not done.state.memory
    assert digest(State(1, done.state.weights).to_bytes()) != digest(State(1, plain.state.weights).to_bytes())


def test_exploration_alone_keeps_the_batch_and_moves_the_added_copies_only():
    """Level 0, no mixing: stage 1 returns the batch, and the added images are exact copies up to rounding."""
    method = StableFDG(attention=False, received=0, mix=False, level=0.0, probability=1.0, **SMALL)
    toy = ToyClassification()
    local, labels = local_round(toy, method), torch.tensor([0, 0, 0, 1])
    added, changes = method._changes(local, labels)
    features = torch.rand(4, 3, 5, 5, dtype=torch.float64, generator=stream(0, "features"))
    places = local.architecture.encoder_stages
    assert [place for place, _ in changes] == [places[0]], "without mixing, a second active stage changes nothing"
    explored = applied(changes, features)
    assert torch.equal(explored[:4], features) and torch.allclose(explored[4:], features[added], atol=1e-5)
    assert sorted(labels[added].bincount(minlength=2).tolist()) == [1, 3], "class counts 3 and 1 become 4 and 4"


def test_random_oversampling_keeps_the_class_frequencies():
    """Of 1000 added images, 250 +- 4 * 13.7 are of the class that has a quarter of the batch."""
    toy = ToyClassification()
    method = StableFDG(attention=False, received=0, balanced=False, oversampling=250.0, probability=1.0, **SMALL)
    added, _ = method._changes(local_round(toy, method), torch.tensor([0, 0, 0, 1]))
    assert len(added) == 1000 and abs(int((added == 3).sum()) - 250) < 55


def test_half_of_the_batch_is_kept_at_random():
    """k-means++ nearly always keeps the one different style of eight; a random half does in half of 200 draws."""
    received = SiteStyle(*(torch.full((2,), value) for value in (50.0, 1.0, 0.0, 0.0)))
    features = torch.rand(8, 2, 4, 4, generator=stream(0, "features"))
    features[5] += 10
    keeps = {}
    for at_random in (False, True):
        shifted = [shift_style(features, received, stream(n, "x"), at_random=at_random) for n in range(200)]
        is_kept = torch.stack([(one == features).flatten(1).all(dim=1) for one in shifted])
        assert (is_kept.sum(dim=1) == 4).all()
        keeps[at_random] = int(is_kept[:, 5].sum())
    assert keeps[False] > 190 and abs(keeps[True] - 100) < 4 * 7.1


def test_the_random_half_is_a_setting():
    rounds = []
    for kept in ("kmeans++", "random"):
        method = StableFDG(attention=False, oversampling=0.0, mix=False, probability=1.0, kept=kept, **SMALL)
        tensors = {name: torch.ones(1, 3) for name in STATISTICS}
        local = local_round(ToyClassification(), method, tensors=tensors)
        _, changes = method._changes(local, torch.zeros(8, dtype=torch.int64))
        features = torch.rand(8, 3, 4, 4, generator=stream(0, "features")).cumsum(dim=0)
        rounds.append(applied(changes, features))
    assert not torch.equal(*rounds)


def second_sample_round(**settings) -> tuple[StableFDG, LocalRound, ToyClassification]:
    toy = ToyClassification()
    method = StableFDG(style=False, min_patients=1, **settings)
    local = local_round(toy, method)
    local.settings = replace(local.settings, augment=False)
    method.on_round_start(local)
    return method, local, toy


def test_a_single_image_of_a_class_gets_a_partner_from_the_sites_images():
    method, local, _ = second_sample_round(second_sample=True)
    everything = local.training.batch(range(len(local.training)))
    assert torch.equal(local.memory["classes"], everything.label)
    partners, second = method._partners(local, torch.tensor([0, 0, 1]), torch.arange(3))
    assert partners.tolist() == [1, 0, 3] and second.shape[0] == 1
    local.network.eval()
    with torch.no_grad():
        place = local.architecture.last_features
        members = type(everything)(everything.image[everything.label == 1], everything.label[everything.label == 1])
        features = local.forward(members, (place,)).features[place]
    assert (second - features).abs().flatten(1).amax(dim=1).min() < 1e-5, "the features of an image of class 1"


def test_a_copy_that_was_added_to_the_batch_is_no_other_image_of_the_class():
    method, local, _ = second_sample_round(second_sample=True)
    partners, second = method._partners(local, torch.tensor([0, 0, 1]), torch.tensor([0, 1, 2, 2]))
    assert partners.tolist() == [1, 0, 4, 5] and second.shape[0] == 2


def test_the_moments_of_the_added_images_are_those_of_their_originals():
    toy = ToyClassification()
    method = StableFDG(attention=False, oversampling=1.0, probability=1.0, **SMALL)
    local = local_round(toy, method)
    batch = toy.samples("north").batch(range(4))
    moments = torch.rand(4, 2, 3, generator=stream(0, "moments")) + 0.5
    _, output = method.loss(local, replace(batch, moments=moments))
    assert len(output.image) == len(output.moments) == 8
    copies = [int((batch.image == image).flatten(1).all(dim=1).nonzero()[0]) for image in output.image]
    assert torch.equal(output.moments, moments[copies])


def test_second_samples_change_the_attention_but_no_statistics():
    losses, buffers = {}, {}
    for second_sample in (False, True):
        method, local, toy = second_sample_round(second_sample=second_sample)
        batch = toy.samples("north").batch(range(10))
        only = [int((batch.label == 0).nonzero()[0]), *(batch.label == 1).nonzero()[:3, 0].tolist()]
        loss, output = method.loss(local, toy.samples("north").batch(only))
        losses[second_sample] = float(loss.detach())
        buffers[second_sample] = dict(local.network.named_buffers())
        assert len(output.logits) == 4 and local.network.training
    assert losses[False] != losses[True]
    assert all(torch.equal(entry, buffers[True][name]) for name, entry in buffers[False].items())


def test_second_samples_are_only_drawn_if_the_attention_uses_a_partner():
    for settings in ({"query_of": "own"}, {"query_of": "none"}, {"attention": False}):
        _, local, _ = second_sample_round(second_sample=True, **settings)
        assert not local.memory


def test_the_presets_are_what_the_paper_and_the_code_say():
    paper, released = (StableFDG(**StableFDG.presets[name]) for name in ("paper", "released"))
    assert (paper.similarity, paper.second_sample, paper.clamp) == ("inner", True, False)
    assert (released.similarity, released.second_sample, released.site_weights) == ("cosine", True, "uniform")
    toy = ToyClassification()
    layer = replace(paper, stages=(1, 2)).wrap_network(toy.architecture.build(3, 2), toy.architecture).highlighter
    assert (layer.similarity, layer.query_of) == ("inner", "both")
