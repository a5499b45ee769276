"""Score a bundle on labelled images, and write the scores, figures and an HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from medfed.cli.progress import ProgressBar
from medfed.core.determinism import deterministic
from medfed.core.device import pick_device
from medfed.core.errors import UserError
from medfed.datasets.base import Dataset
from medfed.datasets.case import Case
from medfed.datasets.check_patients import patient_warnings
from medfed.experiments.figures import overlay_figures
from medfed.experiments.resume import check_outside_data
from medfed.federation.settings import Training
from medfed.metrics.ratio import summarise_ratios, write_ratios
from medfed.outputs.bundle.write import atomic_folder
from medfed.outputs.environment import versions
from medfed.outputs.figures import boxes, classes
from medfed.outputs.figures.case_selection import select_confident
from medfed.outputs.figures.figure import reduced, save_png
from medfed.outputs.run_folder import FIGURES, RunFolder
from medfed.outputs.tables import run_table
from medfed.results.notes import data_label
from medfed.results.run_scores import n_absent, run_scores
from medfed.results.scores import IDENTITY, table_of, write_scores
from medfed.results.text_tables import to_terminal
from medfed.scoring.bundle_model import BundleModel, load_bundle
from medfed.scoring.bundle_tasks import BundleSegmentation, BundleTask, task_of_bundle, with_labels_of
from medfed.scoring.page import MEANS, ROLE, SITES, with_known_roles, write_page
from medfed.tasks.results import EvaluationResult
from medfed.tasks.task import Reading, Task

MAX_SITES = 8  # of which the best, the median and the worst case are drawn
SUMMARY = "summary.json"


@dataclass(frozen=True, repr=False)
class Scores:
    """The scores of a bundle on labelled images; `cases` and `results` are by site."""

    summary: Mapping[str, Any]
    task: Task
    dataset: Dataset
    cases: Mapping[str, Sequence[Case]]
    results: Mapping[str, EvaluationResult]

    @cached_property
    def table(self) -> pd.DataFrame:
        """The scores of the images, as in `cases.csv`."""
        rows = [row for result in self.results.values() for row in result.rows]
        return table_of(rows, self.task.scoring.metrics)

    def __str__(self) -> str:
        scoring, summary = self.task.scoring, self.summary
        several = len(self.cases) > 1
        table = to_terminal(run_table.score_table(scoring, summary, SITES, MEANS if several else {}))
        bundle = summary["bundle"]
        head = [data_label(summary["data"]), f"{bundle['name']} {bundle['version']}".strip(), *summary["notices"]]
        notes = ["[]: 95 % interval over patients.", *run_table.summary_notes(summary)]
        return "\n".join([*head, "", table, "", *notes])

    __repr__ = __str__


def score_bundle(
    bundle: Path, dataset: Dataset, named: Mapping[str, str] | None = None, device: str = "auto", quiet: bool = True
) -> Scores:
    """Score a MONAI bundle on all images of a dataset; `named` maps labels of the dataset to the bundle's names."""
    model = load_bundle(bundle, pick_device(device))
    cases = dataset.cases_by_site(dataset.site_names())
    _check_channels(model, dataset)
    task, assigned = task_of_bundle(model, dataset, named or {})
    cases = {site: with_labels_of(task, dataset, of_site) for site, of_site in cases.items()}
    with deterministic(Training().threads):
        results, notices = _predict(model, task, dataset, cases, quiet)
    result = EvaluationResult()
    for of_site in results.values():
        result.extend(EvaluationResult(of_site.rows, of_site.ratios))  # masks of two sites may have the same name
    notices = [*_name_notices(model, assigned, cases), *map(str, patient_warnings(dataset, cases)), *notices]
    summary = _summarise(model, task, dataset, assigned, cases, result, notices)
    return Scores(summary, task, dataset, cases, results)


def check_output(out: Path, dataset: Dataset) -> None:
    """Raise UserError if the folder for results holds files, or lies among the images."""
    check_outside_data(out, dataset)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already; choose another folder with --out, or remove it")


def write_results(scores: Scores, out: Path) -> None:
    """Write `summary.json`, `cases.csv`, `figures/` and the HTML page. If an error occurs, no folder is left."""
    identity = dict.fromkeys(IDENTITY, "") | {"method": scores.summary["bundle"]["name"]}
    ratios = [ratio for result in scores.results.values() for ratio in result.ratios]
    with atomic_folder(out) as folder:
        (folder / FIGURES).mkdir()
        write_scores(folder / "cases.csv", scores.table, identity)
        if ratios:
            write_ratios(folder / "ratios.csv", ratios)
        _draw(scores, folder / FIGURES)
        write_page(folder, scores.summary, scores.table)
        RunFolder(folder).write_json(SUMMARY, scores.summary)


def _predict(
    model: BundleModel, task: BundleTask, dataset: Dataset, cases: Mapping[str, Sequence[Case]], quiet: bool
) -> tuple[dict[str, EvaluationResult], list[str]]:
    """Return the results of each site, and sentences about unusual images."""
    results: dict[str, EvaluationResult] = {}
    counts: Counter[tuple[str, str]] = Counter()  # of a site and a sentence
    n_cases = sum(map(len, cases.values()))

    def observe(case: Case, notices: Sequence[str]) -> None:
        counts.update((case.site, notice) for notice in notices)

    with ProgressBar(total=n_cases, desc="scoring", unit="case", disable=quiet, leave=False) as bar:
        for site, of_site in cases.items():
            results[site] = task.evaluate(model.network, dataset, of_site, ROLE, Reading(observe, bar.update))
    notices = [f"{site}: {n} of {len(cases[site])} images: {notice}" for (site, notice), n in counts.items()]
    return results, notices


def _check_channels(model: BundleModel, dataset: Dataset) -> None:
    if dataset.channels == model.channels:
        return
    cures = {
        1: "save them as grey, or, if all are grey and stored in colour, read them with --set data.image_channels=1",
        3: "read grey images with --set data.image_channels=3, or choose other images",
    }
    raise UserError(
        f"{model.path}: the model expects images with {model.channels} channel{'s' * (model.channels > 1)}, and the "
        f"images in {dataset.root} have {dataset.channels}; {cures.get(model.channels, 'choose other images')}"
    )


def _name_notices(model: BundleModel, assigned: Mapping[str, str], sites: Collection[str]) -> list[str]:
    """Return what a reader of the scores should know about the names of labels and sites."""
    others = [
        f"{own} is compared with {predicted} of the bundle" for own, predicted in assigned.items() if own != predicted
    ]
    if seen := ", ".join(site for site in sites if site in model.about["trained_at"]):
        warning = (
            "the model was trained at a site of this name; if patients of the folder were trained on, their scores"
        )
        others.append(f"{seen}: {warning} are too good")
    return others


def _summarise(
    model: BundleModel,
    task: BundleTask,
    dataset: Dataset,
    assigned: Mapping[str, str],
    cases: Mapping[str, Sequence[Case]],
    result: EvaluationResult,
    notices: list[str],
) -> dict[str, Any]:
    """Return the content of `summary.json`."""
    table = table_of(result.rows, task.scoring.metrics)
    ratios = {"of": list(dataset.ratio_structures or ()), **summarise_ratios(result.ratios)} if result.ratios else None
    return {
        **task.scoring.describe(),
        "scores": run_scores(table, task.scoring),
        "n_absent": n_absent(table),
        "data": "phantom" if dataset.is_phantom else "real",
        "dataset": dataset.card.title,
        "bundle": dict(model.about),
        "compared_with": dict(assigned),
        "patients": {site: len({case.patient for case in of_site}) for site, of_site in cases.items()},
        "images": {site: len(of_site) for site, of_site in cases.items()},
        "versions": versions(),
        "notices": notices,
        **({"vertical_ratio": ratios} if ratios else {}),
    }


def _draw(scores: Scores, folder: Path) -> None:
    task, dataset = scores.task, scores.dataset
    shown_rows = with_known_roles(scores.table, scores.summary["bundle"]["trained_at"])
    label = "synthetic phantom data" if scores.summary["data"] == "phantom" else "real data"
    if isinstance(task, BundleSegmentation):
        save_png(boxes.site_boxes(shown_rows, task.scoring, label), folder / "site_boxes.png")
        for site in list(scores.cases)[:MAX_SITES]:
            of_site = scores.table[scores.table.site == site], scores.results[site].masks, dataset, scores.cases[site]
            for _, figure in overlay_figures(*of_site, label):
                save_png(figure, folder / f"cases_{site}.png")
        return
    save_png(classes.reliability(shown_rows, label), folder / "reliability.png")
    save_png(classes.roc(shown_rows, label), folder / "roc.png")
    save_png(classes.confusion(shown_rows, label), folder / "confusion.png")
    images = {(site, case.name): case for site, of_site in scores.cases.items() for case in of_site}
    shown = [
        (row, reduced(dataset.read_image(images[row.site, row.image], [])[..., 0] / 255))
        for row in select_confident(scores.table)
    ]
    save_png(classes.confident_examples(shown, label, "the scored sites"), folder / "examples.png")
