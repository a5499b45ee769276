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
from medfed.federation.image_moments import MOMENTS
from medfed.federation.ledger import FACT, STATISTIC, WEIGHT
from medfed.federation.privacy import Privacy

EXTRA = (
    "dp-accounting, which is not installed; run pip install -e '.[privacy]' in medfed's folder, or remove the privacy "
    "block"
)


@dataclass(frozen=True)
class Releases:
    """Numbers of messages that left one site, from which its privacy guarantee is computed.

    Attributes:
        weights: number of messages with entries of the network.
        statistics: number of messages with other tensors. A message with both is counted in both numbers.
    """

    weights: int = 0
    statistics: int = 0


def count_releases(ledger: Iterable[Mapping[str, str]]) -> dict[str, Releases]:
    """Count how many messages with weights, and how many with statistics, left each site.

    A reply that was sent twice, for example because its first copy was lost, counts twice.

    Args:
        ledger: the rows of `ledger.csv`, which lists everything that was sent: one dict of texts for each tensor and
            each single value, with the keys `medfed.federation.ledger.COLUMNS`.

    Returns:
        Dictionary from the name of a site that sent a tensor to its two numbers (`weights` and `statistics`).
    """
    rows: Counter[tuple[str, ...]] = Counter()
    for row in ledger:
        if row["direction"] == "up" and row["content"] != FACT:
            # The moments of `data.standardise: dataset` are a message of their own, besides the method's statistics.
            kind = MOMENTS if row["name"] == MOMENTS else row["kind"]
            rows[row["site"], row["content"], kind, row["round"], row["name"]] += 1
    messages: dict[tuple, int] = {}
    for (*message, _), n in rows.items():
        messages[tuple(message)] = max(n, messages.get(tuple(message), 0))
    by_site: dict[str, Counter] = {}
    for (site, content, *_), n in messages.items():
        by_site.setdefault(site, Counter())[content] += n
    return {site: Releases(numbers[WEIGHT], numbers[STATISTIC]) for site, numbers in by_site.items()}


def require_accountant(privacy: Privacy) -> None:
    """Check, before training, that the package `dp-accounting` is installed if it will be needed.

    The package computes epsilon, the number that says how strong the differential privacy of a run is, after the
    training.

    Args:
        privacy: the `privacy` section of the config. Without noise, the package is not needed and the check passes.

    Raises:
        UserError: if the package is needed and not installed.
    """
    if (privacy.noise or privacy.statistics_noise) and importlib.util.find_spec("dp_accounting") is None:
        raise UserError(f"privacy: computing epsilon needs {EXTRA}")


def epsilon(privacy: Privacy, released: Releases) -> float:
    """Compute the epsilon of differential privacy for everything that one site sent in a run.

    Smaller values mean a stronger guarantee. Google's accountant for Renyi differential privacy computes the value.

    Args:
        privacy: the `privacy` section of the config, with the strength of the noise and with delta.
        released: how many messages with weights, and how many with statistics, left the site.

    Returns:
        Epsilon for delta = `privacy.delta`, at least 0. It is infinite if any weights or statistics left the site
        without noise.
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
    """Return the differential-privacy guarantee of a run, as it is written under `privacy` in `summary.json`.

    Args:
        privacy: the `privacy` section of the config.
        by_site: dictionary from the name of a site to the numbers of messages that left the site, as `count_releases`
            returns it.

    Returns:
        A dict with four entries: `epsilon` (the largest of all sites, or the text "none" if it is infinite), `delta`,
        `of` (a text that says what the guarantee covers) and `not_covered` (a text that says what it does not cover).
        None if all settings of `privacy` have their default values, so that nothing is clipped and no noise is added.
    """
    if privacy == Privacy():
        return None
    worst = max((epsilon(privacy, released) for released in by_site.values()), default=math.inf)
    return {
        "epsilon": worst if math.isfinite(worst) else "none",
        "delta": privacy.delta,
        "of": "all data of one site: the weights and statistics that it sent in all rounds, counted in the "
        "coordinator's ledger; a reply that was lost on the way is not in that ledger, but adds to epsilon",
        "not_covered": "numbers of images, pixels and steps, mean losses, validation scores, numbers that a method "
        "reports about a round, whole numbers such as BatchNorm's counters, and the names and "
        "shapes of the statistics",
    }
