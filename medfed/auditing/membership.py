"""Membership inference: whether the shared statistics reveal which patients' images they were computed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from medfed.auditing.distance import StandardizedDistance
from medfed.auditing.perturbations import degraded_copy
from medfed.auditing.sharing import SharedStatistics, evenly_spaced, images_by_patient
from medfed.core.seeds import stream
from medfed.federation.local_round import Samples

MAX_PATIENTS, MAX_IMAGES = 40, 24  # largest number of tested patients in each group, and of images of a patient
N_BOOTSTRAP, LEVEL = 2000, 0.95  # number of bootstrap samples, and confidence level of their interval
VIEWS = ("same_images", "second_look")  # the patient's images unchanged, or as perturbed copies


def membership_inference(
    shared: SharedStatistics, held_out: Samples | None, tick: Callable[[], object] = lambda: None
) -> dict | None:
    """Measure how well an attacker can find out which patients' images the shared statistics were computed from.

    A member is a patient whose images were used. The attacker has images of a patient, computes their statistics, and
    concludes that the patient is a member if they are close to the shared statistics.

    Args:
        held_out: images of patients of the same site who are not members.
        tick: called after each tested patient.

    Returns:
        "members" and "others", the numbers of tested patients, and two attacks: "same_images" uses the patient's
        unchanged images, "second_look" copies with changed brightness, shift, noise and JPEG compression. An attack has
        {"auc", "low", "high"}: the area under the ROC curve (0.5 is chance) with its 95 % bootstrap interval; None if
        statistics could be computed for fewer than two members or two others. None if there are fewer than two members
        or two others.
    """
    if held_out is None:
        return None
    groups = [
        (samples, evenly_spaced(images_by_patient(samples), MAX_PATIENTS))
        for samples in (shared.site.training, held_out)
    ]
    n_members, n_others = (len(patients) for _, patients in groups)
    if min(n_members, n_others) < 2:
        return None
    vectors: dict[str, list[list[Tensor]]] = {view: [[], []] for view in VIEWS}
    for group, (samples, patients) in enumerate(groups):
        for patient, indices in enumerate(patients):
            batch = samples.batch(evenly_spaced(indices, MAX_IMAGES))
            copies = replace(batch, image=_copies(batch.image, stream(shared.site.seed, "copies", group, patient)))
            for view, images in zip(VIEWS, (batch, copies), strict=True):
                if len(rows := shared.vectors(shared.statistics_of(images, view, group, patient))):
                    vectors[view][group].append(rows)
            tick()
    results = {view: _attack(shared, members, others, view) for view, (members, others) in vectors.items()}
    return {"members": n_members, "others": n_others, **results}


def n_tested_patients(shared: SharedStatistics, held_out: Samples | None) -> int:
    """How many patients `membership_inference` tests: at most 40 members and at most 40 non-members."""
    return sum(
        min(MAX_PATIENTS, len(images_by_patient(samples))) for samples in (shared.site.training, held_out) if samples
    )


def auc(members: Tensor, others: Tensor) -> Tensor:
    """Area under the ROC curve in [0, 1], (...): the probability that a random member has a higher score than a non-
    member. `members` (..., M) and `others` (..., N) are attack scores; equal scores count half."""
    higher = (members[..., :, None] > others[..., None, :]).double()
    return (higher + 0.5 * (members[..., :, None] == others[..., None, :])).mean(dim=(-2, -1))


def bootstrap_interval(members: Tensor, others: Tensor, rng: torch.Generator) -> tuple[float, float]:
    """95 % bootstrap interval of `auc`; members and others are resampled separately, with replacement."""
    resampled = [
        group[torch.randint(len(group), (N_BOOTSTRAP, len(group)), generator=rng)] for group in (members, others)
    ]
    edge = (1 - LEVEL) / 2
    low, high = auc(resampled[0], resampled[1]).quantile(torch.tensor([edge, 1 - edge], dtype=torch.float64)).tolist()
    return low, high


def _attack(shared: SharedStatistics, members: Sequence[Tensor], others: Sequence[Tensor], view: str) -> dict | None:
    """Score each patient by the distance of the patient's vectors from the shared ones, and compute the AUC."""
    if min(len(members), len(others)) < 2:
        return None
    sent = shared.vectors(shared.sent)
    distance = StandardizedDistance.fit(*members, *others)
    of_members, of_others = (
        torch.stack([-distance.pairwise(rows, sent).amin(dim=1).mean() for rows in group])
        for group in (members, others)
    )
    low, high = bootstrap_interval(of_members, of_others, stream(shared.site.seed, "bootstrap", view))
    return {"auc": float(auc(of_members, of_others)), "low": low, "high": high}


def _copies(images: Tensor, rng: torch.Generator) -> Tensor:
    """A degraded copy of every image (N, C, H, W)."""
    return torch.stack([degraded_copy(image, rng) for image in images])
