"""Format the gain from joining and the cost of not pooling as text, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict

from medfed.metrics.intervals import METHOD_OF_DIFFERENCES, MIN_PATIENTS
from medfed.outputs.tables.comparison_row import LOCAL
from medfed.outputs.tables.joining import ALL_SITES, GAIN, OWN_TEST, UNSEEN, Joining, PairedMean, RowDifference
from medfed.outputs.tables.run_notes import data_label
from medfed.outputs.tables.table import align_columns, with_second_lines
from medfed.outputs.tables.table_rows import MarkedText

NOTES = (
    "own test: each hospital's own test patients, in the runs in which it trained; unseen: its patients when it was "
    "the unseen site, for local as the mean over the other hospitals' models",
    "(n): number of patients; each patient is paired with itself and averaged over runs and seeds first",
    f"[] is the 95 % interval of the mean difference ({METHOD_OF_DIFFERENCES}; the patients of several hospitals are "
    f"one sample), not corrected for the number of differences; fewer than {MIN_PATIENTS} patients have none",
    "the cost of not pooling at each hospital is in joining.csv",
)


def joining_text(joining: Joining) -> str:
    """The differences of the main metric as text with aligned columns."""
    parts = [title_of(joining)]
    for title, rows, n_left in parts_of(joining):
        parts.append(f"{title}\n{align_columns(with_second_lines(rows), False, n_left)}")
    return "\n\n".join([*parts, "\n".join(f"note: {note}" for note in NOTES)])


def joining_markdown(joining: Joining) -> str:
    """The differences of the main metric as Markdown."""
    parts = [f"## {title_of(joining)}"]
    for title, cells, n_left in parts_of(joining):
        head, *rows = [[f"{text} {more}".rstrip().replace("|", "\\|") for text, _, more in row] for row in cells]
        ruled = [head, [*["---"] * n_left, *["---:"] * (len(head) - n_left)], *rows]
        parts.append(f"### {title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in ruled))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in NOTES)]) + "\n"


def joining_csv(joining: Joining) -> str:
    """The differences of all metrics: one line for each structure, metric, pair of rows, images and site."""
    text = io.StringIO()
    columns = "data structure metric unit meaning first second images site mean_difference low high n_patients"
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns.split())
    for one in joining.differences:
        key = (joining.data, one.structure, one.metric, one.unit, one.meaning, one.first, one.second, one.images)
        for site, mean in one.by_site.items():
            numbers = (None if number is None else f"{number:.6f}" for number in (mean.mean, mean.low, mean.high))
            writer.writerow([*key, site, *numbers, mean.n])
    return text.getvalue()


def joining_json(joining: Joining) -> str:
    """The differences of all metrics, and the scores of the models of `local`."""
    models = [
        {"structure": structure, "row": label, "trained_at": at, "score_at": dict(scores)}
        for structure, label, at, scores in joining.models
    ]
    content = {
        "data": joining.data,
        "sites": list(joining.sites),
        "interval_method": METHOD_OF_DIFFERENCES,
        "models_of_local": models,
        "differences": [asdict(one) for one in joining.differences],
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def title_of(joining: Joining) -> str:
    """The heading of the whole part, which says whether the data are synthetic."""
    return f"Joining and pooling (rows that are no federated methods). {data_label(joining.data)}"


def parts_of(joining: Joining) -> list[tuple[str, list[list[MarkedText]], int]]:
    """Tables of the main metric, each as (title, rows with the header first, number of columns of words)."""
    parts = []
    for structure, metric, name in joining.titles:
        title = f"{name} ({unit_of(joining, metric)})"
        own = [one for one in joining.differences if (one.structure, one.metric) == (structure, metric)]
        parts += [
            (f"{of_row[0].meaning}: {_rule(of_row[0])}, {title}", _summary_rows(of_row), 1)
            for of_row in _by_reference(own)
        ]
        gains = [one for one in own if one.meaning == GAIN]
        for images in (OWN_TEST, UNSEEN):
            if rows := _site_rows([one for one in gains if one.images == images], joining.sites):
                parts.append((f"{GAIN} at each hospital, {images}, {title}", rows, 1))
        if models := _model_rows(joining, structure):
            unit = unit_of(joining, metric).replace("points", "%")
            parts.append((f"models of one hospital each, {name} ({unit}); * its own test images", models, 1))
    return parts


def unit_of(joining: Joining, metric: str) -> str:
    """The unit of the differences of a metric; "points" for the difference of two percentages."""
    unit = next((one.unit for one in joining.differences if one.metric == metric), "")
    return "points" if unit == "%" else unit


def _by_reference(differences: Sequence[RowDifference]) -> list[list[RowDifference]]:
    """Group the differences by the row that is not federated, in the order of their first one."""
    groups: dict[str, list[RowDifference]] = {}
    for one in differences:
        groups.setdefault(one.second if one.meaning == GAIN else one.first, []).append(one)
    return list(groups.values())


def _rule(one: RowDifference) -> str:
    """What is subtracted from what, for example "method - local"."""
    return f"method - {one.second}" if one.meaning == GAIN else f"{one.first} - method"


def _method(one: RowDifference) -> str:
    """The label of the federated row."""
    return one.first if one.meaning == GAIN else one.second


def _summary_rows(differences: Sequence[RowDifference]) -> list[list[MarkedText]]:
    """The differences over all patients: a header row, then one row for each federated row."""
    kinds = [images for images in (OWN_TEST, UNSEEN) if any(one.images == images for one in differences)]
    rows = [list(map(MarkedText, ("method", *kinds)))]
    for method in dict.fromkeys(map(_method, differences)):
        means = {one.images: one.by_site[ALL_SITES] for one in differences if _method(one) == method}
        rows.append([MarkedText(method), *(difference_cell(means.get(images)) for images in kinds)])
    return rows


def _site_rows(differences: Sequence[RowDifference], sites: Sequence[str]) -> list[list[MarkedText]]:
    """The differences at each site: a header row, then one for each method; empty for one site."""
    names = [site for site in sites if any(site in one.by_site for one in differences)]
    if len(names) < 2:
        return []
    rows = [list(map(MarkedText, ("method", *names)))]
    return rows + [
        [MarkedText(_method(one)), *(difference_cell(one.by_site.get(site)) for site in names)] for one in differences
    ]


def _model_rows(joining: Joining, structure: str) -> list[list[MarkedText]]:
    """The scores of the models of `local`: a header row, then one row for each model; empty without models."""
    rows = [["trained at", *joining.sites]]
    for of_structure, label, at, scores in joining.models:
        if of_structure == structure:
            cells = [f"{scores[site]:.2f}{'*' * (site == at)}" if site in scores else "-" for site in joining.sites]
            rows.append([label.replace(LOCAL, at, 1), *cells])
    return [list(map(MarkedText, row)) for row in rows] if len(rows) > 1 else []


def difference_cell(mean: PairedMean | None) -> MarkedText:
    """A difference with its sign, the number of patients, and its interval; "-" without patients."""
    if mean is None:
        return MarkedText("-")
    more = "" if mean.low is None else f"[{mean.low:.2f}, {mean.high:.2f}]"
    return MarkedText(f"{round(mean.mean, 2) + 0.0:+.2f} ({mean.n})", "", more)
