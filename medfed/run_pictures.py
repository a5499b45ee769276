"""The pictures of a run: curves, boxes, the best, median and worst unseen patients, and the sites' styles."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from medfed.evaluator import unseen_weights
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.site import Site
from medfed.outputs import attention_pictures, class_pictures, pictures, style_pictures
from medfed.outputs.run_folder import RunFolder
from medfed.simulation import Simulation
from medfed.tasks.classification import Classification

HISTOGRAM_IMAGES = 16
MOST_SHOWN = 8  # sites in the pictures of styles; of more clients the first, and no histograms


def draw_all(simulation: Simulation, method: Method, state: State, rows: list[dict], folder: RunFolder) -> None:
    """Write `pictures/*.png`."""
    where = folder.path / "pictures"
    where.mkdir(exist_ok=True)
    label = "synthetic phantom data" if simulation.dataset.is_phantom else "real data"
    pictures.training_curves(folder.history(), where / "training_curves.png", label)
    if isinstance(simulation.task, Classification):
        _draw_classes(simulation, simulation.task, method, state, rows, where, label)
    else:
        _draw_masks(simulation, state, rows, where, label)
    _draw_styles(simulation, method, state, where, label)


def _draw_classes(
    simulation: Simulation, task: Classification, method: Method, state: State, rows: list[dict], where: Path, label: str
) -> None:
    if not rows:
        return
    class_pictures.reliability(rows, where / "reliability.png", label)
    class_pictures.roc(rows, where / "roc.png", label)
    if len(task.classes) > 2:
        class_pictures.confusion(rows, where / "confusion.png", label)
    cases = {case.patient: case for cases in simulation.unseen.values() for case in cases}
    shown = class_pictures.telling([row for row in rows if row["role"] == "unseen"])
    read = partial(simulation.dataset.read_image, notices=[])
    if shown:
        images = [task.prepare([cases[row["patient"]]], read).batch([0]).image[0] for row in shown]
        class_pictures.examples(
            [{"row": row, "image": image} for row, image in zip(shown, images, strict=True)], where / "examples.png", label
        )
        _draw_attention(simulation, method, state, shown, torch.stack(images), where, label)


def _draw_attention(
    simulation: Simulation, method: Method, state: State, rows: list[dict], images: Tensor, where: Path, label: str
) -> None:
    """Where the network looked in these unseen images, for methods that can tell."""
    network = simulation.network.eval()
    network.load_state_dict(unseen_weights(simulation, state.weights))
    device = next(network.parameters()).device
    architecture = next(iter(simulation.engine.members)).architecture
    scores = method.score_maps(network, architecture, simulation.task.standardise(images.to(device)))
    if scores is not None:
        titles = [f"{row['site']}, is {row['label']}\nsaid {row['predicted']}" for row in rows]
        cases = [{"title": title, "image": image, "scores": found} for title, image, found in zip(titles, images, scores)]
        attention_pictures.attention(cases, where / "attention.png", label)


def _draw_masks(simulation: Simulation, state: State, rows: list[dict], where: Path, label: str) -> None:
    pictures.site_boxes(rows, where / "site_boxes.png", label)
    if cases := _telling_cases(simulation, state, rows):
        pictures.overlays(cases, where / "unseen_cases.png", label)


def _draw_styles(simulation: Simulation, method: Method, state: State, where: Path, label: str) -> None:
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
        style_pictures.style_gallery(
            image, {f"as at {name}": one for name, one in styled.items() if name != site},
            where / "style_gallery.png", f"{label}, an image of {site}", axes,
        )  # fmt: skip
        style_pictures.style_grid(rows, where / "style_grid.png", label, axes)
        if not hidden:
            both = {member.name: _before_and_after(member, method, state) for member in simulation.engine.members}
            class_pictures.histograms(both, where / "histograms.png", label)


def _before_and_after(site: Site, method: Method, state: State) -> tuple[Tensor, Tensor]:
    """Some of a site's training images, evenly spread, and the same in the styles of all sites (its own: as they are)."""
    n = len(site.training)
    images = site.training.batch(range(0, n, max(1, n // HISTOGRAM_IMAGES))).image
    styled = {name: found for name, found in method.styles(state, images).items() if name != site.name}
    return images, torch.cat([images, *styled.values()])


def _telling_cases(simulation: Simulation, state: State, rows: list[dict]) -> list[dict]:
    """Best, median and worst unseen patient by mean Dice, predicted once more."""
    cases = {case.patient: case for cases in simulation.unseen.values() for case in cases}
    dice: dict[str, list[float]] = {}
    for row in rows:
        if row["role"] == "unseen" and row["dice"] is not None:
            dice.setdefault(row["patient"], []).append(row["dice"])
    ranked = sorted(dice, key=lambda patient: (-fmean(dice[patient]), patient))
    if not ranked:
        return []
    places = {"best": 0, "median": len(ranked) // 2, "worst": len(ranked) - 1}
    shown = []
    simulation.network.load_state_dict(unseen_weights(simulation, state.weights))
    for word, place in places.items():
        case = cases[ranked[place]]
        volume = simulation.dataset.load(case)
        shown.append({
            "title": f"{word}: {case.site} {case.patient}, Dice {fmean(dice[case.patient]):.3f}",
            "image": _for_display(volume.image.as_tensor()),
            "reference": volume.mask.as_tensor(),
            "prediction": simulation.task.predict(simulation.network, volume),
            "spacing": volume.spacing_mm,
            **({} if volume.spacing_mm is None else {"affine": volume.image.affine}),
        })
    return shown


def _for_display(image):
    low, high = image.flatten().quantile(image.new_tensor([0.01, 0.99])) if image.numel() < 2**24 else image.aminmax()
    return ((image - low) / (high - low).clamp_min(1e-6)).clamp(0, 1)


def _typical_image(simulation: Simulation, site: Site) -> Tensor:
    """A training image: the slice that shows most of the structures, or the first of the last class."""
    samples = site.training
    if isinstance(simulation.task, Classification):
        return samples.batch([int(samples.labels.argmax())]).image[0]
    return samples.images[int(samples.labels.flatten(1).sum(dim=1).argmax())]
