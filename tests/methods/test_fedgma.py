import pytest
import torch

from medfed.federation.message import Message, State
from medfed.methods.fedgma import FedGMA

START = State(0, {"w": torch.zeros(2), "local": torch.ones(1)}, parameters=frozenset({"w"}))


def updates(*rows, examples=(1, 1, 2)):
    return {
        name: Message("train", {"w": torch.tensor(row)}, {}, {"examples": n})
        for name, row, n in zip("abc", rows, examples)
    }


def test_changes_are_weighted_by_images_and_votes_are_not():
    """With 1, 1 and 2 images the mean changes are 4 and (4 + 4 - 16) / 4 = -2; two votes against one give a third."""
    actual = FedGMA().aggregate(START, updates([4.0, 4.0], [4.0, 4.0], [4.0, -8.0]))
    assert actual["w"].tolist() == pytest.approx([4, -2 / 3])
    by_images = FedGMA(votes="examples").aggregate(START, updates([4.0, 4.0], [4.0, 4.0], [4.0, -8.0]))
    assert by_images["w"].tolist() == pytest.approx([4, 0]), "two images for and two against the change"


def test_entries_that_stay_at_the_sites_are_not_aggregated():
    assert set(FedGMA().aggregate(START, updates([1.0, 1.0], [1.0, 1.0], [1.0, 1.0]))) == {"w"}


def test_with_three_sites_all_values_of_tau_above_a_third_are_equal():
    """If all three sites change the weight. If one does not, the agreement is 2/3, and tau matters."""
    ends = updates(*torch.randn(3, 200, generator=torch.Generator().manual_seed(0)).tolist())
    start = State(0, {"w": torch.zeros(200)}, parameters=frozenset({"w"}))
    low, high, off = (FedGMA(tau=tau).aggregate(start, ends)["w"] for tau in (0.34, 1.0, 0.33))
    assert torch.equal(low, high) and not torch.equal(low, off)
    still = updates([1.0, 1.0], [1.0, 1.0], [0.0, 1.0])
    low, high = (FedGMA(tau=tau).aggregate(START, still)["w"] for tau in (0.34, 0.9))
    assert low.tolist() == pytest.approx([0.5, 1]) and high.tolist() == pytest.approx([1 / 3, 1])
