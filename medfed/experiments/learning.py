"""Whether the model of a run has learned, and what a prediction that ignores the image scores at the unseen site."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from torch import Tensor

from medfed.experiments.setup import Experiment
from medfed.federation.image_moments import constants_of
from medfed.results.run_scores import run_scores
from medfed.results.scores import table_of


def assess_learning(experiment: Experiment, weights: Mapping[str, Tensor]) -> dict[str, object]:
    """Return the entry `learning` of `summary.json`: is the model better than trivial predictions and initial weights?

    All are scored by `Task.validate` on the validation images of each site that trains, or on its training images if no
    site has validation images, and averaged over the sites with equal weights. Each site scores trivial predictions
    with its own mean mask (`Task.trivial_scores`), so only scores leave a site. The network's weights are overwritten.
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
    """Return the entry `trivial` of `summary.json`: mean scores of a prediction that ignores the image, at sites
    without training. `prediction` is "trivial_prediction" of `assess_learning`."""
    task, validation_site = experiment.task, experiment.validation_site
    training = [site.training for site in experiment.sites]
    cases = {"unseen": {site: cases for site, cases in experiment.unseen.items() if cases}}
    if validation_site:
        cases["validation"] = {validation_site.name: experiment.splits[validation_site.name].validation}
    rows = [
        row
        for role, sites in cases.items()
        for of_site in sites.values()
        for row in task.evaluate_trivial(prediction, training, experiment.dataset, of_site, role)
    ]
    scoring = task.scoring
    return {"prediction": prediction, "scores": run_scores(table_of(rows, scoring.metrics), scoring)}
