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
from medfed.networks.tent import Tent
from medfed.tasks.results import EvaluationResult
from medfed.tasks.task import Match, Task


def evaluate(
    experiment: Experiment, weights: Mapping[str, Tensor], quiet: bool, match: Match | None = None
) -> EvaluationResult:
    """Predict and score all test patients with the trained weights.

    The test patients are all patients of the unseen site and of the validation site, and some patients of each site
    that trained. The latter patients were not used in the training. A row of scores contains the role of its site:
    "seen" (the site trained), "unseen" or "validation".

    Args:
        experiment: the sites, the network and the task. The weights of the network are overwritten.
        weights: the global weights, as a state dict. If the sites keep entries of the network to themselves (such as
            BatchNorm), a site that trained is scored with its own entries. The other sites are scored with the average
            of these entries, or as the method's setting `unseen_bn` says. If clients trained, each with the images of a
            part of the sites' patients, all sites are scored in the latter way, because no client is a whole site.
        quiet: True draws no progress bar.
        match: changes the images of sites that did not train before they are predicted
            (`medfed.experiments.matching.match_of`); None changes no images.

    Returns:
        An object with four attributes:

        * `rows`: one dict of scores for each image, or for each structure of each case.
        * `ratios`: for each patient, the ratio of the vertical diameters of two structures; empty if the dataset
          defines no such ratio.
        * `masks`: for segmentation, the predicted masks of the unseen site.
        * `unadapted`: the rows of the unseen site without `match` and without Tent, if one of them is used.
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
    """Return the network for the cases of a site that keeps no entries of its own, with the rule `unseen_bn`."""
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
    """Return the state dict for scoring a site that did not train.

    Some methods keep entries of the network, such as BatchNorm, at each site. The state dict contains the average of
    these entries over the sites that trained, weighted by the number of training images. The author of the method FedBN
    advises this for external sites. In a real federation, the sites must agree to send these entries once.

    Args:
        source_sites: the sites that trained.
        weights: the global weights, as a state dict; not changed.

    Returns:
        A new dict with all entries of the network. If no entries stay at the sites, it equals `weights`.
    """
    sites = [site for site in source_sites if site.local_entries()]
    if not sites:
        return dict(weights)
    images = torch.tensor([float(len(site.training)) for site in sites], dtype=torch.float64)
    return {**weights, **average([site.local_entries() for site in sites], images / images.sum())}


def boundary_distances(experiment: Experiment, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """Compute, for each site that did not train, how well the features separate structures from the background.

    The boundary distance is the mean cosine distance, in [0, 2], between the features on the boundary of a structure
    and the features in a ring of background around the structure (Figure 7 of ELCFS). Sites that train report their
    boundary distances together with their validation scores.

    Args:
        experiment: the sites, the network and the task. The weights of the network may be overwritten.
        weights: the global weights, as a state dict.

    Returns:
        Dictionary from the name of a site that did not train to its boundary distance. The dict is empty if the setting
        `evaluation.boundary_distance` is false. A site is missing if none of its images shows the boundary of a
        structure.
    """
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
    """Read the images of the unseen site, prepared as for training, by name of the site. Call it after training only.

    Args:
        experiment: the dataset, the task, and the cases of the unseen site.
    """
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
