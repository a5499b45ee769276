"""Compare what the sites replied to a survey, and name what does not fit together before any site trains.

Each site is compared with the median over the sites. Of two sites, each is compared with the other one; if sizes, voxel
sizes, intensities, slices or positions differ, either of the two may be wrong, so one mismatch names both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from medfed.core.errors import Problem
from medfed.federation.survey import (
    COVER,
    IMAGES,
    INTENSITIES,
    MEASURED,
    ORIENTATION,
    POSITIONS,
    SIZES,
    SPACINGS,
    SPREADS,
    Facts,
)

MAX_SPACING_RATIO, UNIT_RATIO = 2.0, 5.0  # above the second in all axes, the unit is probably another one
MAX_SIZE_RATIO = 3.0
MAX_FIXED_RATIO = 4.0  # of intensities that are mapped to [0, 1] by the same numbers at every site
MAX_PERCENTILE_RATIO = 10.0  # of intensities that are mapped by the percentiles of each volume
MAX_OFFSET = 0.5  # of the darkest intensities, as a fraction of the range at the other sites
MAX_COVER_RATIO = 4.0
INVERTED_COVER = 0.4  # difference of two shares on different sides of 1/2
MANY_EMPTY, FEW_EMPTY = 0.5, 0.1  # fractions of the images
MIN_FLIP, MAX_FLIP_ERROR = 0.1, 1 / 3  # of the image; of the distance between a centre and its mirror image
MIN_FLIP_ERRORS = 3.0  # standard errors of a median, because a few lesions often lie on the other side by chance
MEDIAN_ERROR = 1.25  # standard error of a median of n normal values, in units of sd / sqrt(n): sqrt(pi / 2)
PLAUSIBLE_SPACING_MM = (0.01, 100.0)
ABSENT = ("labels", "empty masks")  # what differs at one site only, also if there are two sites
FIXED_EFFECT = "the same numbers are mapped to 0 and 1 at every site, so the network would see other images"
PERCENTILE_EFFECT = "each volume is scaled by its own percentiles, which removes the factor"
AXES_OF_VOLUME = ("left and right", "front and back", "head and feet")
AXES_OF_IMAGE = ("top and bottom", "left and right")
PLANES = {"RL": "sagittal", "AP": "coronal", "SI": "axial"}


@dataclass(frozen=True)
class Mismatch:
    """A difference between a site and the other sites.

    Attributes:
        site: the name of the site.
        what: what differs: "labels", "empty masks", "covered share", "spacing", "size", "intensities", "stacking" or
            "orientation".
        found: what was found at the site, as a clause.
        others: what the other sites have, as a clause.
        advice: what to do.
        is_severe: whether training would teach the global model a mistake, or nothing, at this site: a structure that
            no mask of the site shows, or a class of which the site has no image.
        other_site: the name of the other one of two sites, if either of them may be wrong; else "".
    """

    site: str
    what: str
    found: str
    others: str
    advice: str
    is_severe: bool = False
    other_site: str = ""

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

    Args:
        facts: the facts of each site that described its images, by the name of the site.
        labels: names of the structures or classes, in the order of their numbers in the facts.
        are_classes: whether `labels` are classes, and not structures.
        has_fixed_range: whether the same numbers, and not the percentiles of each volume, map the intensities of all
            sites to [0, 1].
    """
    limit = MAX_FIXED_RATIO if has_fixed_range else MAX_PERCENTILE_RATIO
    effect = FIXED_EFFECT if has_fixed_range else PERCENTILE_EFFECT
    found = [
        mismatch
        for site in facts
        for mismatch in (
            *_labels(site, facts, labels, are_classes),
            *_spacing(site, facts),
            *_sizes(site, facts),
            *_intensities(site, facts, limit, effect),
            *_stacking(site, facts),
            *_flips(site, facts, labels),
            *_covers(site, facts, labels),
        )
    ]
    if len(facts) == 2:
        found = _of_both(found, *facts)
    return sorted(found, key=lambda mismatch: (not mismatch.is_severe, mismatch.site))


def cover_mismatches(facts: Mapping[str, Facts], labels: Sequence[str]) -> list[Mismatch]:
    """Find sites at which a structure covers a much larger or smaller share of the image than is usual (`K.cover`)."""
    found = [mismatch for site in facts for mismatch in _covers(site, facts, labels)]
    return _of_both(found, *facts) if len(facts) == 2 else found


def _of_both(found: Sequence[Mismatch], first: str, second: str) -> list[Mismatch]:
    """Return the mismatches of two sites, where one mismatch replaces the two of "A differs from B" and "B from A"."""
    of_first = {mismatch.what for mismatch in found if mismatch.site == first}
    return [
        mismatch
        if mismatch.what in ABSENT
        else replace(mismatch, other_site=second if mismatch.site == first else first)
        for mismatch in found
        if mismatch.what in ABSENT or mismatch.site == first or mismatch.what not in of_first
    ]


def _elsewhere(site: str, facts: Mapping[str, Facts], usual: str = "is usual") -> str:
    """Return where a usual number comes from: "is usual", or "at B" for the other one of two sites."""
    others = [other for other in facts if other != site]
    return f"at {others[0]}" if len(others) == 1 else usual


def _usual(site: str, facts: Mapping[str, Facts], name: str) -> tuple[float, float] | None:
    """Return the number of a site and the number that it is compared with; None if no two sites have the number."""
    values = {other: numbers[name] for other, numbers in facts.items() if name in numbers}
    if site not in values or len(values) < 2:
        return None
    compared = values.values() if len(values) > 2 else [value for other, value in values.items() if other != site]
    return values[site], median(compared)


def _ratio(site: str, facts: Mapping[str, Facts], name: str) -> float:
    """Return how many times as large as usual a positive number of a site is; 1 if it cannot be compared."""
    pair = _usual(site, facts, name)
    return pair[0] / pair[1] if pair and pair[0] > 0 and pair[1] > 0 else 1.0


def _labels(site: str, facts: Mapping[str, Facts], labels: Sequence[str], are_classes: bool) -> Iterator[Mismatch]:
    """Find a class or structure that the site never shows, or shows much less often than other sites."""
    for number, label in enumerate(labels):
        name = f"{number}.{IMAGES}"
        others = {other: _fraction(numbers, name, are_classes) for other, numbers in facts.items() if other != site}
        own = _fraction(facts[site], name, are_classes)
        known = [fraction for fraction in others.values() if fraction is not None]
        if own == 0 and any(known):
            having = ", ".join(other for other, fraction in others.items() if fraction)
            if are_classes:
                found, elsewhere = f"no image belongs to the class '{label}'", f"{having} have such images"
                advice = "check the names of its folders; a site without a class teaches that the class does not exist"
            else:
                found, elsewhere = f"no mask shows the structure '{label}'", f"masks of {having} show it"
                advice = "check the values in its masks; its training would teach the model to predict nothing"
            yield Mismatch(site, "labels", found, elsewhere, advice, is_severe=True)
        elif not are_classes and own and 1 - own > MANY_EMPTY and known and 1 - median(known) < FEW_EMPTY:
            found = f"{1 - own:.0%} of the masks do not show '{label}'"
            elsewhere = f"{1 - median(known):.0%} at the other sites"
            yield Mismatch(site, "empty masks", found, elsewhere, "check the masks of this site")


def _fraction(facts: Facts, name: str, are_classes: bool) -> float | None:
    """Return the fraction of the images that have a label; None if it was left out because of too few patients."""
    total = facts[IMAGES if are_classes else MEASURED]
    return facts[name] / total if name in facts and total else None


def _spacing(site: str, facts: Mapping[str, Facts]) -> Iterator[Mismatch]:
    """Find voxels much larger or smaller than at the other sites, or in another unit."""
    names = [f"{name}.p50" for name in SPACINGS]
    ratios = [_ratio(site, facts, name) for name in names]
    if max(map(_above_one, ratios)) <= MAX_SPACING_RATIO:
        return
    own, others = ([pair[place] for name in names if (pair := _usual(site, facts, name))] for place in (0, 1))
    advice = "check whether this is right; slices are resized to the same number of pixels, whatever their size in mm"
    if min(ratios) > UNIT_RATIO or max(ratios) < 1 / UNIT_RATIO:
        ratio = math.prod(ratios) ** (1 / 3)
        headers = f"the file headers are probably in {_unit(ratio)}"
        if len(facts) == 2:
            headers = _headers_of_two(site, facts, own, others, ratio)
        advice = f"{headers}; write mm, because distances such as HD95 would be wrong"
    found, elsewhere = f"the median voxel has {_product(own)} mm", f"{_product(others)} mm {_elsewhere(site, facts)}"
    yield Mismatch(site, "spacing", found, elsewhere, advice)


def _unit(ratio: float) -> str:
    """The probable unit of voxel sizes, given their ratio to the usual sizes in mm, such as "cm"."""
    return {-3: "m", -1: "cm", 3: "micrometres"}.get(round(math.log10(ratio)), "another unit")


def _headers_of_two(
    site: str, facts: Mapping[str, Facts], own: Sequence[float], others: Sequence[float], ratio: float
) -> str:
    """Return a clause that names a unit only if the voxels of exactly one of two sites cannot be in mm."""
    low, high = PLAUSIBLE_SPACING_MM
    (other,) = (name for name in facts if name != site)
    wrong = [
        (name, factor)
        for name, voxel, factor in ((site, own, ratio), (other, others, 1 / ratio))
        if not all(low <= side <= high for side in voxel)
    ]
    if len(wrong) != 1:
        return "check in which unit the file headers of both are"
    name, factor = wrong[0]
    return f"the file headers of {name} are probably in {_unit(factor)}"


def _sizes(site: str, facts: Mapping[str, Facts]) -> Iterator[Mismatch]:
    """Find images with many more or fewer pixels than at the other sites."""
    names = [f"{name}.p50" for name in SIZES[:2]]
    if max(_above_one(_ratio(site, facts, name)) for name in names) > MAX_SIZE_RATIO:
        own, others = ([pair[place] for name in names if (pair := _usual(site, facts, name))] for place in (0, 1))
        found, elsewhere = (
            f"the median image has {_product(own)} pixels",
            f"{_product(others)} {_elsewhere(site, facts)}",
        )
        advice = "check whether the images were cropped; all are resized to data.image_size"
        yield Mismatch(site, "size", found, elsewhere, advice)


def _intensities(site: str, facts: Mapping[str, Facts], limit: float, effect: str) -> Iterator[Mismatch]:
    """Find intensities with another scale (by more than the factor `limit`) or offset; `effect` ends the advice."""
    low_name, _, high_name = (f"{name}.p50" for name in INTENSITIES)
    low, high = _usual(site, facts, low_name), _usual(site, facts, high_name)
    if low is None or high is None:
        return
    ratio = _ratio(site, facts, high_name)
    if _above_one(ratio) > limit:
        advice = f"{_times(ratio)} points to another unit, bit depth or export; {effect}"
    elif abs(low[0] - low[1]) > MAX_OFFSET * (high[1] - low[1]) > 0:
        advice = f"an offset of {low[0] - low[1]:g} points to a missing rescale intercept; export the images again"
    else:
        return
    found, elsewhere = (f"{low[place]:g} to {high[place]:g}" for place in (0, 1))
    elsewhere = f"{elsewhere} {_elsewhere(site, facts)}"
    yield Mismatch(site, "intensities", f"typical images have {found}", elsewhere, advice)


def _stacking(site: str, facts: Mapping[str, Facts]) -> Iterator[Mismatch]:
    """Compare the axis along which slices are stacked; mirrored axes are no mismatch, because medfed turns them."""
    planes = {other: plane for other, numbers in facts.items() if (plane := _plane(numbers))}
    others = [plane for other, plane in planes.items() if other != site]
    usual = max(sorted(set(others)), key=others.count, default="")
    if site in planes and usual and planes[site] != usual:
        elsewhere = f"{usual} slices {_elsewhere(site, facts, 'are usual')}"
        advice = (
            "medfed cuts every volume into axial slices, which are coarse here; convert them, or leave the site out"
        )
        yield Mismatch(site, "stacking", f"most volumes have {planes[site]} slices", elsewhere, advice)


def _plane(facts: Facts) -> str:
    """The plane of most slices, such as "axial"; "" if it is not known."""
    counts = {name.partition(".")[2]: number for name, number in facts.items() if name.startswith(f"{ORIENTATION}.")}
    if not counts:
        return ""
    stacked = max(sorted(counts), key=lambda code: counts[code])[2]
    return next(plane for directions, plane in PLANES.items() if stacked in directions)


def _flips(site: str, facts: Mapping[str, Facts], labels: Sequence[str]) -> Iterator[Mismatch]:
    """Find images whose structures lie where those of the other sites would lie in a mirror.

    The distance to the usual position must be larger than three standard errors of the site's median. The usual
    position has an error of its own, and a lesion may lie elsewhere at other sites, so the sentence says "may be".
    """
    axes = AXES_OF_VOLUME if f"{SPACINGS[0]}.p50" in facts[site] else AXES_OF_IMAGE
    for number, label in enumerate(labels):
        for axis, name, spread in zip(axes, POSITIONS, SPREADS, strict=False):
            pair = _usual(site, facts, f"{number}.{name}")
            error = max(
                _error_of_median(numbers, number, spread)
                for numbers in (facts.values() if len(facts) == 2 else [facts[site]])
            )
            if (
                pair
                and abs(pair[0] - pair[1]) >= max(MIN_FLIP, MIN_FLIP_ERRORS * error)
                and (abs(1 - pair[0] - pair[1]) <= MAX_FLIP_ERROR * abs(pair[0] - pair[1]))
            ):
                found = f"the centre of '{label}' is at {pair[0]:.2f} of the image"
                advice = f"{axis} may be exchanged; look at the images, and correct their headers or flip them"
                yield Mismatch(site, "orientation", found, f"{pair[1]:.2f} {_elsewhere(site, facts)}", advice)


def _covers(site: str, facts: Mapping[str, Facts], labels: Sequence[str]) -> Iterator[Mismatch]:
    """Find structures that cover a very different share of the image, for example because masks are inverted."""
    for number, label in enumerate(labels):
        name = f"{number}.{COVER}"
        own, usual = _usual(site, facts, name) or (0.0, 0.0)
        is_inverted = (own - 0.5) * (usual - 0.5) < 0 and abs(own - usual) >= INVERTED_COVER
        if is_inverted or _above_one(_ratio(site, facts, name)) > MAX_COVER_RATIO:
            advice = f"the masks may {'be inverted' if is_inverted else 'show another structure'}; look at the masks"
            found = f"'{label}' covers {own:.0%} of a typical image"
            yield Mismatch(site, "covered share", found, f"{usual:.0%} {_elsewhere(site, facts)}", advice)


def _error_of_median(facts: Facts, number: int, spread: str) -> float:
    """Return the standard error of a median position; infinite if the site does not report the spread."""
    n = facts.get(f"{number}.{IMAGES}", facts[MEASURED])  # left out if few images do not show the structure
    name = f"{number}.{spread}"
    return MEDIAN_ERROR * facts[name] / math.sqrt(n) if name in facts and n else math.inf


def _above_one(ratio: float) -> float:
    """Return the ratio or its inverse, whichever is at least 1."""
    return max(ratio, 1 / ratio)


def _product(numbers: Sequence[float]) -> str:
    """Such as "0.5 x 0.5 x 3"."""
    return " x ".join(f"{number:.3g}" for number in numbers)


def _times(ratio: float) -> str:
    """Such as "10 times larger"."""
    return f"{_above_one(ratio):.3g} times {'larger' if ratio > 1 else 'smaller'}"
