"""Find masks that were read wrongly: they lost all foreground, cover nearly the whole image, or equal the image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

import numpy as np
from monai.data import MetaTensor

from medfed.core.errors import Problem
from medfed.datasets.check_report import CheckedSite
from medfed.federation.survey import COVER
from medfed.federation.survey_mismatches import cover_mismatches
from medfed.images import reading, two_dimensional
from medfed.images.mask_colours import LOST

MAX_COVERED = 0.9  # of the pixels; a structure that covers more in most masks of a site may be the background
MAX_SAMPLED_VOXELS = 100_000  # number of voxels that are compared with the mask
INVERTED = "masks that may be inverted"
MIN_VARIANCE_RATIO = 0.02  # of the intensities within the labels of a mask to all; below, the image equals the mask


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
    found = [warning for site in sites for warning in (*_value_warnings(site), *_cover_warnings(site, structures))]
    inverted = {warning.place for warning in found if warning.kind == INVERTED}
    covers = {site.name: _median_covers(site, len(structures)) for site in sites if site.name not in inverted}
    found += [mismatch.problem for mismatch in cover_mismatches(covers, structures)]
    return found + _colour_warnings(root, sites)


def _value_warnings(site: CheckedSite) -> list[Problem]:
    """Warn if the masks of one site mark a single structure with different values: it may be another structure."""
    value_pairs = Counter(case.labels for case in site.cases if len(case.labels) == 2)
    if len(value_pairs) < 2 or any(len(case.labels) > 2 for case in site.cases):
        return []
    rarest = min(value_pairs, key=lambda labels: value_pairs[labels])
    first = next(case.name for case in site.cases if case.labels == rarest)
    listed = "; ".join(f"{reading.format_values(labels)} in {n} masks" for labels, n in value_pairs.most_common())
    found = f"the masks contain different values ({listed}), the first with the rarest values is {first}"
    return [Problem("masks of different values", site.name, found, "check whether all mean the same structure")]


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
    reason = "the masks may be inverted, or a wrong channel may have been read, such as one without the alpha channel"
    cure = (
        "look at the masks; for your own images (data.name: folder), set data.background_value to the value of the "
        "background, such as 255, or name the colours in data.mask_colours"
    )
    return [Problem(INVERTED, site.name, f"{one}; {reason}", cure) for one in found]


def _median_covers(site: CheckedSite, n_structures: int) -> dict[str, float]:
    """Return the fact `COVER` of each structure: the median share that it covers of an image that shows it."""
    shown = {index: [cover for cover in site.covers(index) if cover] for index in range(n_structures)}
    return {f"{index}.{COVER}": median(covers) for index, covers in shown.items() if covers}


def _colour_warnings(root: str, sites: Sequence[CheckedSite]) -> list[Problem]:
    """Warn if two-colour masks show the single structure in different colours: these may mean different structures."""
    every = [notice for site in sites for case in site.cases for notice in case.notices]
    colours = Counter(notice for notice in every if notice.startswith(two_dimensional.TWO_COLOURS))
    if len(colours) < 2:
        return []
    listed = "; ".join(f"{notice} in {n} masks" for notice, n in colours.most_common())
    found = f"the masks show the structure in {len(colours)} colours, which are read as the same structure: {listed}"
    cure = "if they mean different structures, name the colours in data.structure_names and data.mask_colours"
    return [Problem("masks of several colours", root, found, cure)]


def equal_notices(image: MetaTensor, mask: MetaTensor) -> list[str]:
    """Describe an image (C, H, W, D) that equals its mask (S, H, W, D): it is nearly constant in each label."""
    grey = image.numpy().mean(0).reshape(-1).astype(np.float64)
    labels = (mask.numpy() * (1 << np.arange(len(mask)))[:, None, None, None]).sum(0).reshape(-1)
    step = max(1, grey.size // MAX_SAMPLED_VOXELS)
    grey, labels = grey[::step], labels[::step]
    within = sum(grey[labels == label].var() * np.mean(labels == label) for label in np.unique(labels))
    if within < MIN_VARIANCE_RATIO * grey.var():
        return ["the image equals its mask; correct the patterns data.image and data.mask"]
    return []
