"""Membership inference: whether shared statistics, or the losses of a trained network, reveal who took part.

Two attacks on a trained network decide that a patient took part if a number is small: "loss", the task's loss over
images of the patient (Yeom et al., "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting", CSF
2018, https://arxiv.org/abs/1709.01604), and "calibrated", the loss minus the loss with the initial weights, because
some patients are easier than others (Watson et al., "On the Importance of Difficulty Calibration in Membership
Inference Attacks", ICLR 2022, https://arxiv.org/abs/2111.08440).

Positive control "overfitted": a copy of the network that knows one image each of a few patients by heart. Negative
control "untrained": the network with its initial weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import ArrayLike
from scipy.stats import bootstrap, mannwhitneyu
from torch import Tensor, nn

from medfed.auditing.perturbations import degraded_copy
from medfed.auditing.sharing import SharedStatistics, evenly_spaced, images_by_patient, standardised_distances
from medfed.auditing.updates import small_images, task_loss, with_weights
from medfed.cli.progress import ProgressBar
from medfed.config.schema import Config, load
from medfed.core.errors import UserError
from medfed.core.seeds import seeded_layers, stream, stream_seed
from medfed.federation.local_round import Samples
from medfed.federation.method import Tensors
from medfed.federation.site import Site
from medfed.functional.weights import check_same_entries
from medfed.outputs.run_files import damaged_file

MAX_PATIENTS, MAX_IMAGES = 40, 24  # largest number of tested patients in each group, and of images of a patient
N_BOOTSTRAP, LEVEL = 2000, 0.95  # number of bootstrap samples, and confidence level of their interval
SAME, COPIES = "same_images", "second_look"  # the patient's images unchanged, or as perturbed copies
MODEL_FILE = "model.safetensors"  # in the folder of a run
N_OVERFITTED, OVERFIT_STEPS, OVERFIT_RATE = 8, 150, 0.01  # patients, steps and step size of Adam of the control
MIN_OTHERS = {0.1: 20, 0.01: 200}  # false positive rates, and the number of held-out patients that they need
CONTROL_AUC = 0.8  # the AUC that the attack must reach for the overfitted network


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
                if len(rows := shared.vectors(shared.known_statistics_of(images, view, group, patient))):
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


def read_weights(path: Path, network: nn.Module, config: Config) -> Tensors:
    """Read trained weights from the folder of a run or a file; UserError if they do not fit network and config."""
    file = path / MODEL_FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"--model {path}: {file} is missing; expected the folder of a finished run, or a file in the "
            "safetensors format"
        )
    _check_same_split(path, file.parent / "config.yaml", config)
    with damaged_file(file):
        weights = safetensors.torch.load_file(file)
    try:
        check_same_entries(network.state_dict(), weights)
    except ValueError as error:
        raise UserError(
            f"--model {path}: the weights do not fit the network of the config ({error}); use the config "
            "with which the model was trained, which is config.yaml in the folder of the run"
        ) from error
    return weights


def _check_same_split(path: Path, of_run: Path, config: Config) -> None:
    """UserError if the config of the run, which lies beside the weights, divides the patients differently."""
    run = load(of_run) if of_run.is_file() else config
    for key in ("seed", "data.validation_ratio", "data.test_ratio"):
        in_run, here = attrgetter(key)(run), attrgetter(key)(config)
        if in_run != here:
            raise UserError(
                f"--model {path}: the model was trained with {key} {in_run}, but the config has {here}, so other "
                f"patients would count as its training patients; use {of_run} as the config"
            )


def membership_in_model(
    site: Site, held_out: Samples | None, start: Tensors, trained: Tensors | None, quiet: bool = True
) -> dict[str, Any] | None:
    """Measure how well the losses of a trained network reveal which patients of a site took part in the training.

    The members are the site's training patients; no training used the patients of `held_out`. The result is None
    without trained weights, or with fewer than two members or two others. "tpr" of the attack "loss" has the fraction
    of members that are found at each false positive rate, if there are enough other patients (`MIN_OTHERS`).
    """
    if trained is None or held_out is None or not can_measure(site.training, held_out):
        return None
    of_start, of_trained = (
        [_patient_losses(site, weights, group) for group in (site.training, held_out)] for weights in (start, trained)
    )
    losses = {
        "loss": of_trained,
        "calibrated": [after - before for after, before in zip(of_trained, of_start, strict=True)],
        "untrained": of_start,
        "overfitted": _overfitted_losses(site, held_out, start, quiet),
    }
    members, others = (-group for group in of_trained)
    result: dict[str, Any] = {
        name: auc_with_interval(-groups[0], -groups[1], stream_seed(site.seed, "model membership", name))
        for name, groups in losses.items()
    }
    rates = [rate for rate, n in MIN_OTHERS.items() if len(others) >= n]
    result["loss"]["tpr"] = {str(rate): true_positive_rate(members, others, rate) for rate in rates}
    return {"members": len(members), "others": len(others), **result}


def true_positive_rate(members: Tensor, others: Tensor, false_positive_rate: float) -> float:
    """The fraction of members (M,) with a higher score than all but this fraction of the others (N,)."""
    threshold = others.sort(descending=True).values[int(false_positive_rate * len(others))]
    return float((members > threshold).double().mean())


def verdict(result: Mapping[str, Any]) -> str:
    """What a result means, compared with both controls."""
    if result["overfitted"]["auc"] < CONTROL_AUC or result["overfitted"]["low"] <= 0.5:
        return (
            "the attack is too weak here to say anything: it does not recognise the patients of an overfitted network"
        )
    measured = [result[name] for name in ("loss", "calibrated")]
    if result["untrained"]["low"] > 0.5 or result["untrained"]["high"] < 0.5:  # the two groups differ before training
        measured = [result["calibrated"]]
    if max(each["low"] for each in measured) > 0.5:
        return "the model reveals who took part, more often than by chance"
    return "not better than chance with so few patients, which does not prove that no attack can succeed"


def _patient_losses(site: Site, weights: Tensors, samples: Samples) -> Tensor:
    """The loss of each patient, (P,) float64: of at most 40 patients, over at most 24 images each."""
    network = with_weights(site, weights).eval()
    losses = []
    with torch.no_grad():
        for patient in evenly_spaced(images_by_patient(samples), MAX_PATIENTS):
            batch = samples.batch(evenly_spaced(patient, MAX_IMAGES)).to(next(network.parameters()).device)
            losses.append(float(task_loss(network, site.task, batch)))
    return torch.tensor(losses, dtype=torch.float64)


def _overfitted_losses(site: Site, held_out: Samples, start: Tensors, quiet: bool) -> list[Tensor]:
    """Train a copy of the network on one small image each of a few patients; return the losses of both groups."""
    images = []
    for samples in (site.training, held_out):
        patients = evenly_spaced(images_by_patient(samples), N_OVERFITTED)
        images.append(small_images(samples, [patient[len(patient) // 2] for patient in patients]))
    network = with_weights(site, start).train()
    optimizer = torch.optim.Adam([entry for entry in network.parameters() if entry.requires_grad], OVERFIT_RATE)
    batch = images[0].all.to(next(network.parameters()).device)
    with seeded_layers(site.seed, "overfitted layers"):
        for _ in ProgressBar(range(OVERFIT_STEPS), desc="overfitting a network", disable=quiet, leave=False):
            optimizer.zero_grad()
            task_loss(network, site.task, batch).backward()
            optimizer.step()
    return [_patient_losses(site, network.state_dict(), group) for group in images]
