"""The survey before round 1: each site describes its images by numbers over groups of patients, and no site trains yet.

A site with fewer patients than its minimum only says so, and numbers of fewer patients are left out. The quantiles are
10, 50 and 90 %, and not the minimum and the maximum, because an extreme value is the value of one patient, who can be
recognised by it. `medfed.datasets.site_facts` computes the facts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from medfed.federation.message import Kind, Message

PATIENTS, IMAGES, MEASURED, TOO_FEW = "patients", "images", "measured_images", "too_few_patients"
MIN_QUANTILE_PATIENTS = 5  # of three values, the three quantiles below would reveal all three
QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
SIZES = ("height", "width", "depth")  # in voxels
SPACINGS = ("height_mm", "width_mm", "depth_mm")  # size of a voxel
INTENSITIES = ("low", "middle", "high")  # percentiles 0.5, 50 and 99.5 of an image
POSITIONS = ("position_1", "position_2", "position_3")  # centre of a structure, as a fraction of the image
SPREADS = ("spread_1", "spread_2", "spread_3")  # standard deviation of the position over the images
COVER = "cover"  # median share of the image that a structure covers, over the images that show it
MAX_IMAGES = 10**9
LIMITS = {  # of intensities those of the absolute value, which may also be 0; everything else is in [0, 1]
    **dict.fromkeys(SIZES, (1.0, 1e6)),
    **dict.fromkeys(SPACINGS, (1e-6, 1e6)),
    **dict.fromkeys(INTENSITIES, (1e-12, 1e12)),
}
Facts = Mapping[str, float]


@dataclass
class SiteSurvey:
    """What a site replies to a survey."""

    n_patients: int  # that train or validate at the site
    min_patients: int
    n_labels: int  # structures or classes
    facts: Callable[[int], Facts]  # called with the minimum group size

    def reply(self, request: Message) -> Message:
        """Return the reply of kind "survey": either the fact `too_few_patients` (1) alone, or all facts."""
        is_too_small = self.n_patients < self.min_patients
        return Message(Kind.SURVEY, facts={TOO_FEW: 1} if is_too_small else dict(self.facts(self.min_patients)))


def survey_request() -> Message:
    return Message(Kind.SURVEY, facts={"round": 1, "last": 0})


def fact_names(n_labels: int) -> frozenset[str]:
    quantiles = {f"{name}.{word}" for name in (*SIZES, *SPACINGS, *INTENSITIES) for word in QUANTILES}
    of_labels = {f"{label}.{word}" for label in range(n_labels) for word in (IMAGES, COVER, *POSITIONS, *SPREADS)}
    return frozenset({PATIENTS, IMAGES, MEASURED, TOO_FEW}) | quantiles | of_labels


def check_survey(reply: Message, n_labels: int) -> None:
    """Raise ValueError if a fact (a finite number) is unknown, missing or impossible, or if quantiles decrease."""
    facts, known = reply.facts, fact_names(n_labels)
    if facts.get(TOO_FEW) == 1 and len(facts) == 1:
        return
    needed = {PATIENTS, IMAGES, MEASURED}
    if missing := sorted(needed - facts.keys()):
        raise ValueError(f"lacks '{missing[0]}'")
    for name, number in facts.items():
        _, _, word = name.rpartition(".")
        is_count = name in needed or word == IMAGES
        if name not in known or name == TOO_FEW or not _is_possible(name, number, is_count, facts[IMAGES]):
            raise ValueError(f"reports {number!r} for '{name}', which no site can have")
    for name in {name.rpartition(".")[0] for name in facts if name.rpartition(".")[2] in QUANTILES}:
        values = [facts[f"{name}.{word}"] for word in QUANTILES if f"{name}.{word}" in facts]
        if len(values) < len(QUANTILES) or values != sorted(values):
            raise ValueError(f"reports the quantiles {values} of '{name}', which do not increase")
    medians = [facts[f"{name}.p50"] for name in INTENSITIES if f"{name}.p50" in facts]
    if medians != sorted(medians):
        raise ValueError(f"reports the medians {medians} of the percentiles of the intensities, which do not increase")


def _is_possible(name: str, number: float, is_count: bool, n_images: float) -> bool:
    start = name.partition(".")[0]
    if is_count:
        least = 1 if name in (PATIENTS, IMAGES) else 0
        return type(number) is int and least <= number <= min(n_images, MAX_IMAGES)
    if start in INTENSITIES and number == 0:
        return True
    low, high = LIMITS.get(start, (0.0, 1.0))
    return low <= (abs(number) if start in INTENSITIES else number) <= high


def large_groups(patients: Mapping[str, Collection[str]], min_patients: int) -> list[str]:
    """Return the groups of images whose numbers may leave a site, if each image belongs to exactly one group.

    A group without patients may leave. What is left out is the difference from the number of all images, so the
    smallest of the other groups are left out too, until those left out have `min_patients` patients together.
    """
    sizes = {name: len(set(members)) for name, members in patients.items()}
    hidden = [name for name, size in sizes.items() if 0 < size < min_patients]
    large = sorted((name for name, size in sizes.items() if size >= min_patients), key=lambda name: sizes[name])
    while hidden and large and len(set().union(*(patients[name] for name in hidden))) < min_patients:
        hidden.append(large.pop(0))
    return [name for name in sizes if name not in hidden]
