"""The figures of a run: curves, those that the task declares, and styles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from medfed.datasets.base import Case, Dataset
from medfed.experiments.evaluation import unseen_weights
from medfed.experiments.setup import Experiment
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.site import Site
from medfed.outputs.figures import (
    attention,
    boxes,
    calibration,
    case_selection,
    confusion,
    curves,
    examples,
    overlays,
    styles,
)  # fmt: skip
from medfed.outputs.figures.style_map import RestyledImages, save_style_map
from medfed.outputs.run_folder import FIGURES, RunFolder
from medfed.tasks.results import EvaluationResult
from medfed.tasks.task import Task

SAME_CASES, SAME_IMAGES = 3, 10
STYLED_IMAGES = 32  # of each site, in the figures of all its styles
MAX_SITES = 8  # in the figures of styles; of more clients the first, and no histograms


@dataclass(frozen=True)
class Results:
    """What the figures of a task are drawn from.

    unseen: cases of the unseen site.
    members: the sites that trained.
    result: of the evaluator; overlays show the very masks that it scored.
    where: the folder for the figures.
    label: what the data are, for every title.
    """

    task: Task
    dataset: Dataset
    network: nn.Module
    members: Sequence[Site]
    unseen: Sequence[Case]
    method: Method
    state: State
    result: EvaluationResult
    where: Path
    label: str


def draw_all(
    experiment: Experiment, method: Method, state: State, findings: EvaluationResult, folder: RunFolder,
    boundary_distances: Mapping[str, float],
) -> None:
    """Write `figures/*.png`.

    Args:
        findings: of the evaluator.
        boundary_distances: of sites that took no part, where they were measured.
    """
    where = folder.path / FIGURES
    where.mkdir(exist_ok=True)
    label = "synthetic phantom data" if experiment.dataset.is_phantom else "real data"
    ends = {name: (state.round, distance) for name, distance in boundary_distances.items()}
    curves.save_training_curves(folder.history(), where / "training_curves.png", label, ends)
    unseen = [case for cases in experiment.unseen.values() for case in cases]
    results = Results(
        experiment.task, experiment.dataset, experiment.network, experiment.sites, unseen, method, state,
        findings, where, label,
    )  # fmt: skip
    for name in experiment.task.scoring.figures:
        TASK_FIGURES[name](results)
    _draw_styles(results)


def _draw_boxes(run: Results) -> None:
    boxes.save_site_boxes(run.result.rows, run.task.scoring, run.where / "site_boxes.png", run.label)


def _draw_overlays(run: Results) -> None:
    """The best, median and worst unseen patient, and some that no score chose."""
    rows = run.result.rows
    dice, telling = case_selection.mean_dice_by_patient(rows), case_selection.select_best_median_worst(rows)
    same = [row["patient"] for row in case_selection.select_common_cases(rows, SAME_CASES)]
    cases = _scored(run, {*telling.values(), *same})
    if telling:
        shown = [
            cases[name] | {"title": f"{word}: {cases[name]['name']}, Dice {dice[name]:.3f}"}
            for word, name in telling.items()
        ]
        overlays.save_overlays(shown, run.where / "unseen_cases.png", run.label)
    if same:
        told = {name: f"Dice {dice[name]:.3f}" if name in dice else "nothing to find, nothing found" for name in same}
        shown = [cases[name] | {"title": f"{cases[name]['name']}\n{told[name]}"} for name in same]
        overlays.save_overlays(shown, run.where / "same_cases.png", run.label, common_cases=True)


def _scored(run: Results, patients: Collection[str]) -> dict[str, dict]:
    """Unseen cases as `overlays` takes them."""
    found = {}
    for case in (case for case in run.unseen if case.patient in patients):
        volume = run.dataset.load(case)
        found[case.patient] = {
            "name": f"{case.site} {case.patient}",
            "image": _for_display(volume.image.as_tensor()),
            "reference": volume.mask.as_tensor(),
            "prediction": run.result.masks[case.patient].unpack(),
            "spacing": volume.spacing_mm,
            **({} if volume.spacing_mm is None else {"affine": volume.image.affine}),
        }
    return found


def _for_display(image: Tensor) -> Tensor:
    low, high = image.flatten().quantile(image.new_tensor([0.01, 0.99])) if image.numel() < 2**24 else image.aminmax()
    return ((image - low) / (high - low).clamp_min(1e-6)).clamp(0, 1)


def _draw_reliability(run: Results) -> None:
    if run.result.rows:
        calibration.save_reliability_diagrams(run.result.rows, run.where / "reliability.png", run.label)


def _draw_roc(run: Results) -> None:
    if run.result.rows:
        calibration.save_roc_curves(run.result.rows, run.where / "roc.png", run.label)


def _draw_confusion(run: Results) -> None:
    """Of more than two classes."""
    if run.result.rows and run.task.out_channels > 2:
        confusion.save_confusion_matrices(run.result.rows, run.where / "confusion.png", run.label)


def _draw_examples(run: Results) -> None:
    """Unseen images that no score chose, the most confident ones, and where the network looked in these."""
    rows = run.result.rows
    if same := case_selection.select_common_cases(rows, SAME_IMAGES):
        examples.save_common_examples(_with_images(run, same), run.where / "same_examples.png", run.label)
    if shown := examples.select_confident(rows):
        cases = _with_images(run, shown)
        examples.save_confident_examples(cases, run.where / "examples.png", run.label)
        _draw_attention(run, shown, torch.stack([case["image"] for case in cases]))


def _with_images(run: Results, rows: list[dict]) -> list[dict]:
    cases = {case.patient: case for case in run.unseen}
    images = (next(run.task.network_images(run.dataset, [cases[row["patient"]]]))[0] for row in rows)
    return [{"row": row, "image": image} for row, image in zip(rows, images, strict=True)]


def _draw_attention(run: Results, rows: list[dict], images: Tensor) -> None:
    """Where the network looked in these unseen images, for methods that have attention."""
    network = run.network.eval()
    network.load_state_dict(unseen_weights(run.members, run.state.weights))
    device = next(network.parameters()).device
    even = images.mean(dim=(0, 2, 3), keepdim=True).expand_as(images[:1])
    images = torch.cat([images, even])
    scores = run.method.score_maps(network, run.members[0].architecture, run.task.standardise(images.to(device)))
    if scores is not None:
        titles = [f"{row['site']}, is {row['label']}\nsaid {row['predicted']}" for row in rows]
        titles.append("an even image:\nwhat is no content")
        cases = [
            {"title": title, "image": image, "scores": found} for title, image, found in zip(titles, images, scores)
        ]
        attention.save_attention_maps(cases, run.where / "attention.png", run.label)


TASK_FIGURES: dict[str, Callable[[Results], None]] = {  # the names that `Scoring.figures` uses
    "site_boxes": _draw_boxes,
    "mask_overlays": _draw_overlays,
    "reliability": _draw_reliability,
    "roc": _draw_roc,
    "confusion": _draw_confusion,
    "image_examples": _draw_examples,
}


def _draw_styles(run: Results) -> None:
    """One image of a source site as at each other site, and the grey levels of all sites before and after."""
    axes = None if run.dataset.intensity_range else "RA"  # prepared slices of scanners are RAS
    rows, members = {}, sorted(run.members, key=lambda member: member.name)
    hidden = {member.name for member in members[MAX_SITES:]}
    for member in members[:MAX_SITES]:
        image = run.task.typical_image(member.training)
        found = run.method.styles(run.state, image[None])
        rows[member.name] = image, {name: styled[0] for name, styled in found.items() if name not in hidden}
    site, (image, styled) = next(iter(rows.items()))
    if any(styled for _, styled in rows.values()):
        styles.save_style_gallery(
            image, {f"as at {name}": one for name, one in styled.items() if name != site},
            run.where / "style_gallery.png", f"{run.label}, an image of {site}", axes,
        )  # fmt: skip
        styles.save_style_grid(rows, run.where / "style_grid.png", run.label, axes)
        if not hidden:
            restyled = {member.name: _restyled(run, member) for member in run.members}
            both = {
                name: (one.images, torch.cat([cast(Tensor, one.images), *cast(dict, one.styled).values()]))
                for name, one in restyled.items()
            }
            styles.save_histograms(both, run.where / "histograms.png", run.label)
            sites = {name: one for name, one in restyled.items() if one.styled}
            _draw_style_map(sites, run.where / "tsne.png", run.label)


def _draw_style_map(sites: dict[str, RestyledImages], path: Path, label: str) -> None:
    """Where scikit-learn is there, and sites to compare."""
    if find_spec("sklearn") is None:
        warnings.warn(
            f"{FIGURES}/{path.name} is not drawn: it needs scikit-learn, which pip install -e '.[figures]' in medfed's "
            "folder brings",
            stacklevel=2,
        )
    elif len(sites) > 1:
        save_style_map(sites, path, label)


def _restyled(run: Results, site: Site) -> RestyledImages:
    """Some of a site's training images, evenly spread, and the same in the styles of the others."""
    samples, n = site.training, len(site.training)
    chosen = torch.linspace(0, n - 1, min(n, STYLED_IMAGES)).round().long().tolist()
    images = samples.batch(chosen).image
    styled = {name: found for name, found in run.method.styles(run.state, images).items() if name != site.name}
    patients = run.task.patients_of(samples)
    return RestyledImages(images, styled, [patients[place] for place in chosen])
