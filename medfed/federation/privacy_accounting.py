"""The differential-privacy guarantee (epsilon, delta) of a run, from its ledger and Google's accountant.

After training, the number of messages with weights and with statistics that left each site is counted in the ledger,
and `dp-accounting` composes that many Gaussian mechanisms.

References: C. Dwork, A. Roth: "The Algorithmic Foundations of Differential Privacy", Foundations and Trends in
Theoretical Computer Science 9(3-4), 2014, https://doi.org/10.1561/0400000042. I. Mironov: "Renyi Differential Privacy",
CSF 2017, https://arxiv.org/abs/1702.07476.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Iterable, Mapping

from medfed.core.errors import UserError
from medfed.federation.image_moments import MOMENTS
from medfed.federation.ledger import FACT, STATISTIC, WEIGHT
from medfed.federation.privacy import Privacy

EXTRA = (
    "dp-accounting, which is not installed; run pip install -e '.[privacy]' in medfed's folder, or remove the privacy "
    "block"
)

SIMULATION = (
    "that the noise is secret; in this simulation it follows from the seed of the config, so the number describes a "
    "federation of hospitals, each of which has a secret of its own"
)

# How many messages left one site, by the setting of their noise and its value: ("noise", 1.0) are messages with entries
# of the network, ("statistics_noise", 4.0) messages with other tensors; a message with both counts twice.
Releases = Counter[tuple[str, float]]


def count_releases(ledger: Iterable[Mapping[str, str]], privacy: Privacy) -> dict[str, Releases]:
    """Count, by site, the messages that left it, from rows of `ledger.csv`; one that was sent again counts again."""
    rows: Counter[tuple[str, ...]] = Counter()
    for row in ledger:
        if row["direction"] == "up" and row["content"] != FACT:
            # The moments of `data.standardise: dataset` are a message of their own, besides the method's statistics.
            kind = MOMENTS if row["name"] == MOMENTS else row["kind"]
            rows[row["site"], row["content"], kind, row["round"], row["name"]] += 1
    messages: dict[tuple, int] = {}
    for (*message, _), n in rows.items():
        messages[tuple(message)] = max(n, messages.get(tuple(message), 0))
    noises = {WEIGHT: ("noise", privacy.noise), STATISTIC: ("statistics_noise", privacy.statistics_noise)}
    by_site: dict[str, Releases] = {}
    for (site, content, *_), n in messages.items():
        by_site.setdefault(site, Releases())[noises[content]] += n
    return by_site


def require_accountant(privacy: Privacy) -> None:
    """Raise UserError, before training, if noise is planned but the package `dp-accounting` is not installed."""
    if (privacy.noise or privacy.statistics_noise) and importlib.util.find_spec("dp_accounting") is None:
        raise UserError(f"privacy: computing epsilon needs {EXTRA}")


def epsilon(released: Releases, delta: float) -> float:
    """Compute epsilon, at least 0, of everything that one site sent; infinite if something had no noise.

    Google's accountant for Renyi differential privacy computes it. A smaller epsilon is a stronger guarantee.
    """
    if any(n and not noise for (_, noise), n in released.items()):
        return math.inf
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for (_, noise), n in released.items():
        if n:
            accountant.compose(dp_accounting.GaussianDpEvent(noise), n)
    return float(accountant.get_epsilon(delta))


def format_budget(privacy: Privacy, by_site: Mapping[str, Releases], is_simulation: bool) -> dict[str, object] | None:
    """Return the guarantee of a run, as `summary.json` lists it under `privacy`; None for default settings."""
    if privacy == Privacy():
        return None
    worst = max((epsilon(released, privacy.delta) for released in by_site.values()), default=math.inf)
    return {
        "epsilon": worst if math.isfinite(worst) else "none",
        "delta": privacy.delta,
        "of": "all data of one site: the weights and statistics that it sent in all rounds, counted in the "
        "coordinator's ledger; a reply that was lost on the way is not in that ledger, but adds to epsilon",
        "not_covered": "numbers of images, pixels and steps, mean losses, validation scores, numbers that a method "
        "reports about a round, whole numbers such as BatchNorm's counters, and the names and "
        "shapes of the statistics",
        **({"assumes": SIMULATION} if is_simulation else {}),
    }
