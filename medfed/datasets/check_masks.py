"""Find masks that were read wrongly: they show nothing, cover nearly the whole image, or mix structures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

from medfed.core.errors import Problem
from medfed.datasets.check_report import CheckedSite
from medfed.federation.survey import COVER
from medfed.federation.survey_mismatches import cover_mismatches
from medfed.images import reading

MAX_COVERED = 0.9  # of the pixels; a structure that covers more in most masks of a site may be the background
MIN_EQUAL, EQUAL_COVER, MAX_SPREAD = 4, 0.3, 0.02  # masks of a site; what they cover at least, and how equally
INVERTED = "masks that may be inverted"


def shown_nowhere(root: str, structures: Sequence[str], sites: Sequence[CheckedSite]) -> list[Problem]:
    """Return the problem that no mask of any site shows some of the structures; none if some masks cannot be read."""
    if not any(site.cases for site in sites) or any(len(site.cases) < site.n_cases for site in sites):
        return []
    names = [name for index, name in enumerate(structures) if not any(any(site.covers(index)) for site in sites)]
    if not names:
        return []
    found = f"no mask of any site shows {' or '.join(names)}; expected every structure in at least one mask"
    cure = "look at the masks, and at the settings that say what their values or colours mean"
    return [Problem("structure that no mask shows", root, found, cure)]


def warnings(structures: Sequence[str], sites: Sequence[CheckedSite], assigned: Collection[str]) -> list[Problem]:
    """Warn about masks whose sizes or values do not fit together, within a site or between sites; not about values of
    the sites in `assigned`, where the user has said what they mean."""
    found = [warning for site in sites for warning in _inverted(site, structures)]
    found += [warning for site in sites for warning in _equal_covers(site, structures)]
    inverted = {warning.place for warning in found}
    covers = {site.name: _median_covers(site, len(structures)) for site in sites if site.name not in inverted}
    found += [mismatch.problem for mismatch in cover_mismatches(covers, structures)]
    return found + [warning for site in sites if site.name not in assigned for warning in _value_warnings(site)]


def _value_warnings(site: CheckedSite) -> list[Problem]:
    """Warn if masks of a single structure have several values, because these may be different structures."""
    values = {case.labels: case.name for case in site.cases if len(case.labels) > 1}
    if len(values) < 2 or any(len(labels) > 2 for labels in values):
        return []
    listed = "; ".join(f"{reading.format_values(labels)} in {name}" for labels, name in sorted(values.items()))
    found = f"masks of different values are read as the same structure: {listed}"
    cure = "if they are different structures, set data.mask_values"
    return [Problem("masks of different values", site.name, found, cure)]


def _inverted(site: CheckedSite, structures: Sequence[str]) -> list[Problem]:
    """Warn about structures that cover more than 90 % of the pixels in most masks."""
    cure = (
        "the masks may be inverted, or a wrong channel was read; look at them; for your own images, set "
        "data.background_value, such as 255, or data.mask_colours"
    )
    found = []
    for index, name in enumerate(structures):
        covers = site.covers(index)
        n_large = sum(cover > MAX_COVERED for cover in covers)
        if 2 * n_large > len(covers):
            text = f"{name} covers more than {MAX_COVERED:.0%} of the pixels in {n_large} of {len(covers)} masks"
            found.append(Problem(INVERTED, site.name, text, cure))
    return found


def _equal_covers(site: CheckedSite, structures: Sequence[str]) -> list[Problem]:
    """Warn about structures that cover the same large part of every image, as the field of view of a camera does."""
    found = []
    for index, name in enumerate(structures):
        covers = site.covers(index)
        if len(covers) >= MIN_EQUAL and min(covers) > EQUAL_COVER and max(covers) - min(covers) < MAX_SPREAD:
            text = f"{name} covers {min(covers):.0%} of the pixels in each of {len(covers)} masks"
            cure = "look at the masks: they may show the field of view instead of the structure"
            found.append(Problem("masks that are all alike", site.name, text, cure))
    return found


def _median_covers(site: CheckedSite, n_structures: int) -> dict[str, float]:
    """Return `COVER` of each structure: the median share that it covers of an image that shows it."""
    shown = {index: [cover for cover in site.covers(index) if cover] for index in range(n_structures)}
    return {f"{index}.{COVER}": median(covers) for index, covers in shown.items() if covers}
