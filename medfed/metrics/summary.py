"""From scores of single patients to the numbers one reports: means by site, their uncertainty, the gap, and p values.

A row is a plain dict: `site`, `role` ("seen", "unseen" or "validation"), `patient`, `structure` and the fields of
`medfed.metrics.segmentation.Score`. What is not known is None, never NaN; it enters no mean and is counted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from medfed.core.errors import UserError
from medfed.metrics.case_file import as_row, read_lines, write_rows

ROLES = ("seen", "unseen")
VALIDATION = "validation"  # the role of a site that never trains and on which the round may be chosen
METRICS = ("dice", "hd_mm", "hd95_mm", "assd_mm", "hd_px", "hd95_px", "assd_px", "hd95_pooled_vx")
CASE_COLUMNS = ("site", "role", "patient", "structure", *METRICS, "status")
STATUSES = ("ok", "missed", "false_alarm", "absent")

N_RESAMPLES = 2000
FEWEST_PAIRS = 6  # with 5 pairs that differ, the smallest two-sided p is 2/2**5 = 0.0625: nothing could be significant


def summarise(rows: list[dict], rng_seed: int) -> dict:
    """Means, spreads and 95 % bootstrap intervals per role, site and structure; the mean over sites; the gap.

    Returns:
        A dict that JSON can hold: for each role, `sites[site][structure]` with n (cases in the means), n_missed,
        n_false_alarm, n_absent (excluded from the means) and for each metric {n, mean, sd, low, high}; and
        `mean[structure]` with the same counts and for each metric {n_sites, mean}, every site weighing the same; sites
        with cases in another unit are not among them.
        `gap[structure][metric]` is seen minus unseen, for Dice and HD95. The role "validation" is there if it has rows.

    The interval is the percentile bootstrap over patients. Each group draws from a generator of its own, named by the
    seed, role, site and structure: another site moves nobody's numbers.

    Raises:
        ValueError: for an unknown role or status, a patient scored twice, or a value that is not finite.
    """
    _check(rows)
    summary = {"n_resamples": N_RESAMPLES, "rng_seed": rng_seed}
    for role in roles_of(rows):
        summary[role] = _of_role([row for row in rows if row["role"] == role], role, rng_seed)
    structures = sorted({row["structure"] for row in rows})
    summary["gap"] = {name: _gap(*(summary[role]["mean"].get(name) for role in ROLES)) for name in structures}
    return summary


def roles_of(rows: Sequence[dict]) -> tuple[str, ...]:
    """Seen and unseen, and validation where there are such rows."""
    return (*ROLES, VALIDATION) if any(row["role"] == VALIDATION for row in rows) else ROLES


def paired_significance(rows_a: list[dict], rows_b: list[dict], metric: str) -> dict:
    """Wilcoxon signed-rank test, two-sided, of the same patients scored twice.

    Returns:
        {p, n, n_differ, reason}: n patients that both rows score (matched by site, patient and structure), of whom
        n_differ got unequal scores. p is None, and the reason a sentence, where fewer than six differ.
    """
    return signed_rank(*(_by_case(rows, metric) for rows in (rows_a, rows_b)), "patients")


def signed_rank(a: dict[tuple, float], b: dict[tuple, float], who: str) -> dict:
    """The test of `paired_significance` on what both of two dicts score; `who` they are, for the reason."""
    difference = np.array([a[case] - b[case] for case in sorted(a.keys() & b.keys())]).round(9)
    n, difference = len(difference), difference[difference != 0]
    found = {"p": None, "n": n, "n_differ": len(difference), "reason": None}
    if n < FEWEST_PAIRS:
        return found | {"reason": f"only {n} matched {who}; the test needs {FEWEST_PAIRS}"}
    if not len(difference):
        return found | {"reason": f"all {n} matched {who} score the same"}
    if len(difference) < FEWEST_PAIRS:
        differ = f"only {len(difference)} of {n} matched {who} differ"
        return found | {"reason": f"{differ}; the test needs {FEWEST_PAIRS}"}
    return found | {"p": float(stats.wilcoxon(difference).pvalue)}


def write_cases(path: str | Path, rows: list[dict]) -> None:
    """Write the rows as CSV: sorted, six decimals, empty where unknown. The same rows give the same bytes."""
    _check(rows)
    write_rows(path, rows, CASE_COLUMNS, ("role", "site", "patient", "structure"), _written)


def read_cases(path: str | Path) -> list[dict]:
    """Read what `write_cases` wrote.

    Raises:
        UserError: if the file has another header, or a value that is no number; it names the line.
    """
    lines = read_lines(path)
    if not lines or tuple(lines[0]) != CASE_COLUMNS:
        raise UserError(f"{path}: the first line is not {','.join(CASE_COLUMNS)}; is this a file of cases?")
    rows = [as_row(path, number, CASE_COLUMNS, line, METRICS) for number, line in enumerate(lines[1:], start=2)]
    try:
        _check(rows)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return rows


def resamples(n: int, seed: tuple) -> np.ndarray:
    """(N_RESAMPLES, n): which of n patients each bootstrap resample draws, from a generator that `seed` names."""
    digest = hashlib.sha256("\0".join(map(str, seed)).encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:16], "big"))
    return rng.integers(0, n, (N_RESAMPLES, n))


def _of_role(rows: list[dict], role: str, rng_seed: int) -> dict:
    groups: dict[str, dict[str, list[dict]]] = {}
    for row in sorted(rows, key=lambda row: (row["site"], row["structure"], row["patient"])):
        groups.setdefault(row["site"], {}).setdefault(row["structure"], []).append(row)
    sites = {
        site: {name: _of_group(group, (rng_seed, role, site, name)) for name, group in of_site.items()}
        for site, of_site in groups.items()
    }
    structures = sorted({name for of_site in sites.values() for name in of_site})
    mean = {name: _over_sites([of_site[name] for of_site in sites.values() if name in of_site]) for name in structures}
    return {"sites": sites, "mean": mean}


def _of_group(rows: list[dict], seed: tuple) -> dict:
    """One site and structure."""
    count = {f"n_{status}": sum(row["status"] == status for row in rows) for status in STATUSES[1:]}
    found = {"n": len(rows) - count["n_absent"]} | count
    for metric in METRICS:
        values = np.array([row[metric] for row in rows if row[metric] is not None], dtype=np.float64)
        found[metric] = {"n": len(values), "mean": None, "sd": None, "low": None, "high": None}
        if len(values):
            found[metric]["mean"] = float(values.mean())
        if len(values) > 1:
            low, high = _interval(values, seed)
            found[metric] |= {"sd": float(values.std(ddof=1)), "low": low, "high": high}
    return found


def _interval(values: np.ndarray, seed: tuple) -> tuple[float, float]:
    low, high = np.percentile(values[resamples(len(values), seed)].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _over_sites(groups: list[dict]) -> dict:
    found = {key: sum(group[key] for group in groups) for key in ("n", *(f"n_{status}" for status in STATUSES[1:]))}
    for metric in METRICS:
        means = [group[metric]["mean"] for group in groups if group["n"] and group[metric]["n"] == group["n"]]
        found[metric] = {"n_sites": len(means), "mean": math.fsum(means) / len(means) if means else None}
    return found


def _gap(seen: dict | None, unseen: dict | None) -> dict:
    """Seen minus unseen, where every site that has a Dice has the metric."""
    found = {}
    for metric in ("dice", "hd95_mm", "hd95_px"):
        known = all(role and 0 < role[metric]["n_sites"] == role["dice"]["n_sites"] for role in (seen, unseen))
        found[metric] = seen[metric]["mean"] - unseen[metric]["mean"] if known else None
    return found


def _by_case(rows: list[dict], metric: str) -> dict[tuple, float]:
    _check(rows)
    keys = ("site", "patient", "structure")
    return {tuple(row[key] for key in keys): row[metric] for row in rows if row[metric] is not None}


def _check(rows: list[dict]) -> None:
    known = set()
    for row in rows:
        case = tuple(row[key] for key in ("site", "patient", "structure"))
        if case in known:
            raise ValueError(f"{'/'.join(map(str, case))} is scored twice")
        known.add(case)
        if row["role"] not in (*ROLES, VALIDATION) or row["status"] not in STATUSES:
            raise ValueError(f"{'/'.join(map(str, case))}: role {row['role']!r} and status {row['status']!r} must be "
                             f"of {(*ROLES, VALIDATION)} and {STATUSES}")
        wrong = [name for name in METRICS if row[name] is not None and not math.isfinite(row[name])]
        if wrong:
            raise ValueError(f"{'/'.join(map(str, case))}: {wrong[0]} is {row[wrong[0]]}; unknown is None, never NaN")


def _written(value: object, column: str) -> str:
    if column not in METRICS:
        return str(value)
    return "" if value is None else f"{value:.6f}"
