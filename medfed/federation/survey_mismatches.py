"""Compare what the sites replied to a survey, and name what does not fit together before any site trains.

Each site is compared with the median over the sites. Of two sites, each is compared with the other one, and a mismatch
names both, because either may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from medfed.core.errors import Problem
from medfed.federation.survey import (
    COVER,
    IMAGES,
    INTENSITIES,
    MEASURED,
    POSITIONS,
    SIZES,
    SPACINGS,
    SPREADS,
    Facts,
)

MAX_SPACING_RATIO, UNIT_RATIO = 2.0, 5.0  # above the second in all axes, the unit is probably another one
MAX_SIZE_RATIO = 3.0
MAX_OFFSET = 0.5  # of the darkest intensities, as a fraction of the range at the other sites
MAX_COVER_RATIO = 4.0
INVERTED_COVER = 0.3  # difference of two shares on different sides of 1/2
MANY_EMPTY, FEW_EMPTY = 0.5, 0.1  # fractions of the images
MIN_FLIP, MAX_FLIP_ERROR = 0.1, 1 / 3  # of the image; of the distance between a centre and its mirror image
MIN_FLIP_ERRORS = 3.0  # standard errors of a median, because a few lesions often lie on the other side by chance
MEDIAN_ERROR = 1.25  # standard error of a median of n normal values, in units of sd / sqrt(n): sqrt(pi / 2)
FIXED_RANGE = 4.0, "the same numbers are mapped to 0 and 1 at every site, so the network would see other images"
PERCENTILES = 10.0, "each volume is scaled by its own percentiles, which removes the factor"
NO_CLASS = (
    "no image belongs to the class '{}'",
    "{} have such images",
    "check the names of its folders; a site without a class teaches that the class does not exist",
)
NO_STRUCTURE = (
    "no mask shows the structure '{}'",
    "masks of {} show it",
    "check the values in its masks; its training would teach the model to predict nothing",
)
AXES_OF_VOLUME = ("left and right", "front and back", "head and feet")
AXES_OF_IMAGE = ("top and bottom", "left and right")
Numbers = Sequence[float]


@dataclass(frozen=True)
class Mismatch:
    """A difference between a site and the other sites."""

    site: str
    what: str  # "labels", "empty masks", "covered share", "spacing", "size", "intensities" or "orientation"
    found: str  # at the site, as a clause
    others: str  # what the other sites have, as a clause
    advice: str
    is_severe: bool = False  # training would teach the global model a mistake, or nothing, about a label at this site
    other_site: str = ""  # the other one of two sites, if either of them may be wrong

    @property
    def problem(self) -> Problem:
        if self.other_site:
            found = f"{self.what}: {self.found} at {self.site}, but {self.others}; one of them may be wrong"
            return Problem(self.what, f"{self.site} and {self.other_site}", found, self.advice)
        return Problem(self.what, self.site, f"{self.what}: {self.found}, but {self.others}", self.advice)

    def __str__(self) -> str:
        return str(self.problem)


def find_mismatches(
    facts: Mapping[str, Facts], labels: Sequence[str], are_classes: bool, has_fixed_range: bool
) -> list[Mismatch]:
    """Return the differences between the sites that replied to a survey, the severe ones first.

    `labels` are the structures or classes in the order of their numbers in the facts. With `has_fixed_range`, the same
    numbers map the intensities of all sites to [0, 1], and not the percentiles of each volume.
    """
    scale = partial(_scale, *(FIXED_RANGE if has_fixed_range else PERCENTILES))
    mismatches: list[Mismatch] = []
    for site in facts:
        compare = partial(_compare, facts, site)
        mismatches += _missing_labels(site, facts, labels, are_classes)
        mismatches += compare("spacing", _medians(SPACINGS), _spacing, "the median voxel has", "{:.3g}", " mm")
        mismatches += compare("size", _medians(SIZES[:2]), _size, "the median image has", "{:.3g}", " pixels")
        ends = _medians(INTENSITIES[::2])
        mismatches += compare("intensities", ends, scale, "typical images have", "{:g}", joined_by=" to ")
        mismatches += _flips(facts, site, labels)
        mismatches += _covers(facts, site, labels)
    return sorted(mismatches, key=lambda mismatch: (not mismatch.is_severe, mismatch.site))


def cover_mismatches(facts: Mapping[str, Facts], labels: Sequence[str]) -> list[Mismatch]:
    """Find sites at which a structure covers a much larger or smaller share of the image than is usual (`K.cover`)."""
    return [mismatch for site in facts for mismatch in _covers(facts, site, labels)]


def _compare(
    facts: Mapping[str, Facts],
    site: str,
    what: str,
    names: Sequence[str],
    advise: Callable[[Numbers, Numbers], str],  # for the numbers of the site and the usual ones; "" if they fit
    before: str,
    number: str,  # the format of one number
    after: str = "",
    joined_by: str = " x ",
) -> Iterator[Mismatch]:
    """Compare numbers of a site with the median over the sites, or of two sites, with those of the other one."""
    known = [name for name in names if name in facts[site] and sum(name in one for one in facts.values()) > 1]
    if not known:
        return
    own, usual = [facts[site][name] for name in known], [_usual(site, facts, name) for name in known]
    first, *more = facts
    other = (more[0] if site == first else first) if len(more) == 1 else ""
    is_named = other == first and advise(usual, own)  # of two sites, by the comparison of the first one
    if not is_named and (advice := advise(own, usual)):
        texts = [joined_by.join(map(number.format, numbers)) for numbers in (own, usual)]
        others = f"{texts[1]} at {other}" if other else f"{texts[1]} is usual"
        yield Mismatch(site, what, f"{before} {texts[0]}{after}", others, advice, other_site=other)


def _usual(site: str, facts: Mapping[str, Facts], name: str) -> float:
    """Return the median over the sites that have a number; of two, the number of the other site."""
    values = {other: numbers[name] for other, numbers in facts.items() if name in numbers}
    return median(value for other, value in values.items() if other != site or len(values) > 2)


def _missing_labels(
    site: str, facts: Mapping[str, Facts], labels: Sequence[str], are_classes: bool
) -> Iterator[Mismatch]:
    """Find a class or structure that the site never shows, or shows much less often than other sites."""
    for number, label in enumerate(labels):
        shares = {other: _share(numbers, number, are_classes) for other, numbers in facts.items()}
        own, known = shares.pop(site), [share for share in shares.values() if share is not None]
        having = ", ".join(other for other, share in shares.items() if share)
        if own == 0 and having:
            found, elsewhere, advice = NO_CLASS if are_classes else NO_STRUCTURE
            yield Mismatch(site, "labels", found.format(label), elsewhere.format(having), advice, is_severe=True)
        elif not are_classes and own and 1 - own > MANY_EMPTY and known and 1 - median(known) < FEW_EMPTY:
            found = f"{1 - own:.0%} of the masks do not show '{label}'"
            elsewhere = f"{1 - median(known):.0%} at the other sites"
            yield Mismatch(site, "empty masks", found, elsewhere, "check the masks of this site")


def _share(facts: Facts, label: int, are_classes: bool) -> float | None:
    """Return the fraction of the images that have a label; None if it was left out because of too few patients."""
    name, total = f"{label}.{IMAGES}", facts[IMAGES if are_classes else MEASURED]
    return facts[name] / total if name in facts and total else None


def _spacing(own: Numbers, usual: Numbers) -> str:
    ratios = _ratios(own, usual)
    if _largest(ratios) <= MAX_SPACING_RATIO:
        return ""
    if min(ratios) > UNIT_RATIO or max(ratios) < 1 / UNIT_RATIO:
        factor = _times(math.prod(ratios) ** (1 / len(ratios)))
        return (
            f"{factor} in all axes points to a file header in another unit; write mm, because distances such as HD95 "
            "would be wrong"
        )
    return (
        "check whether this is right, and whether the volumes have axial slices; slices are resized to the same number "
        "of pixels, whatever their size in mm"
    )


def _size(own: Numbers, usual: Numbers) -> str:
    is_usual = _largest(_ratios(own, usual)) <= MAX_SIZE_RATIO
    return "" if is_usual else "check whether the images were cropped; all are resized to data.image_size"


def _scale(limit: float, effect: str, own: Numbers, usual: Numbers) -> str:
    """Compare the lowest and the highest intensities of typical images; `limit` is the largest factor."""
    if len(own) < 2:
        return ""
    ratio = _ratios(own, usual)[1]
    if _largest([ratio]) > limit:
        return f"{_times(ratio)} points to another unit, bit depth or export; {effect}"
    if abs(own[0] - usual[0]) > MAX_OFFSET * (usual[1] - usual[0]) > 0:
        return f"an offset of {own[0] - usual[0]:g} points to a missing rescale intercept; export the images again"
    return ""


def _covers(facts: Mapping[str, Facts], site: str, labels: Sequence[str]) -> Iterator[Mismatch]:
    """Compare the share of the image that each structure covers; inverted masks cover what is usually outside."""
    for number, label in enumerate(labels):
        name, before, after = f"{number}.{COVER}", f"'{label}' covers", " of a typical image"
        yield from _compare(facts, site, "covered share", [name], _cover, before, "{:.0%}", after)


def _cover(own: Numbers, usual: Numbers) -> str:
    distance, error = abs(own[0] - usual[0]), abs(1 - own[0] - usual[0])
    if (own[0] - 0.5) * (usual[0] - 0.5) < 0 and distance >= INVERTED_COVER and error <= MAX_FLIP_ERROR * distance:
        return "the masks may be inverted; look at the masks"
    is_usual = _largest(_ratios(own, usual)) <= MAX_COVER_RATIO
    return "" if is_usual else "the masks may show another structure; look at the masks"


def _flips(facts: Mapping[str, Facts], site: str, labels: Sequence[str]) -> Iterator[Mismatch]:
    """Compare the centre of each structure along each axis with where a mirror would show it.

    The distance must be larger than three standard errors of the site's median. The usual position has an error of its
    own, and a lesion may lie elsewhere at other sites, so the sentence says "may be".
    """
    compared = facts.values() if len(facts) == 2 else [facts[site]]
    axes = AXES_OF_VOLUME if any(f"{SPACINGS[0]}.p50" in numbers for numbers in compared) else AXES_OF_IMAGE
    for number, label in enumerate(labels):
        for axis, position, spread in zip(axes, POSITIONS, SPREADS, strict=False):
            error = max(_error_of_median(numbers, number, spread) for numbers in compared)
            advise = partial(_flip, axis, max(MIN_FLIP, MIN_FLIP_ERRORS * error))
            name, before = f"{number}.{position}", f"the centre of '{label}' is at"
            yield from _compare(facts, site, "orientation", [name], advise, before, "{:.2f}", " of the image")


def _flip(axis: str, min_distance: float, own: Numbers, usual: Numbers) -> str:
    distance = abs(own[0] - usual[0])
    if distance < min_distance or abs(1 - own[0] - usual[0]) > MAX_FLIP_ERROR * distance:
        return ""
    return f"{axis} may be exchanged; look at the images, and correct their headers or flip them"


def _error_of_median(facts: Facts, label: int, spread: str) -> float:
    """Return the standard error of a median position; infinite if the site does not report the spread."""
    n = facts.get(f"{label}.{IMAGES}", facts[MEASURED])  # left out if few images do not show the structure
    name = f"{label}.{spread}"
    return MEDIAN_ERROR * facts[name] / math.sqrt(n) if name in facts and n else math.inf


def _medians(names: Sequence[str]) -> list[str]:
    return [f"{name}.p50" for name in names]


def _ratios(own: Numbers, usual: Numbers) -> list[float]:
    """Return how many times as large as usual each positive number is; 1 for other numbers."""
    return [a / b if a > 0 and b > 0 else 1.0 for a, b in zip(own, usual, strict=True)]


def _largest(ratios: Numbers) -> float:
    """Return the largest ratio or inverse of a ratio, at least 1."""
    return max(max(ratio, 1 / ratio) for ratio in ratios)


def _times(ratio: float) -> str:
    """Such as "10 times larger"."""
    return f"{max(ratio, 1 / ratio):.3g} times {'larger' if ratio > 1 else 'smaller'}"
