"""Whether the model of a run has learned, and what a prediction that ignores the image scores at the unseen site."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from torch import Tensor

from medfed.experiments.setup import Experiment
from medfed.federation.image_moments import constants_of


def assess_learning(experiment: Experiment, weights: Mapping[str, Tensor]) -> dict[str, object]:
    """Compare the model with predictions that ignore the image and with the weights before training.

    All are scored by `Task.validate` on the validation images of each site that trains, and averaged over these sites
    with equal weights, as `validation_score` in `history.csv` is. The unseen site and the validation site are never
    used. Each site scores the trivial predictions with its own images and its own mean mask (`Task.trivial_scores`): no
    mask and no statistic leaves a site, only scores. They are computed in the evaluation of a simulation, as the scores
    of test cases are, and are not part of the messages of the federation.

    Args:
        experiment: the sites, the task and the initial weights. The weights of the network are overwritten.
        weights: the global weights that are the result of the run, as a state dict.

    Returns:
        The entry `learning` of `summary.json`, as JSON values:

        * "learned": whether the model is better than the best trivial prediction and than the initial weights.
        * "images": "validation"; "training" if no site has validation images. Training images flatter the model.
        * "score", "start" and "trivial": the scores of the model, of the initial weights, and of the best trivial
          prediction, in [0, 1]. Dice for segmentation, accuracy for classification.
        * "trivial_prediction": what the best trivial prediction does, such as "every pixel is foreground".
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
    """Score a prediction that ignores the image on the test cases of the sites that did not train.

    Args:
        experiment: the sites, the task and the test cases.
        prediction: the prediction that is the best at the sites that train: "trivial_prediction" of `assess_learning`.

    Returns:
        The entry `trivial` of `summary.json`, as JSON values: "prediction" as given, and for the roles "unseen" and
        "validation" the scores {SITE: {STRUCTURE: {COLUMN: mean}}}, as stored; None where a score is not defined.
    """
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
    summary = task.scoring.summarise(rows) if rows else {}
    columns = [column.key for column in task.scoring.columns]
    return {"prediction": prediction} | {
        role: {
            site: {name: {key: group[key]["mean"] for key in columns} for name, group in of_site.items()}
            for site, of_site in summary[role]["sites"].items()
        }
        for role in cases
        if role in summary
    }
