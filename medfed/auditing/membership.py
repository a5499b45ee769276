"""Membership: whether what a site sends tells whose images it was made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from medfed.auditing.distance import StandardizedDistance
from medfed.auditing.perturbations import degraded_copy
from medfed.auditing.sharing import SharedStatistics, evenly_spaced, images_by_patient
from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.federation.local_round import Samples

MAX_PATIENTS, MAX_IMAGES = 40, 24  # of either group; of a patient
N_BOOTSTRAP, LEVEL = 2000, 0.95  # of the bootstrap, and its interval
VIEWS = ("same_images", "second_look")


def membership(
    sharing: SharedStatistics, held_out: Samples | None, tick: Callable[[], object] = lambda: None
) -> dict | None:
    """The test says "member" where a patient's own statistic lies near what was sent.

    held_out: images of patients of the site that took no part in what was sent.
    tick: called for each patient.

    Returns:
        {"members", "others", "same_images": {"auc", "low", "high"}, "second_look": ...}: of a patient's images as they
        are, and of perturbed copies. 0.5 is chance. None without two patients on either side.
    """
    if held_out is None:
        return None
    groups = [(samples, evenly_spaced(images_by_patient(samples), MAX_PATIENTS))
              for samples in (sharing.site.training, held_out)]  # fmt: skip
    n_members, n_others = (len(patients) for _, patients in groups)
    if min(n_members, n_others) < 2:
        return None
    found: dict[str, list[list[Tensor]]] = {view: [[], []] for view in VIEWS}
    for group, (samples, patients) in enumerate(groups):
        for who, places in enumerate(patients):
            batch = samples.batch(evenly_spaced(places, MAX_IMAGES))
            again = Batch(_copies(batch.image, stream(sharing.site.seed, "copies", group, who)), batch.label)
            for view, seen in zip(VIEWS, (batch, again), strict=True):
                if len(rows := sharing.vectors(sharing.share_of(seen, view, group, who))):
                    found[view][group].append(rows)
            tick()
    tested = {view: _tested(sharing, members, others, view) for view, (members, others) in found.items()}
    return {"members": n_members, "others": n_others, **tested}


def n_tested_patients(sharing: SharedStatistics, held_out: Samples | None) -> int:
    """How many patients `membership` tests."""
    return sum(min(MAX_PATIENTS, len(images_by_patient(one))) for one in (sharing.site.training, held_out) if one)


def auc(members: Tensor, others: Tensor) -> Tensor:
    """Of scores (..., M) and (..., N): how often a member has the higher one; ties count half. 0.5 is chance."""
    higher = (members[..., :, None] > others[..., None, :]).double()
    return (higher + 0.5 * (members[..., :, None] == others[..., None, :])).mean(dim=(-2, -1))


def bootstrap_interval(members: Tensor, others: Tensor, rng: torch.Generator) -> tuple[float, float]:
    """The middle 95 % of the AUC over patients drawn again with replacement, members and others by themselves."""
    again = [group[torch.randint(len(group), (N_BOOTSTRAP, len(group)), generator=rng)] for group in (members, others)]
    edge = (1 - LEVEL) / 2
    low, high = auc(again[0], again[1]).quantile(torch.tensor([edge, 1 - edge], dtype=torch.float64)).tolist()
    return low, high


def _tested(sharing: SharedStatistics, members: Sequence[Tensor], others: Sequence[Tensor], view: str) -> dict | None:
    if min(len(members), len(others)) < 2:
        return None
    sent = sharing.vectors(sharing.sent)
    distance = StandardizedDistance.fit(*members, *others)
    of_members, of_others = (
        torch.stack([-distance.pairwise(rows, sent).amin(dim=1).mean() for rows in group])
        for group in (members, others)
    )
    low, high = bootstrap_interval(of_members, of_others, stream(sharing.site.seed, "bootstrap", view))
    return {"auc": float(auc(of_members, of_others)), "low": low, "high": high}


def _copies(images: Tensor, rng: torch.Generator) -> Tensor:
    return torch.stack([degraded_copy(image, rng) for image in images])
