"""Score the trained network on test patients, including those of the unseen site.

Only this module and the figures read the images of the unseen site, after training.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor

from medfed.cli.progress import ProgressBar
from medfed.config.schema import Config
from medfed.datasets.base import Case
from medfed.experiments.setup import SHARED, Experiment
from medfed.federation.image_moments import constants_of
from medfed.federation.message import State
from medfed.federation.site import Site
from medfed.functional.weights import average
from medfed.networks.parts.style_transfer import shows_something
from medfed.networks.parts.tent import Tent, with_batch_statistics
from medfed.outputs.run_folder import UNSEEN_ROUNDS, RunFolder
from medfed.results.run_scores import run_scores
from medfed.results.scores import table_of
from medfed.tasks.results import EvaluationResult
from medfed.tasks.task import UNOBSERVED, Match, Reading

UNSEEN_ROUNDS_NOTE = (
    "Measured at the unseen site after training. These scores look at the target: they must not choose a round, a "
    "setting or a method, and medfed uses them for this file and its figure only."
)


def evaluate(
    experiment: Experiment, weights: Mapping[str, Tensor], quiet: bool, match: Match | None = None
) -> EvaluationResult:
    """Predict and score all test patients: those of the source sites, of the unseen site and of the validation site.

    A site that trained is scored with its own entries of the network; others, and all if simulated clients trained,
    with the average of these entries, or by the method's `unseen_bn`.
    """
    task, dataset = experiment.task, experiment.dataset
    seen = {site: patients.test for site, patients in experiment.splits.items() if patients.train}
    roles = {"seen": seen, **cases_of_others(experiment)}
    cases_of = [(role, name, cases) for role, sites in roles.items() for name, cases in sites.items() if cases]
    is_adapted = task.evaluation.tent or match is not None
    n_cases = sum(len(cases) * (1 + (is_adapted and role == "unseen")) for role, _, cases in cases_of)
    own = {} if experiment.clients else {site.name: site for site in experiment.sites}
    result, counts = EvaluationResult(), Counter[tuple[str, str]]()

    def count(case: Case, notices: Sequence[str]) -> None:
        counts.update((case.site, notice) for notice in notices)

    with ProgressBar(total=n_cases, desc="testing", unit="case", disable=quiet, leave=False) as bar:
        for role, name, cases in cases_of:
            if name in own:
                own[name].load(dict(weights))
                network = own[name].network
            else:
                experiment.network.load_state_dict(unseen_weights(experiment.sites, weights))
                network = experiment.network
                if unseen_bn_of(experiment.sites) == "batch_stats":
                    network = with_batch_statistics(network)
            if role == "unseen" and is_adapted:
                plain = task.evaluate(network, dataset, cases, role, Reading(advance=bar.update))
                result.unadapted.extend(plain.rows)
            if task.evaluation.tent:
                network = Tent(network, task.evaluation.tent_learning_rate, task.has_masks)
            on_images = None if role == "seen" else match
            result.extend(task.evaluate(network, dataset, cases, role, Reading(count, bar.update), on_images))
    for (name, notice), n in counts.items():
        if name in experiment.unseen:  # nobody has read its images before
            warnings.warn(f"{name}: {n} of {len(experiment.unseen[name])} images: {notice}", stacklevel=2)
    return result


def cases_of_others(experiment: Experiment) -> dict[str, dict[str, list[Case]]]:
    """The test cases of the sites that did not train, by role and site."""
    others = {"unseen": {site: cases for site, cases in experiment.unseen.items() if cases}}
    if experiment.validation_site:
        name = experiment.validation_site.name
        others["validation"] = {name: experiment.splits[name].validation}
    return others


def unseen_weights(source_sites: Sequence[Site], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights for a site that did not train; entries that stay at the sites are averaged, as in FedBN."""
    sites = [site for site in source_sites if site.local_entries()]
    if not sites:
        return dict(weights)
    images = torch.tensor([float(len(site.training)) for site in sites], dtype=torch.float64)
    return {**weights, **average([site.local_entries() for site in sites], images / images.sum())}


def unseen_bn_of(source_sites: Sequence[Site]) -> str:
    """Return the method's `unseen_bn`, the rule for sites that did not train; "" if no entries stay at the sites."""
    return source_sites[0].method.unseen_bn if any(site.local_keys for site in source_sites) else ""


def score_unseen_rounds(experiment: Experiment, folder: RunFolder, every: int) -> None:
    """Score the unseen site with every n-th round's weights, a look at the target that may choose nothing."""
    task, network, levels = experiment.task, experiment.network, experiment.sites[0].architecture.decoder_levels
    samples = {
        site: task.load(experiment.dataset, cases, UNOBSERVED)
        for site, cases in cases_of_others(experiment)["unseen"].items()
    }
    rows = []
    for number in (number for number in folder.rounds() if number and number % every == 0):
        network.load_state_dict(folder.load_state(number).weights)
        for site, images in samples.items():
            rows.append({"round": number, "site": site, **task.validate(network, images, levels)})
    folder.write_json(UNSEEN_ROUNDS, {"note": UNSEEN_ROUNDS_NOTE, "rounds": rows})


def match_of(config: Config, state: State) -> Match | None:
    """Return what matches images (B, C, H, W) in [0, 1] as `evaluation.match` says; None without shared statistics."""
    kind = config.evaluation.match
    if kind == "none":
        return None
    matcher = config.method.matcher(state, kind, config.evaluation.match_ratio)
    if matcher is None:
        warnings.warn(f"evaluation.match: no site shared {SHARED[kind]}, so the images are not matched", stacklevel=2)
        return None

    def match(images: Tensor) -> Tensor:
        return torch.where(shows_something(images)[:, None, None, None], matcher(images), images)

    return match


def assess_learning(experiment: Experiment, weights: Mapping[str, Tensor]) -> dict[str, object]:
    """Return the entry `learning` of `summary.json`: is the model better than trivial predictions and initial weights?

    The images are those of validation, or of training if no site has any; the sites have equal weights.
    """
    task, network = experiment.task, experiment.network
    has_validation = any(site.validation is not None for site in experiment.sites)
    start = {**experiment.start.weights, **constants_of(weights)}  # images are scaled as during training
    scores: list[float] = []
    of_start: list[float] = []
    of_trivial: dict[str, list[float]] = {}
    for site in experiment.sites:
        samples = site.validation if has_validation else site.training
        if samples is None:
            continue
        site.load(weights)
        scores.append(task.validate(site.network, samples)["score"])
        network.load_state_dict(start)
        of_start.append(task.validate(network, samples)["score"])
        for name, score in task.trivial_scores(site.training, samples).items():
            of_trivial.setdefault(name, []).append(score)
    score, at_start = fmean(scores), fmean(of_start)
    trivial, name = max((fmean(values), name) for name, values in of_trivial.items())
    return {
        "learned": score > max(trivial, at_start),
        "images": "validation" if has_validation else "training",
        "score": score,
        "start": at_start,
        "trivial": trivial,
        "trivial_prediction": name,
    }


def score_trivial(experiment: Experiment, prediction: str) -> dict[str, object]:
    """Return the entry `trivial` of `summary.json`: scores of a prediction that ignores the image."""
    task, training = experiment.task, [site.training for site in experiment.sites]
    rows = [
        row
        for role, sites in cases_of_others(experiment).items()
        for cases in sites.values()
        for row in task.evaluate_trivial(prediction, training, experiment.dataset, cases, role)
    ]
    return {"prediction": prediction, "scores": run_scores(table_of(rows, task.scoring.metrics), task.scoring)}
