"""The evaluator: the only part that opens the unseen site, and only after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from tqdm import tqdm

from medfed.datasets.base import Case
from medfed.metrics.segmentation import score
from medfed.simulation import Simulation

Rows = list[dict[str, object]]


def evaluate(simulation: Simulation, weights: Mapping[str, Tensor], quiet: bool) -> Rows:
    """Score every test patient of the source sites ("seen") and every patient of the unseen site.

    Args:
        weights: the global state dict. Entries that a source site keeps for itself overlay it there; at the unseen
            site, BatchNorm that no site shared works on each batch's own statistics.

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
        with unseen_network(simulation, weights):
            for cases in simulation.unseen.values():
                rows += _score_site(simulation, cases, "unseen", bar)
    return rows


@contextmanager
def unseen_network(simulation: Simulation, weights: Mapping[str, Tensor]):
    """The network as a site that took no part gets it."""
    simulation.network.load_state_dict(dict(weights))
    with batch_statistics(simulation.network) if is_transductive(simulation) else nullcontext():
        yield simulation.network


def is_transductive(simulation: Simulation) -> bool:
    """Whether predictions at the unseen site depend on the other images of their batch."""
    return any(site.local_keys for site in simulation.engine.members)


@contextmanager
def batch_statistics(network: nn.Module):
    """Inside the block, BatchNorm uses each batch's statistics in evaluation too, and its running ones stay."""
    layers = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    kept = [(layer, layer.running_mean, layer.running_var) for layer in layers]
    for layer in layers:
        layer.running_mean = layer.running_var = None
    try:
        yield
    finally:
        for layer, mean, variance in kept:
            layer.running_mean, layer.running_var = mean, variance


def _score_site(simulation: Simulation, cases: Sequence[Case], role: str, bar: tqdm) -> Rows:
    rows: Rows = []
    for case in cases:
        volume = simulation.dataset.load(case)
        predicted = simulation.task.predict(simulation.network, volume)
        for index, structure in enumerate(simulation.task.structures):
            found = score(predicted[index], volume.mask[index].as_tensor(), volume.spacing_mm)
            rows.append(
                {"site": case.site, "role": role, "patient": case.patient, "structure": structure, **asdict(found)}
            )
        bar.update(1)
    return rows
