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
from dataclasses import dataclass

from medfed.core.errors import UserError
from medfed.federation.privacy import Privacy

EXTRA = (
    "dp-accounting, which is not installed; run pip install -e '.[privacy]' in medfed's folder, or remove the privacy "
    "block"
)


@dataclass(frozen=True)
class Releases:
    """Numbers of messages that left one site, for the privacy accounting.

    Attributes:
        weights: messages with entries of the network.
        statistics: messages with other tensors. A message with both counts in both numbers.
    """

    weights: int = 0
    statistics: int = 0


def count_releases(ledger: Iterable[Mapping[str, str]], entries: Iterable[str]) -> dict[str, Releases]:
    """Count the messages with weights and with statistics that left each site.

    A reply that was sent twice, for example because its first copy was lost, counts twice.

    Args:
        ledger: the rows of a ledger (`medfed.federation.ledger`).
        entries: the names of the network's state dict; every other tensor is a statistic.

    Returns:
        The counts by the name of the site, for the sites that sent a tensor.
    """
    network = set(entries)
    rows: Counter[tuple[str, ...]] = Counter()
    for row in ledger:
        if row["direction"] == "up" and row["dtype"] != "fact":
            group = "weights" if row["name"] in network else "statistics"
            rows[row["site"], group, row["kind"], row["round"], row["name"]] += 1
    messages: dict[tuple, int] = {}
    for (*message, _), n in rows.items():
        messages[tuple(message)] = max(n, messages.get(tuple(message), 0))
    by_site: dict[str, Counter] = {}
    for (site, group, *_), n in messages.items():
        by_site.setdefault(site, Counter())[group] += n
    return {site: Releases(groups["weights"], groups["statistics"]) for site, groups in by_site.items()}


def require_accountant(privacy: Privacy) -> None:
    """Check, before training, that epsilon can be computed after it.

    Args:
        privacy: the `privacy` block of the config; without noise nothing is needed.

    Raises:
        UserError: if the package dp-accounting is needed and not installed.
    """
    if (privacy.noise or privacy.statistics_noise) and importlib.util.find_spec("dp_accounting") is None:
        raise UserError(f"privacy: computing epsilon needs {EXTRA}")


def epsilon(privacy: Privacy, released: Releases) -> float:
    """Compute epsilon for everything that one site sent, with Google's Renyi accountant.

    Args:
        privacy: the `privacy` block of the config, with the noise and delta.
        released: how many messages left the site.

    Returns:
        Epsilon at `privacy.delta`; infinity if any weights or statistics left the site without noise.
    """
    has_unprotected = (released.weights and not privacy.noise) or (released.statistics and not privacy.statistics_noise)
    if has_unprotected:
        return math.inf
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for noise, n in ((privacy.noise, released.weights), (privacy.statistics_noise, released.statistics)):
        if n:
            accountant.compose(dp_accounting.GaussianDpEvent(noise), n)
    return float(accountant.get_epsilon(privacy.delta))


def format_budget(privacy: Privacy, by_site: Mapping[str, Releases]) -> dict[str, object] | None:
    """Return the `privacy` entry of `summary.json`.

    Args:
        privacy: the `privacy` block of the config.
        by_site: how many messages left each site, as `count_releases` returns it.

    Returns:
        A dict with `epsilon` (the largest of all sites, or "none" if it is unbounded), `delta`, and two texts: `of`
        (what the guarantee covers) and `not_covered`. None if the config has no privacy block.
    """
    if privacy == Privacy():
        return None
    worst = max((epsilon(privacy, released) for released in by_site.values()), default=math.inf)
    return {"epsilon": worst if math.isfinite(worst) else "none", "delta": privacy.delta,
            "of": "all data of one site: the weights and statistics that it sent in all rounds, counted in the "
                  "coordinator's ledger; a reply that was lost on the way is not in that ledger, but adds to epsilon",
            "not_covered": "numbers of images and steps, mean losses, validation scores, whole numbers such as "
                           "BatchNorm's counters, and the names and shapes of the statistics"}  # fmt: skip
