"""The pictures of a run: curves, boxes, unseen patients (telling ones, and some that no score chose), and styles."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from medfed.experiments.evaluation import EvaluationResult, unseen_weights
from medfed.experiments.setup import Experiment
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.site import Site
from medfed.outputs.figures import attention, case_selection, classification, segmentation
from medfed.outputs.figures import styles as style_figures
from medfed.outputs.figures.style_map import Restyled, style_map
from medfed.outputs.run_folder import RunFolder
from medfed.tasks.classification import Classification, Pictures

SAME_CASES, SAME_IMAGES = 3, 10
STYLED_IMAGES = 32  # of each site, in the pictures of all its styles
MOST_SHOWN = 8  # sites in the pictures of styles; of more clients the first, and no histograms


def draw_all(
    simulation: Experiment, method: Method, state: State, findings: EvaluationResult, folder: RunFolder,
    boundary_distances: Mapping[str, float],
) -> None:
    """Write `pictures/*.png`.

    Args:
        findings: of the evaluator; overlays show the very masks that it scored.
        boundary_distances: of sites that took no part, where they were measured.
    """
    where = folder.path / "pictures"
    where.mkdir(exist_ok=True)
    label = "synthetic phantom data" if simulation.dataset.is_phantom else "real data"
    ends = {name: (state.round, distance) for name, distance in boundary_distances.items()}
    segmentation.training_curves(folder.history(), where / "training_curves.png", label, ends)
    if isinstance(simulation.task, Classification):
        _draw_classes(simulation, simulation.task, method, state, findings.rows, where, label)
    else:
        _draw_masks(simulation, findings, where, label)
    _draw_styles(simulation, method, state, where, label)


def _draw_classes(
    simulation: Experiment,
    task: Classification,
    method: Method,
    state: State,
    rows: list[dict],
    where: Path,
    label: str,
) -> None:
    if not rows:
        return
    classification.reliability(rows, where / "reliability.png", label)
    classification.roc(rows, where / "roc.png", label)
    if len(task.classes) > 2:
        classification.confusion(rows, where / "confusion.png", label)
    cases = {case.patient: case for cases in simulation.unseen.values() for case in cases}
    read = partial(simulation.dataset.read_image, notices=[])

    def with_images(chosen: list[dict]) -> list[dict]:
        images = (task.prepare([cases[row["patient"]]], read).batch([0]).image[0] for row in chosen)
        return [{"row": row, "image": image} for row, image in zip(chosen, images, strict=True)]

    if same := case_selection.same_for_all(rows, SAME_IMAGES):
        classification.same_examples(with_images(same), where / "same_examples.png", label)
    if shown := classification.telling([row for row in rows if row["role"] == "unseen"]):
        found = with_images(shown)
        classification.examples(found, where / "examples.png", label)
        images = torch.stack([case["image"] for case in found])
        _draw_attention(simulation, method, state, shown, images, where, label)


def _draw_attention(
    simulation: Experiment, method: Method, state: State, rows: list[dict], images: Tensor, where: Path, label: str
) -> None:
    """Where the network looked in these unseen images, for methods that can tell."""
    network = simulation.network.eval()
    network.load_state_dict(unseen_weights(simulation, state.weights))
    device = next(network.parameters()).device
    even = images.mean(dim=(0, 2, 3), keepdim=True).expand_as(images[:1])
    images = torch.cat([images, even])
    architecture = next(iter(simulation.engine.members)).architecture
    scores = method.score_maps(network, architecture, simulation.task.standardise(images.to(device)))
    if scores is not None:
        titles = [f"{row['site']}, is {row['label']}\nsaid {row['predicted']}" for row in rows]
        titles.append("an even image:\nwhat is no content")
        cases = [
            {"title": title, "image": image, "scores": found} for title, image, found in zip(titles, images, scores)
        ]
        attention.attention(cases, where / "attention.png", label)


def _draw_masks(simulation: Experiment, findings: EvaluationResult, where: Path, label: str) -> None:
    rows = findings.rows
    segmentation.site_boxes(rows, where / "site_boxes.png", label)
    dice, telling = case_selection.mean_dice(rows), case_selection.best_median_worst(rows)
    same = [row["patient"] for row in case_selection.same_for_all(rows, SAME_CASES)]
    cases = _scored(simulation, findings, {*telling.values(), *same})
    if telling:
        shown = [
            cases[name] | {"title": f"{word}: {cases[name]['name']}, Dice {dice[name]:.3f}"}
            for word, name in telling.items()
        ]
        segmentation.overlays(shown, where / "unseen_cases.png", label)
    if same:
        told = {name: f"Dice {dice[name]:.3f}" if name in dice else "nothing to find, nothing found" for name in same}
        shown = [cases[name] | {"title": f"{cases[name]['name']}\n{told[name]}"} for name in same]
        segmentation.overlays(shown, where / "same_cases.png", label, same=True)


def _draw_styles(simulation: Experiment, method: Method, state: State, where: Path, label: str) -> None:
    """One image of a source site as at each other site, and the grey levels of all sites before and after."""
    axes = None if simulation.dataset.intensity_range else "RA"  # prepared slices of scanners are RAS
    rows, members = {}, sorted(simulation.engine.members, key=lambda member: member.name)
    hidden = {member.name for member in members[MOST_SHOWN:]}
    for member in members[:MOST_SHOWN]:
        image = _typical_image(simulation, member)
        styles = method.styles(state, image[None])
        rows[member.name] = image, {name: found[0] for name, found in styles.items() if name not in hidden}
    site, (image, styled) = next(iter(rows.items()))
    if any(styled for _, styled in rows.values()):
        style_figures.style_gallery(
            image, {f"as at {name}": one for name, one in styled.items() if name != site},
            where / "style_gallery.png", f"{label}, an image of {site}", axes,
        )  # fmt: skip
        style_figures.style_grid(rows, where / "style_grid.png", label, axes)
        if not hidden:
            found = {member.name: _restyled(member, method, state) for member in simulation.engine.members}
            both = {name: (one.images, torch.cat([one.images, *one.styled.values()])) for name, one in found.items()}
            classification.histograms(both, where / "histograms.png", label)
            _draw_style_map({name: one for name, one in found.items() if one.styled}, where / "tsne.png", label)


def _draw_style_map(sites: dict[str, Restyled], path: Path, label: str) -> None:
    """Where scikit-learn is there, and sites to compare."""
    if find_spec("sklearn") is None:
        warnings.warn(
            f"pictures/{path.name} is not drawn: it needs scikit-learn, which pip install -e '.[pictures]' in medfed's "
            "folder brings",
            stacklevel=2,
        )
    elif len(sites) > 1:
        style_map(sites, path, label)


def _restyled(site: Site, method: Method, state: State) -> Restyled:
    """Some of a site's training images, evenly spread, and the same in the styles of the others."""
    samples, n = site.training, len(site.training)
    chosen = torch.linspace(0, n - 1, min(n, STYLED_IMAGES)).round().long().tolist()
    images = samples.batch(chosen).image
    styled = {name: found for name, found in method.styles(state, images).items() if name != site.name}
    of_whom = [case.subject for case in samples.cases] if isinstance(samples, Pictures) else samples.patient.tolist()
    return Restyled(images, styled, [of_whom[place] for place in chosen])


def _scored(simulation: Experiment, findings: EvaluationResult, patients: Collection[str]) -> dict[str, dict]:
    """Unseen cases as `pictures.overlays` takes them."""
    found = {}
    for case in (case for cases in simulation.unseen.values() for case in cases if case.patient in patients):
        volume = simulation.dataset.load(case)
        found[case.patient] = {
            "name": f"{case.site} {case.patient}",
            "image": _for_display(volume.image.as_tensor()),
            "reference": volume.mask.as_tensor(),
            "prediction": findings.masks[case.patient].unpacked(),
            "spacing": volume.spacing_mm,
            **({} if volume.spacing_mm is None else {"affine": volume.image.affine}),
        }
    return found


def _for_display(image):
    low, high = image.flatten().quantile(image.new_tensor([0.01, 0.99])) if image.numel() < 2**24 else image.aminmax()
    return ((image - low) / (high - low).clamp_min(1e-6)).clamp(0, 1)


def _typical_image(simulation: Experiment, site: Site) -> Tensor:
    """A training image: the slice that shows most of the structures, or the first of the last class."""
    samples = site.training
    if isinstance(simulation.task, Classification):
        return samples.batch([int(samples.labels.argmax())]).image[0]
    return samples.images[int(samples.labels.flatten(1).sum(dim=1).argmax())]
