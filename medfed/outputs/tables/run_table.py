"""Format the scores of one run as a table, for the terminal at the end of a run and for the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from medfed.metrics.metric import DISTANCE, Metric
from medfed.results.notes import (
    NOT_STATED,
    TRANSDUCTIVE,
    adaptation_notes,
    computation_notes,
    data_label,
    did_not_learn,
)
from medfed.results.run_scores import run_scores_of
from medfed.results.statistics import AVERAGE, MIN_PATIENTS
from medfed.results.text_tables import TextTable, number, score_text, text_table, to_terminal
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import FAILURES, FALSE_ALARM_SHARE, MISSED_SHARE, RUN_TABLE, SHARES, Scoring

SITES = {"seen": "{}", "validation": "{} (VALIDATION)", "unseen": "{} (UNSEEN)"}
MEANS = {"seen": "mean seen", "unseen": "mean UNSEEN"}
CALIBRATION = "ece"  # name of the calibration error of masks
Labels = Mapping[str, str]  # text by role, in which "{}" stands for the name of the site
Group = Mapping[str, Any]  # the scores of one site and structure, by metric
INTERVAL_METHOD = "Student t over patients; on the logit scale for a score with two limits, such as Dice"
INTERVAL_NOTE = (
    f"[] is the 95 % interval over patients ({INTERVAL_METHOD}); a site with fewer than {MIN_PATIENTS} patients has "
    "none, and neither has a mean over such sites"
)
FAILURE_NOTE = (
    "A failure is counted out of all patients for whom it is possible; [] is the 95 % interval of their share (exact "
    "binomial, Clopper and Pearson 1934); a mean row has the patients of its sites together"
)


def closing_table(summary: Mapping[str, Any], explain: bool = False, how_to_explain: str = "--explain") -> str:
    """The text at the end of a run; with `explain`, also calibration, failures, and what the columns mean."""
    if summary["data"] == NOT_STATED:
        return "\n".join([*_head(summary), *weights_notes(summary)])
    scoring = scoring_of(summary)
    tables = [to_terminal(score_table(scoring, summary))]
    notes = [*summary_notes(summary), *weights_notes(summary)]
    if explain:
        definitions = [INTERVAL_NOTE, *scoring.notes_in(RUN_TABLE)]
        if failures := failure_table(scoring, summary):
            tables.append(to_terminal(failures))
            definitions += failure_notes(scoring, summary)
        notes += [f"{note}." for note in definitions]
    else:
        notes.append(f"[]: 95 % interval over patients; definitions, calibration and failures: {how_to_explain}.")
    return "\n".join([*_head(summary), "", "\n\n".join(tables), "", *notes])


def _groups(summary: Mapping[str, Any], labels: Labels, is_mean: bool) -> list[tuple[str, str, str, Group]]:
    """Role, text, structure and scores of each site, or of the means over the sites of a role."""
    groups = run_scores_of(summary).groupby(["role", "site", "structure"], sort=False)
    scores = [(key, {line.metric: line for line in own.itertuples()}) for key, own in groups]
    return [
        (role, words.format(site), structure, group)
        for role, words in labels.items()
        for (own_role, site, structure), group in scores
        if own_role == role and (site == AVERAGE) == is_mean
    ]


def score_table(
    scoring: Scoring, summary: Mapping[str, Any], sites: Labels = SITES, means: Labels = MEANS
) -> TextTable:
    """The scores of each site and structure; below them the means, and the gap of seen and unseen sites."""
    averages = _groups(summary, means, True)
    groups, metrics = [*_groups(summary, sites, False), *averages], scoring.metrics_in(RUN_TABLE)
    has_missed = any(MISSED_SHARE in group and group[MISSED_SHARE].mean > 0 for *_, group in groups)
    head = ["site", "structure"][: 1 + scoring.has_structures]
    n_names, heads = len(head), [_title(metric) for metric in metrics]
    rows = []
    for _, *names, group in groups:
        missed = [_count(group.get(MISSED_SHARE))] * has_missed
        rows.append([*names[:n_names], *(_score(group, metric) for metric in metrics), *missed, *_counts(group)])
    of_role = {(role, structure): group for role, _, structure, group in averages}
    for structure in dict.fromkeys(structure for _, structure in of_role):
        seen, unseen = (of_role.get((role, structure), {}) for role in ("seen", "unseen"))
        gaps = [_gap(metric, seen, unseen) for metric in metrics]
        row = [*["gap: seen - unseen", structure][:n_names], *gaps, *[""] * (has_missed + 2)]
        rows += [row] * (gaps[0] != "-")
    head += [*heads, *["missed"] * has_missed, "patients", "images"]
    return text_table("", head, rows, n_names, len(rows) - len(groups) + len(averages))


def failure_table(scoring: Scoring, summary: Mapping[str, Any]) -> TextTable | None:
    """Calibration error and shares of failures of each site, structure and mean; None for a task without masks."""
    averages = _groups(summary, MEANS, True)
    groups = [*_groups(summary, SITES, False), *averages]
    known = {metric for *_, group in groups for metric in group}
    titles = {kind: title.format(scoring.failure_dice) for kind, title in FAILURES.items() if kind in known}
    if not titles:
        return None
    calibration = [scoring.by_name[CALIBRATION]] * (CALIBRATION in known)
    rows = []
    for _, words, structure, group in groups:
        shares = (_share(group.get(kind)) for kind in titles)
        rows.append([words, structure, *(_score(group, metric) for metric in calibration), *shares])
    head = ["site", "structure", *map(_title, calibration), *titles.values()]
    return text_table("Calibration and failures", head, rows, 2, len(averages))


def failure_notes(scoring: Scoring, summary: Mapping[str, Any]) -> list[str]:
    """What the calibration error, if it is known, and the shares of failures are, as sentences without a full stop."""
    is_known = CALIBRATION in set(run_scores_of(summary).metric)
    return [scoring.by_name[CALIBRATION].note] * is_known + [FAILURE_NOTE]


def summary_notes(summary: Mapping[str, Any]) -> list[str]:
    """The numbers of false alarms and of absent structures, and the mean error of a ratio."""
    table = run_scores_of(summary)
    false = table[(table.metric == FALSE_ALARM_SHARE) & (table.site == AVERAGE)]
    notes = []
    if n_false := (false["mean"] * false.n_patients / 100).sum():
        notes.append(f"False alarms (patients with a structure predicted where the reference has none): {n_false:.3g}.")
    if n := summary.get("n_absent"):
        notes.append(f"Images without the structure in reference and prediction, left out of all means: {n}.")
    if ratio := summary.get("vertical_ratio"):
        inner, outer = ratio["of"]
        errors = [(role, ratio[role]["mean_error"]) for role in ("seen", "unseen")]
        listed = ", ".join(f"{role} {error:.3f}" for role, error in errors if error is not None)
        notes.append(f"Mean absolute error of the vertical {inner}-to-{outer} ratio: {listed} (ratios.csv).")
    return notes


def weights_notes(summary: Mapping[str, Any]) -> list[str]:
    """Which sites were scored with other weights, and which techniques used unlabelled test images."""
    by = summary.get("transductive_by", ())
    keeper = "client" if summary.get("clients") else "source site"
    unseen = f"the average of the {keeper}s' entries"
    own = f"Source sites are scored with their own entries of the network, the unseen site with {unseen}."
    if summary.get("clients"):
        own = f"Each client keeps entries of the network, so all sites are scored with {unseen}."
    adapted = [f"TRANSDUCTIVE: {TRANSDUCTIVE.get(name, name)}." for name in by]
    adapted += [f"{note}." for note in adaptation_notes([summary])]
    return [own] * bool(summary.get("sites_kept_entries")) + adapted


def _head(summary: Mapping[str, Any]) -> list[str]:
    """The lines above the table: data, method, selected round and remarks."""
    method = f"{summary['method']}; " if "method" in summary else ""
    which = f" {summary['selected_round']} of {summary['rounds']}" if "selected_round" in summary else ""
    lines = [data_label(summary["data"]), f"{method}round{which} by the rule '{summary['selection']}'"]
    if clients := summary.get("clients"):
        n = len(summary["source_sites"])
        of = f"{clients['n']} clients of {n} site{'s' * (n > 1)}"
        lines.append(f"{of}, {clients['per_round']} per round, partition: {clients['partition']}")
    if privacy := summary.get("privacy"):
        epsilon = privacy["epsilon"]
        bound = "no bound" if epsilon == "none" else f"epsilon {epsilon:.3g} for delta {privacy['delta']:g}"
        lines.append(f"noise on what left the sites: {bound}, of all that a site holds")
    return [*lines, *filter(None, [*computation_notes(summary), did_not_learn(summary)])]


def _title(metric: Metric) -> str:
    return metric.label if metric.unit in ("", DISTANCE) else f"{metric.label} {metric.unit}"


def _counts(group: Group) -> tuple[str, str]:
    """The numbers of patients and of images with the structure; a share of failures may be of other patients."""
    scores = [line for line in group.values() if line.metric not in SHARES]
    n_patients = max((line.n_patients for line in scores if not pd.isna(line.n_patients)), default=None)
    return number(n_patients, 0), number(scores[0].n_images if scores else None, 0)


def _score(group: Group, metric: Metric) -> str:
    line = group.get(metric.name)
    return score_text(line, metric, f" {line.unit}" if line and metric.unit == DISTANCE else "")


def _count(share: Any) -> str:
    """The count of patients out of their number, for example "3/40"."""
    if share is None:
        return "-"
    count = round(share.mean * share.n_patients / 100, 6)
    return f"{count:g}/{share.n_patients:g}" if count == round(count) else f"{count:.1f}/{share.n_patients:g}"


def _share(share: Any) -> str:
    return "-" if share is None else f"{_count(share)} [{share.low:.0f}, {share.high:.0f}] %"


def _gap(metric: Metric, seen: Group, unseen: Group) -> str:
    """The difference of one metric; "-" if it is unknown."""
    first, second = seen.get(metric.name), unseen.get(metric.name)
    if first is None or second is None or first.unit != second.unit:
        return "-"
    return number(first.mean - second.mean, metric.decimals, "+") + (f" {first.unit}" * (metric.unit == DISTANCE))
