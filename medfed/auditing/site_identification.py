"""Whether shared statistics identify the site that sent them, and how much they depend on a single patient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medfed.auditing.sharing import SharedStatistics, evenly_spaced, images_by_patient, standardised_distances
from medfed.cli.progress import ProgressBar
from medfed.core.seeds import stream

N_REPEATS = 5  # how often the patients of every site are split into halves
MAX_IMAGES = 400  # largest number of images of a half
MAX_LEFT_OUT = 12  # largest number of patients that are left out in turn


def identify_sites(sites: Sequence[SharedStatistics], quiet: bool = True) -> dict | None:
    """Measure how often the statistics of half of a site's patients reveal to which site the patients belong.

    The patients of every site are split into two random halves. The identification of a second half is correct if the
    most similar first half of all sites belongs to the same site. Sites count that share statistics and have at least
    two patients; None if fewer than two count, or if the first one, which is audited, does not.
    """
    compared = [site for site in sites if site.sent and len(images_by_patient(site.site.training)) > 1]
    if len(compared) < 2 or compared[0] is not sites[0]:
        return None
    correct = []
    for repeat in ProgressBar(range(N_REPEATS), desc="identifying sites", disable=quiet, leave=False):
        halves = [_halves(site, repeat) for site in compared]
        first, second = (torch.cat(half) for half in zip(*halves, strict=True))
        nearest = standardised_distances(second, first, torch.cat([first, second])).argmin(dim=1)
        correct.append((nearest == torch.arange(len(compared))).double())
    rate = torch.stack(correct)
    return {
        "sites": len(compared),
        "halvings": N_REPEATS,
        "top_1": float(rate.mean()),
        "chance": 1 / len(compared),
        "own": float(rate[:, 0].mean()),
    }


def leave_one_out(shared: SharedStatistics, others: Sequence[SharedStatistics], quiet: bool = True) -> dict | None:
    """Measure how much a site's shared statistics change when the images of one patient are removed; None for fewer
    than three patients. "of_distance" is the largest change divided by the median distance from the other sites, each
    statistic standardised over the sites; it is missing if fewer than two other sites share statistics."""
    patients = images_by_patient(shared.site.training)
    if len(patients) < 3:
        return None
    complete, removed = _mean_vector(shared, patients, "whole"), evenly_spaced(range(len(patients)), MAX_LEFT_OUT)
    without = [
        _mean_vector(shared, patients[:k] + patients[k + 1 :], k)
        for k in ProgressBar(removed, desc="leaving out patients", disable=quiet, leave=False)
    ]
    changes = torch.cat([(vector - complete).norm(dim=1) / complete.norm() for vector in without])
    result = {"patients": len(without), "mean_change": float(changes.mean()), "largest_change": float(changes.max())}
    elsewhere = [_mean_vector(site, images_by_patient(site.site.training), "whole") for site in others if site.sent]
    if len(elsewhere) > 1:
        examples = torch.cat([complete, *elsewhere])
        change = standardised_distances(torch.cat(without), complete, examples).max()
        result["of_distance"] = float(change / standardised_distances(examples[1:], complete, examples).median())
    return result


def _halves(shared: SharedStatistics, repeat: int) -> tuple[Tensor, Tensor]:
    """The mean vectors (1, D) of two random halves of a site's patients."""
    patients = images_by_patient(shared.site.training)
    rng = stream(shared.site.seed, "halves", shared.site.name, repeat)
    order = torch.randperm(len(patients), generator=rng).tolist()
    middle = len(order) // 2
    first, second = ([patients[k] for k in half] for half in (order[:middle], order[middle:]))
    return _mean_vector(shared, first, "first half", repeat), _mean_vector(shared, second, "second half", repeat)


def _mean_vector(shared: SharedStatistics, patients: Sequence[list[int]], *purpose: str | int) -> Tensor:
    """The mean vector (1, D) of some patients' statistics, over at most `MAX_IMAGES` images; (0, 0) if none is sent."""
    indices = evenly_spaced([index for patient in patients for index in patient], MAX_IMAGES)
    rows = shared.vectors(shared.statistics_of(shared.site.training.batch(indices), *purpose))
    return rows.mean(dim=0, keepdim=True) if len(rows) else rows
