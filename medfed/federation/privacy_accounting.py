"""What noise on what leaves is worth, as (epsilon, delta), from the ledger and Google's accountant."""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from medfed.core.errors import UserError
from medfed.federation.privacy import Privacy

EXTRA = (
    "dp-accounting, which is not installed; pip install -e '.[privacy]' in medfed's folder, or leave the privacy block "
    "out"
)


@dataclass(frozen=True)
class Releases:
    """How many messages with weights, and with statistics, left one site."""

    weights: int = 0
    statistics: int = 0


def count_releases(ledger: Iterable[Mapping[str, str]], entries: Iterable[str]) -> dict[str, Releases]:
    """By site, counted in the rows of a ledger (`medfed.federation.ledger`).

    Args:
        entries: names of the network's state dict; every other tensor is a statistic.
    """
    network = set(entries)
    rows: Counter[tuple[str, ...]] = Counter()
    for row in ledger:
        if row["direction"] == "up" and row["dtype"] != "fact":
            group = "weights" if row["name"] in network else "statistics"
            rows[row["site"], group, row["kind"], row["round"], row["name"]] += 1
    messages: dict[tuple, int] = {}  # an answer that came twice has left twice
    for (*message, _), n in rows.items():
        messages[tuple(message)] = max(n, messages.get(tuple(message), 0))
    found: dict[str, Counter] = {}
    for (site, group, *_), n in messages.items():
        found.setdefault(site, Counter())[group] += n
    return {site: Releases(groups["weights"], groups["statistics"]) for site, groups in found.items()}


def require_accountant(privacy: Privacy) -> None:
    """UserError, before training, if epsilon could not be told after it."""
    if (privacy.noise or privacy.statistics_noise) and importlib.util.find_spec("dp_accounting") is None:
        raise UserError(f"privacy: telling epsilon needs {EXTRA}")


def epsilon(privacy: Privacy, released: Releases) -> float:
    """For all that one site sent together (Renyi accountant; Mironov, CSF 2017); infinite where something left bare."""
    bare = (released.weights and not privacy.noise) or (released.statistics and not privacy.statistics_noise)
    if bare:
        return math.inf
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for noise, n in ((privacy.noise, released.weights), (privacy.statistics_noise, released.statistics)):
        if n:
            accountant.compose(dp_accounting.GaussianDpEvent(noise), n)
    return float(accountant.get_epsilon(privacy.delta))


def format_budget(privacy: Privacy, by_site: Mapping[str, Releases]) -> dict[str, object] | None:
    """What `summary.json` says: the worst site's epsilon ("none" without a bound); None without a privacy block."""
    if privacy == Privacy():
        return None
    worst = max((epsilon(privacy, released) for released in by_site.values()), default=math.inf)
    return {"epsilon": worst if math.isfinite(worst) else "none", "delta": privacy.delta,
            "of": "all that a site holds; weights and statistics that left it, all rounds together, as the "
                  "coordinator's ledger has them: a coordinator that asks again, or loses answers, has got more",
            "not_covered": "numbers of images and steps, mean losses, validation scores, whole numbers such as "
                           "BatchNorm's counters, and which statistics there are and in what shape"}  # fmt: skip
