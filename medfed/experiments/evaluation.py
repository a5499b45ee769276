"""The evaluator: with the figures drawn from its scores, the only part that opens the unseen site, after training."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from tqdm import tqdm

from medfed.datasets.base import Case, Dataset
from medfed.experiments.setup import Experiment
from medfed.experiments.unseen_batch_norm import unseen_bn_of, weights_of_nearest_site, with_batch_statistics
from medfed.federation.site import Site
from medfed.functional.weights import average
from medfed.networks.tent import Tent
from medfed.tasks.results import EvaluationResult
from medfed.tasks.task import Task


def evaluate(experiment: Experiment, weights: Mapping[str, Tensor], quiet: bool) -> EvaluationResult:
    """Score every test patient of the source sites ("seen") and every patient of the unseen and validation sites.

    Args:
        weights: the global state dict. Entries that a source site keeps for itself overlay it there; the unseen and the
            validation site get their average (`unseen_weights`), or what FedBN's `unseen_bn` says.

    Returns:
        Rows, ratios, and the masks of the unseen site.
    """
    task, dataset, network = experiment.task, experiment.dataset, experiment.network
    members, validation_site = experiment.sites, experiment.validation_site
    others = {"unseen": experiment.unseen}
    if validation_site:
        others["validation"] = {validation_site.name: experiment.splits[validation_site.name].validation}
    seen = {site: patients.test for site, patients in experiment.splits.items() if patients.train}
    n_cases = sum(len(cases) for role in (seen, *others.values()) for cases in role.values())
    own = {} if experiment.clients else {site.name: site for site in members}
    unseen_bn, result = unseen_bn_of(members), EvaluationResult()
    with tqdm(total=n_cases, desc="testing", unit="case", disable=quiet, dynamic_ncols=True, leave=False) as bar:
        for name, cases in seen.items():
            if name in own:
                own[name].load(dict(weights))
            else:
                network.load_state_dict(weights)
            if cases:  # a source site may have none for the test
                result.extend(_score_site(task, dataset, _predictor(task, network), cases, "seen", bar))
        for role, sites in others.items():
            for cases in filter(None, sites.values()):
                if unseen_bn == "nearest":
                    images = task.network_images(dataset, cases)
                    adapted = weights_of_nearest_site(members, network, task, weights, cases[0].site, images)
                    network.load_state_dict(adapted)
                else:
                    network.load_state_dict(unseen_weights(members, weights))
                predictor = _predictor(task, network, by_batch=unseen_bn == "batch_stats")
                result.extend(_score_site(task, dataset, predictor, cases, role, bar))
    return result


def unseen_weights(members: Sequence[Site], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model as a site that took no part gets it.

    Entries that every source site keeps for itself (FedBN, or `federation.batch_norm: local`) are averaged over the
    sites by their number of images, as FedBN's author advises for external sites; in a real federation the sites would
    have to agree to send them once.
    """
    sites = [site for site in members if site.local_entries()]
    if not sites:
        return dict(weights)
    images = torch.tensor([float(len(site.training)) for site in sites], dtype=torch.float64)
    return {**weights, **average([site.local_entries() for site in sites], images / images.sum())}


def boundary_distances(experiment: Experiment, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """The distance that `evaluation.boundary_distance` asks for, at each site that takes no part.

    Empty where it is not asked for, or no image has an outline. Source sites send it when they validate.
    """
    task, validation_site = experiment.task, experiment.validation_site
    if not task.measures_boundary_distance:
        return {}
    samples = {
        site: task.load(experiment.dataset, cases, lambda case, notices: None, lambda n: None)
        for site, cases in experiment.unseen.items()
        if cases
    }
    samples |= {validation_site.name: validation_site.samples} if validation_site else {}
    members = experiment.sites
    levels = members[0].architecture.decoder_levels
    experiment.network.load_state_dict(unseen_weights(members, weights))
    facts = {site: task.validate(experiment.network, images, levels) for site, images in samples.items()}
    return {site: found["boundary_distance"] for site, found in facts.items() if "boundary_distance" in found}


def _score_site(
    task: Task, dataset: Dataset, network: nn.Module, cases: Sequence[Case], role: str, bar: tqdm
) -> EvaluationResult:
    """Score the cases of one site; warn of odd images of the unseen site, as those of others were read before."""
    counts: Counter[str] = Counter()
    result = task.evaluate(network, dataset, cases, role, lambda case, notices: counts.update(notices), bar.update)
    for notice, n in counts.items() if role == "unseen" else ():
        warnings.warn(f"{cases[0].site}: {n} of {len(cases)} images: {notice}", stacklevel=2)
    return result


def _predictor(task: Task, network: nn.Module, by_batch: bool = False) -> nn.Module:
    """The network, or a copy of it that adapts to the site it is about to see, or normalises by each batch of it."""
    if task.evaluation.tent:
        return Tent(network, task.evaluation.tent_learning_rate, task.uses_sigmoid)
    return with_batch_statistics(network) if by_batch else network
