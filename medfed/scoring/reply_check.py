"""Check at the coordinator of what a site replies to a request to score a bundle."""

from __future__ import annotations

from collections.abc import Mapping

from medfed.federation.message import Message
from medfed.federation.survey import MAX_IMAGES
from medfed.scoring.bundle_tasks import BundleTask
from medfed.scoring.site import IMAGES, PATIENTS, TOO_FEW, fact_names

NEEDED_WITH = {"n": ("mean",), "mean": ("n",), "sd": ("n", "mean")}  # facts of the same metric


def check_scores(task: BundleTask, reply: Message) -> None:
    """Check the facts of a reply.

    Args:
        task: the task of the bundle.
        reply: the reply of a site, whose facts are finite numbers.

    Raises:
        ValueError: if a fact is unknown or missing (either `too_few_patients` is 1 and the only fact, or there are
            patients, images, and for each metric both the number of values and the mean), a count is not a whole number
            from 0 to the number of images, a mean is outside of the limits of its metric, or a standard deviation is
            below 0.
    """
    facts, known = reply.facts, frozenset(fact_names(task)) - {TOO_FEW}
    if facts == {TOO_FEW: 1}:
        return
    if missing := sorted({PATIENTS, IMAGES} - facts.keys()):
        raise ValueError(f"lacks '{missing[0]}'")
    limits = {column.key: column.limits for column in task.scoring.columns}
    for name, number in facts.items():
        if name not in known or not _is_possible(name, number, limits, facts[IMAGES]):
            raise ValueError(f"reports {number!r} for '{name}', which no site can have")
        start, _, word = name.rpartition(".")
        for needed in NEEDED_WITH[word] if start.rpartition(".")[2] in limits else ():
            if f"{start}.{needed}" not in facts:
                raise ValueError(f"reports '{name}', but lacks '{start}.{needed}'")


def _is_possible(
    name: str, number: float, limits: Mapping[str, tuple[float | None, float | None]], n_images: float
) -> bool:
    *_, key, word = ["", "", *name.split(".")]
    if word == "mean" and key in limits:
        low, high = limits[key]
        return (low is None or number >= low) and (high is None or number <= high)
    if word == "sd":
        return number >= 0
    least = 1 if name in (PATIENTS, IMAGES) or key in limits else 0
    return type(number) is int and least <= number <= min(n_images, MAX_IMAGES)
