"""The page of runs and comparisons: what the template `report.html.jinja` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from medfed.outputs.figures.boxes import comparison_figure
from medfed.outputs.figures.curves import comparison_curves
from medfed.outputs.figures.figure import png_bytes
from medfed.outputs.report.html import MAX_WIDTH, EmbeddedFigure, embed_png, render_page
from medfed.outputs.report.ledger import sent_of_run
from medfed.outputs.report.read import ReportRun, RunGroup
from medfed.outputs.report.tables import PageTable, cost_table, patient_table, site_table
from medfed.outputs.run_folder import FIGURES
from medfed.outputs.tables import run_table
from medfed.results.notes import NOT_STATED, computation_notes, data_label, did_not_learn
from medfed.results.render import explanations, full_tables, main_table, notes_and_conclusions
from medfed.results.scores import ALL
from medfed.results.statistics import verdict_text
from medfed.results.text_tables import difference_text

REAL = "REAL data: this page shows images of patients. Protect it as you protect these images."
MIXED = " Some runs are of PHANTOM data: each table and figure says which."
MAX_OVERLAYS = 270  # patients with an image, if the page has one run
MAX_SHARED_OVERLAYS = 90  # of all runs of a page with several
FEW_RUNS = 3  # more runs show their first figure only, so that the page of nine runs has at most 3 MB
FIRST_FIGURE_WIDTH = 800  # in pixels, of the only figure of a run
COMMON_FIGURES = ("same_cases", "same_examples")  # with the same cases for every method
CAPTIONS = {  # of the figures of a run, by file name; the first one that exists is on the first screen
    "unseen_cases": "Best, median and worst unseen case",
    "examples": "Unseen images with the most confident right and wrong predictions",
    "site_boxes": "Scores of each case by site",
    "training_curves": "Training and validation by round",
    "same_cases": "Unseen cases, chosen without regard to scores",
    "same_examples": "Unseen images, chosen without regard to scores",
    "roc": "Receiver operating characteristic by site",
    "reliability": "Accuracy by confidence. On the diagonal, the confidence is right",
    "unseen_rounds": "The unseen site by round, measured after training; it must not choose anything",
    "interpolation_tsne": "Restyled copies of one site's images with a fixed and a random mixing ratio, by t-SNE",
    "style_grid": "One training image of each site in every style",
    "histograms": "Intensities of the training images before and after the exchange of styles",
}


def build_page(runs: Sequence[ReportRun], groups: Sequence[RunGroup]) -> str:
    """The report as one HTML page; the same runs and comparisons give the same text."""
    every = list({run.folder.path: run for run in (*runs, *(run for group in groups for run in group.runs))}.values())
    n_overlays = MAX_OVERLAYS if len(every) == 1 else MAX_SHARED_OVERLAYS // len(every)
    kinds = {run.summary["data"] for run in every}
    kinds = kinds - {NOT_STATED} or kinds  # the page shows no image of a federation
    methods = list(dict.fromkeys(run.row.label for run in every))
    named = ", ".join(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return render_page(
        "report.html.jinja",
        kind="medfed report",
        title=f"{named} on {_distinct(run.summary.get('dataset') or 'unnamed data' for run in every)}",
        banner=REAL + MIXED * ("phantom" in kinds) if "real" in kinds else data_label(*kinds),
        is_phantom=kinds == {"phantom"},
        comparisons=[_group_content(group, n_overlays) for group in groups],
        runs=[_run_content(run, groups, n_overlays, None if len(runs) <= FEW_RUNS else 1) for run in runs],
    )


def _run_content(
    run: ReportRun, groups: Sequence[RunGroup], n_overlays: int, n_figures: int | None = None
) -> dict[str, Any]:
    """What the template shows of a run, with at most `n_figures` of its PNG figures, those with a caption first."""
    summary, paths = run.summary, {path.stem: path for path in (run.folder.path / FIGURES).glob("*.png")}
    names = [*(name for name in CAPTIONS if name in paths), *sorted(paths.keys() - CAPTIONS.keys())]
    width = MAX_WIDTH if n_figures is None else FIRST_FIGURE_WIDTH
    warnings = [f"{note}." for note in (did_not_learn(summary), *computation_notes(summary)) if note]
    return {
        "title": run.title,
        "label": run.data_label,
        "first": _first_properties(run, groups),
        "warnings": [*warnings, *run_table.weights_notes(summary)],
        "figures": [
            embed_png(CAPTIONS.get(name, name.replace("_", " ")), paths[name].read_bytes(), width)
            for name in names[:n_figures]
        ],
        "n_hidden_figures": len(names[n_figures:]) if n_figures is not None else 0,
        "patients": patient_table(run, n_overlays) if len(run.scores) else None,
        "has_images": summary["data"] != NOT_STATED,
        "scores": site_table(summary),
        "cost": cost_table([run]),
        "sent": sent_of_run(run),
        "settings": _settings(summary),
        "config": run.config_text,
        "sha256": summary.get("config_sha256", "unknown"),
        "notices": summary.get("notices") or [],
    }


def _first_properties(run: ReportRun, groups: Sequence[RunGroup]) -> list[tuple[str, str]]:
    """(name, value) of what a reader looks for first."""
    summary, scoring = run.summary, run.scoring
    entries = [("Method", run.row.label + " (not federated)" * (not run.is_federated)), ("Unseen site", run.unseen)]
    table = run_table.score_table(scoring, summary, {"unseen": "at {}"}, {})
    if len(table.rows) == 1:
        table = run_table.score_table(scoring, summary, {}, {"seen": "mean seen"})
    heads, *rows = [[cell.text for cell in row] for row in table.rows]
    shown = slice(table.n_words, table.n_words + (1 if scoring.has_structures else 2))
    for row in rows:
        structure = f"{row[1]}, " * scoring.has_structures
        for head, cell in zip(heads[shown], row[shown], strict=True):
            entries.append((f"{structure}{head} {row[0]}", f"{cell} ({row[-2]} patients)"))
    differences = list(_differences(run, groups))
    baselines = {group.baseline for group in groups if group.table and run in group.runs}
    if not differences and baselines and run.row.label not in baselines:
        differences = [f"not measured from {', '.join(sorted(baselines))}"]
    entries += [("Difference", text) for text in differences]
    learned = (summary.get("learning") or {}).get("learned")
    entries.append(("Did it learn?", {None: "not measured", True: "yes", False: "NO"}[learned]))
    return [*entries, ("Images", {"phantom": "synthetic PHANTOM", "real": "REAL"}.get(summary["data"], NOT_STATED))]


def _differences(run: ReportRun, groups: Sequence[RunGroup]) -> Iterator[str]:
    """The difference of the main metric from the baseline at the unseen site of the run, with its verdict."""
    metric = run.scoring.metrics[0]
    wanted = {"metric": metric.name, "role": "unseen", "row": run.row.label, "site": run.unseen, "kind": "method"}
    for table in (group.table for group in groups if group.table and run in group.runs):
        if not table.differences.empty:
            is_own = (table.differences[list(wanted)] == pd.Series(wanted)).all(axis=1)
            for line in table.differences[is_own].itertuples():
                size = difference_text(line, metric)
                yield f"{f'{line.structure}: ' * (line.structure != ALL)}{size} from {line.minus}; {verdict_text(line)}"


def _group_content(group: RunGroup, n_overlays: int) -> dict[str, Any]:
    warnings = [f"Not finished and not shown: {group.n_unfinished} of its runs."] * bool(group.n_unfinished)
    warnings += [f"These runs are not compared: {group.why_no_table}."] * bool(group.why_no_table)
    notices = Counter(notice for run in group.runs for notice in run.summary.get("notices") or [])
    content = {
        "name": group.name,
        "label": _distinct(run.data_label for run in group.runs),
        "warnings": warnings,
        "notices": [f"{notice} ({n} runs)" if n > 1 else notice for notice, n in notices.items()],
        "is_folder": group.is_folder,
        "is_compared": group.table is not None,
    }
    if group.is_folder:
        content["runs"] = [_run_content(run, [group], n_overlays, 0) for run in group.runs]
        content["cost"] = cost_table(group.runs)
    if group.table is not None:
        full = [PageTable(one) for one in full_tables(group.table)]
        content |= {
            "first": [PageTable(main_table(group.table, structure)) for structure in group.table.structures],
            "conclusions": notes_and_conclusions(group.table),
            "tables": [*full[:-1], full[-1]._replace(notes=explanations(group.table))],
            "boxes": _boxes(group),
            "curves": _curves(group),
            "same": _same_figures(group),
        }
    return content


def _boxes(group: RunGroup) -> EmbeddedFigure:
    scores = pd.concat([run.scores[run.scores.role == "unseen"].assign(row=run.row.label) for run in group.drawn])
    figure = comparison_figure(scores, group.drawn[0].scoring, group.drawn[0].data_label)
    return embed_png("Scores of each case at the unseen sites, all seeds", png_bytes(figure))


def _curves(group: RunGroup) -> EmbeddedFigure:
    histories: dict[str, list] = {}
    for run in group.drawn:
        histories.setdefault(run.row.label, []).append(run.folder.history())
    figure = comparison_curves(histories, group.drawn[0].data_label)
    return embed_png("Training and validation by round, mean over the runs of a method", png_bytes(figure))


def _same_figures(group: RunGroup) -> list[tuple[str, list[EmbeddedFigure]]]:
    """By unseen site, the figure of the same unseen cases of each method, of the first seed."""
    width = MAX_WIDTH if len(group.runs) <= FEW_RUNS else FIRST_FIGURE_WIDTH
    seed = min(run.summary["seed"] for run in group.drawn)
    figures: dict[str, list[EmbeddedFigure]] = {}
    for run in sorted((run for run in group.drawn if run.summary["seed"] == seed), key=lambda run: run.unseen):
        for path in (run.folder.path / FIGURES / f"{name}.png" for name in COMMON_FIGURES):
            if path.is_file():
                embedded = embed_png(f"{run.row.label}, unseen {run.unseen}", path.read_bytes(), width)
                figures.setdefault(run.unseen, []).append(embedded)
    return [(site, own) for site, own in figures.items() if len(own) > 1]


def _settings(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of what the reader should know of a run."""
    start = summary.get("start_weights", {"file": "not recorded", "sha256": ""})
    versions = sorted((summary.get("versions") or {}).items())
    chosen = f"{summary.get('selected_round')} of {summary.get('rounds')}"
    return [
        ("Data", f"{summary.get('dataset', 'unnamed')}, {summary['data']}"),
        ("Sites that trained", _training_sites(summary)),
        ("Validation site", summary.get("validation_site") or "none"),
        ("Initial weights", f"{start['file']} {start['sha256'][:12]}" if start else "random"),
        ("Round", f"{chosen}, by the rule '{summary['selection']}'"),
        ("Seed", str(summary["seed"])),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions)),
    ]


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


def _training_sites(summary: Mapping[str, Any]) -> str:
    """The sites that trained with their numbers of patients, or the number of clients."""
    sites, patients = summary.get("source_sites") or [], summary.get("patients") or {}
    if clients := summary.get("clients"):
        number = f"{clients['n']} clients of {len(sites)} sites, {clients['per_round']} per round"
        return f"{number} ({clients['partition']})"
    return ", ".join(f"{site} ({patients[site]['train']} patients)" if site in patients else site for site in sites)
