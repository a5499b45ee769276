"""The leave-one-site-out table as data: methods by unseen sites, averaged over seeds, with a paired test.

`medfed.outputs.tables.table` prints the table. Every table states whether the data are a phantom, which rule selected
the round, which seeds were used, and what its metrics mean (`medfed.tasks.scoring`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from medfed.core.errors import UserError
from medfed.metrics.metric import DISTANCE, DISTANCE_UNITS, Column
from medfed.outputs.tables.comparison_row import BASELINE
from medfed.outputs.tables.learning import did_not_learn
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import COMPARISON, Scoring

COLUMN = {  # meaning of a column, by the role of its site
    "unseen": "the unseen site",
    "validation": "the validation site, which did not train either",
}
PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"
Key = tuple[str, str, int]  # (method, site, seed)
Runs = dict[Key, list[dict]]  # the scores of every case of each run
Groups = Mapping[Key, Mapping[str, Mapping[str, Any]]]  # the scores of each run by structure, from its summary


@dataclass(frozen=True)
class Cell:
    """Score of one method at one site, averaged over the seeds.

    Args:
        mean: mean over seeds, in the unit of the block that contains the cell.
        sd: standard deviation over seeds; None for a single seed.
        n_seeds: number of seeds.
    """

    mean: float
    sd: float | None
    n_seeds: int


@dataclass(frozen=True)
class Line:
    """Scores of one method for one structure and one metric: one line of a table.

    Args:
        method: label of the method.
        cells: score at each site; None for a site whose score is unknown.
        average: mean over sites; None if the score of a site is unknown.
        p: p value of the paired test against the baseline; None without a test.
        n: number of unseen patients in the test; None without a test.
        reason: why there is no p value; None if there is one.
        n_missed: number of failures over all sites and seeds. For masks, a failure is a structure for which the
            predicted mask is empty although the true mask is not. For classification, it is a misclassified image.
        n_cases: number of cases over all sites and seeds.
    """

    method: str
    cells: tuple[Cell | None, ...]
    average: Cell | None
    p: float | None
    n: int | None
    reason: str | None
    n_missed: int
    n_cases: int


@dataclass(frozen=True)
class Block:
    """Part of a comparison table: the scores of all methods for one structure and one metric in one unit.

    Args:
        structure: name of the structure; "all" for classification.
        metric: key of the metric's column, for example "hd95_mm".
        name: name of the metric as shown, for example "HD95".
        unit: unit of the numbers, for example "%" or "mm".
        higher_is_better: whether larger numbers are better.
        lines: one line for each method.
        decimals: number of decimals to print.
    """

    structure: str
    metric: str
    name: str
    unit: str
    higher_is_better: bool
    lines: tuple[Line, ...]
    decimals: int = 2


@dataclass(frozen=True)
class Table:
    """A comparison of methods by leave-one-site-out, as data; `medfed.outputs.tables.table` prints it.

    Args:
        data: "phantom" (synthetic images) or "real".
        selection: name of the rule that selected the round.
        seeds: seeds of the runs, sorted.
        sites: names of the columns, sorted.
        baseline: label of the method that all other methods are tested against.
        head: lines above the table: kind of data, meaning of the columns, meaning of the numbers.
        blocks: one block for each structure, metric and unit.
        notes: remarks below the table.
        failed: heading of the column that counts failures.
    """

    data: str
    selection: str
    seeds: tuple[int, ...]
    sites: tuple[str, ...]
    baseline: str
    head: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]
    failed: str = "missed"


def build_table(
    results: Sequence[dict], structures: Sequence[str], baseline: str = BASELINE, role: str = "unseen"
) -> Table:
    """Return the table that compares methods, with one column per unseen site or per validation site.

    A cell has a method's score at one site, averaged over the seeds. Each method is compared with the baseline by a
    significance test. The table has one block for each structure and metric. Distances in mm and distances in percent
    of the image's diagonal are never averaged, so each of the two units has its own block. A cell is None if there is
    no run of the method for this site, or if some cases of the site have another unit. The average over sites is then
    None too.

    Args:
        results: one dict for each run, with the keys "method" (label of the method), "unseen_site", "seed", "rows" (the
            rows of `cases.csv` for the unseen site), "selection" (name of the rule that selected the round), "data"
            ("phantom" or "real"), and optionally "summary" (content of `summary.json`). The summary defines the task
            and the metrics; without a summary, the task is segmentation. Metrics that cannot be computed from the rows
            are read from the summary. If `role` is "validation", the dict has "validation_site" in place of
            "unseen_site", and its rows are those of the validation site. If the run has varied settings, the key
            "baseline" can give the label of the baseline with the same settings.
        structures: names of the structures in the order of the table; ["all"] for classification.
        baseline: label of the method with which all other methods are compared.
        role: which sites are the columns of the table: "unseen" or "validation".

    Raises:
        UserError: if there are no results, if a run occurs twice, or if phantom (synthetic) and real data, two tasks or
            two selection rules are mixed.
        ValueError: if a row belongs to another site or has another role.
    """
    scorings = [scoring_of(result.get("summary", {})) for result in results]
    tasks = [{"task": scoring.task} for scoring in scorings]
    data, selection, _ = _one(results, "data"), _one(results, "selection"), _one(tasks, "task")
    scoring = _joined(scorings)
    runs = _by_run(results, role)
    groups = {
        (result["method"], site, result["seed"]): result.get("summary", {}).get(role, {}).get("sites", {}).get(site, {})
        for result in results
        for site in [result[f"{role}_site"]]
    }
    against = {result["method"]: result.get("baseline", baseline) for result in results}
    methods = sorted(dict.fromkeys(method for method, _, _ in runs), key=lambda name: name != against[name])
    sites = sorted({site for _, site, _ in runs})
    seeds = tuple(sorted({seed for _, _, seed in runs}))
    blocks = []
    for structure in structures:
        of_structure = _of_structure(runs, scoring, structure)
        for column in scoring.columns_in(COMPARISON):
            if any(scoring.has_value(rows, column.key) for rows in of_structure.values()):
                lines = tuple(
                    _line(of_structure, groups, method, sites, structure, column, against[method], scoring)
                    for method in methods
                )
                metric = column.metric
                blocks.append(Block(structure, column.key, metric.label, column.unit, metric.higher_is_better, lines,
                                    metric.decimals))
    head = _head(data, selection, seeds, blocks, scoring, role)
    notes = (
        *_notes(runs, against, methods, sites, seeds, baseline, blocks, scoring, role),
        *_transductive(results),
        *_computation(results),
        *_not_learned(results),
    )
    return Table(data, selection, seeds, tuple(sites), baseline, head, tuple(blocks), notes, scoring.failure_heading)


def _joined(scorings: Sequence[Scoring]) -> Scoring:
    """Return a scoring with the metrics of all runs, those of the first run first."""
    metrics = {metric.name: metric for scoring in reversed(scorings) for metric in scoring.metrics}
    names = dict.fromkeys(metric.name for scoring in scorings for metric in scoring.metrics)
    chosen = dict.fromkeys(name for scoring in scorings for name in scoring.chosen)
    return replace(scorings[0], metrics=tuple(metrics[name] for name in names), chosen=tuple(chosen))


def _transductive(results: Sequence[dict]) -> list[str]:
    """Return a note for each method whose predictions depend on other test images."""
    kinds = {result["method"]: result.get("transductive_by") for result in results}
    return [f"{method}: TRANSDUCTIVE ({', '.join(by)}): predictions depend on other test images of the site, without "
            "labels" for method, by in sorted(kinds.items()) if by]  # fmt: skip


def computation_notes(summary: Mapping[str, Any]) -> list[str]:
    """Return notes for a run that was not deterministic, or whose network computed in bfloat16 (bf16).

    Args:
        summary: content of `summary.json`.

    Returns:
        One clause per note. The list is empty for a deterministic run in float32.
    """
    notes = ["NOT DETERMINISTIC: the same config and seed give other weights each time"]
    return notes * (summary.get("deterministic") is False) + ["trained in bf16"] * (summary.get("precision") == "bf16")


def _computation(results: Sequence[dict]) -> list[str]:
    """Return a note for each method some of whose runs were not deterministic, or were trained in bf16."""
    notes = {(result["method"], note) for result in results for note in computation_notes(result.get("summary") or {})}
    return [f"{method}: {note}" for method, note in sorted(notes)]


def _not_learned(results: Sequence[dict]) -> list[str]:
    """Return a note for each method some of whose runs did not learn."""
    notes = []
    for method in sorted({result["method"] for result in results}):
        of_method = [result for result in results if result["method"] == method]
        failed = [result for result in of_method if did_not_learn(result.get("summary") or {})]
        runs = ", ".join(f"unseen {r['summary']['unseen_site']} seed {r['seed']}" for r in failed)
        notes += [f"{method}: DID NOT LEARN in {len(failed)} of {len(of_method)} runs: on the source sites, a trivial "
                  f"prediction or the initial weights are as good as the model ({runs})"] * bool(failed)  # fmt: skip
    return notes


def data_label(data: str) -> str:
    """Return the first line of every table of results. It says whether the images are synthetic (a phantom) or real.

    Args:
        data: "phantom" or "real".
    """
    return PHANTOM if data == "phantom" else f"{data} data"


def _one(results: Sequence[dict], key: str) -> str:
    """Return the value of a key that all results share; UserError if they do not share one."""
    values = sorted({result[key] for result in results})
    if not values:
        raise UserError("there is no finished run for a table; finish at least one run first")
    if len(values) > 1:
        raise UserError(
            f"the runs differ in {key} ({' and '.join(map(repr, values))}), so they cannot be in one table; make one "
            "table for each value"
        )
    return values[0]


def _by_run(results: Sequence[dict], role: str) -> Runs:
    """Return the rows of every run by method, site and seed, after checking that they belong to the site."""
    runs: Runs = {}
    for result in results:
        key = (result["method"], result[f"{role}_site"], result["seed"])
        if key in runs:
            raise UserError(f"method {key[0]}, {role} site {key[1]}, seed {key[2]} comes twice; remove one of the runs")
        wrong = [row for row in result["rows"] if row["site"] != key[1] or row["role"] != role]
        if wrong:
            origin = f"{wrong[0]['role']} site {wrong[0]['site']!r}"
            raise ValueError(f"a row of {origin} is among those of the {role} site {key[1]!r}")
        runs[key] = result["rows"]
    return runs


def _of_structure(runs: Runs, scoring: Scoring, structure: str) -> Runs:
    """Return the rows of one structure of every run."""
    return {key: [row for row in rows if scoring.structure_of(row) == structure] for key, rows in runs.items()}


def _line(
    runs: Runs, groups: Groups, method: str, sites: Sequence[str], structure: str, column: Column, baseline: str,
    scoring: Scoring,
) -> Line:
    """Average and test the scores of one method."""
    own = {key: rows for key, rows in runs.items() if key[0] == method}
    means: dict[tuple[str, int], float] = {}
    for key, rows in own.items():
        value = scoring.overall_score(rows, column.key)
        if value is None and not scoring.has_structures:  # an outside metric whose code is missing here
            value = groups[key].get(structure, {}).get(column.key, {}).get("mean")
        if value is not None:
            means[key[1:]] = column.scale * value
    cells = tuple(_cell([mean for (where, _), mean in means.items() if where == site]) for site in sites)
    of_method = [row for rows in own.values() for row in rows]
    test: dict[str, Any] = {"p": None, "n": None, "reason": "the baseline"}
    if baseline not in {key[0] for key in runs}:
        test["reason"] = f"the baseline {baseline} was not run"
    elif method != baseline:
        others = [row for key, rows in runs.items() if key[0] == baseline for row in rows]
        test = scoring.paired_test(of_method, others, column.key)
    n_missed, n_cases = sum(map(scoring.is_failure, of_method)), sum(map(scoring.is_case, of_method))
    average = _average(cells, means, sites)
    return Line(method, cells, average, test["p"], test["n"], test["reason"], n_missed, n_cases)


def _cell(means: Sequence[float]) -> Cell | None:
    """Return mean and standard deviation over seeds; None without a mean."""
    return Cell(fmean(means), stdev(means) if len(means) > 1 else None, len(means)) if means else None


def _average(cells: Sequence[Cell | None], means: dict[tuple[str, int], float], sites: Sequence[str]) -> Cell | None:
    """Average over sites with equal weights; the standard deviation is over the seeds that all sites have."""
    known = [cell for cell in cells if cell is not None]
    if len(known) < len(cells):
        return None
    seeds = [seed for seed in {seed for _, seed in means} if all((site, seed) in means for site in sites)]
    whole = _cell([fmean(means[site, seed] for site in sites) for seed in sorted(seeds)])
    return Cell(fmean(cell.mean for cell in known), whole.sd if whole else None, len(seeds))


def _head(
    data: str, selection: str, seeds: Sequence[int], blocks: Sequence[Block], scoring: Scoring, role: str
) -> tuple[str, ...]:
    """Return the lines above the table."""
    spread = ", ± sd over seeds" if len(seeds) > 1 else ""
    return (
        data_label(data),
        f"each column is {COLUMN[role]}; round selected by the rule '{selection}'; "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}",
        f"mean over seeds of the {scoring.score_description}{spread}{_units(scoring, blocks)}",
        *scoring.notes_in(COMPARISON),
    )


def _units(scoring: Scoring, blocks: Sequence[Block]) -> str:
    """Return the units of the distances, for example "; distances in: mm"; "" for a task without distances."""
    if not any(metric.unit == DISTANCE for metric in scoring.metrics_in(COMPARISON)):
        return ""
    units = dict.fromkeys(block.unit for block in blocks if block.unit in DISTANCE_UNITS.values())
    return f"; distances in: {' and '.join(units) or 'none known'}"


def _notes(
    runs: Runs,
    against: dict[str, str],
    methods: Sequence[str],
    sites: Sequence[str],
    seeds: Sequence[int],
    baseline: str,
    blocks: Sequence[Block],
    scoring: Scoring,
    role: str,
) -> tuple[str, ...]:
    """Return the notes below the table: missing runs, different patients, the test, and empty cells."""
    missing = [(m, s, seed) for m in methods for s in sites for seed in seeds if (m, s, seed) not in runs]
    notes = [f"not run: {m}, {role} {s}, seed {seed}" for m, s, seed in missing]
    for site in sites:
        patients = {frozenset(row["patient"] for row in rows) for key, rows in runs.items() if key[1] == site}
        if len(patients) > 1:
            notes.append(f"{site}: the runs do not score the same patients, so their means cannot be compared")
    if any(other in methods and other != method for method, other in against.items()):
        same = " with the same varied settings" if len(set(against.values())) > 1 else ""
        notes.append(
            f"p: two-sided Wilcoxon signed-rank test against {baseline}{same}, over {scoring.tested_population}, not "
            "corrected for the number of methods"
        )
    lines = [line for block in blocks for line in block.lines]
    reasons = {(line.method, line.reason) for line in lines if line.reason and line.n is not None}
    notes += [f"{method}: no p for some metric: {reason}" for method, reason in sorted(reasons)]
    if any(None in line.cells for line in lines):
        notes.append(f"-: not run, or {scoring.missing_score_reason}; there is no average in this case")
    return tuple(notes)
