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


def test_epsilon_agrees_with_composed_gaussian_mechanisms():
    """The accountant uses a newer, tighter conversion, so its value is a little smaller."""
    computed, by_hand = epsilon(Privacy(clip=1.0, noise=4.0), Releases(weights=10)), gaussian_epsilon(4.0, 10, 1e-5)
    assert 0.85 * by_hand < computed <= by_hand


def test_epsilon_grows_with_more_rounds_and_with_less_noise():
    quiet, loud = (Privacy(clip=1.0, noise=n, statistics_clip=1.0, statistics_noise=n) for n in (1.0, 8.0))
    ascending = [(loud, Releases(5)), (loud, Releases(10)), (loud, Releases(10, 1)), (quiet, Releases(10, 1))]
    values = [epsilon(privacy, releases) for privacy, releases in ascending]
    assert values == sorted(set(values))


def test_epsilon_is_unbounded_if_something_leaves_without_noise():
    assert epsilon(Privacy(clip=1.0, noise=1.0), Releases(3, 1)) == math.inf
    assert format_budget(Privacy(clip=1.0, noise=1.0), {"a": Releases(3, 1)})["epsilon"] == "none"
    assert format_budget(Privacy(), {"a": Releases(3)}) is None


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
    assert count_releases(rows) == {"a": Releases(2, 1)}
    assert count_releases([*rows, rows[4]]) == {"a": Releases(3, 1)}, "a repeated message counts twice"
    moments = row("a", "share", "1", "image_moments")
    assert count_releases([*rows, moments]) == {"a": Releases(2, 2)}, "a message of their own"


def test_noise_without_the_accountant_is_refused_before_training(monkeypatch):
    monkeypatch.setattr(privacy_accounting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -e '.\[privacy\]'"):
        privacy_accounting.require_accountant(Privacy(clip=1.0, noise=1.0))
    privacy_accounting.require_accountant(Privacy(clip=1.0))
