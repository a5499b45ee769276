"""Runs of a comparison from a few numbers, without files: for the tests of `medfed.results`."""

from collections.abc import Mapping, Sequence

import pandas as pd
from made_runs import mask_row, scoring_of_rows

from medfed.results.comparison import Comparison, ScoredRun
from medfed.results.row import ComparisonRow
from medfed.results.scores import table_of

BASE = [0.70, 0.74, 0.78, 0.80, 0.82, 0.85, 0.86, 0.88]  # Dice of eight patients
UP = [0.01 * k for k in range(1, 9)]  # what each gains; 4.5 points on average
DOWN = [-gain for gain in UP]
MIXED = [0.08, -0.07, 0.06, -0.05, 0.04, -0.03, 0.02, 0.01]
NAMES = ("mean", "sd", "n_seeds", "n_patients")


def dice_rows(scores: Mapping[str, Sequence[float]], unseen: str, structure: str = "disc") -> list[dict]:
    """One image of each patient p0, p1, ... of the sites; `unseen` has this role."""
    return [
        mask_row(site, f"p{k}", dice, role="unseen" if site == unseen else "seen", structure=structure)
        for site, values in scores.items()
        for k, dice in enumerate(values)
    ]


def class_row(site: str, patient: str, image: str, label: str, p: float, role: str = "unseen") -> dict:
    """An image of the class a or b, with the probability p of b."""
    names = {"site": site, "role": role, "patient": patient, "image": image, "label": label}
    return names | {"p_a": 1 - p, "p_b": p}


def scored(
    label: str, unseen: str, rows: list[dict], seed: int = 0, at: str = "", equal: str = "", **more
) -> ScoredRun:
    """`label` is "METHOD, SETTING, ..."; `at` the site of a model of `local`; `more` goes into the summary."""
    scoring = scoring_of_rows(rows)
    summary = scoring.describe() | {
        "scores": [],
        "data": "real",
        "selection": "last",
        "unseen_site": unseen,
        "seed": seed,
    }
    method, *varied = label.split(", ")
    summary |= more
    return ScoredRun.of(ComparisonRow(method, tuple(varied), at, equal), summary, table_of(rows, scoring.metrics))


def dice_run(label: str, unseen: str, dice: Sequence[float], seed: int = 0, **more) -> ScoredRun:
    """A run whose only scored site is the unseen site."""
    return scored(label, unseen, dice_rows({unseen: dice}, unseen), seed, **more)


def with_rows(run: ScoredRun, rows: Sequence[dict]) -> ScoredRun:
    """The run with further rows of scores."""
    more = table_of(rows, scoring_of_rows(rows).metrics)
    return ScoredRun.of(run.row, run.summary, pd.concat([run.scores, more], ignore_index=True))


def gaining(gains: Mapping[str, Sequence[float]], sites: str = "AB", seeds: Sequence[int] = (0,), **more) -> list:
    """Runs of rows whose patients have the Dice of `BASE` plus the row's gains, at each site and with each seed."""
    return [
        dice_run(label, site, [base + gain for base, gain in zip(BASE, of_row, strict=True)], seed, **more)
        for label, of_row in gains.items()
        for site in sites
        for seed in seeds
    ]


def line(table: pd.DataFrame, row: str, site: str = "average", metric: str = "dice", **keys) -> pd.Series:
    """The only line of a frame of a comparison with these keys."""
    keys = {"role": "unseen", "metric": metric} | keys | {"row": row, "site": site}
    own = table.loc[(table[list(keys)] == pd.Series(keys)).all(axis=1)]
    assert len(own) == 1, f"{len(own)} lines with {keys}"
    return own.iloc[0]


def difference(comparison: Comparison, row: str, site: str = "average", kind: str = "method", **keys) -> pd.Series:
    return line(comparison.differences, row, site, kind=kind, **keys)
