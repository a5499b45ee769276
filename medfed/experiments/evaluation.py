"""Score the trained network on test patients, including those of the unseen site.

Only this module, `medfed.experiments.unseen_rounds` and the figures read the images of the unseen site, after training.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medfed.cli.progress import ProgressBar
from medfed.datasets.base import Case, Dataset
from medfed.experiments.setup import Experiment
from medfed.experiments.unseen_batch_norm import unseen_bn_of, weights_of_nearest_site, with_batch_statistics
from medfed.federation.site import Site
from medfed.functional.weights import average
from medfed.networks.parts.tent import Tent
from medfed.tasks.results import EvaluationResult
from medfed.tasks.task import Match, Task


def evaluate(
    experiment: Experiment, weights: Mapping[str, Tensor], quiet: bool, match: Match | None = None
) -> EvaluationResult:
    """Predict and score all test patients: those of the source sites, of the unseen site and of the validation site.

    If sites keep entries of the network (such as BatchNorm), a site that trained is scored with its own entries. Other
    sites, and all sites if simulated clients trained, are scored with the average, or by the method's `unseen_bn`.

    Args:
        experiment: the weights of its network are overwritten.
        weights: the global weights, as a state dict.
        match: changes the images of sites that did not train before the prediction; None changes none.
    """
    task, dataset, validation_site = experiment.task, experiment.dataset, experiment.validation_site
    others = {"unseen": experiment.unseen}
    if validation_site:
        others["validation"] = {validation_site.name: experiment.splits[validation_site.name].validation}
    seen = {site: patients.test for site, patients in experiment.splits.items() if patients.train}
    n_cases = sum(len(cases) for role in (seen, *others.values()) for cases in role.values())
    is_adapted = task.evaluation.tent or match is not None
    n_cases += sum(map(len, experiment.unseen.values())) * is_adapted
    own = {} if experiment.clients else {site.name: site for site in experiment.sites}
    result = EvaluationResult()
    with ProgressBar(total=n_cases, desc="testing", unit="case", disable=quiet, leave=False) as bar:
        for role, sites in {"seen": seen, **others}.items():
            for name, cases in sites.items():
                if not cases:  # a source site may have no test patients
                    continue
                if name in own:
                    own[name].load(dict(weights))
                    network = own[name].network
                else:
                    network = _network_without_training(experiment, weights, cases)
                if role == "unseen" and is_adapted:
                    plain = task.evaluate(network, dataset, cases, role, _ignore_notices, bar.update)
                    result.unadapted.extend(plain.rows)
                if task.evaluation.tent:
                    network = Tent(network, task.evaluation.tent_learning_rate, task.uses_sigmoid)
                on_images = None if role == "seen" else match
                result.extend(_score_site(task, dataset, network, cases, role, bar, on_images))
    return result


def _network_without_training(
    experiment: Experiment, weights: Mapping[str, Tensor], cases: Sequence[Case]
) -> nn.Module:
    """Return the network for a site that keeps no entries of its own, by the rule `unseen_bn`."""
    task, network, source_sites = experiment.task, experiment.network, experiment.sites
    unseen_bn = unseen_bn_of(source_sites)
    if unseen_bn == "nearest":
        images = task.network_images(experiment.dataset, cases)
        adapted = weights_of_nearest_site(source_sites, network, task, weights, cases[0].site, images)
        network.load_state_dict(adapted)
    else:
        network.load_state_dict(unseen_weights(source_sites, weights))
    return with_batch_statistics(network) if unseen_bn == "batch_stats" else network


def unseen_weights(source_sites: Sequence[Site], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state dict for a site that did not train: entries that stay at the sites are averaged, as the author
    of FedBN advises. In a real federation, the sites must agree to send these entries once."""
    sites = [site for site in source_sites if site.local_entries()]
    if not sites:
        return dict(weights)
    images = torch.tensor([float(len(site.training)) for site in sites], dtype=torch.float64)
    return {**weights, **average([site.local_entries() for site in sites], images / images.sum())}


def boundary_distances(experiment: Experiment, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """Return, for each site that did not train, the mean cosine distance, in [0, 2], between features on a structure's
    boundary and in a ring of background around it (Figure 7 of ELCFS). Without a boundary, a site is missing."""
    task, validation_site = experiment.task, experiment.validation_site
    if not task.measures_boundary_distance:
        return {}
    samples = unseen_samples(experiment)
    samples |= {validation_site.name: validation_site.samples} if validation_site else {}
    levels = experiment.sites[0].architecture.decoder_levels
    experiment.network.load_state_dict(unseen_weights(experiment.sites, weights))
    facts = {site: task.validate(experiment.network, images, levels) for site, images in samples.items()}
    return {site: of_site["boundary_distance"] for site, of_site in facts.items() if "boundary_distance" in of_site}


def unseen_samples(experiment: Experiment) -> dict[str, Any]:
    """Read the images of the unseen site, prepared as for training, by its name. Call it after training only."""
    load, dataset = experiment.task.load, experiment.dataset
    cases_by_site = {site: cases for site, cases in experiment.unseen.items() if cases}
    return {
        site: load(dataset, cases, lambda case, notices: None, lambda n: None) for site, cases in cases_by_site.items()
    }


def _score_site(
    task: Task,
    dataset: Dataset,
    network: nn.Module,
    cases: Sequence[Case],
    role: str,
    bar: ProgressBar,
    match: Match | None,
) -> EvaluationResult:
    """Score the cases of one site; warn about unusual images of the unseen site, which nobody has read before."""
    counts: Counter[str] = Counter()
    result = task.evaluate(
        network, dataset, cases, role, lambda case, notices: counts.update(notices), bar.update, match
    )
    for notice, n in counts.items() if role == "unseen" else ():
        warnings.warn(f"{cases[0].site}: {n} of {len(cases)} images: {notice}", stacklevel=2)
    return result


def _ignore_notices(case: Case, notices: Sequence[str]) -> None:
    """Do nothing: the images are read a second time for the adapted prediction, which reports the notices."""
