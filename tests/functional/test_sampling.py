"""Samples that balance a batch, partners of a class, and the distribution of mixing ratios."""

import pytest
import torch

from medfed.functional.sampling import draw_mixing_partners, draw_other_class, draw_oversampled, draw_same_class

LABELS = torch.tensor([7, 7, 2, 7, 2, 0])  # 3, 2 and 1 of classes 7, 2 and 0


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("n", "counts"),
    [
        (0, [[1, 2, 3]]),
        (1, [[2, 2, 3]]),
        (3, [[3, 3, 3]]),
        (6, [[4, 4, 4]]),
        (2, [[2, 3, 3], [3, 2, 3]]),
        (4, [[3, 3, 4], [3, 4, 3], [4, 3, 3]]),
    ],
)
def test_class_counts_three_two_one_are_balanced(n, counts):
    """The paper's example. With 2 and with 4 added samples there is a tie, and each outcome occurs."""
    seen = []
    for seed in range(30):
        added = draw_oversampled(LABELS, n, generator(seed))
        assert added.dtype == torch.int64 and len(added) == n
        seen.append(torch.cat([LABELS, LABELS[added]]).unique(return_counts=True)[1].tolist())
    assert sorted(map(list, set(map(tuple, seen)))) == counts


def test_no_sample_is_added_twice_before_all_of_its_class_were_added():
    """Class 1 has 3 samples and 3 are to be added, all of them; 2 more of each class are any 2."""
    labels = torch.tensor([0] * 6 + [1] * 3)
    for seed in range(20):
        added = draw_oversampled(labels, 3, generator(seed))
        assert sorted(added.tolist()) == [6, 7, 8]
        times = draw_oversampled(labels, 3 + 2 * 8, generator(seed)).bincount(minlength=9)
        assert times[:6].sum() == 8 and times[6:].sum() == 11
        assert set(times[:6].tolist()) == {1, 2} and set(times[6:].tolist()) == {3, 4}


def test_samples_of_a_class_are_equally_likely():
    """One more of class 0 or 1, equally rare: each of the four samples in a quarter of the draws."""
    draws = torch.cat([draw_oversampled(torch.tensor([0, 1, 0, 1]), 1, generator(seed)) for seed in range(800)])
    assert (draws.bincount(minlength=4) / 800 - 0.25).abs().max() < 4 * (0.25 * 0.75 / 800) ** 0.5


def test_the_given_generator_determines_the_draws():
    assert torch.equal(draw_oversampled(LABELS, 20, generator(3)), draw_oversampled(LABELS, 20, generator(3)))
    for one, other in zip(
        draw_mixing_partners(9, 0.1, generator(3)), draw_mixing_partners(9, 0.1, generator(3)), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("concentration", [0.1, 0.5, 1.0, 4.0])
def test_ratios_have_the_moments_of_beta(concentration):
    """Beta(c, c): mean 1/2, variance v = 1 / (8c + 4), kurtosis 3 - 6 / (2c + 3); four standard errors of each.

    The standard error of a variance over n draws is v sqrt((kurtosis - 1) / n).
    """
    n, variance, kurtosis = 20_000, 1 / (8 * concentration + 4), 3 - 6 / (2 * concentration + 3)
    ratio, _ = draw_mixing_partners(n, concentration, generator(1))
    assert ratio.dtype == torch.float64 and ratio.min() >= 0 and ratio.max() <= 1
    assert abs(ratio.mean() - 0.5) < 4 * (variance / n) ** 0.5
    assert abs(ratio.var() - variance) < 4 * variance * ((kurtosis - 1) / n) ** 0.5


def test_partners_are_a_permutation():
    assert sorted(draw_mixing_partners(50, 0.1, generator())[1].tolist()) == list(range(50))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_mixing_partners(3, 0.0, generator()), "concentration must be above 0"),
        (lambda: draw_mixing_partners(3, float("nan"), generator()), "concentration must be above 0"),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_partner_is_another_sample_of_the_class_or_the_sample_itself_if_there_is_none():
    labels = torch.tensor([0, 1, 0, 1, 2, 0])
    for seed in range(50):
        partners = draw_same_class(labels, generator(seed))
        assert torch.equal(labels[partners], labels) and partners[4] == 4
        assert all(partners[i] != i for i in (0, 1, 2, 3, 5))


def test_every_other_sample_of_the_class_is_equally_likely():
    """Of four alike, sample 0 gets each of the others in a third of the draws: 3000 +- 4 * 45 of 9000."""
    draw = generator()
    partners_of_0 = torch.stack([draw_same_class(torch.zeros(4, dtype=torch.int64), draw) for _ in range(9000)])[:, 0]
    counts = partners_of_0.bincount(minlength=4)
    assert counts[0] == 0 and (counts[1:] - 3000).abs().max() < 180


def test_a_negative_has_another_class_and_is_marked_missing_if_there_is_none():
    labels, candidates = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1])
    seen = set()
    for seed in range(50):
        chosen, result = draw_other_class(labels, candidates, generator(seed))
        assert result.all() and (candidates[chosen] != labels).all()
        seen.add(int(chosen[2]))
    assert seen == {0, 1, 2}
    _, result = draw_other_class(torch.tensor([0, 1]), torch.tensor([0, 0]), generator())
    assert result.tolist() == [False, True]
