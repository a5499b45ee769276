"""Run the privacy audit of one site: attacks on the statistics and the weights that the site would send."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from medfed.auditing import identification, membership, reconstruction, updates
from medfed.auditing.image_scores import Attempt
from medfed.auditing.sharing import SharedStatistics
from medfed.auditing.updates import Case
from medfed.cli.defaults import N_GALLERY, N_IMAGES, N_WEIGHTS_STEPS
from medfed.config.schema import Config, changed
from medfed.core.errors import UserError
from medfed.core.registry import suggestion
from medfed.experiments.setup import Experiment
from medfed.federation.image_moments import has_constants, moments_request, pool
from medfed.federation.ledger import statistic_name
from medfed.federation.message import n_bytes
from medfed.outputs.environment import versions
from medfed.tasks.task import UNOBSERVED


@dataclass(frozen=True)
class Audit:
    """The results of an audit, and the images that were to be reconstructed."""

    result: dict[str, Any]  # the content of `audit.json`
    from_statistics: list[Attempt]
    from_updates: list[Case]
    axes: str | None  # as in `medfed.outputs.figures.figure.to_display_orientation`


def audit(
    config: Config,
    experiment: Experiment,
    name: str | None = None,
    n_images: int = N_IMAGES,
    n_gallery: int = N_GALLERY,
    quiet: bool = True,
    n_weights_steps: int = N_WEIGHTS_STEPS,
    model: Path | None = None,
) -> Audit:
    """Attack what a site would send, and measure how much it reveals about the site's images and patients."""
    ordered = sorted(experiment.sites, key=lambda site: site.name)
    names = [site.name for site in ordered]
    if name is not None and name not in names:
        raise UserError(f"--site {name}: this site does not take part in training. {suggestion(name, names)}")
    ordered.sort(key=lambda site: site.name != (name or names[0]))
    trained = membership.read_weights(model, experiment.network, config) if model else None
    weights = experiment.start.weights
    if has_constants(weights):
        weights = {**weights, **pool({site.name: site.reply(moments_request()) for site in experiment.sites})}
    dataset, site = experiment.dataset, ordered[0]
    split = (experiment.clients or experiment.splits)[site.name]
    unused = [*split.validation, *split.test]  # images that the shared statistics are not computed from
    held_out = experiment.task.load(dataset, unused, UNOBSERVED) if unused else None
    images, cases = list[Attempt](), list[Case]()
    sites = [SharedStatistics.from_site(each, weights) for each in ordered]
    own = sites[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few or blank images; warnings about the site itself were shown above
        shares = bool(len(own.vectors(own.sent)))
        if shares:
            images = reconstruction.reconstruct(own, n_images, quiet=quiet)
        if n_weights_steps:
            cases = updates.attack_updates(site, weights, n_weights_steps, quiet)
        mirror_axis = -1 if dataset.intensity_range or dataset.classes else -2  # slices of MRI are stored transposed
        of_statistics = {
            "reconstruction": [image.scores for image in images],
            "reidentification": identification.reidentify(own, n_gallery, mirror_axis, quiet) if shares else None,
            "site_identification": identification.identify_sites(sites, quiet) if shares else None,
            "one_left_out": identification.leave_one_out(own, sites[1:], quiet) if shares else None,
            "membership": membership.membership_inference(own, held_out, quiet) if shares else None,
        }
        of_model = membership.membership_in_model(site, held_out, weights, trained, quiet)
        start = replace(experiment.start, weights=weights)
        with_update = updates.statistics_with_update(site, start, {each.site.name: each.sent for each in sites})
    result = {
        "site": site.name,
        "method": config.method_name,
        "dataset": dataset.card.title,
        "data": "phantom" if dataset.is_phantom else "real",
        "seed": config.seed,
        "n_images": len(site.training),
        "n_patients": site.training.n_patients,
        "sent": {
            "bytes": own.n_bytes if shares else 0,
            "entries": own.entries() if shares else [],
            "row_for_each_image": bool(own.per_image_entries),
        },
        **of_statistics,
        "update_bytes": sum(entry.numel() * entry.element_size() for entry in weights.values()),
        "update_statistics": {
            "names": sorted({statistic_name(name) for name in with_update}),
            "bytes": sum(map(n_bytes, with_update.values())),
        },
        "update": [case for case, _ in cases],
        "model_given": trained is not None,
        "model_membership": of_model and {**of_model, "verdict": membership.verdict(of_model)},
        "versions": versions(),
    }
    axes = None if dataset.intensity_range else "RA"  # prepared slices of scanners are RAS
    return Audit(result, images, cases, axes)


def own_images_only(config: Config, name: str | None) -> Config:
    """The config of an audit that reads the images of one site only, which then trains alone; UserError if no name is
    given and the folder has several sites."""
    names = config.data.ensure_available(None).site_names()
    if name is None and len(names) > 1:
        raise UserError(f"--own-images: {config.data.root} has the sites {', '.join(names)}; choose one with --site")
    of_training = {key: getattr(config.federation, key) for key in ("rounds", "local_epochs", "batch_norm")}
    changes = {"data.sites": [name or names[0]], "federation": of_training}
    return changed(config, {**changes, "evaluation.unseen_every": 0, "evaluation.match": "none"})
