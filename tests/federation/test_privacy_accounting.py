"""Epsilon of the messages that left a site, counted in the ledger."""

import math

import pytest

from medfed.core.errors import UserError
from medfed.federation import privacy_accounting
from medfed.federation.privacy import Privacy
from medfed.federation.privacy_accounting import Releases, count_releases, epsilon, format_budget

pytest.importorskip("dp_accounting")


def gaussian_epsilon(noise, n, delta):
    """Epsilon by Renyi divergence n a / (2 noise^2) of order a and its classical conversion to (epsilon, delta)."""
    orders = [1 + k / 100 for k in range(1, 20_000)]
    return min(n * a / (2 * noise**2) + math.log(1 / delta) / (a - 1) for a in orders)


def released(noise: float, n: int, n_statistics: int = 0) -> Releases:
    return +Releases({("noise", noise): n, ("statistics_noise", noise): n_statistics})


def test_epsilon_agrees_with_composed_gaussian_mechanisms():
    """The accountant uses a newer, tighter conversion, so its value is a little smaller."""
    computed, by_hand = epsilon(released(4.0, 10), 1e-5), gaussian_epsilon(4.0, 10, 1e-5)
    assert 0.85 * by_hand < computed <= by_hand


def test_epsilon_grows_with_more_rounds_and_with_less_noise():
    ascending = [released(8.0, 5), released(8.0, 10), released(8.0, 10, 1), released(1.0, 10, 1)]
    values = [epsilon(releases, 1e-5) for releases in ascending]
    assert values == sorted(set(values))
    assert epsilon(released(8.0, 5) + released(1.0, 5), 1e-5) > epsilon(released(1.0, 5), 1e-5)


def test_epsilon_is_unbounded_if_something_leaves_without_noise():
    mixed = Releases({("noise", 1.0): 3, ("statistics_noise", 0.0): 1})
    assert epsilon(mixed, 1e-5) == math.inf
    assert format_budget(Privacy(clip=1.0, noise=1.0), {"a": mixed}, is_simulation=False)["epsilon"] == "none"
    assert format_budget(Privacy(), {"a": released(0.0, 3)}, is_simulation=True) is None


def test_the_epsilon_of_a_simulation_says_that_its_noise_is_not_secret():
    real, simulated = (
        format_budget(Privacy(clip=1.0, noise=1.0), {"a": released(1.0, 3)}, is_simulation=is_simulation)
        for is_simulation in (False, True)
    )
    assert "assumes" not in real and "the seed of the config" in simulated["assumes"]
    assert real["epsilon"] == simulated["epsilon"]


def test_messages_are_counted_once_however_many_tensors_they_hold():
    def row(site, kind, number, name, direction="up", content="statistic"):
        return {"site": site, "kind": kind, "round": number, "name": name, "direction": direction, "content": content}

    rows = [
        row("a", "share", "1", "windows"),
        row("a", "share", "1", "style"),
        row("a", "train", "1", "w", content="weight"),
        row("a", "train", "1", "b", content="weight"),
        row("a", "train", "2", "w", content="weight"),
        row("a", "train", "2", "loss", content="fact"),
        row("b", "train", "1", "w", "down", "weight"),
    ]
    privacy = Privacy(clip=1.0, noise=2.0, statistics_clip=1.0, statistics_noise=2.0)
    assert count_releases(rows, privacy) == {"a": released(2.0, 2, 1)}
    assert count_releases([*rows, rows[4]], privacy) == {"a": released(2.0, 3, 1)}, "a repeated message counts twice"
    moments = row("a", "share", "1", "image_moments")
    assert count_releases([*rows, moments], privacy) == {"a": released(2.0, 2, 2)}, "a message of their own"


def test_noise_without_the_accountant_is_refused_before_training(monkeypatch):
    monkeypatch.setattr(privacy_accounting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -e '.\[privacy\]'"):
        privacy_accounting.require_accountant(Privacy(clip=1.0, noise=1.0))
    privacy_accounting.require_accountant(Privacy(clip=1.0))
