import pytest
import torch
from torch import nn

from medfed.experiments.unseen_batch_norm import first_norm_input, gaussian_distance


def network() -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)
    return nn.Sequential(*parts).double().eval()


def test_the_moments_are_those_of_the_first_norm_input_for_any_batch_size():
    one, images = network(), torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    path, mean, variance = first_norm_input(one, images.split(2))
    features = one[0](images).detach()
    assert path == "1" and torch.allclose(mean, features.mean(dim=(0, 2, 3)))
    assert torch.allclose(variance, features.var(dim=(0, 2, 3), unbiased=False))


def test_no_batch_norm_entry_changes_the_moments_and_the_network_stays_as_it_is():
    one, other = network(), network()
    with torch.no_grad():
        for norm in (other[1], other[4]):
            norm.running_mean += 5
            norm.weight *= 3
    images = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    before = {name: entry.clone() for name, entry in other.state_dict().items()}
    for result, expected in zip(first_norm_input(other, [images])[1:], first_norm_input(one, [images])[1:]):
        assert torch.equal(result, expected)
    assert all(torch.equal(entry, before[name]) for name, entry in other.state_dict().items())
    assert other(images).shape == (4, 2, 4, 4), "no hook is left"


def test_the_first_norm_is_the_one_that_runs_first():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.BatchNorm2d(1), nn.BatchNorm2d(1)

        def forward(self, image):
            return self.a(self.b(image))

    assert first_norm_input(Turned().eval(), [torch.rand(2, 1, 4, 4)])[0] == "b"


def test_a_network_without_batch_norm_and_an_empty_batch_are_refused():
    for one, batches in ((nn.Conv2d(1, 1, 1), [torch.rand(1, 1, 2, 2)]), (network(), [])):
        with pytest.raises(ValueError, match="the network ran no BatchNorm"):
            first_norm_input(one, batches)


def test_the_distance_equals_a_value_computed_by_hand():
    """Means 1 apart, deviations 3 and 2: (1 + 1) / 4; an equal channel adds 0: the mean is 1/4."""
    one = torch.tensor([1.0, 7.0]), torch.tensor([9.0, 2.0])
    other = torch.tensor([2.0, 7.0]), torch.tensor([4.0, 2.0])
    assert gaussian_distance(*one, *other) == pytest.approx(0.25) and gaussian_distance(*one, *one) == 0
    zero = torch.zeros(1)
    assert gaussian_distance(zero, zero, zero, zero) == 0
    assert gaussian_distance(zero + 1, zero, zero, zero) == float("inf")
