"""`check_method` accepts a correct method and rejects broken ones, each with a sentence that names the broken rule."""

import random
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

import medfed
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.sent import Sent
from medfed.functional.weights import squared_distance
from medfed.networks.densenet import DenseNetwork
from medfed.networks.resnet import ResidualNetwork
from medfed.testing import ContractError, ToyClassification, check_method, method_checks
from medfed.testing.rules import RULES

ONE_TASK = {"tasks": ["segmentation"]}
MEAN_IS_SENT = {"mean": Sent("mean brightness", "Which scanner the site has.")}


@dataclass(frozen=True)
class Proximal(Method):
    """A correct method, written outside the package."""

    mu: float = 0.01

    def regulariser(self, local, output):
        return self.mu / 2 * squared_distance(local.trainable(), local.start_weights)


@dataclass(frozen=True)
class GlobalNoise(Method):
    """Draws from PyTorch's global generator at the coordinator."""

    def aggregate(self, state, updates):
        return {
            k: v + 0.01 * torch.rand(1) if v.is_floating_point() else v
            for k, v in super().aggregate(state, updates).items()
        }


@dataclass(frozen=True)
class MatchesTheBatch(Method):
    """Gives each test image the mean of its batch, so that its prediction depends on other test images."""

    @property
    def match_kinds(self):
        return frozenset({"style"})

    def matcher(self, state, kind, ratio):
        return lambda images: images - images.mean(dim=(1, 2, 3), keepdim=True) + images.mean()


@dataclass(frozen=True)
class Renames(Method):
    """Puts the network into a module of its own, which renames every entry."""

    def wrap_network(self, network, architecture):
        return nn.Sequential(network)


@dataclass(frozen=True)
class InPlace(Method):
    """Brightens the site's images in place."""

    def augment(self, local, batch):
        local.training.images.add_(0.01)
        return batch


@dataclass(frozen=True)
class UndeclaredFact(Method):
    """Reports a fact that a hospital would not send."""

    def on_round_end(self, local):
        local.facts["n_bright"] = 3.0
        return {}


@dataclass(frozen=True)
class CountsImages(Method):
    """Says that a statistic is of more patients than the site has: it counts the images."""

    sent = MEAN_IS_SENT

    def share(self, site, network):
        site.n_patients["mean"] = len(site.samples)
        return {"mean": torch.ones(1)}


@dataclass(frozen=True)
class DividesByTheMask(Method):
    """Divides by the number of foreground pixels, which is 0 for an empty mask."""

    def loss(self, local, batch):
        loss, output = super().loss(local, batch)
        return loss / batch.label.sum(), output


@dataclass(frozen=True)
class SendsAnImage(Method):
    """Sends its first training image, and says so nowhere."""

    def on_round_end(self, local):
        return {"x": local.training.batch(range(1)).image[0]}


@dataclass(frozen=True)
class Doubles(Method):
    """Sends float64 tensors."""

    def on_round_end(self, local):
        return {"mean": torch.zeros(1, dtype=torch.float64)}


LAST_WEIGHTS: dict = {}
STATISTICS: dict = {}


@dataclass(frozen=True)
class KeepsOutsideIfSeveral(Method):
    """Keeps the weights of round 1 in a global variable, but only if several sites have sent updates."""

    def aggregate(self, state, updates):
        weights = super().aggregate(state, updates)
        if len(updates) >= 2:
            if state.round > 0:
                weights = {k: (v + LAST_WEIGHTS[k]) / 2 if v.is_floating_point() else v for k, v in weights.items()}
            LAST_WEIGHTS.update(weights)
        return weights


@dataclass(frozen=True)
class KeepsStatisticsOutside(Method):
    """Keeps the mean brightness of all sites' images in a global variable, and shrinks the weights of round 2 by it."""

    sent = MEAN_IS_SENT

    def share(self, site, network):
        return {"mean": site.samples.batch(range(len(site.samples))).image.mean()[None]}

    def combine(self, state, shared, rng):
        STATISTICS["mean"] = torch.stack([shared[site]["mean"] for site in sorted(shared)]).mean()
        return {}

    def aggregate(self, state, updates):
        scale = STATISTICS["mean"] if state.round > 0 else 1.0
        weights = super().aggregate(state, updates)
        return {k: v * scale if v.is_floating_point() else v for k, v in weights.items()}


@dataclass(frozen=True)
class SharesAWeight(Method):
    """Shares a weight, and says that it reads none."""

    share_reads_network = False
    sent = MEAN_IS_SENT

    def share(self, site, network):
        return {"mean": next(network.parameters()).detach().flatten()[:1].clone()}


@dataclass(frozen=True)
class SharesNever(Method):
    """Asks for statistics before every round, but says so with a word that does not exist."""

    @property
    def shares(self):
        return "always"


@dataclass(frozen=True)
class RemembersItsFirstWeights(Method):
    """Keeps the weights of its first round on the method object, and never changes them again."""

    def aggregate(self, state, updates):
        if "first" not in vars(self):
            object.__setattr__(self, "first", state.weights)
        return super().aggregate(state, updates)


@dataclass(frozen=True)
class NeedsASetting(Method):
    """Has a setting without a default value."""

    mu: float


class NotFrozen(Method):
    """Is no dataclass of its own."""


class NotAMethod:
    """Does not inherit from Method."""


@dataclass(frozen=True)
class BadPreset(Method):
    """Has a preset with a setting that does not exist."""

    presets = {"medfed": {}, "paper": {"mu": 1.0}}


@dataclass(frozen=True)
class MisspeltHook(Method):
    def regularizer(self, local, output):
        return 0.0


@dataclass(frozen=True)
class NoDefaultPreset(Method):
    presets: ClassVar[dict] = {"paper": {}}


@dataclass(frozen=True)
class RandomStart(Method):
    def wrap_network(self, network, architecture):
        network.register_buffer("extra", torch.tensor([random.random()]))
        return network


@dataclass(frozen=True)
class MemoryOfNumbers(Method):
    def on_round_end(self, local):
        local.memory["n"] = local.memory.get("n", 0) + 1
        return {}


@dataclass(frozen=True)
class DarkensTheBatch(Method):
    def augment(self, local, batch):
        batch.image.mul_(0.9)
        return batch


@dataclass(frozen=True)
class HalvesTheUpdates(Method):
    def remember(self, state, updates, rng):
        for update in updates.values():
            for entry in update.weights.values():
                entry.mul_(0.5) if entry.is_floating_point() else None
        return state.memory


@dataclass(frozen=True)
class TrainsTwice(Method):
    """Trains on every image twice in an epoch, and does not declare it."""

    def expand(self, local, samples, rng):
        class Twice:
            n_patients = samples.n_patients

            def __len__(self):
                return 2 * len(samples)

            def batch(self, indices):
                return samples.batch([index // 2 for index in indices])

        return Twice()


@dataclass(frozen=True)
class WithTable(Method):
    """Keeps a value that depends on the settings only."""

    mu: float = 0.01

    @cached_property
    def table(self):
        return [self.mu] * 3

    def regulariser(self, local, output):
        return self.table[0] * output.logits.mean()


@dataclass(frozen=True, slots=True)
class WithSlots(Method):
    mu: float = 0.01

    def regulariser(self, local, output):
        return self.mu * output.logits.mean()


@dataclass(frozen=True)
class WrongShape(Method):
    """Returns weights of another type."""

    def aggregate(self, state, updates):
        return {name: entry.double() for name, entry in super().aggregate(state, updates).items()}


def test_a_correct_method_passes():
    check_method(Proximal, **ONE_TASK)


@pytest.mark.parametrize("method", [WithTable, WithSlots])
def test_a_cached_property_and_slots_are_no_state(method):
    for name, check in method_checks(method, **ONE_TASK):
        if name in ("settings", "unchanged-segmentation"):
            check()


def test_the_toy_images_fit_the_network():
    checks = dict(method_checks(medfed.methods.FedAvg, network=ResidualNetwork(depth=10, width=4)))
    checks["small_federation-classification"]()
    assert ToyClassification(image_side=64).samples("north", side=64).images.shape == (10, 3, 64, 64)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"tasks": []}, r"tasks must be some of segmentation, classification, volumes, got \[\]"),
        ({"tasks": ["detection"]}, r"tasks must be some of segmentation, classification, volumes, got \['detection'\]"),
        ({"tasks": "masks"}, r"tasks must be some of segmentation, classification, volumes, got \['masks'\]"),
        ({"network": 5}, "network must be a name such as 'unet' or the settings of a network, got 5"),
        ({"network": "bundle"}, "network: Bundle needs settings .*; pass an object with them"),
        ({"network": "unet", "tasks": ["classification"]}, "but UNet is a network for segmentation"),
        ({"network": DenseNetwork(blocks=(1,) * 8)}, "network: no image side of 32, 64, 128, 256 pixels fits: "),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_method(Proximal, **arguments)


@pytest.mark.parametrize(
    "method, sentence",
    [
        (NotAMethod, "settings: the class must inherit from medfed.federation.method.Method"),
        (NotFrozen, r"settings: the class must be a frozen dataclass: put @dataclass\(frozen=True\) above it"),
        (NeedsASetting, "settings: every setting needs a default value .*'mu'"),
        (BadPreset, "settings: the preset 'paper' does not fit the settings .*'mu'"),
        (MisspeltHook, "settings: `regularizer` is not a hook of Method, .*did you mean `regulariser`"),
        (NoDefaultPreset, "settings: `presets` must contain 'medfed'"),
        (RandomStart, "wrap_network-segmentation: the same seed gives other initial weights"),
        (MemoryOfNumbers, "messages-segmentation: "),
        (Renames, "wrap_network-segmentation: `wrap_network` renames, removes or reshapes entries of the network: "),
        (SendsAnImage, "messages-segmentation: `sent` lacks what leaves a site: x; describe"),
        (Doubles, "messages-segmentation: a message holds tensors of another type than .*: mean is float64"),
        (WrongShape, "messages-segmentation: the method raised ValueError: .* torch.float64, expected .*torch.float32"),
        (GlobalNoise, "order_of_sites-segmentation: two runs with the same seed, .*: draw random numbers from"),
        (SharesNever, "sharing-segmentation: `shares` is 'always'; expected NEVER, ONCE or EVERY_ROUND"),
        (SharesAWeight, "sharing-segmentation: `share_reads_network` is False, but `share` returns other statistics"),
        (KeepsOutsideIfSeveral, "restart-segmentation: a run that is continued after round 1 gives other weights"),
        (KeepsStatisticsOutside, "restart-segmentation: a run that is continued after round 1 gives other weights"),
        (RemembersItsFirstWeights, "unchanged-segmentation: the method object changed while it trained"),
        (InPlace, "unchanged-segmentation: training changed the site's images in place"),
        (DarkensTheBatch, "unchanged-segmentation: `augment` changes image in place: compute a new tensor"),
        (HalvesTheUpdates, "unchanged-segmentation: `remember` changes north.weights.conv_0.conv.weight in place: "),
        (
            UndeclaredFact,
            "messages-segmentation: .*: its update of round 1 reports 'n_bright', which is not in the fact_names",
        ),
        (CountsImages, "sharing-segmentation: `n_patients` must be from 1 to the site's [0-9]+ patients: mean"),
        (
            TrainsTwice,
            "effort-segmentation: a site takes 2 times the optimiser steps of FedAvg, but `effort` declares 1",
        ),
        (MatchesTheBatch, "matching-segmentation: the function of `matcher` for 'style' "),
        (DividesByTheMask, "equal_labels-segmentation: "),
    ],
)
def test_a_broken_method_is_rejected_with_the_broken_rule(method, sentence):
    assert issubclass(ContractError, AssertionError)
    with pytest.raises(ContractError, match=f"^{method.__name__}: {sentence}"):
        check_method(method, **ONE_TASK)


def test_an_error_inside_a_method_names_the_method_the_check_and_the_error():
    with pytest.raises(ContractError, match="^stable_fdg|StableFDG: .*-segmentation: the method raised UserError: "):
        check_method(medfed.methods.StableFDG, **ONE_TASK)


def test_checks_are_listed_for_each_task_alone_and_in_a_stack():
    names = [name for name, _ in method_checks(Proximal)]
    assert names[0] == "settings" and len(names) == len(set(names)) == 1 + 2 * 2 * 10
    assert {"restart-segmentation", "restart-classification-stack", "equal_labels-segmentation"} <= set(names)
    assert list(dict(method_checks(Proximal, tasks="segmentation"))) == list(dict(method_checks(Proximal, **ONE_TASK)))
    of_network = [name for name, _ in method_checks(Proximal, network="densenet")]
    assert all("classification" in name for name in of_network[1:])


def test_a_memory_in_another_order_after_a_restart_is_named_as_such():
    names = ["a", "b", "c"]
    states = [State(2, {}, {name: torch.ones(1) for name in order}) for order in (names, names[::-1])]
    rounds, restored = ([None, SimpleNamespace(state=state)] for state in states)
    with pytest.raises(ContractError, match=r"another order after a restart: .* `sorted\(state.parameters\)`"):
        RULES["restart"](SimpleNamespace(rounds=rounds, interrupted_rounds=restored))
    RULES["restart"](SimpleNamespace(rounds=rounds, interrupted_rounds=rounds))
