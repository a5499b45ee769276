"""Format the scores of one run as a table, for the terminal at the end of a run and for the model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medfed.metrics.failures import Share
from medfed.metrics.intervals import MIN_PATIENTS
from medfed.metrics.metric import DISTANCE, Column, Metric, metric_columns
from medfed.results.adaptation import TRANSDUCTIVE, adaptation_notes
from medfed.results.notes import computation_notes, data_label, did_not_learn
from medfed.results.text_tables import aligned
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import GAP, LEADING_COUNTS, RUN_TABLE, Scoring

SITES = (("seen", "{}"), ("validation", "{} (VALIDATION)"), ("unseen", "{} (UNSEEN)"))
MEANS = (("seen", "mean seen"), ("unseen", "mean UNSEEN"))
CALIBRATION = "ece"  # column of the calibration error
Labels = Sequence[tuple[str, str]]  # (role, text) pairs


def closing_table(summary: Mapping[str, Any], explain: bool = False) -> str:
    """The text at the end of a run: scores of sites, means, and the gap between seen and unseen sites.

    With `explain`, also calibration, failures, and what the columns mean.
    """
    scoring = scoring_of(summary)
    tables = [aligned(score_rows(scoring, summary), 1 + scoring.has_structures)]
    notes = [*scoring.summary_notes(summary), *weights_notes(summary)]
    if explain:
        definitions = [interval_note(scoring, summary), *scoring.notes_in(RUN_TABLE)]
        if failures := failure_rows(scoring, summary):
            tables.append(f"calibration and failures\n{aligned(failures, 2)}")
            definitions += failure_notes(scoring, summary)
        notes += [f"{note}." for note in definitions]
    else:
        notes.append("[]: 95 % interval over patients; definitions, calibration and failures: --explain.")
    return "\n".join([*_head(summary), "", "\n\n".join(tables), "", *notes])


def score_rows(
    scoring: Scoring, summary: Mapping[str, Any], sites: Labels = SITES, means: Labels = MEANS
) -> list[tuple[str, ...]]:
    """The scores of a run as rows of text: a header, each site and structure, the means over sites, and the gap.
    `sites` and `means` have the text of the first column by role, in which "{}" stands for the name of the site."""
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
    """Calibration error and shares of failures as rows of text like `score_rows`, without the gap; empty for a task
    without masks."""
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
    """What the calibration error and the shares of failures of a run are, as sentences without a full stop."""
    ece = [column.metric.note for column in _calibration_columns(scoring, summary)]
    return [
        *ece,
        "A failure is counted out of all patients for whom it is possible; [] is the 95 % interval of their "
        f"share ({summary['failures']['interval_method']}); a mean row has the patients of its sites together",
    ]


def _calibration_columns(scoring: Scoring, summary: Mapping[str, Any]) -> list[Column]:
    """The column of the calibration error; empty if no site has one, because probabilities were not known."""
    groups = [group for role, _ in MEANS for group in summary[role]["mean"].values()]
    return [
        column
        for column in scoring.columns
        if column.key == CALIBRATION and any(group[CALIBRATION]["mean"] is not None for group in groups)
    ]


def _share(values: Mapping[str, Any] | None) -> Share | None:
    return None if values is None else Share(**values)


def header_row(scoring: Scoring, first: Sequence[str] = ("site",)) -> tuple[str, ...]:
    """Headings of a run's score table: `first`, the structure (if any), numbers of cases, metrics, counts."""
    metrics = (
        metric.label if metric.unit in ("", DISTANCE) else f"{metric.label} {metric.unit}"
        for metric in scoring.metrics_in(RUN_TABLE)
    )
    structure = ["structure"] if scoring.has_structures else []
    before, after = ([name for _, name in counts] for counts in (LEADING_COUNTS, scoring.trailing_counts))
    return (*first, *structure, *before, *metrics, *after)


def format_score(scores: Mapping[str, Any], column: Column) -> str:
    """A score's mean with its 95 % interval, or with its SD without an interval; fractions are in percent."""
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
    """What the intervals and the spread in the table of a run are, as one sentence without a full stop."""
    return (
        f"[] is the 95 % interval over patients ({summary['interval_method']}); a site with fewer than {MIN_PATIENTS} "
        f"patients has none, and neither has a mean over such sites; {scoring.spread_note}"
    )


def displayed_column(scoring: Scoring, metric: Metric, group: Mapping[str, Any]) -> Column | None:
    """The column of a metric in the unit that holds for all cases of `group`, one row of scores; None if none does.
    Only a distance has a choice: mm, or percent of the image's diagonal."""
    main = group[scoring.columns[0].key]
    count = "n_sites" if "n_sites" in main else "n"
    for column in metric_columns(metric):
        scores = group.get(column.key) or {}
        if scores.get("mean") is not None and (metric.unit != DISTANCE or scores.get(count) == main.get(count)):
            return column
    return None


def weights_notes(summary: Mapping[str, Any]) -> list[str]:
    """Which sites were scored with other weights, and which techniques used unlabelled test images."""
    by = summary.get("transductive_by", ())
    keeper = "client" if summary.get("clients") else "source site"
    unseen = f"the entries of the nearest {keeper}" if "nearest" in by else f"the average of the {keeper}s' entries"
    own = f"Source sites are scored with their own entries of the network, the unseen site with {unseen}."
    if summary.get("clients"):
        own = f"Each client keeps entries of the network, so all sites are scored with {unseen}."
    adapted = [f"TRANSDUCTIVE: {TRANSDUCTIVE.get(name, name)}." for name in by]
    adapted += [f"{note}." for note in adaptation_notes(summary)]
    return [own] * bool(summary.get("sites_kept_entries")) + adapted


def _head(summary: Mapping[str, Any]) -> list[str]:
    """The lines above the table: data, method, selected round and remarks."""
    method = f"{summary['method']}; " if "method" in summary else ""
    which = f" {summary['selected_round']} of {summary['rounds']}" if "selected_round" in summary else ""
    chosen = f"{method}round{which} by the rule '{summary['selection']}'"
    remarks = [*_clients(summary), *_privacy(summary), *computation_notes(summary), did_not_learn(summary)]
    return [data_label(summary["data"]), chosen, *filter(None, remarks)]


def _privacy(summary: Mapping[str, Any]) -> list[str]:
    """The privacy guarantee, for example "noise on what left the sites: epsilon 12.3 for delta 1e-05, ..."."""
    if not (privacy := summary.get("privacy")):
        return []
    epsilon = privacy["epsilon"]
    bound = "no bound" if epsilon == "none" else f"epsilon {epsilon:.3g} for delta {privacy['delta']:g}"
    return [f"noise on what left the sites: {bound}, of all that a site holds"]


def _clients(summary: Mapping[str, Any]) -> list[str]:
    """The simulated clients, for example "30 clients of 3 sites, 10 per round, partition: dirichlet 0.5"."""
    if not (clients := summary.get("clients")):
        return []
    n_sites = len(summary["source_sites"])
    of = f"{clients['n']} clients of {n_sites} site{'s' if n_sites > 1 else ''}"
    return [f"{of}, {clients['per_round']} per round, partition: {clients['partition']}"]


def _line(scoring: Scoring, site: str, structure: str, group: Mapping[str, Any]) -> tuple:
    """The cells of one site and structure as text."""
    scores = []
    for metric in scoring.metrics_in(RUN_TABLE):
        column = displayed_column(scoring, metric, group)
        scores.append("-" if column is None else format_score(group[column.key], column))
    before, after = ([str(group[key]) for key, _ in counts] for counts in (LEADING_COUNTS, scoring.trailing_counts))
    return (site, *[structure] * scoring.has_structures, *before, *scores, *after)


def _gap_line(scoring: Scoring, structure: str, gap: Mapping[str, float | None]) -> tuple[str, ...]:
    """The row of the differences between seen and unseen sites."""
    in_gap = scoring.metrics_in(GAP)
    words = [_gap_text(metric, gap) if metric in in_gap else "" for metric in scoring.metrics_in(RUN_TABLE)]
    before, after = ([""] * len(counts) for counts in (LEADING_COUNTS, scoring.trailing_counts))
    return ("gap: seen - unseen", *[structure] * scoring.has_structures, *before, *words, *after)


def _gap_text(metric: Metric, gap: Mapping[str, float | None]) -> str:
    """The difference of one metric; "-" if it is unknown."""
    for column in metric_columns(metric):
        value = gap.get(column.key)
        if value is not None:
            unit = f" {column.unit}" if metric.unit == DISTANCE else ""
            return f"{column.scale * value:+.{metric.decimals}f}{unit}"
    return "-"
