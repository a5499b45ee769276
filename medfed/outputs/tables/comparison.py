"""The papers' leave-one-site-out table, as data: methods by unseen sites, over seeds, with a paired test.

`medfed.outputs.tables.table` prints it. Every table carries whether the data are a phantom, which rule chose the round,
over which seeds, and what its measures mean (`medfed.outputs.measures`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from medfed.core.errors import UserError
from medfed.metrics.classification_summary import ALL
from medfed.outputs.measures import Measures, of
from medfed.outputs.tables.comparison_row import BASELINE

COLUMN = {  # what a column is, by the role of its sites
    "unseen": "the site left out",
    "validation": "the validation site, which never trained either",
}
PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"
Runs = dict[tuple[str, str, int], list[dict]]  # (method, site, seed): its rows


@dataclass(frozen=True)
class Cell:
    """Mean over seeds of a site's score, and the standard deviation over seeds where there are several."""

    mean: float
    sd: float | None
    n_seeds: int


@dataclass(frozen=True)
class Line:
    """One method: a cell a site, None where unknown; the paired test against the baseline over `n` unseen patients.

    n_missed: missed organs; where images are classified, those told wrong.
    """

    method: str
    cells: tuple[Cell | None, ...]
    average: Cell | None
    p: float | None
    n: int | None
    reason: str | None  # why there is no p
    n_missed: int
    n_cases: int  # over all sites and seeds


@dataclass(frozen=True)
class Block:
    """One structure in one measure."""

    structure: str
    metric: str
    name: str
    unit: str
    higher_is_better: bool
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """A leave-one-site-out table; printed by `medfed.outputs.tables.table`."""

    data: str
    selection: str
    seeds: tuple[int, ...]
    sites: tuple[str, ...]
    baseline: str
    head: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]


def build_table(
    results: Sequence[dict], structures: Sequence[str], baseline: str = BASELINE, role: str = "unseen"
) -> Table:
    """Compare methods over unseen sites, or over the validation sites of leaving two sites out.

    Args:
        results: one a run: {method, unseen_site, seed, rows (of the unseen site alone), selection, data} and, where
            images are classified, `task` "classification". For validation sites: `validation_site`, and its rows. Of a
            method with varied settings, `baseline`: the one of the same values, which it is tested against instead.
        structures: in the order in which the table shows them; "all" for classification.
        baseline: the method that the others are tested against.
        role: "unseen" or "validation", whose sites are the columns.

    A distance in mm and one in pixels are never averaged: each unit that occurs has its own block. A site where some
    cases have another unit, and a fold that was not run, is None, and so is the average over sites.

    Raises:
        UserError: if there is no result, one comes twice, or phantom and real data, two tasks or two selection rules
            meet.
        ValueError: if the rows are of another site, or of a seen one.
    """
    results = [{"task": "segmentation", **result} for result in results]
    data, selection, task = (_one(results, key) for key in ("data", "selection", "task"))
    measures = of(task)
    runs = _by_run(results, role)
    methods, sites = (tuple(dict.fromkeys(key[place] for key in runs)) for place in (0, 1))
    against = {result["method"]: result.get("baseline", baseline) for result in results}
    methods, sites = sorted(methods, key=lambda name: name != against[name]), sorted(sites)
    seeds = tuple(sorted({seed for _, _, seed in runs}))
    blocks = tuple(
        _block(of_structure, against, methods, sites, structure, shown, measures)
        for structure in structures
        for of_structure in [_of_structure(runs, structure)]
        for shown in measures.shown
        if any(measures.is_known(row, shown[0]) for rows in of_structure.values() for row in rows)
    )
    head = _head(data, selection, seeds, blocks, measures, role)
    notes = (*_notes(runs, against, methods, sites, seeds, baseline, blocks, measures, role), *_transductive(results))
    return Table(data, selection, seeds, tuple(sites), baseline, head, blocks, notes)


def _transductive(results: Sequence[dict]) -> list[str]:
    """Which methods looked at the test images beside the one that they predicted."""
    found = {result["method"]: result.get("transductive_by") for result in results}
    return [f"{method}: TRANSDUCTIVE ({', '.join(by)}): predictions depend on other test images of the site, without "
            "labels" for method, by in sorted(found.items()) if by]  # fmt: skip


def kind_of_data(data: str) -> str:
    """The line that every result begins with."""
    return PHANTOM if data == "phantom" else f"{data} data"


def _one(results: Sequence[dict], key: str) -> str:
    found = sorted({result[key] for result in results})
    if not found:
        raise UserError("there is no finished run to make a table of; run one first")
    if len(found) > 1:
        raise UserError(f"runs with {key} {' and '.join(map(repr, found))} cannot share a table; make one of each")
    return found[0]


def _by_run(results: Sequence[dict], role: str) -> Runs:
    runs: Runs = {}
    for result in results:
        key = (result["method"], result[f"{role}_site"], result["seed"])
        if key in runs:
            raise UserError(f"method {key[0]}, {role} site {key[1]}, seed {key[2]} comes twice; leave one out")
        wrong = [row for row in result["rows"] if row["site"] != key[1] or row["role"] != role]
        if wrong:
            found = f"{wrong[0]['role']} site {wrong[0]['site']!r}"
            raise ValueError(f"a row of {found} is among those of the {role} site {key[1]!r}")
        runs[key] = result["rows"]
    return runs


def _of_structure(runs: Runs, structure: str) -> Runs:
    return {key: [row for row in rows if row.get("structure", ALL) == structure] for key, rows in runs.items()}


def _block(
    runs: Runs, against: dict[str, str], methods, sites, structure: str, shown: tuple, measures: Measures
) -> Block:
    metric, name, unit, factor, higher = shown
    lines = tuple(_line(runs, method, sites, metric, factor, against[method], measures) for method in methods)
    return Block(structure, metric, name, unit, higher, lines)


def _line(
    runs: Runs, method: str, sites: Sequence[str], metric: str, factor: float, baseline: str, measures: Measures
) -> Line:
    own = {key: rows for key, rows in runs.items() if key[0] == method}
    means = {
        key[1:]: factor * mean for key, rows in own.items() if (mean := measures.value(rows, metric)) is not None
    }
    cells = tuple(_cell([mean for (where, _), mean in means.items() if where == site]) for site in sites)
    rows = [row for rows in own.values() for row in rows]
    test = {"p": None, "n": None, "reason": "the baseline"}
    if baseline not in {key[0] for key in runs}:
        test["reason"] = f"the baseline {baseline} was not run"
    elif method != baseline:
        others = [row for key, found in runs.items() if key[0] == baseline for row in found]
        test = measures.paired(rows, others, metric)
    n_missed, n_cases = sum(map(measures.is_failure, rows)), sum(map(measures.is_case, rows))
    average = _average(cells, means, sites)
    return Line(method, cells, average, test["p"], test["n"], test["reason"], n_missed, n_cases)


def _cell(means: Sequence[float]) -> Cell | None:
    return Cell(fmean(means), stdev(means) if len(means) > 1 else None, len(means)) if means else None


def _average(cells: Sequence[Cell | None], means: dict[tuple[str, int], float], sites: Sequence[str]) -> Cell | None:
    """Mean over sites, each weighing the same; its spread is that of the seeds that all sites have."""
    if None in cells:
        return None
    seeds = [seed for seed in {seed for _, seed in means} if all((site, seed) in means for site in sites)]
    whole = _cell([fmean(means[site, seed] for site in sites) for seed in sorted(seeds)])
    return Cell(fmean(cell.mean for cell in cells), whole and whole.sd, len(seeds))


def _head(
    data: str, selection: str, seeds: Sequence[int], blocks: Sequence[Block], measures: Measures, role: str
) -> tuple[str, ...]:
    spread = ", ± sd over seeds" if len(seeds) > 1 else ""
    return (
        kind_of_data(data),
        f"a column is {COLUMN[role]}; round chosen by the rule '{selection}'; seeds: {', '.join(map(str, seeds))}",
        f"mean over seeds of the {measures.averaged}{spread}{measures.units([block.unit for block in blocks])}",
        *measures.explained,
    )


def _notes(
    runs: Runs, against: dict[str, str], methods, sites, seeds, baseline: str, blocks: Sequence[Block],
    measures: Measures, role: str,
) -> tuple[str, ...]:
    missing = [(m, s, seed) for m in methods for s in sites for seed in seeds if (m, s, seed) not in runs]
    notes = [f"not run: {m}, {role} {s}, seed {seed}" for m, s, seed in missing]
    for site in sites:
        patients = {frozenset(row["patient"] for row in rows) for key, rows in runs.items() if key[1] == site}
        if len(patients) > 1:
            notes.append(f"{site}: the runs do not score the same patients; their means cannot be compared")
    if any(other in methods and other != method for method, other in against.items()):
        same = " with the same varied settings" if len(set(against.values())) > 1 else ""
        notes.append(
            f"p: Wilcoxon signed-rank against {baseline}{same}, two-sided, over {measures.tested}, not corrected for "
            "the number of methods"
        )
    lines = [line for block in blocks for line in block.lines]
    reasons = {(line.method, line.reason) for line in lines if line.reason and line.n is not None}
    notes += [f"{method}: no p for some measure: {reason}" for method, reason in sorted(reasons)]
    if any(None in line.cells for line in lines):
        notes.append(f"-: not run, or {measures.unknown}; then there is no average either")
    return tuple(notes)
