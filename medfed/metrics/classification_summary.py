"""From predicted classes of single images to the numbers one reports, in the shape of `medfed.metrics.summary`.

A row is a plain dict, as `case_row` makes it: `site`, `role` ("seen", "unseen" or "validation"), `patient` (the image),
`subject` (the person), `label` and `predicted` (names of classes), a column `p_CLASS` a class (probability) and
`correct` (0 or 1).
Scores stand under the one structure "all", so that tables read both kinds of summary alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from medfed.core.errors import UserError
from medfed.metrics.case_file import as_row, read_lines, write_rows
from medfed.metrics.classification import SCORES, scores
from medfed.metrics.summary import N_RESAMPLES, ROLES, VALIDATION, resamples, roles_of, signed_rank

ALL = "all"
FIRST_COLUMNS = ("site", "role", "patient", "subject", "label", "predicted")
GAPS = ("accuracy", "auroc")
AT_ONCE = 100  # resamples: bounds the memory of a site with many images
WITH_INTERVAL = ("accuracy", "balanced_accuracy", "auroc")
MOST_UNDEFINED = 0.05  # share of resamples without a score (a class was not drawn) that an interval bears


def case_row(
    site: str, role: str, patient: str, subject: str, label: int, probabilities: Sequence[float], classes: Sequence[str]
) -> dict:
    """The row of one image; `label` is the number of its class, `probabilities` (K,) those of the K `classes`."""
    values = [float(value) for value in probabilities]
    predicted = int(np.argmax(values))
    row = {"site": site, "role": role, "patient": patient, "subject": subject, "label": classes[label]}
    row["predicted"] = classes[predicted]
    row |= {f"p_{name}": value for name, value in zip(classes, values, strict=True)}
    return row | {"correct": int(predicted == label)}


def classes_of(rows: Sequence[dict]) -> tuple[str, ...]:
    """The names of the classes, in the order of their numbers."""
    return tuple(column[2:] for column in rows[0] if column.startswith("p_")) if rows else ()


def arrays(rows: Sequence[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, K) float64 and labels (N,) of the rows, for `medfed.metrics.classification`."""
    classes = classes_of(rows)
    probabilities = np.array([[row[f"p_{name}"] for name in classes] for row in rows], dtype=np.float64)
    return probabilities, np.array([classes.index(row["label"]) for row in rows], dtype=np.int64)


def value(rows: Sequence[dict], metric: str) -> float | None:
    """One of `SCORES` over all rows; None where it is not defined."""
    return _values(rows)[metric] if rows else None


def summarise(rows: list[dict], rng_seed: int) -> dict:
    """Scores with 95 % intervals per role and site, their mean over sites, and the gap.

    Returns:
        A dict that JSON can hold: for each role, `sites[site]["all"]` with n (images), n_subjects (people), n_wrong,
        n_by_class and for each of `SCORES` {n, mean (the score itself), low, high}; and `mean["all"]` with the
        counts and for each score {n_sites, mean, sd (over sites)}, every site weighing the same.
        `gap["all"]` is seen minus unseen of accuracy and AUROC; None where a site lacks the score.

    The interval is the percentile bootstrap that draws whole people with all their images; None for one person, and
    where more than one resample in twenty has no score; and for ECE, which resampling drives up: its interval would
    lie above it. Each site draws from a generator of its own.

    Raises:
        ValueError: for rows that are not as `case_row` makes them, or an image scored twice.
    """
    _check(rows)
    summary: dict = {"task": "classification", "classes": list(classes_of(rows)),
                     "n_resamples": N_RESAMPLES, "rng_seed": rng_seed}  # fmt: skip
    for role in roles_of(rows):
        of_role = [row for row in rows if row["role"] == role]
        sites = {
            site: {ALL: _of_site([row for row in of_role if row["site"] == site], (rng_seed, role, site, ALL))}
            for site in sorted({row["site"] for row in of_role})
        }
        mean = {ALL: _over_sites([of_site[ALL] for of_site in sites.values()])} if sites else {}
        summary[role] = {"sites": sites, "mean": mean}
    summary["gap"] = {ALL: _gap(*(summary[role]["mean"].get(ALL) for role in ROLES))} if rows else {}
    return summary


def paired_significance(rows_a: Sequence[dict], rows_b: Sequence[dict]) -> dict:
    """Wilcoxon signed-rank test, two-sided, of people: the share of a person's images told right, by two methods.

    Over people and not images, as images of one person are alike. Rows of several seeds may stand together: a share is
    over all of them. Returns what `medfed.metrics.summary.paired_significance` does.
    """
    return signed_rank(_by_subject(rows_a), _by_subject(rows_b), "people")


def write_cases(path: str | Path, rows: list[dict]) -> None:
    """Write the rows as CSV: sorted, probabilities in full, so that reading gives the same scores."""
    _check(rows)
    columns = (*FIRST_COLUMNS, *(f"p_{name}" for name in classes_of(rows)), "correct")
    write_rows(path, rows, columns, ("role", "site", "patient"), lambda found, _: str(found))


def read_cases(path: str | Path) -> list[dict]:
    """Read what `write_cases` wrote.

    Raises:
        UserError: if the file has another header, or a value that is no number; it names the line.
    """
    header, *lines = read_lines(path) or [[]]
    numbers = header[len(FIRST_COLUMNS) :]
    named = all(column.startswith("p_") for column in numbers[:-1])
    if tuple(header[: len(FIRST_COLUMNS)]) != FIRST_COLUMNS or numbers[-1:] != ["correct"] or not named:
        expected = ",".join((*FIRST_COLUMNS, "p_CLASS", "...", "correct"))
        raise UserError(f"{path}: the first line is not {expected}; is this a file of classified images?")
    rows = [as_row(path, number, header, line, numbers) for number, line in enumerate(lines, start=2)]
    try:
        _check(rows)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return [row | {"correct": int(row["correct"])} for row in rows]


def _of_site(rows: list[dict], seed: tuple) -> dict:
    rows = sorted(rows, key=lambda row: row["patient"])
    classes, people = classes_of(rows), sorted({row["subject"] for row in rows})
    found: dict = {"n": len(rows), "n_subjects": len(people), "n_wrong": sum(not row["correct"] for row in rows)}
    found["n_by_class"] = {name: sum(row["label"] == name for row in rows) for name in classes}
    intervals = _intervals(rows, people, seed)
    for metric, mean in _values(rows).items():
        low, high = intervals.get(metric, (None, None)) if mean is not None else (None, None)
        found[metric] = {"n": len(rows), "mean": mean, "low": low, "high": high}
    return found


def _values(rows: Sequence[dict]) -> dict[str, float | None]:
    found = scores(*arrays(rows), np.ones((1, len(rows))))
    return {metric: None if math.isnan(values[0]) else float(values[0]) for metric, values in found.items()}


def _intervals(rows: list[dict], people: list[str], seed: tuple) -> dict[str, tuple[float | None, float | None]]:
    """95 % percentile bootstrap: an image weighs as often as its person was drawn."""
    if len(people) < 2:
        return {}
    probabilities, labels = arrays(rows)
    place = {person: index for index, person in enumerate(people)}
    person_of = np.array([place[row["subject"]] for row in rows])
    blocks = []
    for drawn in np.array_split(resamples(len(people), seed), N_RESAMPLES // AT_ONCE):
        times = np.stack([np.bincount(line, minlength=len(people)) for line in drawn])
        blocks.append(scores(probabilities, labels, times[:, person_of]))
    return {metric: _percentiles(np.concatenate([block[metric] for block in blocks])) for metric in WITH_INTERVAL}


def _percentiles(values: np.ndarray) -> tuple[float | None, float | None]:
    known = values[~np.isnan(values)]
    if len(known) < (1 - MOST_UNDEFINED) * len(values):
        return None, None
    low, high = np.percentile(known, [2.5, 97.5])
    return float(low), float(high)


def _over_sites(groups: list[dict]) -> dict:
    found: dict = {key: sum(group[key] for group in groups) for key in ("n", "n_subjects", "n_wrong")}
    for metric in SCORES:
        means = [group[metric]["mean"] for group in groups if group[metric]["mean"] is not None]
        found[metric] = {"n_sites": len(means), "mean": math.fsum(means) / len(means) if means else None}
        found[metric]["sd"] = float(np.std(means, ddof=1)) if len(means) > 1 else None
    return found


def _gap(seen: dict | None, unseen: dict | None) -> dict:
    """Seen minus unseen, where every site has the score."""
    found = {}
    for metric in GAPS:
        known = all(role and 0 < role[metric]["n_sites"] == role["accuracy"]["n_sites"] for role in (seen, unseen))
        found[metric] = seen[metric]["mean"] - unseen[metric]["mean"] if known else None
    return found


def _by_subject(rows: Sequence[dict]) -> dict[tuple, float]:
    told: dict[tuple, list[int]] = {}
    for row in rows:
        told.setdefault((row["site"], row["subject"]), []).append(row["correct"])
    return {person: sum(found) / len(found) for person, found in told.items()}


def _check(rows: Sequence[dict]) -> None:
    classes, known = classes_of(rows), set()
    for row in rows:
        case, named = (row["site"], row["patient"]), f"{row['site']}/{row['patient']}"
        if case in known:
            raise ValueError(f"{named} is scored twice")
        known.add(case)
        if row["role"] not in (*ROLES, VALIDATION):
            raise ValueError(f"{named}: role {row['role']!r} must be of {(*ROLES, VALIDATION)}")
        if classes_of([row]) != classes or not {row["label"], row["predicted"]} <= set(classes):
            raise ValueError(f"{named}: label {row['label']!r} and predicted {row['predicted']!r} must be of the "
                             f"classes {classes}, the same for all images")
        values = [row[f"p_{name}"] for name in classes]
        if not all(found is not None and 0 <= found <= 1 for found in values):
            raise ValueError(f"{named}: the probabilities {values} must be in [0, 1]; unknown is no probability")
        told = classes[int(np.argmax(values))]
        if row["predicted"] != told or row["correct"] != (told == row["label"]):
            raise ValueError(f"{named}: predicted {row['predicted']!r} and correct {row['correct']} do not fit the "
                             f"label {row['label']!r} and the most probable class {told!r}")
