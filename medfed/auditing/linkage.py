"""Re-identification attack: find the statistics of an image in what the site sent."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from medfed.auditing.perturbations import perturbations
from medfed.auditing.sharing import SharedStatistics, images_by_patient, standardised_distances
from medfed.cli.progress import ProgressBar
from medfed.core.seeds import stream

MAX_SCANNED_RATIO = 20  # at most this many images are searched for each gallery image, if only some rows were sent
NEIGHBOUR = "neighbour"


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
            row = shared.vectors(shared.statistics_of(copy, name, index))
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
        row = shared.vectors(shared.statistics_of(shared.site.training.batch([index]), "gallery", index))
        if len(row) and float((sent - row).abs().amax(dim=1).min()) <= 1e-4 * float(row.abs().max()):
            indices.append(index)
            rows.append(row)
        if len(indices) == n_images:
            break
    return indices, torch.cat(rows) if rows else sent[:0]
