"""Re-identification: a second look at a scene, and which of the site's shared rows it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import torch
from torch import Tensor

from medfed.auditing.distance import StandardizedDistance
from medfed.auditing.perturbations import perturbations
from medfed.auditing.sharing import SharedStatistics, images_by_patient
from medfed.core.batch import Batch
from medfed.core.seeds import stream

MAX_SCANNED_RATIO = 20  # times as many images are looked at as are wanted, where only some were drawn to be shared


def reidentify(
    sharing: SharedStatistics, n_images: int, mirror_axis: int, tick: Callable[[], object] = lambda: None
) -> dict | None:
    """How often the nearest of N shared rows is that of the image that was looked at again.

    Args:
        n_images: N, at most; drawn at random from those whose row was sent.
        tick: called for each image of the N.

    Returns:
        {"n", "perturbations": {name: {"top_1", "chance", "n"}}}; None where nothing is sent of a single image, or fewer
        than two such rows are found. The perturbation "neighbour" is another image of the same patient (in a volume the
        next slice); it is right where the nearest of the other images is of that patient.
    """
    if not sharing.per_image_entries:
        return None
    places, gallery = _gallery(sharing, n_images)
    if len(places) < 2:
        return None
    distance = StandardizedDistance.fit(gallery)
    found: dict[str, list[tuple[bool, float]]] = {}
    patient = {place: who for who, one in enumerate(images_by_patient(sharing.site.training)) for place in one}
    kinds = perturbations(mirror_axis)
    for index, place in enumerate(places):
        batch = sharing.site.training.batch([place])
        for name, perturb in kinds.items():
            image = perturb(batch.image[0], stream(sharing.site.seed, "second look", name, place))
            near = _distances(sharing, distance, gallery, image[None], batch.label, name, place)
            if near is not None:
                found.setdefault(name, []).append((int(near.argmin()) == index, 1 / len(places)))
        _add_neighbour(sharing, distance, places, gallery, patient, index, found)
        tick()
    return {"n": len(places), "perturbations": {
        name: {"top_1": fmean(right for right, _ in one), "chance": fmean(chance for _, chance in one), "n": len(one)}
        for name, one in found.items()
    }}  # fmt: skip


def _gallery(sharing: SharedStatistics, n_images: int) -> tuple[list[int], Tensor]:
    """Places of images whose row is among those that were sent, and these rows (N, D)."""
    sent = sharing.vectors(sharing.sent)
    order = torch.randperm(len(sharing.site.training), generator=stream(sharing.site.seed, "gallery")).tolist()
    places, rows = [], []
    for place in order[: MAX_SCANNED_RATIO * n_images]:
        row = sharing.vectors(sharing.share_of(sharing.site.training.batch([place]), "gallery", place))
        if len(row) and float((sent - row).abs().amax(dim=1).min()) <= 1e-4 * float(row.abs().max()):
            places.append(place)
            rows.append(row)
        if len(places) == n_images:
            break
    return places, torch.cat(rows) if rows else sent[:0]


def _add_neighbour(
    sharing: SharedStatistics,
    distance: StandardizedDistance,
    places: list[int],
    gallery: Tensor,
    patient: dict[int, int],
    index: int,
    found: dict[str, list[tuple[bool, float]]],
) -> None:
    """The next image of the patient, or the one before; its own row, if it is among the N, does not count."""
    place = places[index]
    next_one = next((near for near in (place + 1, place - 1) if patient.get(near) == patient[place]), None)
    if next_one is None:
        return
    batch = sharing.site.training.batch([next_one])
    near = _distances(sharing, distance, gallery, batch.image, batch.label, "neighbour", place)
    if near is None:
        return
    others = [k for k, other in enumerate(places) if other != next_one]
    best = min(others, key=lambda k: float(near[k]))
    same = [patient[places[k]] == patient[place] for k in others]
    found.setdefault("neighbour", []).append((patient[places[best]] == patient[place], sum(same) / len(same)))


def _distances(
    sharing: SharedStatistics,
    distance: StandardizedDistance,
    gallery: Tensor,
    image: Tensor,
    label: Tensor,
    *purpose: str | int,
) -> Tensor | None:
    """(N,): how far the statistic of one image (1, C, H, W) is from each of the rows; None if it has none."""
    row = sharing.vectors(sharing.share_of(Batch(image, label), *purpose))
    return distance.pairwise(row, gallery)[0] if len(row) else None
