import torch

from medfed.functional.sampling import draw_other_class, draw_same_class


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_partner_is_another_sample_of_the_class_or_the_sample_itself_if_there_is_none():
    labels = torch.tensor([0, 1, 0, 1, 2, 0])
    for seed in range(50):
        partners = draw_same_class(labels, rng(seed))
        assert torch.equal(labels[partners], labels) and partners[4] == 4
        assert all(partners[i] != i for i in (0, 1, 2, 3, 5))


def test_every_other_sample_of_the_class_is_equally_likely():
    """Of four alike, sample 0 gets each of the others in a third of the draws: 3000 +- 4 * 45 of 9000."""
    draw = rng()
    partners_of_0 = torch.stack([draw_same_class(torch.zeros(4, dtype=torch.int64), draw) for _ in range(9000)])[:, 0]
    counts = partners_of_0.bincount(minlength=4)
    assert counts[0] == 0 and (counts[1:] - 3000).abs().max() < 180


def test_a_negative_has_another_class_and_is_marked_missing_if_there_is_none():
    labels, candidates = torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1])
    seen = set()
    for seed in range(50):
        chosen, result = draw_other_class(labels, candidates, rng(seed))
        assert result.all() and (candidates[chosen] != labels).all()
        seen.add(int(chosen[2]))
    assert seen == {0, 1, 2}
    _, result = draw_other_class(torch.tensor([0, 1]), torch.tensor([0, 0]), rng())
    assert result.tolist() == [False, True]
