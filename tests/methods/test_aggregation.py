import pytest
import torch

from medfed.methods.fedgma import gradient_masked_average, sign_agreement
from medfed.methods.fednova import normalized_average

COUNTER = "n.num_batches_tracked"
START = {"w": torch.zeros(4), "n.running_mean": torch.tensor([5.0]), COUNTER: torch.tensor(2)}
THIRDS = torch.full((3,), 1 / 3, dtype=torch.float64)
UNIFORM = torch.ones(3, dtype=torch.float64)
PARAMETERS = {"w"}


def ends(*rows, means=(0.0, 3.0, 9.0)):
    return [
        {"w": torch.tensor(row), "n.running_mean": torch.tensor([mean]), "n.num_batches_tracked": torch.tensor(4 + i)}
        for i, (row, mean) in enumerate(zip(rows, means))
    ]


THREE = ends([3.0, 3.0, 1.0, 0.0], [6.0, 6.0, 0.0, 0.0], [9.0, -3.0, -1.0, 0.0])


def test_agreement_of_three_sites_is_one_a_third_or_zero():
    result = sign_agreement([end["w"] for end in THREE], UNIFORM)
    assert result.tolist() == pytest.approx([1, 1 / 3, 0, 0]) and result.dtype == torch.float64


def test_votes_weight_the_signs():
    """2 and 1 against 5: |2 + 1 - 5| / 8 = 1/4."""
    result = sign_agreement(
        [torch.tensor([1.0]), torch.tensor([0.1]), torch.tensor([-9.0])], torch.tensor([2.0, 1.0, 5.0])
    )
    assert result.tolist() == [0.25]


def test_one_of_three_opposite_signs_masks_two_thirds_of_the_change():
    """Means of the changes: 6, 2, 0, 0; masks 1, 1/3, 0, 0."""
    result = gradient_masked_average(START, THREE, THIRDS, UNIFORM, PARAMETERS, 0.4)
    assert result["w"].tolist() == pytest.approx([6, 2 / 3, 0, 0])
    low = gradient_masked_average(START, THREE, THIRDS, UNIFORM, PARAMETERS, 0.3)
    assert low["w"].tolist() == pytest.approx([6, 2, 0, 0]), "1/3 >= 0.3"
    half = gradient_masked_average(START, THREE, THIRDS, UNIFORM, PARAMETERS, 0.4, step=0.5)
    assert half["w"].tolist() == pytest.approx([3, 1 / 3, 0, 0])


def test_agreement_equal_to_the_threshold_is_not_masked():
    """A third against a third; and none against none, so that a threshold of 0 is the average there too."""
    assert gradient_masked_average(START, THREE, THIRDS, UNIFORM, PARAMETERS, 1 / 3)["w"][1].item() == pytest.approx(2)
    start, half = {"w": torch.tensor([1.0])}, torch.tensor([0.5, 0.5], dtype=torch.float64)
    opposite = [{"w": torch.tensor([4.0])}, {"w": torch.tensor([0.5])}]
    for threshold, expected in ((0.0, 2.25), (0.4, 1.0)):  # the average, or no change at all
        result = gradient_masked_average(start, opposite, half, torch.ones(2), PARAMETERS, threshold)
        assert result["w"] == expected


@pytest.mark.parametrize(
    "combine",
    [
        lambda shares: gradient_masked_average(START, THREE, shares, UNIFORM, PARAMETERS, 1.0),
        lambda shares: normalized_average(START, THREE, shares, torch.tensor([1.0, 2.0, 4.0]), PARAMETERS),
    ],
    ids=["masked", "rescaled"],
)
def test_statistics_are_averaged_and_counters_stay_integers(combine):
    result = combine(THIRDS)
    assert result["n.running_mean"].item() == pytest.approx(4) and result["n.num_batches_tracked"].item() == 6


def test_normalised_average_by_hand():
    """Two sites of equal share: 8 in 4 steps and 2 in 1 step is 2 a step each; the mean length is 2.5, so 5."""
    start = {"w": torch.tensor([1.0])}
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    moved = [{"w": torch.tensor([9.0])}, {"w": torch.tensor([3.0])}]
    result = normalized_average(start, moved, half, torch.tensor([4.0, 1.0], dtype=torch.float64), PARAMETERS)
    assert result["w"].item() == pytest.approx(1 + 2.5 * 2)
    other = normalized_average(
        start, moved, torch.tensor([0.25, 0.75], dtype=torch.float64), torch.tensor([1.0, 2.0]), PARAMETERS
    )
    assert other["w"].item() == pytest.approx(1 + 1.75 * (0.25 * 8 + 0.75 * 1)), "L = 0.25 + 1.5"
