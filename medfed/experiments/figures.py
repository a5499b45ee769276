"""Draw the figures of a run: training curves, the figures of its task, and styles; and an overlay of each patient."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from medfed.core.files import write_atomically
from medfed.core.seeds import stream
from medfed.datasets.base import Case, Dataset
from medfed.experiments import method_figures
from medfed.experiments.evaluation import unseen_weights
from medfed.experiments.setup import Experiment
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.site import Site
from medfed.outputs.figures import boxes, case_selection, classes, curves, styles
from medfed.outputs.figures.figure import as_array, reduced, resized, save_png, shorten_name, to_pixels
from medfed.outputs.figures.overlays import Panel, case_panels, overlays
from medfed.outputs.run_folder import FIGURES, UNSEEN_ROUNDS, RunFolder
from medfed.results.scores import predictions, table_of
from medfed.tasks.results import EvaluationResult, PackedMask
from medfed.tasks.scoring import SEGMENTATION

Figures = Iterator[tuple[str, Figure]]  # the name of the PNG file without its ending, and the figure
PATIENTS = f"{FIGURES}/patients"
PATIENT_PX = (128, 256)  # rows and columns into which the image of a patient fits
SAME_CASES, SAME_IMAGES = 3, 10  # cases shown for every method, chosen without looking at scores
STYLED_IMAGES = 20  # of each site, in the figures of all its styles
MAX_SITES = 8  # in the figures of styles; of more clients the first, and no histograms


def draw_all(experiment: Experiment, method: Method, state: State, result: EvaluationResult, folder: RunFolder) -> None:
    """Write all figures of a run; `state` is that after the round whose weights are the result of the run."""
    (folder.path / PATIENTS).mkdir(parents=True, exist_ok=True)
    label = "synthetic phantom data" if experiment.dataset.is_phantom else "real data"
    drawn = [_history_figures(experiment, folder, label)]
    if result.rows:
        scores = table_of(result.rows, experiment.task.scoring.metrics)
        if experiment.task.name == SEGMENTATION:
            drawn.append(_mask_figures(experiment, scores, result.masks, folder.path / PATIENTS, label))
        else:
            drawn.append(_class_figures(experiment, method, state, scores, folder.path / PATIENTS, label))
    drawn.append(_style_figures(experiment, method, state, label))
    for figures in drawn:
        for name, figure in figures:
            save_png(figure, folder.path / FIGURES / f"{name}.png")


def _history_figures(experiment: Experiment, folder: RunFolder, label: str) -> Figures:
    yield "training_curves", curves.training_curves(folder.history(), label)
    if experiment.task.evaluation.unseen_every:
        scores = folder.read_json(UNSEEN_ROUNDS)["rounds"]
        yield "unseen_rounds", curves.unseen_curves(folder.history(), scores, label)


def _mask_figures(
    experiment: Experiment, scores: pd.DataFrame, masks: Mapping[str, PackedMask], patients: Path, label: str
) -> Figures:
    yield "site_boxes", boxes.site_boxes(scores, experiment.task.scoring, label)
    cases = [case for of_site in experiment.unseen.values() for case in of_site]
    of_patients = case_selection.select_of_each_patient(scores, experiment.task.scoring.metrics[0].name)
    numbered = {image: patients / f"{number}.webp" for image, number in of_patients.items()}
    yield from overlay_figures(scores, masks, experiment.dataset, cases, label, SAME_CASES, numbered)


def overlay_figures(
    scores: pd.DataFrame,
    masks: Mapping[str, PackedMask],
    dataset: Dataset,
    cases: Sequence[Case],
    label: str,
    n_same: int = 0,
    files: Mapping[tuple[str, str], Path] | None = None,
) -> Figures:
    """The best, median and worst image, and `n_same` chosen without scores; `files` are by (site, image)."""
    dice = case_selection.mean_dice_by_image(scores)
    ranked = case_selection.select_best_median_worst(scores)
    same = [row.image for row in case_selection.select_common_cases(scores, n_same)]
    around_both: dict[str, list[Panel]] = {}
    around_reference: dict[str, list[Panel]] = {}
    names = {}
    for case in cases:
        file = (files or {}).get((case.site, case.name))
        if not (file or case.name in same or case.name in ranked.values()):
            continue
        names[case.name] = "\n".join(map(shorten_name, (case.site, case.name)))
        volume, mask = dataset.load(case), masks[case.name].unpack()
        if file:
            _write_webp(case_panels(volume, mask, 1, box=PATIENT_PX)[0][0], file)
        if case.name in ranked.values():
            around_both[case.name] = case_panels(volume, mask)
        if case.name in same:
            around_reference[case.name] = case_panels(volume, mask, 1, by_reference=True)
    if ranked:
        titles = {f"{word}, Dice {dice[name]:.1f} %\n{names[name]}": name for word, name in ranked.items()}
        shown = {title: around_both[name] for title, name in titles.items()}
        yield "unseen_cases", overlays(shown, f"Prediction against reference ({label})")
    if same:
        texts = {name: f"Dice {dice[name]:.1f} %" if name in dice else "no structure, none predicted" for name in same}
        shown = {f"{names[name]}\n{text}": around_reference[name] for name, text in texts.items()}
        yield "same_cases", overlays(shown, f"Cases chosen without regard to scores ({label})")


def _class_figures(
    experiment: Experiment, method: Method, state: State, scores: pd.DataFrame, patients: Path, label: str
) -> Figures:
    """Figures of scores, unseen images chosen without scores, the most confident ones, and attention maps of these."""
    task, dataset = experiment.task, experiment.dataset
    cases = {(case.site, case.name): case for of_site in experiment.unseen.values() for case in of_site}

    def image_of(site: str, name: str) -> Tensor:
        return next(task.network_images(dataset, [cases[site, name]]))[0]

    yield "reliability", classes.reliability(scores, label)
    yield "roc", classes.roc(scores, label)
    if task.out_channels > 2:
        yield "confusion", classes.confusion(scores, label)
    if same := case_selection.select_common_cases(predictions(scores), SAME_IMAGES):
        shown = [(row, reduced(image_of(row.site, row.image))) for row in same]
        yield "same_examples", classes.common_examples(shown, label)
    if rows := case_selection.select_confident(scores):
        images = torch.stack([image_of(row.site, row.image) for row in rows])
        yield "examples", classes.confident_examples([(row, reduced(i)) for row, i in zip(rows, images)], label)
        yield from _attention_figure(experiment, method, state, rows, images, label)
    for (site, name), number in case_selection.select_of_each_patient(scores, "").items():
        square = as_array(image_of(site, name))  # as the network receives it
        pixels = resized(square, PATIENT_PX[0], PATIENT_PX[0])
        _write_webp(to_pixels(pixels), patients / f"{number}.webp")


def _attention_figure(
    experiment: Experiment, method: Method, state: State, rows: Sequence[Any], images: Tensor, label: str
) -> Figures:
    """Attention maps of these unseen images, and of a uniform image, if the method has attention."""
    task, network = experiment.task, experiment.network.eval()
    network.load_state_dict(unseen_weights(experiment.sites, state.weights))
    even = images.mean(dim=(0, 2, 3), keepdim=True).expand_as(images[:1])
    images = torch.cat([images, even])
    on_device = images.to(next(network.parameters()).device)
    standardised = task.standardise(on_device, task.moments_of(images))
    scores = method_figures.attention(method, network, experiment.sites[0].architecture, standardised)
    if scores is not None:
        titles = [f"{row.site}, is {row.label}\npredicted {row.predicted}" for row in rows]
        shown = list(zip([*titles, "a uniform image:\nno content"], map(reduced, images), scores))
        yield "attention", classes.attention_maps(shown, label)


def _write_webp(pixels: np.ndarray, path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "WEBP", quality=75)
    write_atomically(path, file.getvalue())


def _style_figures(experiment: Experiment, method: Method, state: State, label: str) -> Figures:
    """An image of each source site in the style of each other site, and distributions before and after."""
    axes = None if experiment.dataset.intensity_range else "RA"  # prepared slices of scanners are RAS
    sites = sorted(experiment.sites, key=lambda site: site.name)
    hidden = {site.name for site in sites[MAX_SITES:]}
    lines = {}
    for site in sites[:MAX_SITES]:
        image = experiment.task.typical_image(site.training)
        restyled = method_figures.restyled(method, state, image[None])
        lines[site.name] = image, {name: styled[0] for name, styled in restyled.items() if name not in hidden}
    if not any(styled for _, styled in lines.values()):
        return
    yield "style_grid", styles.style_grid(lines, label, axes)
    if hidden:
        return
    changed = {}
    for site in experiment.sites:
        images = _shown_images(site)
        others = [other for name, other in method_figures.restyled(method, state, images).items() if name != site.name]
        changed[site.name] = images, torch.cat([images, *others])
    yield "histograms", styles.histograms(changed, label)
    first, images = sites[0].name, _shown_images(sites[0])
    ratios = {"fixed ratio 1": 1.0, "ratio drawn from U(0, 1)": None}
    panels = {
        title: method_figures.interpolated(method, state, first, images, ratio, stream(0, "figures", first))
        for title, ratio in ratios.items()
    }
    if all(panels.values()):
        yield "interpolation_tsne", styles.interpolation_map(first, images, panels, label)


def _shown_images(site: Site) -> Tensor:
    """Evenly spaced training images of a site."""
    n = len(site.training)
    return site.training.batch(torch.linspace(0, n - 1, min(n, STYLED_IMAGES)).round().long().tolist()).image
