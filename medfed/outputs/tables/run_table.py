"""The scores of one run as lines of text: what closes a run in the terminal, and what the model card shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medfed.metrics.metric import DISTANCE, Column, Metric, metric_columns
from medfed.outputs.tables.comparison import data_label
from medfed.outputs.tables.table import TRANSDUCTIVE, align_columns
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import GAP, RUN_TABLE, Scoring

SITES = (("seen", "{}"), ("validation", "{} (VALIDATION)"), ("unseen", "{} (UNSEEN)"))
MEANS = (("seen", "mean seen"), ("unseen", "mean UNSEEN"))


def closing_table(summary: Mapping[str, Any]) -> str:
    """What a run prints at its end: sites (seen first), their means and the gap, with notes.

    Args:
        summary: of `Scoring.summarise`, with `data` ("phantom" or "real") and `selection` added; `method`,
            `selected_round`, `rounds`, `clients` and `privacy` are printed where they are there.
    """
    scoring = scoring_of(summary)
    found = [[(word, "") for word in line] for line in score_rows(scoring, summary, scoring.shows_interval)]
    notes = [*scoring.summary_notes(summary), *weights_notes(summary)]
    table = align_columns(found, False, n_left=1 + scoring.has_structures)
    return "\n".join([*_head(summary, scoring.spread_note), "", table, "", *notes])


def score_rows(scoring: Scoring, summary: Mapping[str, Any], with_interval: bool) -> list[tuple[str, ...]]:
    """The head, a line per site and structure, the means over sites, and the gap.

    Args:
        with_interval: whether a score has its 95 % interval, rather than its standard deviation.
    """
    found = [header_row(scoring)]
    for role, words in SITES:
        for site, of_site in summary.get(role, {}).get("sites", {}).items():
            found += [_line(scoring, words.format(site), name, group, with_interval) for name, group in of_site.items()]
    for role, words in MEANS:
        means = summary.get(role, {}).get("mean", {})
        found += [_line(scoring, words, name, group, with_interval) for name, group in means.items()]
    first = scoring.columns[0].key
    found += [_gap_line(scoring, name, gap) for name, gap in summary.get("gap", {}).items() if gap[first] is not None]
    return found


def header_row(scoring: Scoring, first: Sequence[str] = ("site",)) -> tuple[str, ...]:
    """The heads of the columns that `values` fills, after those of `first`."""
    metrics = (
        metric.label if metric.unit in ("", DISTANCE) else f"{metric.label} {metric.unit}"
        for metric in scoring.metrics_in(RUN_TABLE)
    )
    structure = ["structure"] if scoring.has_structures else []
    before, after = ([name for _, name in counts] for counts in (scoring.leading_counts, scoring.trailing_counts))
    return (*first, *structure, *before, *metrics, *after)


def format_score(scores: Mapping[str, Any], column: Column, with_interval: bool) -> str:
    """The mean with its interval or its standard deviation, where they are known; "-" where the mean is unknown.

    A distance has its unit, as it depends on the data; of other metrics the head of the column has it.
    """
    if scores.get("mean") is None:
        return "-"
    scale, digits = column.scale, column.metric.decimals
    unit = f" {column.unit}" if column.metric.unit == DISTANCE else ""
    mean = f"{scale * scores['mean']:.{digits}f}"
    if with_interval and scores.get("low") is not None:
        n = max(0, digits - 1)
        return f"{mean}{unit} [{scale * scores['low']:.{n}f}, {scale * scores['high']:.{n}f}]"
    if scores.get("sd") is not None:
        return f"{mean} ± {scale * scores['sd']:.{digits}f}{unit}"
    return f"{mean}{unit}"


def displayed_column(scoring: Scoring, metric: Metric, group: Mapping[str, Any]) -> Column | None:
    """The column of a metric in a group's line: a distance in the unit that all its cases (of a mean: sites) have."""
    main = group[scoring.columns[0].key]
    count = "n_sites" if "n_sites" in main else "n"
    for column in metric_columns(metric):
        scores = group.get(column.key) or {}
        if scores.get("mean") is not None and (metric.unit != DISTANCE or scores.get(count) == main.get(count)):
            return column
    return None


def weights_notes(summary: Mapping[str, Any]) -> list[str]:
    """Which weights scored which sites, and what looked at test images while predicting."""
    by = summary.get("transductive_by", ["tent"] * bool(summary.get("transductive")))
    unseen = "those of the source site nearest to it" if "nearest" in by else "their average"
    kept = f"Source sites are scored with the entries that they keep, the unseen site with {unseen}."
    adapted = [f"TRANSDUCTIVE: {TRANSDUCTIVE.get(name, name)}." for name in by]
    return [kept] * bool(summary.get("sites_kept_entries")) + adapted


def _head(summary: Mapping[str, Any], spread: str) -> list[str]:
    method = f"{summary['method']}; " if "method" in summary else ""
    which = f" {summary['selected_round']} of {summary['rounds']}" if "selected_round" in summary else ""
    chosen = f"{method}round{which} by the rule '{summary['selection']}'; {spread}"
    return [data_label(summary["data"]), chosen, *_clients(summary), *_privacy(summary)]


def _privacy(summary: Mapping[str, Any]) -> list[str]:
    """Such as: noise on what left the sites: epsilon 12.3 for delta 1e-05, of all that a site holds."""
    if not (found := summary.get("privacy")):
        return []
    worth = "no bound" if found["epsilon"] == "none" else f"epsilon {found['epsilon']:.3g} for delta {found['delta']:g}"
    return [f"noise on what left the sites: {worth}, of all that a site holds"]


def _clients(summary: Mapping[str, Any]) -> list[str]:
    """Such as: 30 clients of 3 sites, 10 a round, partition: dirichlet 0.5."""
    if not (found := summary.get("clients")):
        return []
    n_sites = len(summary["source_sites"])
    of = f"{found['n']} clients of {n_sites} site{'s' if n_sites > 1 else ''}"
    return [f"{of}, {found['per_round']} a round, partition: {found['partition']}"]


def _line(scoring: Scoring, site: str, structure: str, group: Mapping[str, Any], with_interval: bool) -> tuple:
    scores = []
    for metric in scoring.metrics_in(RUN_TABLE):
        column = displayed_column(scoring, metric, group)
        scores.append("-" if column is None else format_score(group[column.key], column, with_interval))
    before, after = (
        [str(group[key]) for key, _ in counts] for counts in (scoring.leading_counts, scoring.trailing_counts)
    )
    return (site, *[structure] * scoring.has_structures, *before, *scores, *after)


def _gap_line(scoring: Scoring, structure: str, gap: Mapping[str, float | None]) -> tuple[str, ...]:
    in_gap = scoring.metrics_in(GAP)
    words = [_gap_text(metric, gap) if metric in in_gap else "" for metric in scoring.metrics_in(RUN_TABLE)]
    before, after = ([""] * len(counts) for counts in (scoring.leading_counts, scoring.trailing_counts))
    return ("gap: seen - unseen", *[structure] * scoring.has_structures, *before, *words, *after)


def _gap_text(metric: Metric, gap: Mapping[str, float | None]) -> str:
    for column in metric_columns(metric):
        value = gap.get(column.key)
        if value is not None:
            unit = f" {column.unit}" if metric.unit == DISTANCE else ""
            return f"{column.scale * value:+.{metric.decimals}f}{unit}"
    return "-"
