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
    """The scores of the sites, and of the site "average", from those of the images; unknown numbers are None. Shares of
    failures are metrics, and `n_images` counts the images with the structure in one of the masks."""
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
    if not isinstance(records, list):
        raise ValueError(f"scores: expected a list, got {type(records).__name__}")
    for record in records:
        if not isinstance(record, dict) or set(record) != set(COLUMNS):
            raise ValueError(f"scores: expected records of {', '.join(COLUMNS)}, got {_short(record)}")
        if wrong := [key for key in NAMES if not isinstance(record[key], str)]:
            raise ValueError(f"scores: expected a text for {wrong[0]}, got {_short(record[wrong[0]])}")
        if wrong := [key for key in NUMBERS if not _is_number_or_none(record[key])]:
            raise ValueError(f"scores: expected a finite number or null for {wrong[0]}, got {_short(record[wrong[0]])}")
        if record["role"] not in ROLES:
            raise ValueError(f"scores: expected a role of {', '.join(ROLES)}, got {_short(record['role'])}")
        if record["metric"] in SHARES and None in (record["mean"], record["n_patients"]):
            raise ValueError(f"scores: expected the mean and the patients of a share, got {_short(record)}")
    table = pd.DataFrame(records, columns=COLUMNS).astype(dict.fromkeys(NUMBERS, float))
    if (twice := table.duplicated(list(NAMES[:-1]))).any():
        raise ValueError(
            f"scores: expected one record of each metric, got two of {_short(records[int(twice.argmax())])}"
        )
    return table


def _short(value: object) -> str:
    """The beginning of a value of another party, for a message."""
    return ascii(value)[:80]


def _is_number_or_none(value: Any) -> bool:
    return value is None or type(value) in (int, float) and abs(value) <= sys.float_info.max


def n_absent(scores: pd.DataFrame) -> int:
    """The number of images without a structure in reference and prediction, which are left out of all means."""
    absent = scores[~is_probability(scores) & (scores.status == ABSENT)]
    return len(absent[["site", "image", "structure"]].drop_duplicates())
