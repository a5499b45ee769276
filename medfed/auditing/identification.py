"""What shared statistics identify: the image in another copy, the site that sent them, and a single patient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from medfed.auditing.perturbations import perturbations
from medfed.auditing.sharing import SharedStatistics, evenly_spaced, images_by_patient, standardised_distances
from medfed.cli.progress import ProgressBar
from medfed.core.seeds import stream

MAX_SCANNED_RATIO = 20  # at most this many images are searched for each gallery image, if only some rows were sent
NEIGHBOUR = "neighbour"
N_REPEATS = 5  # how often the patients of every site are split into halves
MAX_IMAGES = 400  # largest number of images of a half
MAX_LEFT_OUT = 12  # largest number of patients that are left out in turn


def reidentify(shared: SharedStatistics, n_images: int, mirror_axis: int, quiet: bool = True) -> dict | None:
    """Measure how often an attacker who has a changed copy of an image finds the statistics of this image.

    The attacker computes the vector of the changed copy, and chooses the most similar of N sent vectors (the gallery).
    In "neighbour", the attacker has another image of the same patient: the next one (in a volume, the next slice) or
    else the previous one, whose vector is not in the gallery; the choice is correct if it belongs to the same patient.
    None if the site does not send one vector for each image, or if fewer than two can be assigned to an image.
    """
    indices, gallery = _gallery(shared, n_images) if shared.per_image_entries else ([], torch.empty(0))
    if len(indices) < 2:
        return None
    training, seed = shared.site.training, shared.site.seed
    patient_of = {index: number for number, images in enumerate(images_by_patient(training)) for index in images}
    trials: dict[str, list[tuple[bool, float]]] = {}  # by perturbation: whether the attack was right, chance level
    for index in ProgressBar(indices, desc="re-identifying images", disable=quiet, leave=False):
        batch = training.batch([index])
        copies = {
            name: (replace(batch, image=perturb(batch.image[0], stream(seed, "second look", name, index))[None]), index)
            for name, perturb in perturbations(mirror_axis).items()
        }
        near = [near for near in (index + 1, index - 1) if patient_of.get(near) == patient_of[index]]
        if near:
            copies[NEIGHBOUR] = training.batch(near[:1]), near[0]
        for name, (copy, source) in copies.items():
            row = shared.vectors(shared.known_statistics_of(copy, name, index))
            if not len(row):
                continue
            is_right = torch.tensor([patient_of[other] == patient_of[index] for other in indices])
            if name != NEIGHBOUR:
                is_right = torch.tensor([other == index for other in indices])
            distances = standardised_distances(row, gallery, gallery)[0]
            compared = torch.tensor([name != NEIGHBOUR or other != source for other in indices])
            chosen = int(distances.where(compared, torch.inf).argmin())
            chance = float(is_right[compared].double().mean())
            trials.setdefault(name, []).append((bool(is_right[chosen]), chance))
    rates = {
        name: {"top_1": fmean(right for right, _ in of), "chance": fmean(chance for _, chance in of), "n": len(of)}
        for name, of in trials.items()
    }
    return {"n": len(indices), "perturbations": rates}


def _gallery(shared: SharedStatistics, n_images: int) -> tuple[list[int], Tensor]:
    """Sample images whose row is among the sent ones; return their indices and their rows (N, D)."""
    sent = shared.vectors(shared.sent)
    order = torch.randperm(len(shared.site.training), generator=stream(shared.site.seed, "gallery")).tolist()
    indices, rows = [], []
    for index in order[: MAX_SCANNED_RATIO * n_images]:
        row = shared.row_of(shared.site.training.batch([index]), "gallery", index)
        if row is not None:
            indices.append(index)
            rows.append(sent[row][None])
        if len(indices) == n_images:
            break
    return indices, torch.cat(rows) if rows else sent[:0]


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
        halves: tuple[list[Tensor], list[Tensor]] = ([], [])
        for site in compared:
            patients = images_by_patient(site.site.training)
            rng, middle = stream(site.site.seed, "halves", site.site.name, repeat), len(patients) // 2
            shuffled = [patients[k] for k in torch.randperm(len(patients), generator=rng).tolist()]
            halves[0].append(_mean_vector(site, shuffled[:middle], "first half", repeat))
            halves[1].append(_mean_vector(site, shuffled[middle:], "second half", repeat))
        first, second = map(torch.cat, halves)
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


def _mean_vector(shared: SharedStatistics, patients: Sequence[list[int]], *purpose: str | int) -> Tensor:
    """The mean vector (1, D) of some patients' statistics, over at most `MAX_IMAGES` images; (0, 0) if none is sent."""
    indices = evenly_spaced([index for patient in patients for index in patient], MAX_IMAGES)
    rows = shared.vectors(shared.statistics_of(shared.site.training.batch(indices), *purpose))
    return rows.mean(dim=0, keepdim=True) if len(rows) else rows
