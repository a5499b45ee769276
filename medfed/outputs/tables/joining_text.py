"""Format what joining a federation gives and what not pooling costs, as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection
from dataclasses import asdict

from medfed.metrics.intervals import METHOD_OF_DIFFERENCES, MIN_PATIENTS
from medfed.outputs.tables.comparison_row import LOCAL
from medfed.outputs.tables.joining import ALL_SITES, Joining, PairedMean
from medfed.outputs.tables.run_notes import data_label
from medfed.outputs.tables.table import align_columns, with_second_lines
from medfed.outputs.tables.table_rows import MarkedText

NOTES = (
    "own test: each hospital's own test patients, in the runs in which it trained; unseen: its patients when it was "
    "the unseen site, for local as the mean over the other hospitals' models",
    "(n): number of patients; each patient is paired with itself and averaged over runs and seeds first; 'all' is the "
    "mean over all patients",
    f"[] is the 95 % interval of the mean difference ({METHOD_OF_DIFFERENCES}; in 'all', the patients are one sample), "
    f"not corrected for the number of differences; fewer than {MIN_PATIENTS} patients have none",
)


def joining_text(joining: Joining) -> str:
    """Format the differences of the main metric as text with aligned columns.

    Args:
        joining: the differences.
    """
    parts = [title_of(joining)]
    for title, rows, n_left in parts_of(joining):
        parts.append(f"{title}\n{align_columns(with_second_lines(rows), False, n_left)}")
    return "\n\n".join([*parts, "\n".join(f"note: {note}" for note in NOTES)])


def joining_markdown(joining: Joining) -> str:
    """Format the differences of the main metric as Markdown.

    Args:
        joining: the differences.
    """
    parts = [f"## {title_of(joining)}"]
    for title, cells, n_left in parts_of(joining):
        head, *rows = [[f"{text} {more}".rstrip().replace("|", "\\|") for text, _, more in row] for row in cells]
        ruled = [head, [*["---"] * n_left, *["---:"] * (len(head) - n_left)], *rows]
        parts.append(f"### {title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in ruled))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in NOTES)]) + "\n"


def joining_csv(joining: Joining) -> str:
    """Format the differences of all metrics as CSV: one line for each structure, metric, pair of rows, images and site.

    Args:
        joining: the differences.
    """
    text = io.StringIO()
    columns = "data structure metric unit meaning first second images site mean_difference low high n_patients"
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns.split())
    for one in joining.differences:
        facts = (joining.data, one.structure, one.metric, one.unit, one.meaning, one.first, one.second, one.images)
        for site, mean in one.by_site.items():
            numbers = (None if number is None else f"{number:.6f}" for number in (mean.mean, mean.low, mean.high))
            writer.writerow([*facts, site, *numbers, mean.n])
    return text.getvalue()


def joining_json(joining: Joining) -> str:
    """Format the differences of all metrics and the scores of the models of `local` as JSON text.

    Args:
        joining: the differences.
    """
    models = [{"structure": structure, "row": label, "trained_at": at, "score_at": dict(scores)}
              for structure, label, at, scores in joining.models]  # fmt: skip
    content = {"data": joining.data, "sites": list(joining.sites), "interval_method": METHOD_OF_DIFFERENCES,
               "models_of_local": models,
               "differences": [asdict(one) for one in joining.differences]}  # fmt: skip
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def joining_conclusions(joining: Joining, baselines: Collection[str]) -> list[str]:
    """Return one sentence for each structure and pair of rows: the difference over all patients, with its interval.

    Args:
        joining: the differences.
        baselines: labels of the only federated rows that the sentences are about.
    """
    sentences = []
    for structure, metric, name in joining.titles:
        pairs: dict[str, list[str]] = {}
        for one in joining.differences:
            if (one.structure, one.metric) == (structure, metric) and {one.first, one.second} & set(baselines):
                text, _, interval = _format(one.by_site[ALL_SITES])
                parts = pairs.setdefault(f"{one.meaning} ({one.first} - {one.second})", [])
                parts.append(f"{one.images} {text} {interval or 'without an interval, so not decided'}")
        title = f"{name} ({_unit(joining, metric)})"
        sentences += [f"{title}, {pair}: {'; '.join(parts)}." for pair, parts in pairs.items()]
    return sentences


def title_of(joining: Joining) -> str:
    """Return the heading of the whole part, which says whether the data are synthetic.

    Args:
        joining: the differences.
    """
    return f"Joining and pooling (rows that are no federated methods). {data_label(joining.data)}"


def parts_of(joining: Joining) -> list[tuple[str, list[list[MarkedText]], int]]:
    """Return the tables of the main metric: the differences, and the scores of the models of `local`.

    Args:
        joining: the differences.

    Returns:
        For each table its title, its rows with the header first, and the number of its columns of words. An interval
        is `more` of its cell.
    """
    parts = []
    for structure, metric, name in joining.titles:
        title = f"gain from joining and cost of not pooling, {name} ({_unit(joining, metric)})"
        parts.append((title, _difference_rows(joining, structure, metric), 3))
        if models := _model_rows(joining, structure):
            unit = _unit(joining, metric).replace("points", "%")
            parts.append((f"models of one hospital each, {name} ({unit}); * its own test images", models, 1))
    return parts


def _unit(joining: Joining, metric: str) -> str:
    """Return the unit of the differences of a metric; "points" for the difference of two percentages."""
    unit = next((one.unit for one in joining.differences if one.metric == metric), "")
    return "points" if unit == "%" else unit


def _difference_rows(joining: Joining, structure: str, metric: str) -> list[list[MarkedText]]:
    """Return the differences of one structure and metric: a header row, then one row for each of them."""
    rows = [list(map(MarkedText, ("", "difference", "images", *joining.sites, ALL_SITES)))]
    for one in joining.differences:
        if (one.structure, one.metric) == (structure, metric):
            cells = [_format(one.by_site.get(site)) for site in (*joining.sites, ALL_SITES)]
            words = (one.meaning, f"{one.first} - {one.second}", one.images)
            rows.append([*map(MarkedText, words), *cells])
    return rows


def _model_rows(joining: Joining, structure: str) -> list[list[MarkedText]]:
    """Return the scores of the models of `local`: a header row, then one row for each model; empty without models."""
    rows = [["trained at", *joining.sites]]
    for of_structure, label, at, scores in joining.models:
        if of_structure == structure:
            cells = [f"{scores[site]:.2f}{'*' * (site == at)}" if site in scores else "-" for site in joining.sites]
            rows.append([label.replace(LOCAL, at, 1), *cells])
    return [list(map(MarkedText, row)) for row in rows] if len(rows) > 1 else []


def _format(mean: PairedMean | None) -> MarkedText:
    """Return a difference with its sign, the number of patients, and its interval; "-" without patients."""
    if mean is None:
        return MarkedText("-")
    more = "" if mean.low is None else f"[{mean.low:.2f}, {mean.high:.2f}]"
    return MarkedText(f"{round(mean.mean, 2) + 0.0:+.2f} ({mean.n})", "", more)
