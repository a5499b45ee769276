import torch

from medfed.core.seeds import seeded_layers, stream


def test_a_stream_depends_on_its_purpose_alone_and_never_changes_between_versions():
    draw = lambda *purpose: torch.rand(3, generator=stream(1, *purpose)).tolist()  # noqa: E731
    assert draw("train", "a", 1) == draw("train", "a", 1)
    purposes = [("train", "a", 2), ("train", "b", 1), ("share", "a", 1), ("train", "a1"), ("traina", 1)]
    others = [draw(*purpose) for purpose in purposes]
    assert draw("train", "a", 1) not in others and len({tuple(o) for o in others}) == 5
    # Golden value: a change here changes every published result.
    assert torch.randint(10**6, (1,), generator=stream(1337, "train", "UCL", 1)).item() == 874320


def test_layers_draws_are_named_and_the_global_stream_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded_layers(0, "x"):
        first = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded_layers(0, "x"):
        assert torch.equal(torch.rand(2), first)
