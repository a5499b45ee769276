"""Draw the figures of a run: training curves, the figures that the task declares, and styles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from torch import Tensor, nn

from medfed.core.seeds import stream
from medfed.datasets.base import Case, Dataset
from medfed.experiments.evaluation import unseen_weights
from medfed.experiments.setup import Experiment
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.site import Site
from medfed.functional.quantiles import quantiles
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
)
from medfed.outputs.figures.figure import shorten_name
from medfed.outputs.figures.style_map import RestyledImages, save_interpolation_map, save_style_map
from medfed.outputs.run_folder import FIGURES, UNSEEN_ROUNDS, RunFolder
from medfed.results.scores import predictions, table_of
from medfed.tasks.results import EvaluationResult, PackedMask
from medfed.tasks.scoring import CLASSIFICATION, SEGMENTATION
from medfed.tasks.task import Task

SAME_CASES, SAME_IMAGES = 3, 10  # cases shown for every method, chosen without looking at scores
STYLED_IMAGES = 32  # of each site, in the figures of all its styles
MAX_SITES = 8  # in the figures of styles; of more clients the first, and no histograms


@dataclass(frozen=True)
class Results:
    """What the figures of a run are drawn from."""

    task: Task
    dataset: Dataset
    network: nn.Module
    source_sites: Sequence[Site]
    unseen: Sequence[Case]
    method: Method
    state: State  # after the round whose weights are the result of the run
    scores: pd.DataFrame  # of the images, see `medfed.results.scores`
    masks: Mapping[str, PackedMask]  # of the unseen site, by name of the case
    folder: Path
    label: str  # "real data" or "synthetic phantom data", part of every title


def draw_all(
    experiment: Experiment,
    method: Method,
    state: State,
    result: EvaluationResult,
    folder: RunFolder,
    boundary_distances: Mapping[str, float],
) -> None:
    """Draw all figures of a run as PNG files; `boundary_distances` is empty if the distance was not measured."""
    where = folder.path / FIGURES
    where.mkdir(exist_ok=True)
    label = "synthetic phantom data" if experiment.dataset.is_phantom else "real data"
    ends = {name: (state.round, distance) for name, distance in boundary_distances.items()}
    curves.save_training_curves(folder.history(), where / "training_curves.png", label, ends)
    if experiment.task.evaluation.unseen_every:
        scores = folder.read_json(UNSEEN_ROUNDS)["rounds"]
        curves.save_unseen_curves(folder.history(), scores, where / "unseen_rounds.png", label)
    unseen = [case for cases in experiment.unseen.values() for case in cases]
    results = Results(
        experiment.task,
        experiment.dataset,
        experiment.network,
        experiment.sites,
        unseen,
        method,
        state,
        table_of(result.rows, experiment.task.scoring.metrics),
        result.masks,
        where,
        label,
    )
    for draw in TASK_FIGURES[experiment.task.name] if result.rows else ():
        draw(results)
    _draw_styles(results)


def _draw_boxes(run: Results) -> None:
    boxes.save_site_boxes(run.scores, run.task.scoring, run.folder / "site_boxes.png", run.label)


def _draw_overlays(run: Results) -> None:
    """Draw the best, the median and the worst unseen image, and some chosen without looking at scores."""
    dice = case_selection.mean_dice_by_image(run.scores)
    draw_best_median_worst(run.scores, run.masks, run.dataset, run.unseen, run.folder / "unseen_cases.png", run.label)
    same = [row.image for row in case_selection.select_common_cases(run.scores, SAME_CASES)]
    if same:
        cases = _scored(run.masks, run.dataset, run.unseen, same)
        scores = {name: f"Dice {dice[name]:.1f} %" if name in dice else "no structure, none predicted" for name in same}
        shown = [cases[name] | {"title": f"{cases[name]['name']}\n{scores[name]}"} for name in same]
        overlays.save_overlays(shown, run.folder / "same_cases.png", run.label, common_cases=True)


def draw_best_median_worst(
    scores: pd.DataFrame,
    masks: Mapping[str, PackedMask],
    dataset: Dataset,
    cases: Sequence[Case],
    path: Path,
    label: str,
) -> None:
    """Draw the reference and predicted masks of the best, median and worst case; nothing if no case has a Dice."""
    dice = case_selection.mean_dice_by_image(scores)
    telling = case_selection.select_best_median_worst(scores)
    by_name = _scored(masks, dataset, cases, telling.values())
    shown = [
        by_name[name] | {"title": f"{word}, Dice {dice[name]:.1f} %\n{by_name[name]['name']}"}
        for word, name in telling.items()
    ]
    if shown:
        overlays.save_overlays(shown, path, label)


def _scored(
    masks: Mapping[str, PackedMask], dataset: Dataset, unseen: Sequence[Case], names: Collection[str]
) -> dict[str, dict]:
    """Return the unseen cases of these names as `overlays` takes them, by name."""
    cases = {}
    for case in (case for case in unseen if case.name in names):
        volume = dataset.load(case)
        cases[case.name] = {
            "name": "\n".join(map(shorten_name, (case.site, case.name))),
            "image": _for_display(volume.image.as_tensor()),
            "reference": volume.mask.as_tensor(),
            "prediction": masks[case.name].unpack(),
            "spacing": volume.spacing_mm,
            **({} if volume.spacing_mm is None else {"affine": volume.image.affine}),
        }
    return cases


def _for_display(image: Tensor) -> Tensor:
    """Return the image scaled so that its 1st and 99th percentile become 0 and 1 (very large ones: their range)."""
    low, high = quantiles(image, (0.01, 0.99)) if image.numel() < 2**24 else image.aminmax()
    return ((image - low) / (high - low).clamp_min(1e-6)).clamp(0, 1)


def _draw_reliability(run: Results) -> None:
    calibration.save_reliability_diagrams(run.scores, run.folder / "reliability.png", run.label)


def _draw_roc(run: Results) -> None:
    calibration.save_roc_curves(run.scores, run.folder / "roc.png", run.label)


def _draw_confusion(run: Results) -> None:
    """Draw the confusion matrix if there are more than two classes."""
    if run.task.out_channels > 2:
        confusion.save_confusion_matrices(run.scores, run.folder / "confusion.png", run.label)


def _draw_examples(run: Results) -> None:
    """Draw unseen images chosen without scores, the most confident ones, and attention maps of the latter."""
    if same := case_selection.select_common_cases(predictions(run.scores), SAME_IMAGES):
        examples.save_common_examples(_with_images(run, same), run.folder / "same_examples.png", run.label)
    if shown := examples.select_confident(run.scores):
        cases = _with_images(run, shown)
        examples.save_confident_examples(cases, run.folder / "examples.png", run.label)
        _draw_attention(run, shown, torch.stack([case["image"] for case in cases]))


def _with_images(run: Results, rows: list[Any]) -> list[dict]:
    """The rows of unseen images, each with its image (C, H, W), as {"row": ..., "image": ...}."""
    cases = {case.name: case for case in run.unseen}
    images = (next(run.task.network_images(run.dataset, [cases[row.image]]))[0] for row in rows)
    return [{"row": row, "image": image} for row, image in zip(rows, images, strict=True)]


def _draw_attention(run: Results, rows: list[Any], images: Tensor) -> None:
    """Draw attention maps of these unseen images, and of a uniform image, if the method has attention."""
    network = run.network.eval()
    network.load_state_dict(unseen_weights(run.source_sites, run.state.weights))
    device = next(network.parameters()).device
    even = images.mean(dim=(0, 2, 3), keepdim=True).expand_as(images[:1])
    images = torch.cat([images, even])
    standardised = run.task.standardise(images.to(device), run.task.moments_of(images))
    scores = run.method.score_maps(network, run.source_sites[0].architecture, standardised)
    if scores is not None:
        titles = [f"{row.site}, is {row.label}\npredicted {row.predicted}" for row in rows]
        titles.append("a uniform image:\nno content")
        cases = [
            {"title": title, "image": image, "scores": scores_of_image}
            for title, image, scores_of_image in zip(titles, images, scores)
        ]
        attention.save_attention_maps(cases, run.folder / "attention.png", run.label)


TASK_FIGURES: dict[str, tuple[Callable[[Results], None], ...]] = {
    SEGMENTATION: (_draw_boxes, _draw_overlays),
    CLASSIFICATION: (_draw_reliability, _draw_roc, _draw_confusion, _draw_examples),
}


def _draw_styles(run: Results) -> None:
    """Draw an image of a source site in the style of each other site, and histograms before and after."""
    axes = None if run.dataset.intensity_range else "RA"  # prepared slices of scanners are RAS
    rows, sites = {}, sorted(run.source_sites, key=lambda site: site.name)
    hidden = {site.name for site in sites[MAX_SITES:]}
    for site in sites[:MAX_SITES]:
        image = run.task.typical_image(site.training)
        restyled = run.method.styles(run.state, image[None])
        rows[site.name] = image, {name: styled[0] for name, styled in restyled.items() if name not in hidden}
    first, (image, styled) = next(iter(rows.items()))
    if any(styled for _, styled in rows.values()):
        styles.save_style_gallery(
            image,
            {f"as at {name}": other for name, other in styled.items() if name != first},
            run.folder / "style_gallery.png",
            f"{run.label}, an image of {first}",
            axes,
        )
        styles.save_style_grid(rows, run.folder / "style_grid.png", run.label, axes)
        if not hidden:
            of_sites = {site.name: _restyled(run, site) for site in run.source_sites}
            both = {
                name: (of_site.images, torch.cat([cast(Tensor, of_site.images), *cast(dict, of_site.styled).values()]))
                for name, of_site in of_sites.items()
            }
            styles.save_histograms(both, run.folder / "histograms.png", run.label)
            with_styles = {name: of_site for name, of_site in of_sites.items() if of_site.styled}
            _draw_style_maps(run, with_styles, sites[0])


def _draw_style_maps(run: Results, sites: dict[str, RestyledImages], first: Site) -> None:
    """Draw the map of the sites' styles (of two or more sites) and that of interpolations."""
    if len(sites) > 1:
        save_style_map(sites, run.folder / "tsne.png", run.label)
    images, patients = _shown_images(first)
    panels = {
        title: RestyledImages(
            images,
            run.method.interpolations(run.state, first.name, images, ratio, stream(0, "figures", first.name)),
            patients,
        )
        for title, ratio in (("fixed ratio 1", 1.0), ("ratio drawn from U(0, 1)", None))
    }
    if all(panel.styled for panel in panels.values()):
        save_interpolation_map(first.name, panels, run.folder / "interpolation_tsne.png", run.label)


def _restyled(run: Results, site: Site) -> RestyledImages:
    """Return evenly spaced training images of a site, and the same images in the styles of the other sites."""
    images, patients = _shown_images(site)
    styled = {name: other for name, other in run.method.styles(run.state, images).items() if name != site.name}
    return RestyledImages(images, styled, patients)


def _shown_images(site: Site) -> tuple[Tensor, list[int]]:
    """Return evenly spaced training images of a site, and the patient of each."""
    samples, n = site.training, len(site.training)
    chosen = torch.linspace(0, n - 1, min(n, STYLED_IMAGES)).round().long().tolist()
    patients = getattr(samples, "patient", torch.arange(n)).tolist()  # without patients, each image is one
    return samples.batch(chosen).image, [patients[place] for place in chosen]
