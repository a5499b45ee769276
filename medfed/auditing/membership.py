"""Membership inference: whether the shared statistics reveal which patients' images they were computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import bootstrap, mannwhitneyu
from torch import Tensor

from medfed.auditing.perturbations import degraded_copy
from medfed.auditing.sharing import SharedStatistics, evenly_spaced, images_by_patient, standardised_distances
from medfed.cli.progress import ProgressBar
from medfed.core.seeds import stream, stream_seed
from medfed.federation.local_round import Samples

MAX_PATIENTS, MAX_IMAGES = 40, 24  # largest number of tested patients in each group, and of images of a patient
N_BOOTSTRAP, LEVEL = 2000, 0.95  # number of bootstrap samples, and confidence level of their interval
SAME, COPIES = "same_images", "second_look"  # the patient's images unchanged, or as perturbed copies


def membership_inference(shared: SharedStatistics, held_out: Samples | None, quiet: bool = True) -> dict | None:
    """Measure how well an attacker can find out which patients' images the shared statistics were computed from.

    The attacker has images of a patient, and concludes that the patient is a member if their statistics are close to
    the shared ones. `held_out` has patients of the same site who are not members.
    """
    if held_out is None or not can_measure(shared.site.training, held_out):
        return None
    vectors: dict[str, list[list[Tensor]]] = {SAME: [[], []], COPIES: [[], []]}
    counts = []
    for group, samples in enumerate((shared.site.training, held_out)):
        patients = evenly_spaced(images_by_patient(samples), MAX_PATIENTS)
        counts.append(len(patients))
        for patient, indices in enumerate(ProgressBar(patients, desc="membership", disable=quiet, leave=False)):
            batch = samples.batch(evenly_spaced(indices, MAX_IMAGES))
            rng = stream(shared.site.seed, "copies", group, patient)
            copies = torch.stack([degraded_copy(image, rng) for image in batch.image])
            for view, images in ((SAME, batch), (COPIES, replace(batch, image=copies))):
                if len(rows := shared.vectors(shared.statistics_of(images, view, group, patient))):
                    vectors[view][group].append(rows)
    results = {view: _attack(shared, members, others, view) for view, (members, others) in vectors.items()}
    return {"members": counts[0], "others": counts[1], **results}


def can_measure(training: Samples, held_out: Samples | None) -> bool:
    """Whether there are at least two training patients and at least two patients who were held out."""
    return held_out is not None and all(len(images_by_patient(group)) >= 2 for group in (training, held_out))


def auc_with_interval(members: ArrayLike, others: ArrayLike, seed: int) -> dict[str, float]:
    """The area under the ROC curve of "a high score means a member" (0.5 is chance; equal scores count half), with its
    95 % bootstrap interval over patients; members and others are resampled separately."""
    groups = np.asarray(members, dtype=float), np.asarray(others, dtype=float)
    settings: dict[str, Any] = {"n_resamples": N_BOOTSTRAP, "confidence_level": LEVEL, "method": "percentile"}
    rng = np.random.default_rng(seed)
    interval = bootstrap(groups, _auc, vectorized=True, random_state=rng, **settings).confidence_interval
    return {"auc": float(_auc(*groups)), "low": float(interval.low), "high": float(interval.high)}


def _auc(members: np.ndarray, others: np.ndarray, axis: int = -1) -> np.ndarray:
    pairs = members.shape[axis] * others.shape[axis]
    return mannwhitneyu(members, others, axis=axis, method="asymptotic").statistic / pairs


def _attack(shared: SharedStatistics, members: Sequence[Tensor], others: Sequence[Tensor], view: str) -> dict | None:
    """Score each patient by the distance of the patient's vectors from the shared ones, and compute the AUC."""
    if min(len(members), len(others)) < 2:
        return None
    sent, examples = shared.vectors(shared.sent), torch.cat([*members, *others])
    of_members, of_others = (
        [-float(standardised_distances(rows, sent, examples).amin(dim=1).mean()) for rows in group]
        for group in (members, others)
    )
    return auc_with_interval(of_members, of_others, stream_seed(shared.site.seed, "bootstrap", view))
