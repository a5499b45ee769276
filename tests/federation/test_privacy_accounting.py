"""Epsilon of what left, from the ledger."""

import math

import pytest

from medfed.core.errors import UserError
from medfed.federation import privacy_accounting
from medfed.federation.privacy import Privacy
from medfed.federation.privacy_accounting import Releases, count_releases, epsilon, format_budget

pytest.importorskip("dp_accounting")


def gaussian_epsilon(noise, n, delta):
    """By hand: Renyi divergence of order a is n a / (2 noise^2); the classical conversion to (epsilon, delta)."""
    orders = [1 + k / 100 for k in range(1, 20_000)]
    return min(n * a / (2 * noise**2) + math.log(1 / delta) / (a - 1) for a in orders)


def test_epsilon_is_that_of_composed_gaussians_by_hand():
    """The accountant's conversion is a later, tighter one, so a little below."""
    found, by_hand = epsilon(Privacy(clip=1.0, noise=4.0), Releases(weights=10)), gaussian_epsilon(4.0, 10, 1e-5)
    assert 0.85 * by_hand < found <= by_hand


def test_more_rounds_and_less_noise_cost_more():
    quiet, loud = (Privacy(clip=1.0, noise=n, statistics_clip=1.0, statistics_noise=n) for n in (1.0, 8.0))
    ascending = [(loud, Releases(5)), (loud, Releases(10)), (loud, Releases(10, 1)), (quiet, Releases(10, 1))]
    found = [epsilon(privacy, releases) for privacy, releases in ascending]
    assert found == sorted(set(found))


def test_what_leaves_bare_has_no_bound():
    assert epsilon(Privacy(clip=1.0, noise=1.0), Releases(3, 1)) == math.inf
    assert format_budget(Privacy(clip=1.0, noise=1.0), {"a": Releases(3, 1)})["epsilon"] == "none"
    assert format_budget(Privacy(), {"a": Releases(3)}) is None


def test_releases_are_counted_in_the_ledger_by_message():
    def row(site, kind, number, name, direction="up", dtype="float32"):
        return {"site": site, "kind": kind, "round": number, "name": name, "direction": direction, "dtype": dtype}

    rows = [row("a", "share", "1", "windows"), row("a", "share", "1", "style"), row("a", "train", "1", "w"),
            row("a", "train", "1", "b"), row("a", "train", "2", "w"), row("a", "train", "2", "loss", dtype="fact"),
            row("b", "train", "1", "w", direction="down")]  # fmt: skip
    assert count_releases(rows, ["w", "b"]) == {"a": Releases(2, 1)}
    assert count_releases([*rows, rows[4]], ["w", "b"]) == {"a": Releases(3, 1)}, "what came twice has left twice"


def test_without_the_accountant_noise_is_refused_before_training(monkeypatch):
    monkeypatch.setattr(privacy_accounting.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -e '.\[privacy\]'"):
        privacy_accounting.require_accountant(Privacy(clip=1.0, noise=1.0))
    privacy_accounting.require_accountant(Privacy(clip=1.0))
