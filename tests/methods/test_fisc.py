import gc
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_runs import first_round, local_round, shared_run

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.core.seeds import stream
from medfed.federation.local_round import LocalRound, SiteData
from medfed.federation.message import Message, State
from medfed.federation.settings import Cache
from medfed.functional.weights import batch_norm_layers
from medfed.methods.fedavg import FedAvg
from medfed.methods.fisc import FISC, VIEW, clustered_site_style, interpolation_style, mixture_mean_std
from medfed.tasks.slices import Slices
from medfed.testing.toy import ToyClassification, disc_images
from medfed.transforms.image_store import ImageStore
from medfed.transforms.style_expansion import RestyledView

pytestmark = pytest.mark.filterwarnings("ignore:.*FISC")
FEW = {"min_patients": 1}


def share(method: FISC, samples, seed: int = 0) -> dict:
    return method.share(SiteData("a", samples, None, None, stream(seed, "share")), torch.nn.Linear(1, 1))


def test_styles_are_sent_once(any_toy):
    rounds = shared_run(any_toy, FISC(**FEW), 2).rounds
    styles = [
        [row for row in done.ledger if "style/" in str(row["name"]) and row["direction"] == "up"] for done in rounds
    ]
    assert [row["n"] for row in styles[0]] == [2, 2, 2] and not styles[1], "mean and std of three sites, once"


def test_a_site_with_blank_images_shares_nothing():
    blank = Slices(torch.full((4, 3, 32, 32), 0.5), torch.tensor([0, 1, 0, 1]), torch.arange(4))
    with pytest.warns(UserWarning, match="all training images are blank"):
        assert share(FISC(**FEW), blank) == {}
    three = disc_images("north", 3)
    mixed = Slices(torch.cat([three.images, blank.images]), torch.zeros(7, dtype=torch.int64), torch.arange(7))
    assert torch.equal(share(FISC(**FEW), mixed)["style/mean"], share(FISC(**FEW), three)["style/mean"])


def test_the_noise_has_the_given_size_and_comes_from_the_sites_generator():
    plain, noisy, repeated = (
        share(FISC(**FEW, **extra), disc_images("north")) for extra in ({}, *[{"noise": 0.5, "noise_scale": 4.0}] * 2)
    )
    difference = noisy["style/mean"] - plain["style/mean"]
    assert difference.std() == pytest.approx(2.0, rel=0.25), "128 draws of deviation 0.5 * 4"
    assert torch.equal(noisy["style/mean"], repeated["style/mean"]) and noisy["style/std"].min() >= 0
    other = share(FISC(**FEW, noise=0.5, noise_scale=4.0), disc_images("north"), seed=1)
    assert not torch.equal(other["style/mean"], noisy["style/mean"])


def test_three_sites_are_one_cluster_with_a_warning(any_toy):
    method = FISC(transfer="moments", **FEW)
    with pytest.warns(UserWarning, match="one cluster of up to three sites"):
        memory = first_round(any_toy, method).state.memory
    facts = method.summarise(State(1, {}, memory))
    assert facts["clusters_of_sites"] == 1 and set(facts["clusters_of_images"]) == {"north", "south", "west"}


def test_greyscale_images_train_with_a_warning():
    with pytest.warns(UserWarning, match="appendix C"):
        FISC().check(64, 1)


def test_the_second_view_is_in_the_common_style_and_moves_with_the_image(any_toy):
    samples = any_toy.samples("north")
    view = RestyledView(samples, VIEW, lambda image: 1 - image, ImageStore(Cache(None)))
    batch = view.batch([3, 0])
    assert torch.allclose(batch.views[VIEW], 1 - batch.image, atol=1e-3), "stored as float16"
    moved = any_toy.task.augment(batch, stream(0, "turns"))
    assert torch.allclose(moved.views[VIEW], 1 - moved.image, atol=2e-3)
    assert not torch.equal(moved.image, batch.image)


def batch_of(toy, label=None) -> Batch:
    batch = toy.samples("north").batch(range(6))
    return Batch(batch.image, batch.label if label is None else label, {VIEW: 1 - batch.image})


def test_with_equal_views_the_loss_is_the_margin_minus_the_distance_to_the_negative(any_toy):
    """With a = p the loss is max(0, m - |a - n|): the mean of 3 - |a - n| for m = 3 and unit vectors."""
    batch = batch_of(any_toy)
    batch = replace(batch, views={VIEW: batch.image})
    method = FISC(regularisation=0.0, contrast=1.0, margin=3.0)
    with_contrast, _ = method.loss(local_round(any_toy, method), batch)
    without, _ = FedAvg().loss(local_round(any_toy, method), batch)
    contrast = with_contrast - without
    assert 1.0 <= float(contrast.detach()) < 3.0


def test_the_second_view_gives_gradients_to_the_network(any_toy):
    method = FISC(contrast=0.0, regularisation=1.0)
    gradients = []
    for view in (0.0, 0.9):
        local, batch = local_round(any_toy, method), batch_of(any_toy)
        batch = replace(batch, views={VIEW: batch.image * view})
        method.loss(local, batch)[0].backward()
        gradients.append(torch.cat([p.grad.flatten() for p in local.network.parameters() if p.grad is not None]))
    assert not torch.allclose(*gradients)


def test_the_default_regulariser_is_that_of_the_code_for_classes_and_off_for_masks(any_toy):
    def loss(method):
        return float(method.loss(local_round(any_toy, method), batch_of(any_toy))[0].detach())

    usual = 0.2 if any_toy.architecture.embedding else 0.0
    assert loss(FISC()) == loss(FISC(regularisation=usual)) != loss(FISC(regularisation=0.2 - usual))


def test_frozen_batch_norm_keeps_its_statistics():
    toy = ToyClassification(n_images=6)
    method = FISC(freeze_batch_norm=True, transfer="moments", **FEW)
    start = toy.start(method).weights
    after = first_round(toy, method).state.weights
    norms = batch_norm_layers(toy.network(method))
    assert norms and all(torch.equal(start[f"{path}.running_mean"], after[f"{path}.running_mean"]) for path in norms)


def test_contrast_of_masks_compares_structures_with_rings(toy):
    """An image with an empty mask has no triplets; with one disc, the disc is an anchor and its ring is not."""
    batch, local = batch_of(toy), local_round(toy, FISC())
    label = batch.label.clone()
    label[1:] = 0
    FISC().loss(local, replace(batch, label=label))
    assert local.facts["triplets"] == 1


PLACE = "class_layers.flatten"


def embeddings(toy, batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """z and z' (B, D) of the untrained toy network, and the logits of the second views, in float64."""
    local = local_round(toy, FISC())
    z = local.forward(batch, (PLACE,)).features[PLACE]
    second = local.forward(Batch(batch.views[VIEW], batch.label), (PLACE,), local.parameters())
    return tuple(part.detach().double().numpy() for part in (z, second.features[PLACE], second.logits))


def hinges(z, second_z, positive, negative, margin, normalise) -> np.ndarray:
    """The triplet losses of eq. 5 in NumPy, for anchor i with positive[i] and negative[i]."""
    if normalise:
        z, second_z = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (z, second_z))
    to_positive = np.linalg.norm(z - second_z[positive], axis=1)
    return np.maximum(0, to_positive - np.linalg.norm(z - second_z[negative], axis=1) + margin)


def test_a_batch_of_one_class_has_no_triplet_loss(toy_of_classes):
    batch = batch_of(toy_of_classes, torch.zeros(6, dtype=torch.int64))
    with_it, without = (m.loss(local_round(toy_of_classes, m), batch)[0] for m in (FISC(), FISC(contrast=0.0)))
    assert torch.equal(with_it, without)


def two_classes(toy) -> Batch:
    """Five images of class 0 and one of class 1: every negative of class 0 is image 5."""
    return batch_of(toy, torch.tensor([0, 0, 0, 0, 0, 1]))


@pytest.mark.parametrize("normalise", [True, False])
def test_the_loss_and_the_live_triplets_equal_a_second_implementation(toy_of_classes, normalise):
    batch = two_classes(toy_of_classes)
    z, second_z, _ = embeddings(toy_of_classes, batch)
    draws = torch.rand(6, 6, generator=stream(0, "x"))
    negative = draws.masked_fill(batch.label[:, None] == batch.label[None], -1).argmax(dim=1).numpy()
    gaps = 9 - hinges(z, second_z, np.arange(6), negative, 9.0, normalise)  # below the margin: alive
    margin = float(np.sort(np.abs(gaps))[2:4].mean())
    method = FISC(regularisation=0.2, contrast=0.75, margin=margin, normalise=normalise)
    local = local_round(toy_of_classes, method)
    total, output = method.loss(local, batch)
    task = torch.nn.functional.cross_entropy(output.logits, batch.label)
    losses, size = hinges(z, second_z, np.arange(6), negative, margin, normalise), (z**2 + second_z**2).mean()
    assert float((total - task).detach()) == pytest.approx(0.75 * losses.mean() + 0.2 * size, abs=1e-5)  # eq. 5-7
    assert (local.facts["triplets"], int(local.facts["live_triplets"])) == (6, (gaps < margin).sum())
    assert 0 < (gaps < margin).sum() < 6


def test_the_second_batch_of_a_round_adds_to_the_counts(toy_of_classes):
    method = FISC(margin=9.0)
    local = local_round(toy_of_classes, method)
    for label in ([0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 1]):
        method.loss(local, batch_of(toy_of_classes, torch.tensor(label)))
    assert (local.facts["triplets"], int(local.facts["live_triplets"])) == (12, 12), "one class has no triplets"
    without = FISC(contrast=0.0)
    local = local_round(toy_of_classes, without)
    without.loss(local, two_classes(toy_of_classes))
    assert not local.facts, "nothing is counted for a loss of weight 0"


def test_the_counts_are_facts_of_the_updates_and_columns_of_the_history(toy_of_classes):
    done = first_round(toy_of_classes, FISC(margin=9.0, transfer="moments", **FEW))
    by_site = [done.history[f"triplets/{site}"] for site in ("north", "south", "west")]
    assert done.history["triplets"] == sum(by_site) / 3 > 0
    assert [done.history[f"live_triplets/{site}"] for site in ("north", "south", "west")] == by_site
    sent = [row for row in done.ledger if "live_triplets; " in row["name"]]
    assert {(row["site"], row["direction"], row["content"]) for row in sent} == {
        (site, "up", "fact") for site in ("north", "south", "west")
    }


@pytest.mark.parametrize(("triplets", "live", "warns"), [(50, 4, True), (50, 5, False), (50, 0, True), (0, 0, False)])
def test_a_round_with_fewer_than_five_percent_live_triplets_gives_a_warning(triplets, live, warns, recwarn):
    facts = [{"triplets": triplets, "live_triplets": n} if triplets else {"loss": 1.0} for n in (live, 0)]
    updates = {site: Message("train", facts=one) for site, one in zip("ab", facts, strict=True)}
    memory = {"style/mean": torch.zeros(1)}
    assert FISC().remember(State(3, {}, memory), updates, stream(0)) is memory
    assert ["hardly trains the network" in str(w.message) for w in recwarn] == [True] * warns


def test_v3_adds_the_cross_entropy_of_the_restyled_images(toy_of_classes):
    batch = two_classes(toy_of_classes)
    _, _, logits = embeddings(toy_of_classes, batch)
    with_it, without = (
        method.loss(local_round(toy_of_classes, method), batch)[0].item()
        for method in (FISC(contrast=0.0, restyled_loss=on, regularisation=0.2) for on in (True, False))
    )
    needs_view = FISC(contrast=0.0, regularisation=0.0, restyled_loss=True)._needs_view
    assert needs_view and not FISC(contrast=0.0, regularisation=0.0)._needs_view
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert with_it - without == pytest.approx(-log_softmax[range(6), batch.label.numpy()].mean(), abs=1e-5)


@pytest.mark.parametrize("normalise", [True, False])
def test_v4_has_the_own_copy_and_the_nearest_copy_of_the_class_as_positives(toy_of_classes, normalise):
    batch = two_classes(toy_of_classes)
    z, second_z, _ = embeddings(toy_of_classes, batch)
    method = FISC(regularisation=0.0, contrast=1.0, margin=9.0, normalise=normalise, positives="augmented")
    local = local_round(toy_of_classes, method)
    total, output = method.loss(local, batch)
    task = torch.nn.functional.cross_entropy(output.logits, batch.label)
    draws = torch.rand(6, 6, generator=stream(0, "x"))
    negative = draws.masked_fill(batch.label[:, None] == batch.label[None], -1).argmax(dim=1).numpy()
    a, c = (v / np.linalg.norm(v, axis=1, keepdims=True) if normalise else v for v in (z, second_z))
    nearest = [min((j for j in range(5) if j != i), key=lambda j: np.linalg.norm(a[i] - c[j])) for i in range(5)]
    own = hinges(z, second_z, np.arange(6), negative, 9.0, normalise)
    close = hinges(z[:5], second_z, np.array(nearest), negative[:5], 9.0, normalise)
    assert float((total - task).detach()) == pytest.approx(np.concatenate([own, close]).mean(), abs=1e-4)
    assert local.facts["triplets"] == 11, "image 5 has no other image of its class"


def test_v4_shares_nothing_and_its_copies_are_augmented_images(toy_of_classes):
    method = FISC(positives="augmented", codec="nowhere.safetensors")
    assert method.shares == "never" and not method.files
    method.check(32, 3)  # opens no codec
    batch, local = toy_of_classes.samples("north").batch(range(6)), local_round(toy_of_classes, method)
    batch = replace(batch, moments=torch.rand(6, 2, 3))
    augmented = method.augment(local, batch)
    view = augmented.views[VIEW]
    assert torch.equal(augmented.moments, batch.moments)
    expected = toy_of_classes.task.augment(batch, stream(0, "x")).image
    assert torch.equal(view, expected) and not torch.equal(view, batch.image)


def test_v4_refuses_a_segmentation_network(toy):
    with pytest.raises(UserError, match="method.positives: 'augmented' compares images by class"):
        FISC(positives="augmented").wrap_network(torch.nn.Linear(1, 1), toy.architecture)


def test_the_presets_have_the_constants_of_the_paper_and_of_the_code():
    paper, released = (FISC(**FISC.presets[name]) for name in ("paper", "released"))
    assert (paper.alpha, paper.spread, paper.normalise, paper.common_clusters) == (1.0, "mean", False, "first")
    assert (released.contrast, released.margin, released.alpha, released.normalise) == (0.75, 0.3, 0.5, True)
    assert (released.common_clusters, released.median, released.freeze_batch_norm) == ("first", "lower", True)


def test_no_round_stays_in_memory_with_the_restyled_images(any_toy):
    network = shared_run(any_toy, FISC(**FEW), 2).engine.local_sites[0].network  # the sites share it
    gc.collect()
    rounds_in_memory = [entry for entry in gc.get_objects() if type(entry) is LocalRound and entry.network is network]
    assert not rounds_in_memory, "each would keep a copy of the received weights in memory"


def styles(n: int, channels: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, channels, dtype=torch.float64, generator=rng)
    return mean, torch.rand(n, channels, dtype=torch.float64, generator=rng)


def test_a_mixture_of_two_parts_with_deviation_1_around_minus_2_and_2_has_deviation_root_5():
    mean, std = mixture_mean_std(torch.tensor([[-2.0], [2.0]]), torch.ones(2, 1))
    assert (float(mean), float(std)) == (0.0, pytest.approx(math.sqrt(5)))


def test_one_cluster_is_the_style_of_all_pixels():
    """Three images of 50 pixels: the moments of the 150 pixels together."""
    pixels = torch.randn(3, 50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + torch.arange(4)
    mean, std, label = clustered_site_style(pixels.mean(dim=1), pixels.std(dim=1, correction=0))
    assert label.tolist() == [0, 0, 0], "FINCH makes one cluster of three"
    every = pixels.flatten(0, 1)
    assert torch.allclose(mean, every.mean(dim=0)) and torch.allclose(std, every.std(dim=0, correction=0))


def two_looks() -> tuple[torch.Tensor, torch.Tensor]:
    """Nine images of one style and three of another; all deviations are 0.01."""
    looks = torch.tensor([[8.0, 0.0]]).repeat(9, 1), torch.tensor([[0.0, 8.0]]).repeat(3, 1)
    return torch.cat(looks).double(), torch.full((12, 2), 0.01, dtype=torch.float64)


def test_a_rare_style_counts_as_much_as_a_common_one():
    mean, std, label = clustered_site_style(*two_looks())
    assert len(label[:9].unique()) == len(label[9:].unique()) == 1 and len(label.unique()) == 2
    assert torch.allclose(mean, torch.tensor([4.0, 4.0]).double(), atol=0.02)
    assert torch.allclose(std, torch.tensor([4.0, 4.0]).double(), atol=0.02), "half of 8 lies between the looks"
    alike, narrow, _ = clustered_site_style(*two_looks(), spread="mean")
    assert torch.equal(alike, mean) and narrow.max() < 0.05
    without, _, label = clustered_site_style(*two_looks(), partition="none")
    assert not label.any() and torch.allclose(without, torch.tensor([6.0, 2.0]).double(), atol=0.02)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_equal_styles_give_that_style(n):
    mean, std = (one.expand(n, -1) for one in styles(1))
    result = interpolation_style(mean, std, "last", "middle")
    assert torch.allclose(result[0], mean[0]) and torch.allclose(result[1], std[0])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_with_up_to_three_sites_the_interpolation_style_is_the_mean(n):
    for seed in range(20):
        mean, std = styles(n, seed=seed)
        result = interpolation_style(mean, std, "last", "middle")
        assert result[2] == 1
        assert torch.allclose(result[0], mean.mean(dim=0)) and torch.allclose(result[1], std.mean(dim=0))


def test_the_order_of_the_sites_does_not_matter():
    mean, std = styles(12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    one, other = (
        interpolation_style(mean, std, "last", "middle"),
        interpolation_style(mean[order], std[order], "last", "middle"),
    )
    assert one[2] == other[2] > 1 and torch.allclose(one[0], other[0]) and torch.allclose(one[1], other[1])


def test_the_median_of_two_clusters_is_their_middle_or_the_lower_one():
    mean = torch.tensor([[2.0, 0.0], [2.0, 0.01], [0.0, 3.0], [0.01, 3.0]], dtype=torch.float64)
    std = torch.full((4, 2), 0.1, dtype=torch.float64)
    middle, _, n = interpolation_style(mean, std, "last", "middle")
    lower, _, _ = interpolation_style(mean, std, "last", "lower")
    assert n == 2
    assert torch.allclose(middle, torch.tensor([1.0, 1.5]).double(), atol=0.01)
    assert torch.allclose(lower, torch.tensor([0.0, 0.0]).double(), atol=0.01)
