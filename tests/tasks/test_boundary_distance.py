"""The distance between boundary and background features: its value, and which messages contain it."""

import math
from dataclasses import replace

import pytest
import torch

from medfed.federation.message import Message
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.functional.regions import background_ring, boundary
from medfed.tasks.boundary_distance import boundary_distance
from medfed.tasks.evaluation import Evaluation
from medfed.testing.toy import ToySegmentation


def square(n=1, size=32):
    mask = torch.zeros(n, 1, size, size, dtype=torch.uint8)
    mask[:, :, 10:20, 12:22] = 1
    return mask


def features(angle):
    """(1, 2, 32, 32): unit vectors along the first axis on the rim, rotated by `angle` on the ring, 9 elsewhere."""
    rim, ring = boundary(square())[:, 0].bool(), background_ring(square(), 2)[:, 0].bool()
    vectors = torch.full((1, 2, 32, 32), 9.0, dtype=torch.float64)
    for region, rotation in ((rim, 0.0), (ring, angle)):
        for channel, value in enumerate((math.cos(rotation), math.sin(rotation))):
            vectors[:, channel][region] = value
    return vectors


@pytest.mark.parametrize("angle", [0.0, 0.4, math.pi / 2, math.pi])
def test_it_is_one_minus_the_cosine_between_the_two_regions(angle):
    distances = boundary_distance([features(angle)], square())
    assert distances.tolist() == pytest.approx([1 - math.cos(angle)], abs=1e-9)


def test_scale_does_not_matter_and_levels_are_concatenated():
    """Two levels of equal length, one orthogonal and one parallel: the cosine is the mean of 0 and 1."""
    levels = [features(math.pi / 2), features(0.0)]
    assert boundary_distance(levels, square()).tolist() == pytest.approx([0.5])
    assert boundary_distance([7 * level for level in levels], square()).tolist() == pytest.approx([0.5])


def test_images_without_an_outline_are_left_out_and_coarse_levels_are_interpolated_to_the_mask():
    mask = square(3)
    mask[1] = 0
    mask[2] = 1  # no background
    assert len(boundary_distance([features(1.0).expand(3, -1, -1, -1)], mask)) == 1
    assert boundary_distance([torch.rand(1, 4, 8, 8)], square()).shape == (1,)


@pytest.fixture
def measuring():
    toy = ToySegmentation()
    toy.task = replace(toy.task, evaluation=Evaluation(boundary_distance=True))
    return toy


def last(toy, method, rounds=2):
    return list(federate(method, toy.engine(method), toy.start(method), Federation(rounds=rounds), 0))[-1]


def test_sites_send_it_with_their_validation_score_and_the_ledger_shows_it(measuring, fedavg):
    done = last(measuring, fedavg)
    by_site = [done.history[f"boundary_distance/{site}"] for site in ("north", "south", "west")]
    assert done.history["boundary_distance"] == pytest.approx(sum(by_site) / 3) and min(by_site) > 0
    ledger_rows = [row for row in done.ledger if "boundary_distance" in row["name"]]
    assert [(row["site"], row["direction"], row["kind"]) for row in ledger_rows] == [
        (site, "up", "validate") for site in ("north", "south", "west")
    ]


def test_it_is_measured_only_if_the_config_asks_for_it_and_not_with_empty_masks(measuring, toy, fedavg):
    """Measuring it changes no weight and no score."""
    measured, plain = last(measuring, fedavg), last(toy, fedavg)
    assert not [name for name in plain.history if "boundary" in name]
    assert {row["name"] for row in plain.ledger if row["kind"] == "validate" and row["direction"] == "up"} == {"score"}
    assert measured.state.to_bytes() == plain.state.to_bytes()
    assert measured.history["validation_score"] == plain.history["validation_score"]
    site = measuring.engine(fedavg).local_sites[0]
    site.validation = replace(site.validation, labels=torch.zeros_like(site.validation.labels))
    reply = site.reply(Message("validate", measuring.start(fedavg).weights, {}, {"round": 1}))
    assert reply.facts.keys() == {"score"}
