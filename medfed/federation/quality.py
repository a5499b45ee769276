"""The coordinator's side of the request "quality" (`medfed.federation.quality_facts`): ask, check, and store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from medfed.core import site_names
from medfed.federation.engine import Engine
from medfed.federation.exchange import Exchange, Row
from medfed.federation.message import Message, State
from medfed.federation.quality_facts import IMAGE, QUALITY, SUMS, WORDS, with_site_names
from medfed.federation.reply_checks import MAX_EXAMPLES, is_number
from medfed.federation.rounds import requests_with_last_round
from medfed.federation.settings import Federation
from medfed.functional.dice_prediction import PairSums
from medfed.functional.image_facts import NAMES

MAX_IMAGE_FACT = 1e12


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
    engine: Engine,
    settings: Federation,
    state: State,
    local_models: Mapping[str, Mapping[str, Tensor]],
    number: int,
    n_structures: int,
) -> tuple[dict[str, SiteQuality], list[Row]]:
    """Ask all sites for their sums, check the replies, and return them with the rows of the ledger.

    Args:
        engine: carries the requests and the replies.
        settings: the `federation` section of the config.
        state: the coordinator's state, whose weights are the federated model.
        local_models: by name of the site, its weights after local training.
        number: the round in the requests and in the ledger.
        n_structures: number of structures.

    Returns:
        By name of the site, its reply; and the rows of `ledger.csv`.

    Raises:
        UserError: if a reply fails a check and the setting `federation.on_bad_update` is "stop", or if fewer replies
            than the setting `federation.quorum` are accepted.
    """
    requests = requests_with_last_round(QUALITY, state, engine.sites(), number)
    requests = {
        site: Message(
            QUALITY,
            request.weights,
            with_site_names({other: weights for other, weights in local_models.items() if other != site}),
            request.facts,
        )
        for site, request in requests.items()
    }
    exchange = Exchange(engine, settings)
    replies = exchange.ask(requests, state)
    by_site, _ = exchange.apply(
        lambda accepted: {site: read_reply(reply.facts, n_structures) for site, reply in accepted.items()}, replies
    )
    return by_site, exchange.take_records()[0]


def read_reply(facts: Mapping[str, Any], n_structures: int) -> SiteQuality:
    """Check the facts of a reply and return them in their groups.

    Args:
        facts: finite numbers by name, as `quality_facts` returns them.
        n_structures: number of structures.

    Raises:
        ValueError: if a fact is unknown or missing, or the numbers cannot be sums over Dice values.
    """
    groups: dict[str, dict[str, float]] = {}
    for name, number in facts.items():
        group, _, word = name.rpartition(".")
        groups.setdefault(group, {})[word] = number
    numbers_of = {str(structure): structure for structure in range(n_structures)}
    sums: dict[int, PairSums] = {}
    images: dict[str, Mapping[str, float]] = {}
    for group, numbers in groups.items():
        kind, _, name = group.partition(".")
        if group in numbers_of and set(numbers) == set(SUMS):
            sums[numbers_of[group]] = _checked_sums(numbers)
        elif kind == IMAGE and name in NAMES and set(numbers) == set(WORDS):
            images[name] = _checked_image_fact(name, numbers)
        else:
            raise ValueError(f"reports '{group}' with {', '.join(sorted(numbers))}, which was not requested")
    return SiteQuality(sums, images)


def _checked_sums(numbers: Mapping[str, float]) -> PairSums:
    """Return sums over pairs of numbers in [0, 1]: each square is at most the number itself, and no correlation is
    above 1."""
    if not all(map(is_number, numbers.values())) or not _is_count(numbers["n"]):
        raise ValueError(f"reports {dict(numbers)}, which are not sums over numbers from 0 to 1")
    sums = PairSums(**numbers)  # type: ignore[arg-type]
    tolerance = 1e-9 * sums.n
    of_x, of_y = (square - total**2 / sums.n for total, square in ((sums.x, sums.xx), (sums.y, sums.yy)))
    covariance = sums.xy - sums.x * sums.y / sums.n
    is_possible = all(
        0 <= square <= total + tolerance and total <= sums.n + tolerance and spread >= -tolerance
        for total, square, spread in ((sums.x, sums.xx, of_x), (sums.y, sums.yy, of_y))
    ) and covariance**2 <= (max(of_x, 0) + tolerance) * (max(of_y, 0) + tolerance)
    if not is_possible:
        raise ValueError(f"reports {sums}, which are not sums over numbers from 0 to 1")
    return sums


def _checked_image_fact(name: str, numbers: Mapping[str, float]) -> Mapping[str, float]:
    """Return mean and standard deviation of a fact about images."""
    is_possible = all(map(is_number, numbers.values())) and _is_count(numbers["n"])
    if not is_possible or not 0 <= numbers["sd"] <= MAX_IMAGE_FACT or abs(numbers["mean"]) > MAX_IMAGE_FACT:
        raise ValueError(f"reports {dict(numbers)} for '{name}', which no images have")
    return numbers


def _is_count(n: float) -> bool:
    return type(n) is int and 1 <= n <= MAX_EXAMPLES


def to_json(by_site: Mapping[str, SiteQuality], structures: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return the replies of all sites as the content of `quality.json`.

    Args:
        by_site: the replies.
        structures: the names of the structures.
        more: further entries.
    """
    return {
        "sites": {
            site: {
                "calibration": {
                    structures[number]: {word: getattr(sums, word) for word in SUMS}
                    for number, sums in sorted(reply.sums.items())
                },
                "images": {name: dict(numbers) for name, numbers in reply.images.items()},
            }
            for site, reply in by_site.items()
        },
        **more,
    }


def check_json(content: Any, source: str) -> None:
    """Check the content of `quality.json`, which may come from others.

    Args:
        content: the content of the JSON file.
        source: the file, for the error message.

    Raises:
        ValueError: if the content has another form, or numbers that no site can have.
    """
    try:
        site_names.check(content["sites"])
        for reply in content["sites"].values():
            for sums in reply["calibration"].values():
                _checked_sums({word: sums[word] for word in SUMS})
            for name, numbers in reply["images"].items():
                if name not in NAMES:
                    raise ValueError(f"'{name}' is not a fact about images")
                _checked_image_fact(name, {word: numbers[word] for word in WORDS})
    except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{source}: does not hold the sums of sites ({error}); export the bundle again") from None
