"""The evaluator: with the pictures drawn from its scores, the only part that opens the unseen site, after training."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor
from tqdm import tqdm

from medfed.datasets.base import Case
from medfed.functional.weights import average
from medfed.metrics.segmentation import score
from medfed.simulation import Simulation

Rows = list[dict[str, object]]


def evaluate(simulation: Simulation, weights: Mapping[str, Tensor], quiet: bool) -> Rows:
    """Score every test patient of the source sites ("seen") and every patient of the unseen site.

    Args:
        weights: the global state dict. Entries that a source site keeps for itself overlay it there; the unseen site
            gets their average (`unseen_weights`).

    Returns:
        A row a patient and structure, as `medfed.metrics.summary.CASE_COLUMNS` names them.
    """
    seen = {site: patients.test for site, patients in simulation.splits.items()}
    n_cases = sum(map(len, seen.values())) + sum(map(len, simulation.unseen.values()))
    rows: Rows = []
    with tqdm(total=n_cases, desc="testing", unit="case", disable=quiet, dynamic_ncols=True, leave=False) as bar:
        for site in simulation.engine.members:
            site.load(dict(weights))
            rows += _score_site(simulation, seen[site.name], "seen", bar)
        simulation.network.load_state_dict(unseen_weights(simulation, weights))
        for cases in simulation.unseen.values():
            rows += _score_site(simulation, cases, "unseen", bar)
    return rows


def unseen_weights(simulation: Simulation, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model as a site that took no part gets it.

    Entries that every source site keeps for itself (FedBN, or `federation.batch_norm: local`) are averaged over the
    sites by their number of images, as FedBN's author advises for external sites; in a real federation the sites would
    have to agree to send them once.
    """
    sites = [site for site in simulation.engine.members if site.local_entries()]
    if not sites:
        return dict(weights)
    images = torch.tensor([float(len(site.training)) for site in sites], dtype=torch.float64)
    return {**weights, **average([site.local_entries() for site in sites], images / images.sum())}


def _score_site(simulation: Simulation, cases: Sequence[Case], role: str, bar: tqdm) -> Rows:
    rows: Rows = []
    said: Counter[str] = Counter()
    for case in cases:
        volume = simulation.dataset.load(case)
        said.update(volume.notices)
        predicted = simulation.task.predict(simulation.network, volume)
        for index, structure in enumerate(simulation.task.structures):
            found = score(predicted[index], volume.mask[index].as_tensor(), volume.spacing_mm)
            rows.append(
                {"site": case.site, "role": role, "patient": case.patient, "structure": structure, **asdict(found)}
            )
        bar.update(1)
    for notice, n in said.items() if role == "unseen" else ():  # those of source sites were said when they were read
        warnings.warn(f"{cases[0].site}: {n} of {len(cases)} images: {notice}", stacklevel=2)
    return rows
