"""Configs that no machine can run are refused before anything is built; all shipped configs are accepted."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from conftest import small_yaml
from torch import nn

from medfed.config.schema import load_text
from medfed.core.errors import UserError
from medfed.core.registry import known_names, resolve, shipped_configs
from medfed.experiments import setup
from medfed.experiments.setup import check_memory, estimate_needs
from medfed.networks.parts.memory import MemoryNeeds, SizeLimit, estimate_memory

UNET = {"channels": (4, 8, 16), "strides": (2, 2)}
GB = 10**9


def task_of(config, channels=1, out_channels=1):
    size = config.data.patch_size or (config.data.image_size,) * 2
    return SimpleNamespace(channels=channels, out_channels=out_channels, input_size=size)


def config(*overrides: str):
    return load_text(small_yaml("data").replace("medfed.testing.small_unet.SmallUNet", "unet"), "a.yaml", overrides)


def test_the_estimate_of_two_convolutions_by_hand():
    """27 + 3 and 75 + 1 parameters; feature maps of 3 and 1 channels with 8 x 8 and 8 x 8 pixels."""

    def build():
        return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 1, 5, padding=2))

    assert estimate_memory(build, 1, (8, 8)) == MemoryNeeds(16 * (30 + 76), 4 * (3 + 1) * 64)


@pytest.mark.parametrize("name", [name for name in known_names("networks") if name != "bundle"])  # it reads a folder
def test_every_network_is_estimated_and_fits_and_no_random_number_is_drawn(name):
    arguments = {"architecture": "UNet", "arguments": UNET} if name == "monai_network" else {}
    network, state = resolve("networks", name)(**arguments), torch.get_rng_state()
    needs = estimate_memory(lambda: network.build(3, 2), 3, (96, 96))
    assert needs is not None and 1e4 < needs.parameters < 1e10 and 0 < needs.per_image < GB
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_of_limited_size_has_the_same_weights_and_all_its_values_are_counted():
    networks = []
    for limit in (nullcontext(), SizeLimit(30 + 2 * 76)):
        torch.manual_seed(0)
        with limit:
            networks.append(nn.Sequential(nn.Conv2d(1, 3, 3), *(nn.Conv2d(3, 1, 5) for _ in range(2))))
    first, second = (network.state_dict() for network in networks)
    assert all(torch.equal(first[name], second[name]) for name in first) and limit.n_values == 30 + 2 * 76


@pytest.mark.parametrize(
    "create",
    [
        lambda: nn.Linear(10**7, 10**7),
        lambda: torch.zeros(10**5, 10**5, 10**3),
        lambda: torch.randn(10**13, generator=torch.Generator()),
        lambda: nn.Conv2d(1, 1, 9),
    ],
)
def test_a_network_of_limited_size_is_refused_before_it_takes_memory(create):
    with pytest.raises(ValueError, match="the network has more than 80 values"), SizeLimit(80):
        create()
    with pytest.raises(ValueError, match="the network has more than 5,000 tensors"), SizeLimit(10**6):
        nn.ModuleList(nn.PReLU() for _ in range(10**9))


@pytest.mark.parametrize(
    "override",
    [f"network.features={[10**9, 1, 1, 1, 1, 1]}", f"network.features={[16000] * 6}", "data.image_size=4096"],
)
def test_what_does_not_fit_into_the_memory_is_one_sentence(monkeypatch, override):
    monkeypatch.setattr(setup, "available_memory_bytes", lambda: 8 * GB)
    wrong = config(override)
    with pytest.raises(UserError, match="^a.yaml: .* with 1 images in a batch needs .* but 8.0 GB .* smaller network"):
        check_memory(wrong, estimate_needs(wrong, task_of(wrong)), 1)


def test_a_batch_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(setup, "available_memory_bytes", lambda: 8 * GB)
    wrong, needs = config("training.batch_size=100"), MemoryNeeds(1 * GB, 0.1 * GB)
    with pytest.raises(UserError, match="is 100; .* 90 images in a batch needs .* 10.0 GB, but 8.0 GB .* at most 70"):
        check_memory(wrong, needs, 90)
    check_memory(wrong, needs, 70)
    check_memory(wrong, None, 90)


YEARS = (
    "data.image_size=16384 training.batch_size=1000000000 training.threads=1000000 federation.clients=1000000000 "
    "federation.rounds=1000000000000 federation.local_epochs=1000000000"
)


@pytest.mark.parametrize("override", YEARS.split())
def test_numbers_that_would_take_years_are_refused_by_their_key(override):
    key, _, value = override.partition("=")
    with pytest.raises(UserError, match=rf"^--set {override}: {key}: expected a number of at (least|most) \d+, got"):
        config(override)


@pytest.mark.parametrize("name", shipped_configs())
def test_every_shipped_config_is_accepted_with_four_gigabytes(name, monkeypatch):
    monkeypatch.setattr(setup, "available_memory_bytes", lambda: 4 * GB)
    shipped = load_text(shipped_configs()[name].read_text(encoding="utf-8"), name)
    task = task_of(shipped, 3, 7)
    needs = estimate_needs(shipped, task)
    check_memory(shipped, needs, 1)
    assert needs is not None
