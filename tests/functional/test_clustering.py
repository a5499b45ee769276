"""FINCH against eq. 1 of its paper and by hand; k-means++ seeding by its probabilities."""

import pytest
import torch

from medfed.functional import clustering
from medfed.functional.clustering import cluster_means, finch, finch_partition, kmeans_plus_plus


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


PAIRS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.1], [1.0, 0.1, 0.0], [0.0, 1.0, 0.0]]  # 0 with 2, 1 with 3


def gaussian(n, d=8, seed=0):
    return torch.randn(n, d, dtype=torch.float64, generator=generator(seed))


def by_the_paper(vectors):
    """Return FINCH's partitions from the adjacency matrix of eq. 1, with its three conditions written out."""
    partitions, labels = [], torch.arange(len(vectors))
    while True:
        n = int(labels.max()) + 1
        means = [vectors[labels == number].mean(0) for number in range(n)]
        near = [
            [-2 if i == j else torch.cosine_similarity(a, b, 0).item() for j, b in enumerate(means)]
            for i, a in enumerate(means)
        ]
        k = [row.index(max(row)) for row in near]
        joined = [-1] * n
        for seed in range(n):
            reached = [seed] if joined[seed] < 0 else []
            for i in reached:
                joined[i] = seed
                reached += [
                    j
                    for j in range(n)
                    if joined[j] < 0 and j not in reached and (j == k[i] or i == k[j] or k[i] == k[j])
                ]
        numbers = {seed: number for number, seed in enumerate(dict.fromkeys(joined))}
        labels = torch.tensor([numbers[joined[label]] for label in labels.tolist()])
        if labels.max() == 0:
            return partitions or [labels]
        partitions.append(labels)


@pytest.mark.parametrize(("n", "seed"), [(4, 0), (7, 1), (12, 2), (30, 3), (60, 4)])
def test_finch_equals_the_paper_s_algorithm(n, seed):
    vectors = gaussian(n, 5, seed)
    expected, result = by_the_paper(vectors), finch(vectors)
    assert len(result) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


def test_later_partitions_join_the_means_of_clusters():
    """Four pairs at 0, 20, 90 and 110 degrees (members 1 degree apart): four clusters, then two, then the end."""
    degrees = torch.tensor([0.0, 90, 20, 110, 1, 91, 21, 111], dtype=torch.float64).deg2rad()
    result = finch(torch.stack([degrees.cos(), degrees.sin()], dim=1))
    assert [labels.tolist() for labels in result] == [[0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 0, 1, 0, 1, 0, 1]]


def test_clusters_are_numbered_by_their_first_vector_whatever_scipy_returns():
    """scipy happens to return such numbers, but does not document it."""
    labels = torch.tensor([2, 0, 1, 2, 0, 3])
    assert clustering._number_by_first_member(labels).tolist() == [0, 1, 2, 0, 1, 3]


@pytest.mark.parametrize("lengths", [[1.0] * 4, [1e-200, 1e200, 1.0, 1e-3]])
def test_two_far_pairs_are_two_clusters_numbered_by_first_member(lengths):
    """The two means would join; that partition of one cluster is left out. Lengths neither count nor overflow."""
    vectors = torch.tensor(PAIRS, dtype=torch.float64) * torch.tensor(lengths, dtype=torch.float64)[:, None]
    assert [labels.tolist() for labels in finch(vectors)][0] == [0, 1, 0, 1]
    assert len(finch(torch.tensor(PAIRS))) == 1


def test_cluster_means_are_of_the_vectors_as_given():
    """Vector lengths therefore matter from the second partition on, as in the paper's algorithm."""
    lengths = torch.rand(60, 1, dtype=torch.float64, generator=generator(2)) * 10 + 0.1
    vectors = gaussian(60) * lengths
    result, of_directions = finch(vectors), finch(vectors / vectors.norm(dim=1, keepdim=True))
    assert all(torch.equal(a, b) for a, b in zip(result, by_the_paper(vectors), strict=True))
    assert torch.equal(result[0], of_directions[0]) and not torch.equal(result[1], of_directions[1])


def test_duplicates_are_one_cluster_and_ties_go_to_the_first():
    """Each duplicate is nearest to the first of them; two pairs of mutual duplicates would be two clusters."""
    for seed in range(20):
        one = gaussian(1, 37, seed) * 0.1
        vectors = torch.cat([one.expand(9, -1) * torch.arange(1, 10)[:, None], -gaussian(1, 37, seed + 50), -one])
        labels = finch(vectors)[0]
        assert labels[:9].tolist() == [0] * 9


def test_a_tie_of_orthogonal_vectors_goes_to_the_first():
    """Two near pairs, and a lone vector at right angles to all: its cosines are all 0, so it joins row 0."""
    vectors = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [1, 0.1, 0, 0], [0, 1, 0.1, 0], [0, 0, 0, 1]])
    assert finch(vectors)[0].tolist() == [0, 1, 0, 1, 0]


def test_a_cluster_with_mean_zero_is_orthogonal_to_all_others():
    """a, b, -a, -b are connected by ties and cancel; their mean has cosine 0 to all and joins the first of the others.

    Those are the four pairs of `test_later_partitions_join_the_means_of_clusters`.
    """
    degrees = torch.tensor([0.0, 90, 20, 110, 1, 91, 21, 111], dtype=torch.float64).deg2rad()
    square = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]], dtype=torch.float64)
    result = finch(torch.block_diag(square, torch.stack([degrees.cos(), degrees.sin()], dim=1)))
    expected = [[0] * 4 + [1, 2, 3, 4, 1, 2, 3, 4], [0] * 4 + [0, 1, 0, 1, 0, 1, 0, 1]]
    assert [labels.tolist() for labels in result] == expected


def test_blocks_of_similarities_give_the_same(monkeypatch):
    vectors = gaussian(50)
    whole = finch(vectors)
    monkeypatch.setattr(clustering, "MAX_BLOCK_ENTRIES", 7 * 50)  # seven rows at a time, then one
    assert all(torch.equal(a, b) for a, b in zip(whole, finch(vectors), strict=True))


def test_first_and_last_partition():
    vectors = gaussian(200)
    partitions = finch(vectors)
    assert torch.equal(finch_partition(vectors, "first"), partitions[0]) and torch.equal(
        finch_partition(vectors), partitions[-1]
    )


def test_cluster_means_by_hand():
    vectors = torch.tensor([[1.0, 0.0], [3.0, 5.0], [3.0, 2.0]])
    assert cluster_means(vectors, torch.tensor([1, 0, 1])).tolist() == [[3.0, 5.0], [2.0, 1.0]]


def test_a_duplicate_is_never_drawn_before_all_distinct_points():
    """Three places, 30 points: three draws see each place once; six see six points."""
    places = gaussian(3)[torch.arange(30) % 3]
    for seed in range(30):
        chosen = kmeans_plus_plus(places, 6, generator(seed))
        assert sorted(kmeans_plus_plus(places, 30, generator(seed)).tolist()) == list(range(30)), "all points"
        assert sorted((chosen[:3] % 3).tolist()) == [0, 1, 2]
        assert len(chosen.unique()) == 6


def test_the_second_point_by_the_square_of_its_distance():
    """On a line at 0, 1 and 3. After 0: 1 to 9. After 1: 1 to 4. After 3: 9 to 4."""
    points = torch.tensor([[0.0], [1.0], [3.0]])
    draws = torch.stack([kmeans_plus_plus(points, 2, generator(seed)) for seed in range(3000)])
    for first, second, chance in ((0, 2, 0.9), (1, 2, 0.8), (2, 0, 9 / 13)):
        after = draws[draws[:, 0] == first, 1]
        assert abs(len(after) / 3000 - 1 / 3) < 4 * (2 / 9 / 3000) ** 0.5
        assert abs((after == second).double().mean() - chance) < 4 * (chance * (1 - chance) / len(after)) ** 0.5


def test_the_third_point_by_the_nearest_of_the_chosen():
    """At 0, 10 and 10.001: after 0 and 10, or 0 and 10.001, the fourth, at 5, is nearly always next."""
    points = torch.tensor([[0.0], [10.0], [10.001], [5.0]])
    draws = [set(kmeans_plus_plus(points, 3, generator(seed)).tolist()) for seed in range(200)]
    assert sum(3 in draw for draw in draws) > 198


def test_equal_points_are_drawn_uniformly():
    """3 of 5: each in 3/5 of the draws, none twice."""
    draws = torch.stack([kmeans_plus_plus(torch.ones(5, 2), 3, generator(seed)) for seed in range(1000)])
    assert all(len(row.unique()) == 3 for row in draws)
    shares = draws.flatten().bincount(minlength=5) / 1000
    assert (shares - 0.6).abs().max() < 4 * (0.6 * 0.4 / 1000) ** 0.5


def test_the_given_generator_determines_the_draws_and_no_other_is_used():
    points, state = gaussian(20), torch.get_rng_state()
    assert torch.equal(kmeans_plus_plus(points, 8, generator(5)), kmeans_plus_plus(points, 8, generator(5)))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: finch(torch.ones(3)), r"must be real, \(N, D\)"),
        (lambda: finch(torch.ones(0, 3)), "at least one"),
        (lambda: finch(torch.tensor([[1.0], [0.0], [2.0], [-0.0]])), "zero in rows 1, 3"),
        (lambda: finch(torch.zeros(12, 2)), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"),
        (lambda: finch(torch.tensor([[1.0, 0.0], [torch.nan, 1.0], [torch.inf, 1.0]])), "infinite in rows 1, 2"),
        (lambda: finch_partition(torch.ones(3, 2), "finest"), '"first" or "last"'),
        (lambda: cluster_means(torch.ones(3, 2), torch.tensor([0, 1])), "and labels"),
        (lambda: cluster_means(torch.ones(3, 2), torch.tensor([0, 3, 0])), "are missing: 1, 2"),
        (lambda: kmeans_plus_plus(torch.ones(3, 2), 0, generator()), r"k must be in 1\.\.3"),
        (lambda: kmeans_plus_plus(torch.ones(3, 2), 4, generator()), r"k must be in 1\.\.3"),
        (lambda: kmeans_plus_plus(torch.tensor([[1.0], [torch.nan]]), 1, generator()), "points must be finite.*rows 1"),
    ],
)
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()
