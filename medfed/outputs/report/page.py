"""The page of runs and comparisons: what the template `report.html.jinja` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pandas as pd

from medfed.outputs.figures.boxes import comparison_figure
from medfed.outputs.figures.curves import comparison_curves
from medfed.outputs.figures.figure import png_bytes
from medfed.outputs.published.beside import beside_comparison, comparison_warnings
from medfed.outputs.published.tables import tables_of_data
from medfed.outputs.report.html import MAX_WIDTH, EmbeddedFigure, embed_file, embed_png, render_page
from medfed.outputs.report.ledger import sent_by_method, sent_of_run
from medfed.outputs.report.read import Run, RunGroup
from medfed.outputs.report.tables import PageTable, cost_table, failure_table, patient_table, site_table
from medfed.outputs.run_folder import FIGURES
from medfed.outputs.tables import run_table
from medfed.results.notes import PHANTOM, computation_notes, did_not_learn
from medfed.results.render import explanations, full_tables, main_table, notes_and_conclusions
from medfed.results.scores import ALL
from medfed.results.statistics import verdict_text
from medfed.results.text_tables import interval, number

REAL = "REAL data: this page shows images of patients. Protect it as you protect these images."
MIXED = " Some runs are of PHANTOM data: each table and figure says which."
MAX_OVERLAYS, MAX_OVERLAYS_OF_PAGE = 40, 270  # patients with an image, of a run and of a page with several runs
MAX_OVERLAYS_OF_LONG_PAGE = 45  # of a page with more than `FEW_RUNS` runs that the user named one by one
FEW_RUNS, MANY_RUNS = 3, 12  # more than few runs show their first figure only, more than many none: at most 3 MB
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
    "tsne": "Styles of the training images before and after the exchange of styles, by t-SNE",
    "interpolation_tsne": "Restyled copies of one site's images with a fixed and a random mixing ratio, by t-SNE",
    "style_gallery": "One training image in the styles of the other sites",
    "style_grid": "One training image of each site in every style",
    "histograms": "Intensities of the training images before and after the exchange of styles",
}


def build_page(runs: Sequence[Run], groups: Sequence[RunGroup]) -> str:
    """The report as one HTML page; the same runs and comparisons give the same text."""
    every = list({run.folder.path: run for run in (*runs, *(run for group in groups for run in group.runs))}.values())
    n_of_page = MAX_OVERLAYS_OF_LONG_PAGE if len(runs) > FEW_RUNS else MAX_OVERLAYS_OF_PAGE
    n_overlays = min(MAX_OVERLAYS, n_of_page // len(every)) if len(every) > 1 else n_of_page
    compared = {path for group in groups if group.table for _, own in _same_paths(group) for _, path in own}
    kinds = {run.summary["data"] for run in every}
    methods = list(dict.fromkeys(run.row_label for run in every))
    named = ", ".join(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return render_page(
        "report.html.jinja",
        kind="medfed report",
        title=f"{named} on {_distinct(run.summary.get('dataset') or 'unnamed data' for run in every)}",
        banner=PHANTOM if kinds == {"phantom"} else REAL + MIXED * ("phantom" in kinds),
        is_phantom=kinds == {"phantom"},
        comparisons=[_group_content(group, n_overlays) for group in groups],
        runs=[_run_content(run, groups, n_overlays) | _figures(run, len(runs), compared) for run in runs],
    )


def _run_content(run: Run, groups: Sequence[RunGroup], n_overlays: int) -> dict[str, Any]:
    summary = run.summary
    tables = site_table(run.scoring, summary), failure_table(run.scoring, summary)
    warnings = [f"{note}." for note in (did_not_learn(summary), *computation_notes(summary)) if note]
    return {
        "title": run.title,
        "label": run.data_label,
        "facts": _first_facts(run, groups),
        "warnings": [*warnings, *run_table.weights_notes(summary)],
        "patients": patient_table(run, n_overlays) if len(run.scores) else None,
        "tables": list(filter(None, tables)),
        "cost": cost_table([run]),
        "sent": sent_of_run(run),
        "settings": _settings([run]),
        "config": run.config_text,
        "sha256": summary.get("config_sha256", "unknown"),
        "notices": _notices([run]),
    }


def _first_facts(run: Run, groups: Sequence[RunGroup]) -> list[tuple[str, str]]:
    """(name, value) of what a reader looks for first."""
    summary, scoring = run.summary, run.scoring
    facts = [("Method", run.row_label + " (not federated)" * (not run.is_federated)), ("Unseen site", run.unseen)]
    scores = run_table.groups_of(summary, [("unseen", "at {}")], ())
    scores = scores or run_table.groups_of(summary, (), run_table.MEANS)
    n_metrics = 1 if scoring.has_structures else 2
    for _, where, structure, group in scores:
        heads, cells = run_table.score_header(scoring, scores), run_table.score_cells(scoring, group, scores)
        for head, cell in list(zip(heads, cells, strict=True))[:n_metrics]:
            name = f"{structure}, " * (structure != ALL) + f"{head} {where}"
            facts.append((name, f"{cell} ({run_table.counts(group)[0]} patients)"))
    differences = list(_differences(run, groups))
    baselines = {group.baseline for group in groups if group.table and any(one is run for one in group.runs)}
    if not differences and baselines and run.row_label not in baselines:
        differences = [f"not measured from {', '.join(sorted(baselines))}"]
    facts += [("Difference", text) for text in differences]
    learned = (summary.get("learning") or {}).get("learned")
    facts.append(("Did it learn?", {None: "not measured", True: "yes", False: "NO"}[learned]))
    return [*facts, ("Images", "synthetic PHANTOM" if summary["data"] == "phantom" else "REAL")]


def _differences(run: Run, groups: Sequence[RunGroup]) -> Iterator[str]:
    """The difference of the main metric from the baseline at the unseen site of the run, with its verdict."""
    metric = run.scoring.metrics[0]
    wanted = {"metric": metric.name, "role": "unseen", "row": run.row_label, "site": run.unseen, "kind": "method"}
    for table in (group.table for group in groups if group.table and any(one is run for one in group.runs)):
        if not table.differences.empty:
            is_own = (table.differences[list(wanted)] == pd.Series(wanted)).all(axis=1)
            for line in table.differences[is_own].itertuples():
                size = number(line.difference, metric.decimals, "+") + interval(line.low, line.high, metric.decimals)
                yield f"{f'{line.structure}: ' * (line.structure != ALL)}{size} from {line.minus}; {verdict_text(line)}"


def _figures(run: Run, n_runs: int, compared: Set[Path]) -> dict[str, Any]:
    """The PNG figures of a run, those with a caption first, without the ones that a comparison of the page shows."""
    paths = {path.stem: path for path in sorted((run.folder.path / FIGURES).glob("*.png")) if path not in compared}
    names = [*(name for name in CAPTIONS if name in paths), *(name for name in paths if name not in CAPTIONS)]
    shown = names if n_runs <= FEW_RUNS else names[: n_runs <= MANY_RUNS]
    width = MAX_WIDTH if n_runs <= FEW_RUNS else FIRST_FIGURE_WIDTH
    return {
        "figures": [embed_file(CAPTIONS.get(name, name.replace("_", " ")), paths[name], width) for name in shown],
        "n_hidden_figures": len(names) - len(shown),
    }


def _group_content(group: RunGroup, n_overlays: int) -> dict[str, Any]:
    warnings = [f"Not finished and not shown: {group.n_unfinished} of its runs."] * bool(group.n_unfinished)
    warnings += [f"These runs are not compared: {group.why_no_table}."] * bool(group.why_no_table)
    content = {
        "name": group.name,
        "label": _distinct(run.data_label for run in group.runs),
        "warnings": warnings,
        "settings": _settings(group.runs),
        "notices": _notices(group.runs),
        "is_folder": group.is_folder,
        "is_compared": group.table is not None,
    }
    if group.is_folder:
        content |= {
            "runs": [
                _run_content(run, [group], n_overlays) | {"figures": [], "n_hidden_figures": 0} for run in group.runs
            ],
            "sent": sent_by_method(group),
            "cost": cost_table(group.runs),
        }
    if group.table is not None:
        full = [PageTable(one) for one in full_tables(group.table)]
        papers = tables_of_data(group.runs[0].config.get("data"))
        content |= {
            "first": [PageTable(main_table(group.table, structure)) for structure in group.table.structures],
            "conclusions": notes_and_conclusions(group.table),
            "tables": [*full[:-1], full[-1]._replace(notes=explanations(group.table))],
            "boxes": _boxes(group),
            "curves": _curves(group),
            "same": _same_figures(group),
            "published_warnings": comparison_warnings(group.table),
            "published": [
                (paper, [PageTable(beside_comparison(block, group.table), block.footnotes) for block in paper.blocks])
                for paper in papers
            ],
        }
    return content


def _boxes(group: RunGroup) -> EmbeddedFigure:
    scores = pd.concat([run.scores[run.scores.role == "unseen"].assign(row=run.row_label) for run in group.drawn])
    figure = comparison_figure(scores, group.drawn[0].scoring, group.drawn[0].data_label)
    return embed_png("Scores of each case at the unseen sites, all seeds", png_bytes(figure))


def _curves(group: RunGroup) -> EmbeddedFigure:
    histories: dict[str, list] = {}
    for run in group.drawn:
        histories.setdefault(run.row_label, []).append(run.folder.history())
    figure = comparison_curves(histories, group.drawn[0].data_label)
    return embed_png("Training and validation by round, mean over the runs of a method", png_bytes(figure))


def _same_figures(group: RunGroup) -> list[tuple[str, list[EmbeddedFigure]]]:
    """By unseen site, the figure of the same unseen cases of each method, of the first seed."""
    width = MAX_WIDTH if len(group.runs) <= FEW_RUNS else FIRST_FIGURE_WIDTH
    return [
        (site, [embed_file(f"{run.row_label}, unseen {site}", path, width) for run, path in paths])
        for site, paths in _same_paths(group)
    ]


def _same_paths(group: RunGroup) -> Iterator[tuple[str, list[tuple[Run, Path]]]]:
    """The files of `_same_figures`, with their runs."""
    seed = min(run.summary["seed"] for run in group.drawn)
    for site in sorted({run.unseen for run in group.drawn}):
        own = [run for run in group.drawn if (run.unseen, run.summary["seed"]) == (site, seed)]
        paths = [(run, run.folder.path / FIGURES / f"{name}.png") for name in COMMON_FIGURES for run in own]
        paths = [(run, path) for run, path in paths if path.is_file()]
        if len(paths) > 1:
            yield site, paths


def _settings(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(name, value) of what the reader should know of all runs."""
    by_name: dict[str, list[str]] = {}
    for summary in (run.summary for run in runs):
        start = summary.get("start_weights", {"file": "not recorded", "sha256": ""})
        versions = sorted((summary.get("versions") or {}).items())
        chosen = f"{summary.get('selected_round')} of {summary.get('rounds')}"
        settings = {
            "Data": f"{summary.get('dataset', 'unnamed')}, {summary['data']}",
            "Sites that trained": _training_sites(summary),
            "Validation site": summary.get("validation_site") or "none",
            "Initial weights": f"{start['file']} {start['sha256'][:12]}" if start else "random",
            "Round": f"{chosen}, by the rule '{summary['selection']}'",
            "Seed": str(summary["seed"]),
            "Versions": ", ".join(f"{name} {version}" for name, version in versions),
        }
        for name, value in settings.items():
            by_name.setdefault(name, []).append(value)
    return [(name, _distinct(values)) for name, values in by_name.items()]


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


def _training_sites(summary: dict[str, Any]) -> str:
    """The sites that trained with their numbers of patients, or the number of clients."""
    sites, patients = summary.get("source_sites") or [], summary.get("patients") or {}
    if clients := summary.get("clients"):
        number = f"{clients['n']} clients of {len(sites)} sites, {clients['per_round']} per round"
        return f"{number} ({clients['partition']})"
    return ", ".join(f"{site} ({patients[site]['train']} patients)" if site in patients else site for site in sites)


def _notices(runs: Sequence[Run]) -> list[str]:
    """Each notice of the runs once, with the number of runs that recorded it."""
    counts = Counter(str(notice) for run in runs for notice in run.summary.get("notices") or [])
    return [f"{notice} ({n} runs)" if n > 1 else notice for notice, n in counts.items()]
