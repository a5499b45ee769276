"""The pictures of a run: curves, boxes, the best, median and worst unseen patients, and the sites' styles."""

from __future__ import annotations

from statistics import fmean

from medfed.evaluator import unseen_weights
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.outputs import pictures
from medfed.outputs.run_folder import RunFolder
from medfed.simulation import Simulation


def draw_all(simulation: Simulation, method: Method, state: State, rows: list[dict], folder: RunFolder) -> None:
    """Write `pictures/*.png`."""
    where = folder.path / "pictures"
    where.mkdir(exist_ok=True)
    label = "synthetic phantom data" if simulation.dataset.is_phantom else "real data"
    pictures.training_curves(folder.history(), where / "training_curves.png", label)
    pictures.site_boxes(rows, where / "site_boxes.png", label)
    if cases := _telling_cases(simulation, state, rows):
        pictures.overlays(cases, where / "unseen_cases.png", label)
    site, image = _typical_image(simulation)
    if styles := method.styles(state, image[None]):
        pictures.style_gallery(
            image, {f"as at {name}": styled[0] for name, styled in styles.items() if name != site},
            where / "style_gallery.png", f"{label}, a slice of {site}",
            axes=None if simulation.dataset.intensity_range else "RA",  # prepared slices of scanners are RAS
        )


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


def _typical_image(simulation: Simulation):
    """The training slice of the first source site that shows most of the structures."""
    site = min(simulation.engine.members, key=lambda member: member.name)
    area = site.training.labels.flatten(1).sum(dim=1)
    return site.name, site.training.images[int(area.argmax())]
