"""Format the scores of one run as a table, for the terminal at the end of a run and for the model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medfed.metrics.failures import Share
from medfed.metrics.intervals import MIN_PATIENTS
from medfed.metrics.metric import DISTANCE, Column, Metric, metric_columns
from medfed.outputs.tables.adaptation import TRANSDUCTIVE, adaptation_notes
from medfed.outputs.tables.learning import did_not_learn
from medfed.outputs.tables.run_notes import computation_notes, data_label
from medfed.outputs.tables.table import align_columns
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import GAP, LEADING_COUNTS, RUN_TABLE, Scoring

SITES = (("seen", "{}"), ("validation", "{} (VALIDATION)"), ("unseen", "{} (UNSEEN)"))
MEANS = (("seen", "mean seen"), ("unseen", "mean UNSEEN"))
CALIBRATION = "ece"  # column of the calibration error
Labels = Sequence[tuple[str, str]]  # (role, text) pairs


def closing_table(summary: Mapping[str, Any]) -> str:
    """Return the table that is printed at the end of a run, as text with several lines.

    The table shows the scores of each site, the means over sites, and the difference between seen and unseen sites.
    Notes stand below the table.

    Args:
        summary: content of `summary.json`. It must have the keys of the result of `Scoring.summarise`, "data"
            ("phantom" or "real") and "selection" (name of the rule that selected the round). The values of "method",
            "selected_round" (only with "rounds"), "clients" (only with "source_sites") and "privacy" are printed if
            they are present.
    """
    scoring = scoring_of(summary)
    rows = [[(text, "") for text in row] for row in score_rows(scoring, summary)]
    notes = [f"{interval_note(scoring, summary)}.", *scoring.summary_notes(summary), *weights_notes(summary)]
    tables = [align_columns(rows, False, n_left=1 + scoring.has_structures)]
    if failures := failure_rows(scoring, summary):
        rows = [[(text, "") for text in row] for row in failures]
        tables.append(f"calibration and failures\n{align_columns(rows, False, n_left=2)}")
        notes += [f"{note}." for note in failure_notes(scoring, summary)]
    return "\n".join([*_head(summary), "", "\n\n".join(tables), "", *notes])


def score_rows(
    scoring: Scoring, summary: Mapping[str, Any], sites: Labels = SITES, means: Labels = MEANS
) -> list[tuple[str, ...]]:
    """Format the scores of a run as rows of text.

    Args:
        scoring: the metrics and column headings of the run's task.
        summary: content of `summary.json`.
        sites: for each role of a site, the text of its first column, in which "{}" stands for the name of the site.
        means: for each role, the text of the first column of the mean over its sites.

    Returns:
        Rows of the same length: the header row, one row for each site and structure (sites that trained first), the
        means over sites, and the difference between the means of seen and unseen sites.
    """
    rows = [header_row(scoring)]
    for role, words in sites:
        for site, of_site in summary.get(role, {}).get("sites", {}).items():
            rows += [_line(scoring, words.format(site), name, group) for name, group in of_site.items()]
    for role, words in means:
        of_role = summary.get(role, {}).get("mean", {})
        rows += [_line(scoring, words, name, group) for name, group in of_role.items()]
    first = scoring.columns[0].key
    rows += [_gap_line(scoring, name, gap) for name, gap in summary.get("gap", {}).items() if gap[first] is not None]
    return rows


def failure_rows(scoring: Scoring, summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Format the calibration and the failures of a run as rows of text.

    Args:
        scoring: the metrics and column headings of the run's task.
        summary: content of `summary.json`.

    Returns:
        Rows of the same length: the header row, and one row for each row of the scores, except for the gap. The columns
        are the site, the structure, the calibration error (if it is known), and each kind of failure that any patient
        can have. Empty for a task without masks, and for a run of an older version.
    """
    failures = summary.get("failures") or {}
    groups = [
        (words.format(site), structure, group, failures[role]["sites"][site][structure])
        for role, words in SITES
        if role in failures
        for site, of_site in summary[role]["sites"].items()
        for structure, group in of_site.items()
    ] + [
        (words, structure, group, failures[role]["all"][structure])
        for role, words in MEANS
        if role in failures
        for structure, group in summary[role]["mean"].items()
    ]
    kinds = [kind for kind in scoring.failure_titles if any(shares[kind] for *_, shares in groups)]
    if not kinds:
        return []
    columns = _calibration_columns(scoring, summary)
    headings = [f"{column.metric.label} {column.unit}" for column in columns]
    rows = [("site", "structure", *headings, *(scoring.failure_titles[kind] for kind in kinds))]
    for site, structure, group, shares in groups:
        scores = (format_score(group[column.key], column) for column in columns)
        texts = (f"{share.text} {share.interval_text}" if (share := _share(shares[kind])) else "-" for kind in kinds)
        rows.append((site, structure, *scores, *texts))
    return rows


def failure_notes(scoring: Scoring, summary: Mapping[str, Any]) -> list[str]:
    """Return what the calibration error and the shares of failures of a run are, as sentences without a full stop.

    Args:
        scoring: the metrics of the run's task.
        summary: content of `summary.json`, with failures.
    """
    ece = [column.metric.note for column in _calibration_columns(scoring, summary)]
    return [
        *ece,
        "A failure is counted out of all patients for whom it is possible; [] is the 95 % interval of their "
        f"share ({summary['failures']['interval_method']}); a mean row has the patients of its sites together",
    ]


def _calibration_columns(scoring: Scoring, summary: Mapping[str, Any]) -> list[Column]:
    """Return the column of the calibration error; empty if no site has one, because probabilities were not known."""
    groups = [group for role, _ in MEANS for group in summary[role]["mean"].values()]
    return [
        column
        for column in scoring.columns
        if column.key == CALIBRATION and any(group[CALIBRATION]["mean"] is not None for group in groups)
    ]


def _share(values: Mapping[str, Any] | None) -> Share | None:
    return None if values is None else Share(**values)


def header_row(scoring: Scoring, first: Sequence[str] = ("site",)) -> tuple[str, ...]:
    """Return the column headings of the score table of a run.

    After the headings in `first` come the structure (if the task has structures, such as organs), the numbers of cases
    (for classification: of images and patients), the metrics with their units, and further counts, such as the number
    of missed structures.

    Args:
        scoring: the metrics and column headings of the run's task.
        first: headings of the columns on the left, before all others.
    """
    metrics = (
        metric.label if metric.unit in ("", DISTANCE) else f"{metric.label} {metric.unit}"
        for metric in scoring.metrics_in(RUN_TABLE)
    )
    structure = ["structure"] if scoring.has_structures else []
    before, after = ([name for _, name in counts] for counts in (LEADING_COUNTS, scoring.trailing_counts))
    return (*first, *structure, *before, *metrics, *after)


def format_score(scores: Mapping[str, Any], column: Column) -> str:
    """Format a score as its mean with its 95 % interval, or with its standard deviation if it has no interval.

    The result is "-" if the mean is unknown. A distance is followed by its unit, because its unit ("mm" or
    "% of diagonal") depends on the data. Other metrics are printed without a unit.

    Args:
        scores: {"mean", "sd", "low", "high"}. "sd" is the standard deviation; "low" and "high" are the ends of the
            interval. Each value may be None or missing. Fractions are in [0, 1] and are printed in percent.
        column: the metric and its unit.
    """
    if scores.get("mean") is None:
        return "-"
    scale, digits = column.scale, column.metric.decimals
    unit = f" {column.unit}" if column.metric.unit == DISTANCE else ""
    mean = f"{scale * scores['mean']:.{digits}f}"
    if scores.get("low") is not None:
        n = max(0, digits - 1)
        return f"{mean}{unit} [{scale * scores['low']:.{n}f}, {scale * scores['high']:.{n}f}]"
    if scores.get("sd") is not None:
        return f"{mean} ± {scale * scores['sd']:.{digits}f}{unit}"
    return f"{mean}{unit}"


def interval_note(scoring: Scoring, summary: Mapping[str, Any]) -> str:
    """Return what the intervals and the spread in the table of a run are, as one sentence without a full stop.

    Args:
        scoring: the metrics of the run's task.
        summary: content of `summary.json`.
    """
    method = summary.get("interval_method", "percentile bootstrap, by an older version of medfed")
    return (
        f"[] is the 95 % interval over patients ({method}); a site with fewer than {MIN_PATIENTS} patients has "
        f"none, and neither has a mean over such sites; {scoring.spread_note}"
    )


def displayed_column(scoring: Scoring, metric: Metric, group: Mapping[str, Any]) -> Column | None:
    """Choose the unit in which a row of the score table shows a metric, and return the column of this unit.

    A distance has one column in mm and one column in percent of the image's diagonal; other metrics have one column.
    The distance at a site is shown in the unit in which the distance is known for all cases of the site. A mean over
    sites is shown in the unit in which the mean distance of every site is known.

    Args:
        scoring: the metrics of the run's task.
        metric: the metric to show.
        group: the scores of one row of the table, by name of the column, for example "hd95_mm". A row is about one
            structure, at one site or as the mean over sites.

    Returns:
        The column to show. None if the value is unknown, or if no unit holds for all cases or sites.
    """
    main = group[scoring.columns[0].key]
    count = "n_sites" if "n_sites" in main else "n"
    for column in metric_columns(metric):
        scores = group.get(column.key) or {}
        if scores.get("mean") is not None and (metric.unit != DISTANCE or scores.get(count) == main.get(count)):
            return column
    return None


def weights_notes(summary: Mapping[str, Any]) -> list[str]:
    """Return notes about the weights with which the sites were scored.

    There is a note if the method keeps a part of the weights at each site or client, because the source sites were then
    scored with weights of their own, or all sites with an average over the clients. There is also a note for each
    technique that used unlabelled test images, and for what an adaptation to the unseen site changed.

    Args:
        summary: content of `summary.json`.

    Returns:
        One sentence per note. The list is empty if all sites were scored with the same weights and no technique used
        unlabelled test images.
    """
    by = summary.get("transductive_by", ["tent"] * bool(summary.get("transductive")))
    keeper = "client" if summary.get("clients") else "source site"
    unseen = f"the entries of the nearest {keeper}" if "nearest" in by else f"the average of the {keeper}s' entries"
    own = f"Source sites are scored with their own entries of the network, the unseen site with {unseen}."
    if summary.get("clients"):
        own = f"Each client keeps entries of the network, so all sites are scored with {unseen}."
    adapted = [f"TRANSDUCTIVE: {TRANSDUCTIVE.get(name, name)}." for name in by]
    adapted += [f"{note}." for note in adaptation_notes(summary)]
    return [own] * bool(summary.get("sites_kept_entries")) + adapted


def _head(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines above the table."""
    method = f"{summary['method']}; " if "method" in summary else ""
    which = f" {summary['selected_round']} of {summary['rounds']}" if "selected_round" in summary else ""
    chosen = f"{method}round{which} by the rule '{summary['selection']}'"
    remarks = [*_clients(summary), *_privacy(summary), *computation_notes(summary), did_not_learn(summary)]
    return [data_label(summary["data"]), chosen, *filter(None, remarks)]


def _privacy(summary: Mapping[str, Any]) -> list[str]:
    """Return the privacy guarantee, for example "noise on what left the sites: epsilon 12.3 for delta 1e-05, ..."."""
    if not (privacy := summary.get("privacy")):
        return []
    epsilon = privacy["epsilon"]
    bound = "no bound" if epsilon == "none" else f"epsilon {epsilon:.3g} for delta {privacy['delta']:g}"
    return [f"noise on what left the sites: {bound}, of all that a site holds"]


def _clients(summary: Mapping[str, Any]) -> list[str]:
    """Return the simulated clients, for example "30 clients of 3 sites, 10 per round, partition: dirichlet 0.5"."""
    if not (clients := summary.get("clients")):
        return []
    n_sites = len(summary["source_sites"])
    of = f"{clients['n']} clients of {n_sites} site{'s' if n_sites > 1 else ''}"
    return [f"{of}, {clients['per_round']} per round, partition: {clients['partition']}"]


def _line(scoring: Scoring, site: str, structure: str, group: Mapping[str, Any]) -> tuple:
    """Format the row of one site and structure."""
    scores = []
    for metric in scoring.metrics_in(RUN_TABLE):
        column = displayed_column(scoring, metric, group)
        scores.append("-" if column is None else format_score(group[column.key], column))
    before, after = ([str(group[key]) for key, _ in counts] for counts in (LEADING_COUNTS, scoring.trailing_counts))
    return (site, *[structure] * scoring.has_structures, *before, *scores, *after)


def _gap_line(scoring: Scoring, structure: str, gap: Mapping[str, float | None]) -> tuple[str, ...]:
    """Format the row of the differences between seen and unseen sites."""
    in_gap = scoring.metrics_in(GAP)
    words = [_gap_text(metric, gap) if metric in in_gap else "" for metric in scoring.metrics_in(RUN_TABLE)]
    before, after = ([""] * len(counts) for counts in (LEADING_COUNTS, scoring.trailing_counts))
    return ("gap: seen - unseen", *[structure] * scoring.has_structures, *before, *words, *after)


def _gap_text(metric: Metric, gap: Mapping[str, float | None]) -> str:
    """Format the difference of one metric; "-" if it is unknown."""
    for column in metric_columns(metric):
        value = gap.get(column.key)
        if value is not None:
            unit = f" {column.unit}" if metric.unit == DISTANCE else ""
            return f"{column.scale * value:+.{metric.decimals}f}{unit}"
    return "-"
