import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from toy_runs import batch_of, local_round, shared_run

from medfed.federation.checks.replies import find_failing_sites
from medfed.federation.local_round import mean_loss
from medfed.federation.message import Message, State, digest
from medfed.functional.weights import batch_norm_layers
from medfed.methods.fedavg import FedAvg
from medfed.methods.fpl import (
    CLUSTERS,
    FPL,
    PROTOTYPE,
    cluster_prototypes,
    prototype_contrastive_loss,
    prototype_distance_loss,
)
from medfed.testing.toy import ToyClassification

FEW = {"min_images": 1, "min_patients": 1}


def width(toy) -> int:
    head = toy.network(FedAvg()).get_submodule(toy.architecture.head)
    return head.weight.shape[1]


def test_without_its_terms_it_is_bit_identical_to_fedavg_and_sends_nothing(any_toy):
    method = FPL(contrast=0.0, consistency=0.0, **FEW)
    actual, plain = (shared_run(any_toy, m, 2).rounds for m in (method, FedAvg()))
    assert digest(State(2, actual[-1].state.weights).to_bytes()) == digest(State(2, plain[-1].state.weights).to_bytes())
    assert actual[-1].state.memory == {} and not any(PROTOTYPE in str(row["name"]) for row in actual[0].ledger)


def test_the_first_round_is_fedavg_and_the_second_is_not(any_toy):
    actual, plain = (shared_run(any_toy, m, 2).rounds for m in (FPL(**FEW), FedAvg()))
    same = [
        digest(State(1, a.state.weights).to_bytes()) == digest(State(1, b.state.weights).to_bytes())
        for a, b in zip(actual, plain, strict=True)
    ]
    assert same == [True, False]


def test_a_prototype_is_the_mean_embedding_of_a_class_in_evaluation_mode(any_toy):
    method = FPL(**FEW)
    local = local_round(any_toy, method)
    before = {name: entry.clone() for name, entry in local.network.named_buffers()}
    sent = method.on_round_end(local)
    assert local.network.training and all(torch.equal(before[n], e) for n, e in local.network.named_buffers())
    batch = local.training.batch(range(10))
    place = any_toy.architecture.embedding or "upcat_1"
    with torch.no_grad():
        local.network.eval()
        features = local.forward(batch, (place,)).features[place]
    if any_toy.architecture.embedding:
        by_hand = {k: features[batch.label == k].mean(dim=0) for k in (0, 1)}
    else:
        disc = batch.label[:, 0].bool()
        means = [one[:, mask].mean(dim=1) for one, mask in zip(features, disc, strict=True)]
        by_hand = {0: torch.stack(means).mean(dim=0)}
    for kind, vector in by_hand.items():
        assert torch.allclose(sent[f"{PROTOTYPE}{kind}"], vector, atol=1e-5)
    assert set(sent) == {f"{PROTOTYPE}0", f"{PROTOTYPE}1"}, "both classes; or the disc, and the background around it"


def test_the_prototypes_leave_a_frozen_batch_norm_frozen():
    local = local_round(ToyClassification(), FPL(**FEW))
    norms = batch_norm_layers(local.network).values()
    for norm in norms:
        norm.eval()
    FPL(**FEW).on_round_end(local)
    mean_loss(local.network, local.task, local.training)
    assert norms and not any(norm.training for norm in norms) and local.network.training


def test_a_site_sends_exactly_d_numbers_per_class(any_toy):
    ledger = shared_run(any_toy, FPL(**FEW), 2).rounds[0].ledger
    up = [row for row in ledger if row["direction"] == "up" and PROTOTYPE in str(row["name"])]
    assert [(row["n"], row["bytes"]) for row in up] == [(2, 2 * 4 * width(any_toy))] * 3


def test_classes_with_few_images_are_left_out(any_toy):
    local = local_round(any_toy, FPL())
    if any_toy.architecture.embedding:
        rare = replace(local, training=replace(local.training, labels=torch.tensor([1, 1] + [0] * 8)))
        assert set(FPL(min_images=3).on_round_end(rare)) == {f"{PROTOTYPE}0"}
        assert len(FPL(min_images=2).on_round_end(rare)) == 2
    assert FPL(min_images=11).on_round_end(local) == {} and len(FPL(min_images=3).on_round_end(local)) == 2


def test_the_coordinator_clusters_each_class_over_the_sites_that_have_it():
    """In class 0, sites a and b are similar, and c and d; class 4 exists only at site c."""
    rows = {"a": [1.0, 0.1], "b": [1.0, 0.2], "c": [-0.1, 1.0], "d": [-0.2, 1.0]}
    updates = {site: Message("train", {}, {f"{PROTOTYPE}0": torch.tensor(row)}) for site, row in rows.items()}
    updates["c"].tensors[f"{PROTOTYPE}4"] = torch.tensor([5.0, 5.0])
    old = {f"{CLUSTERS}0": torch.zeros(1, 2), f"{CLUSTERS}7": torch.ones(1, 2)}
    memory = FPL().remember(State(1, {}, old), dict(reversed(updates.items())), None)
    assert torch.allclose(memory[f"{CLUSTERS}0"], torch.tensor([[1.0, 0.15], [-0.15, 1.0]]))
    assert memory[f"{CLUSTERS}4"].tolist() == [[5.0, 5.0]] and memory[f"{CLUSTERS}7"].equal(old[f"{CLUSTERS}7"])
    state = State(1, {}, memory)
    assert FPL().broadcast(state, "a").keys() == memory.keys()
    assert FPL().summarise(state) == {"clusters_of_classes": {"0": 2, "4": 1, "7": 1}}


@pytest.mark.parametrize(("name", "size"), [("prototype/abc", 2), ("5", 2), ("other/5", 2), ("prototype/5", 3)])
def test_what_is_no_prototype_of_this_network_is_refused_and_its_site_found(name, size):
    updates = {site: Message("train", {}, {f"{PROTOTYPE}0": torch.ones(2)}) for site in "abc"}
    updates["bad"] = Message("train", {}, {f"{PROTOTYPE}0": torch.ones(2), name: torch.ones(size)})

    def remember(replies):
        return FPL().remember(State(0, {}), replies, torch.Generator())

    with pytest.raises(ValueError, match="prototype"):
        remember(updates)
    assert [one.site for one in find_failing_sites(remember, updates, "train", 1)] == ["bad"]


def test_the_loss_equals_the_papers_formula(any_toy):
    """Class 1 has two clusters and class 0 none: the loss is computed for each embedding separately."""
    d, rng = width(any_toy), torch.Generator().manual_seed(1)
    clusters = {f"{CLUSTERS}1": torch.rand(2, d, generator=rng), f"{CLUSTERS}10": torch.rand(1, d, generator=rng)}
    method = FPL(contrast=0.5, consistency=0.25, temperature=0.1)
    local, batch = local_round(any_toy, method, clusters), batch_of(any_toy)
    total, output = method.loss(local, batch)
    fresh = local_round(any_toy, method)
    plain = fresh.forward(batch, (any_toy.architecture.embedding or "upcat_1",))
    vectors, kinds, _ = method._embeddings(fresh, plain)
    contrast, distance = [], []
    others = torch.cat(list(clusters.values()))
    for z in vectors[kinds == 1]:
        s = [float(functional.cosine_similarity(z.detach(), c, dim=0)) / 0.1 for c in others]
        e = torch.tensor(s, dtype=torch.float64).exp()
        contrast.append(-(e[:2].sum() / e.sum()).log())
        distance.append((z - clusters[f"{CLUSTERS}1"].mean(dim=0)).square().mean())
    by_hand = any_toy.task.loss(plain.logits, batch.label)
    by_hand = by_hand + 0.5 * torch.stack(contrast).mean() + 0.25 * torch.stack(distance).mean()
    assert torch.allclose(total, by_hand.to(total), atol=1e-5) and torch.equal(output.logits, plain.logits)


def test_the_paper_sums_the_squared_differences_over_the_features_of_an_image():
    """Without the contrastive term, the preset's term is as many times the default's as there are features."""
    toy = ToyClassification()
    clusters = {f"{CLUSTERS}{kind}": torch.ones(1, width(toy)) for kind in (0, 1)}
    batch, losses = batch_of(toy), []
    for preset in ("medfed", "paper"):
        method = FPL(**{**FPL.presets[preset], "contrast": 0.0})
        plain = FedAvg().loss(local_round(toy, method), batch)[0]
        losses.append(float((method.loss(local_round(toy, method, clusters), batch)[0] - plain).detach()))
    assert losses[1] == pytest.approx(width(toy) * losses[0], rel=1e-4)


def test_without_a_common_class_the_loss_is_the_tasks_loss(any_toy):
    method = FPL()
    clusters = {f"{CLUSTERS}9": torch.ones(1, width(any_toy))}
    batch = batch_of(any_toy)
    actual, plain = (m.loss(local_round(any_toy, m, clusters), batch)[0] for m in (method, FedAvg()))
    assert torch.equal(actual, plain) and torch.isfinite(actual)


def t(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_contrastive_loss_by_hand():
    """Class 0 has two clusters, at cosines 1 and 0, class 1 one at 0.6; tau is 0.5.

    So it is -log((e^2 + e^0) / (e^2 + e^0 + e^1.2)).
    """
    z, prototypes, of = t([3.0, 0]), t([1.0, 0], [0, 5], [0.6, 0.8]), torch.tensor([0, 0, 1])
    both = math.exp(2) + 1
    result = prototype_contrastive_loss(z, torch.tensor([0]), prototypes, of, 0.5)
    assert float(result) == pytest.approx(-math.log(both / (both + math.exp(1.2))))


def test_the_sum_over_features_is_the_papers_and_the_mean_over_images_stays():
    """The mean prototype is (2, 1): (2, 4) is at 0 + 9, and (3, 3) at 1 + 4; the mean of 9 and 5 is 7."""
    prototypes, of = t([0.0, 0], [4, 2], [9, 9]), torch.tensor([7, 7, 1])
    rows, kinds = t([2.0, 4], [3, 3]), torch.tensor([7, 7])
    assert float(prototype_distance_loss(rows, kinds, prototypes, of, "sum")) == pytest.approx(7)
    assert float(prototype_distance_loss(rows, kinds, prototypes, of)) == pytest.approx(3.5)


def test_classes_without_a_prototype_are_left_out():
    z, kinds = t([1.0, 0], [0, 1.0]), torch.tensor([0, 5])
    prototypes, of = t([1.0, 1.0], [0, 1.0]), torch.tensor([0, 1])
    for loss in (lambda *a: prototype_contrastive_loss(*a, 0.1), prototype_distance_loss):
        assert torch.equal(loss(z, kinds, prototypes, of), loss(z[:1], kinds[:1], prototypes, of))
        z_free = z.clone().requires_grad_()
        nothing = loss(z_free, torch.tensor([8, 9]), prototypes, of)
        nothing.backward()
        assert float(nothing.detach()) == 0 and z_free.grad.abs().sum() == 0


def test_with_prototypes_of_one_class_the_loss_is_zero():
    prototypes = t([0.0, 1], [1, 0])
    assert float(prototype_contrastive_loss(t([1.0, 2]), torch.tensor([0]), prototypes, torch.tensor([0, 0]), 0.1)) == 0


def test_a_prototype_of_zero_is_left_out():
    assert cluster_prototypes([t(0.0, 0), t(1.0, 2)]).equal(t([1.0, 2])) and cluster_prototypes([t(0.0, 0)]) is None
