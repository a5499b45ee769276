"""Run the privacy audit of one site: several attacks on the statistics that the site would share."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from medfed.auditing import linkage, membership, reconstruction, site_identification
from medfed.auditing.report_text import METHOD_NOTES, NOT_TRIED
from medfed.auditing.sharing import SharedStatistics
from medfed.cli.progress import ProgressBar
from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.core.registry import suggestion
from medfed.datasets.base import Dataset
from medfed.datasets.splits import Split
from medfed.experiments.loading import SiteImages
from medfed.experiments.setup import Experiment
from medfed.federation.image_moments import has_constants, moments_request, pool
from medfed.federation.local_round import Samples
from medfed.outputs.environment import versions
from medfed.tasks.task import Task

N_IMAGES, N_GALLERY = 3, 60  # default number of images to reconstruct, and size of the re-identification gallery


def audit(
    config: Config,
    experiment: Experiment,
    name: str | None = None,
    n_images: int = N_IMAGES,
    n_gallery: int = N_GALLERY,
    quiet: bool = True,
) -> tuple[dict, list[reconstruction.Reconstruction]]:
    """Attack the statistics that a site would share, and measure how much they reveal about the site's images.

    Shared statistics are the tensors that a site sends before the first round: those of the federated method, such as
    styles or amplitudes of frequencies, and with `data.standardise: dataset` the moments of its images. The network's
    weights are not attacked.

    Args:
        config: the config of the federation.
        experiment: what `build_experiment` makes of the config: task, initial network, and the prepared images of all
            sites that train.
        name: name of the audited site; None for the first site in alphabetical order.
        n_images: number of images that the reconstruction attack tries to recover, at least 1.
        n_gallery: largest number of images among which the re-identification attack searches, at least 2.
        quiet: True hides the progress bar.

    Returns:
        The results as plain JSON values (the content of the file `audit.json`), and the images that the reconstruction
        attack recovered, each with its original and its scores.

    Raises:
        UserError: if no site that trains has this name, or if the site would not share statistics.
    """
    ordered = sorted(experiment.sites, key=lambda site: site.name)
    names = [site.name for site in ordered]
    if name is not None and name not in names:
        raise UserError(f"--site {name}: this site does not take part in training. {suggestion(name, names)}")
    ordered.sort(key=lambda site: site.name != (name or names[0]))
    weights = experiment.start.weights
    if has_constants(weights):
        weights = {**weights, **pool({site.name: site.reply(moments_request()) for site in experiment.sites})}
    sites = [SharedStatistics.from_site(site, weights) for site in ordered]
    own, others = sites[0], sites[1:]
    if not len(own.vectors(own.sent)):
        raise UserError(
            f"{config.source}: method.name: at {own.site.name} '{config.method_name}' shares no statistics of images, "
            "so there is nothing to audit (the audit does not measure weights); choose another method, such as elcfs"
        )
    dataset = experiment.dataset
    held_out = _held_out(dataset, experiment.task, (experiment.clients or experiment.splits)[own.site.name])
    steps = (
        n_images
        + n_gallery
        + membership.n_tested_patients(own, held_out)
        + site_identification.N_REPEATS
        + site_identification.MAX_LEFT_OUT
    )
    with warnings.catch_warnings(), ProgressBar(
        total=steps, desc="auditing", unit="step", disable=quiet, leave=False
    ) as bar:
        warnings.simplefilter("ignore")  # about few or blank images; warnings about the site itself were shown above
        measured, images = _measure(own, others, held_out, n_images, n_gallery, _mirror_axis(dataset), bar.update)
    return {
        "site": own.site.name,
        "method": config.method_name,
        "dataset": dataset.card.title,
        "data": "phantom" if dataset.is_phantom else "real",
        "seed": config.seed,
        "n_images": len(own.site.training),
        "n_patients": own.site.training.n_patients,
        "sent": {"bytes": own.n_bytes, "entries": own.entries(), "row_for_each_image": bool(own.per_image_entries)},
        **measured,
        "how": list(METHOD_NOTES),
        "not_tried": list(NOT_TRIED),
        "versions": versions(),
    }, images


def _measure(
    own: SharedStatistics,
    others: list[SharedStatistics],
    held_out: Samples | None,
    n_images: int,
    n_gallery: int,
    mirror_axis: int,
    tick: Callable[[], object],
) -> tuple[dict, list[reconstruction.Reconstruction]]:
    """Run all attacks; return their results by name, and the reconstructed images."""
    images = reconstruction.reconstruct(own, n_images, tick=tick)
    return {
        "reconstruction": [image.scores for image in images],
        "reidentification": linkage.reidentify(own, n_gallery, mirror_axis, tick),
        "site_identification": site_identification.identify_sites([own, *others], tick),
        "one_left_out": site_identification.leave_one_out(own, others, tick),
        "membership": membership.membership_inference(own, held_out, tick),
    }, images


def _held_out(dataset: Dataset, task: Task, split: Split) -> Samples | None:
    """Return the site's validation and test images, which the shared statistics are not computed from."""
    with ProgressBar(disable=True) as bar:
        return SiteImages(dataset, task, bar).samples([*split.validation, *split.test])


def _mirror_axis(dataset: Dataset) -> int:
    """Return the axis of an image (C, H, W) that runs from left to right: -2 for MRI slices, -1 for photographs."""
    return -1 if dataset.intensity_range or dataset.classes else -2
