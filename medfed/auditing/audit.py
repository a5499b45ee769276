"""Run the privacy audit of one site: attacks on the statistics and the weights that the site would send."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from medfed.auditing import inversion_cases, linkage, membership, model_membership, reconstruction, site_identification
from medfed.auditing.inversion_cases import Case
from medfed.auditing.report_text import METHOD_NOTES
from medfed.auditing.sharing import SharedStatistics
from medfed.auditing.weights_text import NOT_TRIED, WEIGHTS_NOTES
from medfed.cli.defaults import N_GALLERY, N_IMAGES, N_WEIGHTS_STEPS
from medfed.cli.progress import ProgressBar
from medfed.config.schema import Config, changed
from medfed.core.errors import UserError
from medfed.core.registry import suggestion
from medfed.datasets.base import Dataset
from medfed.datasets.splits import Split
from medfed.experiments.setup import Experiment
from medfed.federation.image_moments import has_constants, moments_request, pool
from medfed.federation.local_round import Samples
from medfed.federation.method import Tensors
from medfed.outputs.environment import versions
from medfed.tasks.task import Task

Figures = tuple[list[reconstruction.Reconstruction], list[Case]]


def audit(
    config: Config,
    experiment: Experiment,
    name: str | None = None,
    n_images: int = N_IMAGES,
    n_gallery: int = N_GALLERY,
    quiet: bool = True,
    n_weights_steps: int = N_WEIGHTS_STEPS,
    model: Path | None = None,
) -> tuple[dict, Figures]:
    """Attack what a site would send, and measure how much it reveals about the site's images and patients.

    Shared statistics are the tensors that a site sends before the first round: those of the federated method, such as
    styles or amplitudes of frequencies, and with `data.standardise: dataset` the moments of its images. An update is
    the network's weights after local training, which the site sends in every round, whatever the method.

    Args:
        name: name of the audited site; None for the first site in alphabetical order.
        n_images: number of images that the attack on shared statistics tries to reconstruct, at least 1.
        n_gallery: largest number of images among which the re-identification attack searches, at least 2.
        n_weights_steps: number of steps of the attack on each update; 0 leaves updates out.
        model: folder of a run or file with trained weights, for membership inference; None leaves it out.

    Returns:
        The content of `audit.json`, and for figures the images that were reconstructed from statistics and from
        updates.

    Raises:
        UserError: if no site that trains has this name, or if the trained weights cannot be used.
    """
    ordered = sorted(experiment.sites, key=lambda site: site.name)
    names = [site.name for site in ordered]
    if name is not None and name not in names:
        raise UserError(f"--site {name}: this site does not take part in training. {suggestion(name, names)}")
    ordered.sort(key=lambda site: site.name != (name or names[0]))
    trained = model_membership.read_weights(model, experiment.network, config) if model else None
    weights = experiment.start.weights
    if has_constants(weights):
        weights = {**weights, **pool({site.name: site.reply(moments_request()) for site in experiment.sites})}
    sites = [SharedStatistics.from_site(site, weights) for site in ordered]
    own, dataset = sites[0], experiment.dataset
    shares = bool(len(own.vectors(own.sent)))
    held_out = _held_out(dataset, experiment.task, (experiment.clients or experiment.splits)[own.site.name])
    steps = _n_steps_of_statistics(own, held_out, n_images, n_gallery) if shares else 0
    steps += inversion_cases.total_ticks(n_weights_steps) if n_weights_steps else 0
    steps += model_membership.n_model_ticks() if trained and model_membership.can_measure(own.site, held_out) else 0
    with (
        warnings.catch_warnings(),
        ProgressBar(total=steps, desc="auditing", unit="step", disable=quiet, leave=False) as bar,
    ):
        warnings.simplefilter("ignore")  # about few or blank images; warnings about the site itself were shown above
        measured, images = dict(_NOT_SHARED), list[reconstruction.Reconstruction]()
        cases = list[Case]()
        if shares:
            axis = _mirror_axis(dataset)
            measured, images = _measure_statistics(sites, held_out, n_images, n_gallery, axis, bar.update)
        if n_weights_steps:
            cases = inversion_cases.attack_updates(own.site, weights, n_weights_steps, bar.update)
        of_model = model_membership.membership_in_model(own.site, held_out, weights, trained, bar.update)
    return {
        "site": own.site.name,
        "method": config.method_name,
        "dataset": dataset.card.title,
        "data": "phantom" if dataset.is_phantom else "real",
        "seed": config.seed,
        "n_images": len(own.site.training),
        "n_patients": own.site.training.n_patients,
        "sent": {
            "bytes": own.n_bytes if shares else 0,
            "entries": own.entries() if shares else [],
            "row_for_each_image": bool(own.per_image_entries),
        },
        **measured,
        **_of_weights(weights, cases, trained, of_model),
        "how": [*(METHOD_NOTES if shares else ()), *WEIGHTS_NOTES],
        "not_tried": list(NOT_TRIED),
        "versions": versions(),
    }, (images, cases)


_NOT_SHARED: dict[str, Any] = {
    "reconstruction": [],
    "reidentification": None,
    "site_identification": None,
    "one_left_out": None,
    "membership": None,
}


def own_images_only(config: Config, name: str | None) -> Config:
    """The config of an audit that reads the images of one site only, such as those of the hospital that runs it.

    The site then trains alone: no site is unseen or only validates, and the site is not divided among clients.
    UserError if no name is given and the folder has several sites.
    """
    names = config.data.ensure_available(None).site_names()
    if name is None and len(names) > 1:
        raise UserError(f"--own-images: {config.data.root} has the sites {', '.join(names)}; choose one with --site")
    alone = {
        "unseen_site": "",
        "unseen_ratio": 1.0,
        "validation_site": "",
        "participating": None,
        "clients": 0,
        "partition": "domains",
        "selection": "last",
        "clients_per_round": 0,
        "quorum": 0,
    }
    return changed(
        config,
        {
            "data.sites": [name or names[0]],
            "evaluation.unseen_every": 0,
            **{f"federation.{key}": value for key, value in alone.items()},
        },
    )


def _of_weights(
    weights: Tensors, cases: list[Case], trained: Tensors | None, of_model: dict[str, Any] | None
) -> dict[str, Any]:
    """The results of the attacks on weights as plain JSON values."""
    update = [
        {
            "case": case.name,
            **case.origin,
            "scores": case.scores,
            "control_scores": case.control_scores,
            "verdict": inversion_cases.verdict(case, cases),
        }
        for case in cases
    ]
    n_bytes = sum(entry.numel() * entry.element_size() for entry in weights.values())
    model = None if of_model is None else {**of_model, "verdict": model_membership.verdict(of_model)}
    return {"update_bytes": n_bytes, "update": update, "model_given": trained is not None, "model_membership": model}


def _n_steps_of_statistics(own: SharedStatistics, held_out: Samples | None, n_images: int, n_gallery: int) -> int:
    """How often `_measure_statistics` advances the progress bar, at most."""
    return (
        n_images
        + n_gallery
        + membership.n_tested_patients(own, held_out)
        + site_identification.N_REPEATS
        + site_identification.MAX_LEFT_OUT
    )


def _measure_statistics(
    sites: list[SharedStatistics],
    held_out: Samples | None,
    n_images: int,
    n_gallery: int,
    mirror_axis: int,
    tick: Callable[[], object],
) -> tuple[dict[str, Any], list[reconstruction.Reconstruction]]:
    """Run all attacks on shared statistics; return their results by name, and the reconstructed images."""
    own, others = sites[0], sites[1:]
    images = reconstruction.reconstruct(own, n_images, tick=tick)
    return {
        "reconstruction": [image.scores for image in images],
        "reidentification": linkage.reidentify(own, n_gallery, mirror_axis, tick),
        "site_identification": site_identification.identify_sites(sites, tick),
        "one_left_out": site_identification.leave_one_out(own, others, tick),
        "membership": membership.membership_inference(own, held_out, tick),
    }, images


def _held_out(dataset: Dataset, task: Task, split: Split) -> Samples | None:
    """The site's validation and test images, which the shared statistics are not computed from."""
    cases = [*split.validation, *split.test]
    return task.load(dataset, cases, lambda case, notices: None, lambda n: None) if cases else None


def _mirror_axis(dataset: Dataset) -> int:
    """The axis of an image (C, H, W) that runs from left to right: -2 for MRI slices, -1 for photographs."""
    return -1 if dataset.intensity_range or dataset.classes else -2
