"""Whether a statistic identifies its site, and how much of the statistic depends on one patient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from medfed.auditing.distance import StandardizedDistance
from medfed.auditing.sharing import SharedStatistics, evenly_spaced, images_by_patient
from medfed.core.seeds import stream

N_REPEATS = 5  # halvings of every site's patients
MAX_IMAGES = 400  # of a half
MAX_LEFT_OUT = 12  # patients, at most


def identify_sites(sites: Sequence[SharedStatistics], tick: Callable[[], object] = lambda: None) -> dict | None:
    """How often the statistic of half of a site's patients is nearest to that of the other half of the same site.

    tick: called for each halving of all sites.

    Returns:
        {"sites", "halvings", "top_1", "chance", "own": the first site's top_1}; None where fewer than two sites share
        and have two patients.
    """
    able = [one for one in sites if one.sent and len(images_by_patient(one.site.training)) > 1]
    if len(able) < 2 or able[0] is not sites[0]:
        return None
    right = []
    for repeat in range(N_REPEATS):
        halves = [_halves(one, repeat) for one in able]
        known, sought = (torch.cat(one) for one in zip(*halves, strict=True))
        nearest = StandardizedDistance.fit(known, sought).pairwise(sought, known).argmin(dim=1)
        right.append((nearest == torch.arange(len(able))).double())
        tick()
    rate = torch.stack(right)
    return {"sites": len(able), "halvings": N_REPEATS, "top_1": float(rate.mean()), "chance": 1 / len(able),
            "own": float(rate[:, 0].mean())}


def leave_one_out(
    sharing: SharedStatistics, others: Sequence[SharedStatistics], tick: Callable[[], object] = lambda: None
) -> dict | None:
    """How far the site's statistic moves when one patient's images are taken away.

    Returns:
        {"patients", "mean_change", "largest_change"}: shares of the statistic's own size; with two other sites,
        "of_distance": the largest change as a share of the median distance to theirs, standardised by the spread of the
        sites. None for fewer than three patients.
    """
    everyone = images_by_patient(sharing.site.training)
    if len(everyone) < 3:
        return None
    whole, without = _mean_vector(sharing, everyone, "whole"), []
    for who in evenly_spaced(range(len(everyone)), MAX_LEFT_OUT):
        without.append(_mean_vector(sharing, everyone[:who] + everyone[who + 1 :], who))
        tick()
    changes = torch.cat([(one - whole).norm(dim=1) / whole.norm() for one in without])
    found = {"patients": len(without), "mean_change": float(changes.mean()), "largest_change": float(changes.max())}
    elsewhere = [_mean_vector(one, images_by_patient(one.site.training), "whole") for one in others if one.sent]
    if len(elsewhere) > 1:
        distance = StandardizedDistance.fit(whole, *elsewhere)
        moved = distance.pairwise(torch.cat(without), whole).max()
        found["of_distance"] = float(moved / distance.pairwise(torch.cat(elsewhere), whole).median())
    return found


def _halves(sharing: SharedStatistics, repeat: int) -> tuple[Tensor, Tensor]:
    everyone = images_by_patient(sharing.site.training)
    rng = stream(sharing.site.seed, "halves", sharing.site.name, repeat)
    order = torch.randperm(len(everyone), generator=rng).tolist()
    middle = len(order) // 2
    first, second = ([everyone[who] for who in half] for half in (order[:middle], order[middle:]))
    return _mean_vector(sharing, first, "first half", repeat), _mean_vector(sharing, second, "second half", repeat)


def _mean_vector(sharing: SharedStatistics, everyone: Sequence[list[int]], *purpose: str | int) -> Tensor:
    """(1, D): of these patients's images; of a great many, some."""
    places = evenly_spaced([place for one in everyone for place in one], MAX_IMAGES)
    return sharing.mean_vector(sharing.site.training.batch(places), *purpose)
