"""Predict how well a bundle will work on a hospital's images without labels: `medfed.score --no-labels`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from medfed.cli.progress import ProgressBar
from medfed.core.determinism import deterministic
from medfed.core.device import pick_device
from medfed.core.errors import UserError, argument
from medfed.datasets.base import Dataset
from medfed.datasets.case import Case
from medfed.datasets.reading import is_2d_image_file, spacing_mm
from medfed.federation.settings import Training
from medfed.functional.dice_prediction import Calibration, dice, risk_coverage
from medfed.outputs.bundle.write import atomic_folder
from medfed.outputs.csv_files import append_rows
from medfed.outputs.environment import versions
from medfed.outputs.figures.predicted_dice import save_predicted_dice
from medfed.outputs.run_folder import FIGURES, RunFolder
from medfed.outputs.tables.run_notes import data_label
from medfed.scoring.arguments import ScoringInputs
from medfed.scoring.bundle_tasks import BundleSegmentation, task_of_bundle
from medfed.scoring.ensemble import Ensemble, load_ensemble
from medfed.scoring.image_distance import compare_images, n_outside
from medfed.scoring.prediction_check import check_predictions
from medfed.scoring.prediction_text import prediction_text
from medfed.scoring.score import SUMMARY, check_channels, check_new
from medfed.scoring.unlabelled import Images
from medfed.tasks.evaluation import Evaluation

N_FIRST = 10  # cases that are listed to be looked at first
PREDICTIONS = "predictions.csv"
OK, EXTRAPOLATED, EMPTY, UNCALIBRATED = "ok", "extrapolated", "empty", "not calibrated"
COLUMNS = ("site", "case", "structure", "predicted_dice", "low", "high", "agreement", "status", "n_facts_outside")
Row = dict[str, Any]
TrueDice = Callable[[Case, Mapping[str, Tensor]], Mapping[str, float | None]]
UNUSUAL = re.compile(r"[^\w-]+")  # characters that a structure may have in its name, and a file should not


@dataclass(frozen=True)
class Predictions:
    """The predicted Dice of a hospital's images.

    Attributes:
        summary: content of `summary.json`.
        rows: one row for each case and structure.
    """

    summary: Mapping[str, Any]
    rows: Sequence[Row]

    def to_text(self) -> str:
        """Return the predictions as text for the terminal."""
        return prediction_text(self.summary)


def predict_quality(
    ensemble: Ensemble, images: Images, failure_dice: float, true_dice: TrueDice | None = None, quiet: bool = True
) -> Predictions:
    """Predict the Dice of each image, and compare the images with those of the sites that trained the model.

    Args:
        ensemble: the bundle with the local models of its sites.
        images: the images of the hospital.
        failure_dice: a lower Dice is a failure.
        true_dice: returns the true Dice by name of a structure, given a case and the predicted masks; None reads no
            label.
        quiet: True draws no progress bar.
    """
    calibrations = {name: ensemble.calibration(name) for name in ensemble.model.names.values()}
    rows: list[Row] = []
    facts: list[Tensor] = []
    with (
        deterministic(Training().threads),
        ProgressBar(total=len(images.cases), desc="predicting", unit="case", disable=quiet, leave=False) as bar,
    ):
        for case in images.cases:
            image, is_2d = images.read(case), is_2d_image_file(case.image)
            masks, agreements = ensemble.predict(image, is_2d)
            facts.append(ensemble.image_facts(image, is_2d, spacing_mm(case.image, image)))
            true = true_dice(case, masks) if true_dice else {}
            for name, mask in masks.items():
                names = {"site": case.site, "case": case.name, "structure": name}
                known = {"true_dice": true[name]} if name in true else {}
                shown = agreements[name] if bool(mask.any()) else None
                rows.append({**names, **_predicted(calibrations[name], shown), **known})
            bar.update(1)
    of_images = torch.stack(facts)
    sites = {site: reply["images"] for site, reply in ensemble.content["sites"].items()}
    distances = compare_images(of_images, sites)
    counts = n_outside(of_images, distances)
    n_structures = len(ensemble.model.names)
    rows = [{**row, "n_facts_outside": counts[index // n_structures]} for index, row in enumerate(rows)]
    return Predictions(_summarise(ensemble, images, calibrations, rows, distances, failure_dice), rows)


def _predicted(calibration: Calibration | None, agreement: float | None) -> Row:
    """Return the predicted Dice of one mask; an empty mask (no agreement) and a missing calibration predict none."""
    nothing: Row = {"predicted_dice": None, "low": None, "high": None, "agreement": agreement}
    if agreement is None or calibration is None:
        return nothing | {"status": EMPTY if agreement is None else UNCALIBRATED}
    prediction = calibration.predict(agreement)
    status = EXTRAPOLATED if prediction.is_extrapolated else OK
    return nothing | {
        "predicted_dice": prediction.dice,
        "low": prediction.low,
        "high": prediction.high,
        "status": status,
    }


def _summarise(
    ensemble: Ensemble,
    images: Images,
    calibrations: Mapping[str, Calibration | None],
    rows: Sequence[Row],
    distances: Sequence[Row],
    failure_dice: float,
) -> Row:
    """Return the content of `summary.json`."""
    by_structure = {name: [row for row in rows if row["structure"] == name] for name in calibrations}
    return {
        "bundle": dict(ensemble.model.facts),
        "data": "phantom" if images.is_phantom else "real",
        "folder": images.root.name,
        "n_cases": len(images.cases),
        "n_local_models": len(ensemble.members),
        "failure_dice": failure_dice,
        "structures": {
            name: _of_structure(of_structure, calibrations[name], failure_dice)
            for name, of_structure in by_structure.items()
        },
        "images": list(distances),
        "versions": versions(),
    }


def _of_structure(rows: Sequence[Row], calibration: Calibration | None, failure_dice: float) -> Row:
    predicted = [row["predicted_dice"] for row in rows if row["predicted_dice"] is not None]
    first = sorted(rows, key=lambda row: -1.0 if row["agreement"] is None else row["agreement"])[:N_FIRST]
    confidence = [row["agreement"] for row in rows if row["predicted_dice"] is not None]
    entry: Row = {
        "mean_predicted_dice": fmean(predicted) if predicted else None,
        "n_predicted": len(predicted),
        "n_predicted_failures": sum(value < failure_dice for value in predicted),
        **{
            f"n_{status.replace(' ', '_')}": sum(row["status"] == status for row in rows)
            for status in (EXTRAPOLATED, EMPTY, UNCALIBRATED)
        },
        "look_first": [
            {key: row[key] for key in ("site", "case", "predicted_dice", "agreement", "status")} for row in first
        ],
        "risk_coverage": risk_coverage(confidence, [1 - value for value in predicted]),
        "calibration": calibration
        and {
            "n": calibration.sums.n,
            "mean_dice": calibration.mean_dice,
            "error": calibration.error,
            "constant_error": calibration.constant_error,
            "is_between_sites": calibration.is_between_sites,
            "correlation": calibration.sums.correlation,
        },
    }
    if any("true_dice" in row for row in rows):
        checked = [row for row in rows if "true_dice" in row]
        constant = calibration.mean_dice if calibration else None
        entry["check"] = check_predictions(checked, constant, failure_dice)
    return entry


def true_dice_of(task: BundleSegmentation, dataset: Dataset) -> TrueDice:
    """Return a function that reads the reference of a case and computes the true Dice of the predicted masks.

    Args:
        task: the task of the bundle, with the structures of the dataset.
        dataset: the dataset with the labels.
    """

    def true_dice(case: Case, masks: Mapping[str, Tensor]) -> dict[str, float | None]:
        reference = dataset.load(case).mask.as_tensor()
        pairs = {name: (masks[name], reference[index]) for index, name in enumerate(task.predicted_names)}
        return {name: dice(*pair) if any(bool(mask.any()) for mask in pair) else None for name, pair in pairs.items()}

    return true_dice


def predict_for(inputs: ScoringInputs, out: Path | None, check: bool, quiet: bool) -> tuple[Predictions, Path]:
    """Predict the Dice for the inputs of the program, and write the results.

    Args:
        inputs: the bundle and the images.
        out: the folder to create; None chooses one.
        check: whether to read the labels after each prediction, and to compare.
        quiet: True draws no progress bar.

    Returns:
        The predictions, and the folder with the results.

    Raises:
        UserError: if the bundle, the images or the folder cannot be used.
    """
    out = out or inputs.default_out()
    ensemble = load_ensemble(Path(inputs.bundle), pick_device(inputs.device))
    true_dice: TrueDice | None = None
    if check:
        dataset = inputs.load_dataset()
        images = Images.of_dataset(dataset)
        check_channels(ensemble.model, dataset)
        task, _ = task_of_bundle(ensemble.model, dataset, inputs.named)
        assert isinstance(task, BundleSegmentation)
        true_dice = true_dice_of(task, dataset)
    elif inputs.dataset or inputs.settings or inputs.named:
        raise UserError(
            f"{argument('no_labels', True)}: reads no labels, so {argument('dataset')}, {argument('set')} "
            f"and {argument('name')} have no effect; leave them out"
        )
    else:
        images = Images.in_folder(Path(inputs.folder), ensemble.model.channels)
    check_new(out)
    if out.resolve().is_relative_to(images.root.resolve()) and not images.is_phantom:
        raise UserError(f"{out}: lies among the images; choose a folder outside with {argument('out')}")
    predictions = predict_quality(ensemble, images, Evaluation.failure_dice, true_dice, quiet)
    write_predictions(predictions, out)
    return predictions, out


def write_predictions(predictions: Predictions, out: Path) -> None:
    """Write `predictions.csv`, `summary.json` and a figure for each structure. If an error occurs, no folder is left.

    Args:
        predictions: the predictions.
        out: the folder to create.

    Raises:
        UserError: if the folder cannot be written.
    """
    summary, rows = predictions.summary, predictions.rows
    columns = [*COLUMNS, *(["true_dice"] if any("true_dice" in row for row in rows) else [])]
    with atomic_folder(out) as folder:
        (folder / FIGURES).mkdir()
        append_rows(folder / PREDICTIONS, columns, rows)
        for number, (name, entry) in enumerate(summary["structures"].items()):
            of_structure = [row for row in rows if row["structure"] == name]
            path = folder / FIGURES / f"predicted_dice_{number}_{UNUSUAL.sub('_', name)[:60]}.png"
            title = f"Predicted Dice of {name} at {summary['folder']} ({data_label(summary['data'])})"
            save_predicted_dice(of_structure, entry, summary["images"], path, title)
        RunFolder(folder).write_json(SUMMARY, summary)
