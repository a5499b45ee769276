"""The coordinator's side of the request "quality" (`medfed.federation.quality_facts`): ask, check, and store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from medfed.federation.engine import Engine
from medfed.federation.exchange import Exchange, Row
from medfed.federation.message import Message, State
from medfed.federation.quality_facts import IMAGE, MAX_STRUCTURES, QUALITY, SUMS, WORDS, with_site_names
from medfed.federation.rounds import requests_with_last_round
from medfed.federation.settings import Federation
from medfed.functional.dice_prediction import PairSums
from medfed.functional.image_facts import NAMES


@dataclass(frozen=True)
class SiteQuality:
    """What one site replied.

    Args:
        sums: by number of a structure, the sums over the site's validation patients.
        images: by name of a fact about images, "n", "mean" and "sd" over the site's training images.
    """

    sums: Mapping[int, PairSums]
    images: Mapping[str, Mapping[str, float]]


def ask_quality(
    engine: Engine, settings: Federation, state: State, local_models: Mapping[str, Mapping[str, Tensor]], number: int
) -> tuple[dict[str, SiteQuality], list[Row]]:
    """Ask all sites for their sums, check the replies, and return them with the rows of the ledger.

    Args:
        engine: carries the requests and the replies.
        settings: the `federation` section of the config.
        state: the coordinator's state, whose weights are the federated model.
        local_models: by name of the site, its weights after local training.
        number: the round in the requests and in the ledger.

    Returns:
        By name of the site, its reply; and the rows of `ledger.csv`.

    Raises:
        UserError: if a reply fails a check and the setting `federation.on_bad_update` is "stop", or if fewer replies
            than the setting `federation.quorum` are accepted.
    """
    requests = requests_with_last_round(QUALITY, state, engine.sites(), number)
    requests = {
        site: Message(QUALITY, request.weights, with_site_names(
            {other: weights for other, weights in local_models.items() if other != site}
        ), request.facts)
        for site, request in requests.items()
    }  # fmt: skip
    exchange = Exchange(engine, settings)
    replies = exchange.ask(requests, state)
    by_site, _ = exchange.apply(lambda accepted: {site: read_reply(reply.facts) for site, reply in accepted.items()},
                                replies)  # fmt: skip
    return by_site, exchange.take_records()[0]


def read_reply(facts: Mapping[str, Any]) -> SiteQuality:
    """Check the facts of a reply and return them in their groups.

    Args:
        facts: finite numbers by name, as `quality_facts` returns them.

    Raises:
        ValueError: if a fact is unknown or missing, or the numbers cannot be sums over Dice values.
    """
    groups: dict[str, dict[str, float]] = {}
    for name, number in facts.items():
        group, _, word = name.rpartition(".")
        groups.setdefault(group, {})[word] = number
    sums: dict[int, PairSums] = {}
    images: dict[str, dict[str, float]] = {}
    for group, numbers in groups.items():
        kind, _, name = group.partition(".")
        if group.isdecimal() and int(group) < MAX_STRUCTURES and set(numbers) == set(SUMS):
            sums[int(group)] = _checked_sums(numbers)
        elif kind == IMAGE and name in NAMES and set(numbers) == set(WORDS):
            if type(numbers["n"]) is not int or numbers["n"] < 1 or numbers["sd"] < 0:
                raise ValueError(f"reports {numbers} for '{name}', which no images have")
            images[name] = numbers
        else:
            raise ValueError(f"reports '{group}' with {', '.join(sorted(numbers))}, which was not requested")
    return SiteQuality(sums, images)


def _checked_sums(numbers: Mapping[str, float]) -> PairSums:
    """Return sums over pairs of numbers in [0, 1], of which each square is at most the number itself."""
    sums = PairSums(**numbers)  # type: ignore[arg-type]
    is_count = type(sums.n) is int and sums.n >= 1
    tolerance = 1e-9 * max(sums.n, 1)
    is_possible = is_count and all(
        total**2 / sums.n - tolerance <= square <= total + tolerance and total <= sums.n + tolerance
        for total, square in ((sums.x, sums.xx), (sums.y, sums.yy))
    ) and 0 <= sums.xy <= min(sums.x, sums.y) + tolerance  # fmt: skip
    if not is_possible:
        raise ValueError(f"reports {sums}, which are not sums over numbers from 0 to 1")
    return sums


def to_json(by_site: Mapping[str, SiteQuality], structures: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return the replies of all sites as the content of `quality.json`.

    Args:
        by_site: the replies.
        structures: the names of the structures.
        more: further entries.
    """
    return {
        "sites": {
            site: {"calibration": {structures[number]: {word: getattr(sums, word) for word in SUMS}
                                   for number, sums in sorted(reply.sums.items())},
                   "images": {name: dict(numbers) for name, numbers in reply.images.items()}}
            for site, reply in by_site.items()
        },
        **more,
    }  # fmt: skip


def check_json(content: Any, source: str) -> None:
    """Check the content of `quality.json`, which may come from others.

    Args:
        content: the content of the JSON file.
        source: the file, for the error message.

    Raises:
        ValueError: if the content has another form, or numbers that no site can have.
    """
    try:
        for reply in content["sites"].values():
            for sums in reply["calibration"].values():
                _checked_sums({word: sums[word] for word in SUMS})
            for name, numbers in reply["images"].items():
                if name not in NAMES or not all(math.isfinite(numbers[word]) for word in WORDS):
                    raise ValueError(f"'{name}' is not a fact about images with {', '.join(WORDS)}")
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{source}: does not hold the sums of sites ({error}); export the bundle again") from None
