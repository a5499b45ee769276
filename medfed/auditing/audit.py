"""Audit one site: attacks on what it would share, each with its control."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from tqdm import tqdm

from medfed.auditing import linkage, membership, reconstruction, site_identification
from medfed.auditing.report_text import METHOD_NOTES, NOT_TRIED
from medfed.auditing.sharing import SharedStatistics
from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.core.registry import suggestion
from medfed.datasets.base import Dataset
from medfed.datasets.splits import Split
from medfed.experiments.loading import SiteImages
from medfed.experiments.setup import Experiment
from medfed.federation.local_round import Samples
from medfed.outputs.environment import versions
from medfed.tasks.task import Task

N_IMAGES, N_GALLERY = 3, 60  # how many images are reconstructed, and searched through, by default


def audit(
    config: Config,
    experiment: Experiment,
    name: str | None = None,
    n_images: int = N_IMAGES,
    n_gallery: int = N_GALLERY,
    quiet: bool = True,
) -> tuple[dict, list[reconstruction.Reconstruction]]:
    """What the site's statistics reveal, as plain JSON values, and the images that were reconstructed.

    Raises:
        UserError: if there is no such site, or it would share no statistic.
    """
    members = sorted(experiment.sites, key=lambda member: member.name)
    known = [member.name for member in members]
    if name is not None and name not in known:
        raise UserError(f"--site {name}: takes no part in training. {suggestion(name, known)}")
    members.sort(key=lambda member: member.name != (name or known[0]))
    sites = [SharedStatistics.of(member, experiment.start.weights) for member in members]
    own, others = sites[0], sites[1:]
    if not len(own.vectors(own.sent)):
        raise UserError(
            f"{config.source}: method.name: at {own.site.name} '{config.method_name}' shares no statistics of images, "
            "so there is nothing to measure (weights are not measured here); choose another method, such as elcfs"
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
    with warnings.catch_warnings(), tqdm(
        total=steps, desc="auditing", unit="step", disable=quiet, dynamic_ncols=True, leave=False
    ) as bar:
        warnings.simplefilter("ignore")  # of few images or blank ones; the site itself was asked above
        measured, found = _measure(own, others, held_out, n_images, n_gallery, _mirror_axis(dataset), bar.update)
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
    }, found


def _measure(
    own: SharedStatistics,
    others: list[SharedStatistics],
    held_out: Samples | None,
    n_images: int,
    n_gallery: int,
    mirror_axis: int,
    tick: Callable[[], object],
) -> tuple[dict, list[reconstruction.Reconstruction]]:
    found = reconstruction.reconstruct(own, n_images, tick=tick)
    return {
        "reconstruction": [one.scores for one in found],
        "reidentification": linkage.reidentify(own, n_gallery, mirror_axis, tick),
        "site_identification": site_identification.identify_sites([own, *others], tick),
        "one_left_out": site_identification.leave_one_out(own, others, tick),
        "membership": membership.membership(own, held_out, tick),
    }, found


def _held_out(dataset: Dataset, task: Task, split: Split) -> Samples | None:
    """The site's patients whose images are not in what it shares: those kept for validation and test."""
    with tqdm(disable=True) as bar:
        return SiteImages(dataset, task, bar).samples([*split.validation, *split.test])


def _mirror_axis(dataset: Dataset) -> int:
    """The axis from left to right: the first of a scanner's slice, the second of a photograph."""
    return -1 if dataset.intensity_range or dataset.classes else -2
