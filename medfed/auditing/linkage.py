"""Re-identification attack: find the statistics of an image in what the site sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from medfed.auditing.distance import StandardizedDistance
from medfed.auditing.perturbations import perturbations
from medfed.auditing.sharing import SharedStatistics, images_by_patient
from medfed.core.batch import Batch
from medfed.core.seeds import stream

MAX_SCANNED_RATIO = 20  # at most this many images are searched for each gallery image, if only some rows were sent

Trials = dict[str, list[tuple[bool, float]]]  # by perturbation: (whether the attack was right, chance level)


def reidentify(
    shared: SharedStatistics, n_images: int, mirror_axis: int, tick: Callable[[], object] = lambda: None
) -> dict | None:
    """Measure how often an attacker who has a changed copy of an image finds the statistics of this image.

    For some methods, a site sends one vector of statistics for each image. The attacker computes the vector of the
    changed copy ("noise", "mirrored", "shifted", "JPEG", or "copy", which has changed brightness, shift, noise and JPEG
    together), and chooses the most similar of N sent vectors (the gallery). The choice is correct if it belongs to the
    original image. In "neighbour", the attacker has another image of the same patient: the next one (in a volume, the
    next slice) or else the previous one, whose vector is not in the gallery. The choice is correct if it belongs to the
    same patient.

    Args:
        n_images: largest number N of vectors in the gallery, for random images whose vectors were sent.
        mirror_axis: axis along which the mirrored copy of an image (C, H, W) is flipped: -1 (W) or -2 (H).
        tick: called after each gallery image.

    Returns:
        {"n": N, "perturbations": {NAME: {"top_1", "chance", "n"}}}: the fraction of correct choices, the fraction
        expected by chance, and the number of choices. None if the site does not send one vector for each image, or if
        fewer than two vectors can be assigned to an image.
    """
    if not shared.per_image_entries:
        return None
    indices, gallery = _gallery(shared, n_images)
    if len(indices) < 2:
        return None
    distance = StandardizedDistance.fit(gallery)
    trials: Trials = {}
    patients = images_by_patient(shared.site.training)
    patient_of = {index: patient for patient, images in enumerate(patients) for index in images}
    perturb_by_name = perturbations(mirror_axis)
    for position, index in enumerate(indices):
        batch = shared.site.training.batch([index])
        for name, perturb in perturb_by_name.items():
            image = perturb(batch.image[0], stream(shared.site.seed, "second look", name, index))
            distances = _distances(shared, distance, gallery, replace(batch, image=image[None]), name, index)
            if distances is not None:
                trials.setdefault(name, []).append((int(distances.argmin()) == position, 1 / len(indices)))
        _try_neighbour(shared, distance, indices, gallery, patient_of, position, trials)
        tick()
    return {
        "n": len(indices),
        "perturbations": {
            name: {
                "top_1": fmean(right for right, _ in of_name),
                "chance": fmean(chance for _, chance in of_name),
                "n": len(of_name),
            }
            for name, of_name in trials.items()
        },
    }


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


def _try_neighbour(
    shared: SharedStatistics,
    distance: StandardizedDistance,
    indices: list[int],
    gallery: Tensor,
    patient_of: dict[int, int],
    position: int,
    trials: Trials,
) -> None:
    """Add a trial with the patient's next (or previous) image; the neighbour's own gallery row is left out."""
    index = indices[position]
    neighbour = next((near for near in (index + 1, index - 1) if patient_of.get(near) == patient_of[index]), None)
    if neighbour is None:
        return
    batch = shared.site.training.batch([neighbour])
    distances = _distances(shared, distance, gallery, batch, "neighbour", index)
    if distances is None:
        return
    others = [k for k, other in enumerate(indices) if other != neighbour]
    best = min(others, key=lambda k: float(distances[k]))
    same = [patient_of[indices[k]] == patient_of[index] for k in others]
    is_right = patient_of[indices[best]] == patient_of[index]
    trials.setdefault("neighbour", []).append((is_right, sum(same) / len(same)))


def _distances(
    shared: SharedStatistics,
    distance: StandardizedDistance,
    gallery: Tensor,
    batch: Batch,
    *purpose: str | int,
) -> Tensor | None:
    """The distances (N,) of a batch of one image from the gallery rows; None if it has no statistics."""
    row = shared.vectors(shared.statistics_of(batch, *purpose))
    return distance.pairwise(row, gallery)[0] if len(row) else None
