"""The scores of one run by role, site and structure, as `summary.json` stores them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd

from medfed.metrics.mask_metric import ABSENT
from medfed.results.scores import GROUP, ROLES, failures, is_probability, patient_values
from medfed.results.statistics import AVERAGE, failure_shares, site_scores
from medfed.tasks.scoring import SHARES, Scoring

NAMES = ("role", "site", "structure", "metric", "unit")
NUMBERS = ("mean", "low", "high", "n_patients", "n_images")
COLUMNS = (*NAMES, *NUMBERS)


def run_scores(scores: pd.DataFrame, scoring: Scoring) -> list[dict[str, Any]]:
    """The scores of the sites and of "average"; unknown numbers are None, and shares of failures are metrics."""
    if scores.empty:
        return []
    run = {"row": "", "unseen": "", "seed": 0, "trained_at": ""}
    tables = [site_scores(patient_values(scores, scoring.by_name).assign(**run), scoring.by_name)]
    if scoring.failure_dice:
        tables.append(failure_shares(failures(scores, scoring.failure_dice).assign(**run)))
    present = scores[is_probability(scores) | (scores.status != ABSENT)]
    counts = present.groupby(GROUP).agg(n_images=("image", "nunique"), n_of_site=("patient", "nunique")).reset_index()
    total = counts.groupby(["role", "structure"])[["n_images", "n_of_site"]].sum().reset_index().assign(site=AVERAGE)
    table = pd.concat(tables).merge(pd.concat([counts, total]), how="left")
    if not scoring.has_structures:  # a metric of a set of images may have no values of patients
        table["n_patients"] = table.n_of_site
    table = table.sort_values(["role", "site", "structure"], kind="stable")[list(COLUMNS)]
    return table.astype(object).where(table.notna(), None).to_dict("records")


def run_scores_of(summary: Mapping[str, Any]) -> pd.DataFrame:
    """The table of scores that a summary stores, with the columns `COLUMNS`; ValueError if it is damaged."""
    records = summary["scores"]
    wrong = [record for record in records if not _is_record(record)] if isinstance(records, list) else [records]
    if wrong:
        raise ValueError(
            f"scores: expected a list of records of {', '.join(COLUMNS)}, with texts and finite numbers or null, got "
            f"{ascii(wrong[0])[:80]}"
        )
    table = pd.DataFrame(records, columns=COLUMNS).astype(dict.fromkeys(NUMBERS, float))
    if table.duplicated(list(NAMES[:-1])).any():
        raise ValueError("scores: expected one record of each metric")
    return table


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and set(record) == set(COLUMNS)
        and all(isinstance(record[key], str) for key in NAMES)
        and all(_is_number_or_none(record[key]) for key in NUMBERS)
        and record["role"] in ROLES
        and not (record["metric"] in SHARES and None in (record["mean"], record["n_patients"]))
    )


def _is_number_or_none(value: Any) -> bool:
    return value is None or type(value) in (int, float) and abs(value) <= sys.float_info.max


def n_absent(scores: pd.DataFrame) -> int:
    """The number of images without a structure in reference and prediction, which are left out of all means."""
    absent = scores[~is_probability(scores) & (scores.status == ABSENT)]
    return len(absent[["site", "image", "structure"]].drop_duplicates())
