"""Find masks that were read wrongly: they lost all foreground, cover nearly the whole image, or mix structures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch
from monai.data import MetaTensor

from medfed.core.errors import Problem
from medfed.datasets.check_report import CheckedSite
from medfed.federation.survey import COVER
from medfed.federation.survey_mismatches import cover_mismatches
from medfed.images import reading, two_dimensional
from medfed.images.mask_colours import LOST

MAX_COVERED = 0.9  # of the pixels; a structure that covers more in most masks of a site may be the background
INVERTED = "masks that may be inverted"
EQUAL = "the image equals its mask; correct data.image and data.mask"  # a notice
MIN_EQUAL_CORRELATION = 0.99
MAX_SAMPLED_VOXELS = 100_000  # that are compared


def is_mask(image: MetaTensor, mask: MetaTensor) -> bool:
    """Whether an image (C, H, W, D) shows only its mask (S, H, W, D), as if one file were taken for the other."""
    step = max(1, image[0].numel() // MAX_SAMPLED_VOXELS)
    pair = torch.stack([part.as_tensor().flatten(1)[:, ::step].double().sum(0) for part in (image, mask)])
    return bool(torch.corrcoef(pair)[0, 1].abs() > MIN_EQUAL_CORRELATION)


def lost_problem(site: str, n_lost: int, n_masks: int) -> Problem | None:
    """Return the problem that all masks of a site that were read have the notice `LOST`, or None."""
    if not n_lost or n_lost < n_masks:
        return None
    return Problem(
        "masks that lost all structures",
        site,
        f"{LOST}, in each of {n_masks} masks; expected the colours of every structure",
        "correct data.mask_colours, or list only the other sites in data.sites",
    )


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


def warnings(root: str, structures: Sequence[str], sites: Sequence[CheckedSite]) -> list[Problem]:
    """Warn about masks whose values, colours or sizes do not fit together, within a site or between sites."""
    found = [warning for site in sites for warning in _cover_warnings(site, structures)]
    inverted = {warning.place for warning in found if warning.kind == INVERTED}
    covers = {site.name: _median_covers(site, len(structures)) for site in sites if site.name not in inverted}
    found += [mismatch.problem for mismatch in cover_mismatches(covers, structures)]
    return found + _value_warnings(root, sites)


def _value_warnings(root: str, sites: Sequence[CheckedSite]) -> list[Problem]:
    """Warn if masks show a single structure with several values at a site, or in several colours: they may differ."""
    values: dict[tuple[str, str], list[str]] = {}
    for site in sites:
        has_one_value = all(len(case.labels) <= 2 for case in site.cases)
        for case in site.cases:
            colours = [notice for notice in case.notices if notice.startswith(two_dimensional.TWO_COLOURS)]
            if colours:
                values.setdefault((root, colours[0]), []).append(case.name)
            elif has_one_value and len(case.labels) == 2:
                values.setdefault((site.name, reading.format_values(case.labels)), []).append(case.name)
    found = []
    for place in dict.fromkeys(place for place, _ in values):
        listed = [
            f"{text} in {len(names)} masks, such as {names[0]}" for (at, text), names in values.items() if at == place
        ]
        if len(listed) > 1:
            text = f"masks of different values or colours are read as the same structure: {'; '.join(listed)}"
            cure = "if they are different structures, set data.mask_values or data.mask_colours"
            found.append(Problem("masks of different values", place, text, cure))
    return found


def _cover_warnings(site: CheckedSite, structures: Sequence[str]) -> list[Problem]:
    """Warn about structures that cover more than 90 % of the pixels in most masks, and about masks without a shape."""
    found = []
    for index, name in enumerate(structures):
        covers = site.covers(index)
        n_large = sum(cover > MAX_COVERED for cover in covers)
        if 1.0 in covers and set(covers) <= {0.0, 1.0}:
            found.append(f"every mask is completely covered by {name} or does not show it, so masks have no shape")
        elif 2 * n_large > len(covers):
            found.append(f"{name} covers more than {MAX_COVERED:.0%} of the pixels in {n_large} of {len(covers)} masks")
    cure = (
        "the masks may be inverted, or a wrong channel was read; look at them; for your own images, set "
        "data.background_value, such as 255, or data.mask_colours"
    )
    return [Problem(INVERTED, site.name, one, cure) for one in found]


def _median_covers(site: CheckedSite, n_structures: int) -> dict[str, float]:
    """Return the fact `COVER` of each structure: the median share that it covers of an image that shows it."""
    shown = {index: [cover for cover in site.covers(index) if cover] for index in range(n_structures)}
    return {f"{index}.{COVER}": median(covers) for index, covers in shown.items() if covers}
