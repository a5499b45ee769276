"""Tests of the attacks on updates, on cases in which the correct result is known."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from medfed.auditing.inversion import SIDE, Observation, favourable_observation, invert, score
from medfed.auditing.updates import (
    Chosen,
    attack_updates,
    observe,
    one_step_site,
    plan_site,
    small_images,
    update_of,
    verdict,
)
from medfed.core.seeds import seeded_layers
from medfed.federation.privacy import Privacy
from medfed.federation.settings import Training
from medfed.methods.fedavg import FedAvg
from medfed.testing.toy import ToySegmentation, disc_slices


@pytest.fixture
def site(toy):
    return toy.engine(FedAvg()).local_sites[0]


def disc(n: int = 1) -> torch.Tensor:
    return small_images(disc_slices("north"), range(n)).all.image


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def linear_observation(image: torch.Tensor) -> Observation:
    """A linear layer: row k of the gradient of its weights is (p_k - y_k) times its input, the image minus 0.4."""
    with seeded_layers(0, "linear layer"):
        layer = nn.Linear(image[0].numel(), 3)

    def loss(images: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(layer(images.flatten(1) - 0.4), torch.tensor([1]))

    return Observation(loss, [layer.weight], torch.autograd.grad(loss(image), [layer.weight]))


def test_the_gradient_of_a_linear_layer_reveals_its_input():
    image = disc()[..., ::4, ::4]
    observation = linear_observation(image)
    assert float(observation.distance(image)) == pytest.approx(0, abs=1e-6)
    row = observation.change[0][1]  # of the true class, so that its factor is negative
    assert float(F.cosine_similarity(row, image.flatten() - 0.4, dim=0)) == pytest.approx(-1, abs=1e-6)
    estimate, distance = invert(observation, image.shape, 300, rng())
    assert distance < 1e-3
    ((_, scores),) = score(estimate, image, distance)
    assert scores["correlation"] > 0.97 and scores["misfit"] == distance


def test_a_signed_observation_compares_the_signs_of_the_gradient():
    image = disc()[..., ::4, ::4]
    exact = linear_observation(image)
    signed = Observation(exact.loss, exact.parameters, [change.sign() for change in exact.change], signed=True)
    assert float(signed.distance(image)) < 0.1 < float(signed.distance(1 - image))


def test_the_attack_reconstructs_an_image_from_a_favourable_network_but_not_from_the_gradient_of_another():
    image, other = disc(3)[:1, :, ::2, ::2], disc(3)[2:, :, ::2, ::2]
    estimate, _ = invert(favourable_observation(image, 0), image.shape, 150, rng())
    control, _ = invert(favourable_observation(other, 0), image.shape, 150, rng())
    assert score(estimate, image, 0.0)[0][1]["detail_correlation"] > 0.8
    assert abs(score(control, image, 0.0)[0][1]["detail_correlation"]) < 0.25


def test_reconstructed_images_are_compared_with_the_original_that_they_show():
    images = disc(4)[1::2]
    aligned, scores = zip(*score(images.flip(0), images, 0.0))
    assert [each["detail_correlation"] for each in scores] == [pytest.approx(1, abs=1e-5)] * 2
    assert [each["ssim"] for each in scores] == [pytest.approx(1, abs=1e-4)] * 2
    torch.testing.assert_close(torch.stack(aligned), images[:, 0])
    darker = score(0.2 + 0.5 * images, images, 0.0)[0][1]  # brightness and contrast do not matter
    assert darker["ssim"] == pytest.approx(1, abs=1e-3) and darker["correlation"] == pytest.approx(1, abs=1e-5)


def test_one_step_of_sgd_reveals_the_gradient_of_the_loss(site):
    """The change of the weights is 1 times the gradient, so its distance from the gradient of the same image is 0."""
    weights = {name: entry.clone() for name, entry in site.network.state_dict().items()}
    images = small_images(site.training, [0])
    trained = one_step_site(site, images)
    update = update_of(trained, weights)
    assert update.facts["steps"] == 1 and images.all.image.shape == (1, 1, SIDE, SIDE)
    observation = observe(trained, weights, update, images)
    assert float(observation.distance(images.all.image)) < 1e-4 < float(observation.distance(1 - images.all.image))
    assert all(torch.equal(weights[name], entry) for name, entry in site.network.state_dict().items())
    assert site.memory == {}


def test_the_round_of_the_plan_has_its_optimiser_steps_and_noise(site):
    site.settings, site.privacy = Training(batch_size=4, learning_rate=0.01), Privacy(clip=0.1)
    weights = site.network.state_dict()
    trained = plan_site(site, small_images(site.training, range(10)))
    update = update_of(trained, weights)
    change = torch.cat([(weights[name] - entry).flatten() for name, entry in update.weights.items()])
    assert update.facts["steps"] == 3 and float(change.norm()) == pytest.approx(0.1, rel=1e-4)
    assert observe(trained, weights, update, small_images(site.training, [0])).signed


def test_the_negative_control_contains_no_image_of_an_attacked_patient():
    samples = disc_slices("north", 10)  # five patients with two images each
    chosen = Chosen.of_site(samples)
    images = small_images(samples, range(10)).all.image

    def patients(of) -> set[int]:
        return {int((images == image).flatten(1).all(1).nonzero()[0]) // 2 for image in of.all.image}

    attacked = patients(chosen.targets)
    assert len(chosen.targets) == len(chosen.others) == 4 and len(attacked) == 2
    assert not attacked & patients(chosen.others) and not attacked & patients(chosen.round_without)
    assert patients(chosen.round_with) == set(range(5)) and patients(chosen.round_without) == set(range(5)) - attacked
    single = Chosen.of_site(disc_slices("north", 2))
    assert single.others is None and single.round_without is None and len(single.targets) == 2


def test_all_cases_are_attacked_and_the_same_seed_gives_the_same_result(monkeypatch):
    monkeypatch.setattr("medfed.auditing.updates.SIDE", 16)
    monkeypatch.setattr("medfed.auditing.updates.EASY_STEPS", 2)
    site = ToySegmentation(n_images=4).engine(FedAvg()).local_sites[0]
    weights = site.network.state_dict()
    cases, again = attack_updates(site, weights, 2), attack_updates(site, weights, 2)
    assert [facts["case"] for facts, _ in cases] == ["easy", "one", "batch", "round"]
    assert [facts["n_images"] for facts, _ in cases] == [1, 1, 2, 4]
    assert [facts for facts, _ in cases] == [facts for facts, _ in again]


@pytest.mark.parametrize(
    ("easy", "control", "one", "batch", "sentence"),
    [
        (0.9, 0.0, 0.8, 0.7, "image details were reconstructed"),
        (0.9, 0.0, 0.8, 0.3, "some image details were reconstructed"),
        (0.9, 0.0, 0.8, 0.05, "does not prove that no attack can succeed"),
        (0.9, 0.0, 0.05, 0.05, "this case says nothing"),
        (0.3, 0.0, 0.05, 0.05, "the attack is too weak here to say anything"),
        (0.9, 0.8, 0.9, 0.9, "the attack is too weak here to say anything"),
    ],
)
def test_a_failed_attack_is_never_called_safe(easy, control, one, batch, sentence):
    """A control that is not at chance makes every result worthless."""
    said = verdict("batch", {"easy": (easy, control), "one": (one, 0.0), "batch": (batch, 0.0)})
    assert sentence in said and "safe" not in said
