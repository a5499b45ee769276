"""The papers' leave-one-site-out table, as data: methods by unseen sites, over seeds, with a paired test.

`medfed.outputs.table` prints it. Every table carries whether the data are a phantom, which rule chose the round, over
which seeds, and what its distances mean. A missed organ counts as Dice 0 and as the diagonal of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from medfed.errors import UserError
from medfed.metrics.summary import paired_significance

PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"
HD95 = "HD95 is the larger of the two directed 95th percentiles of the surface distances (MONAI's definition)"
WORST = "A missed organ or a false alarm counts as Dice 0 and the diagonal of the image; absent from both is left out"
MEASURES = (  # metric, name, unit, factor, whether higher is better
    ("dice", "Dice", "%", 100, True),
    ("hd95_mm", "HD95", "mm", 1, False),
    ("hd95_px", "HD95", "px", 1, False),
    ("hd_mm", "HD", "mm", 1, False),
    ("hd_px", "HD", "px", 1, False),
)
Runs = dict[tuple[str, str, int], list[dict]]  # (method, unseen site, seed): its rows


@dataclass(frozen=True)
class Cell:
    """Mean over seeds of the mean over cases, and the standard deviation over seeds where there are several."""

    mean: float
    sd: float | None
    n_seeds: int


@dataclass(frozen=True)
class Line:
    """One method: a cell a site, None where unknown; the paired test against the baseline over `n` unseen patients."""

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
    """A leave-one-site-out table; printed by `medfed.outputs.table`."""

    data: str
    selection: str
    seeds: tuple[int, ...]
    sites: tuple[str, ...]
    baseline: str
    head: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]


def build_table(results: Sequence[dict], structures: Sequence[str], baseline: str = "fedavg") -> Table:
    """Compare methods over unseen sites.

    Args:
        results: one a run: {method, unseen_site, seed, rows (of the unseen site alone), selection, data}.
        structures: in the order in which the table shows them.
        baseline: the method that the others are tested against.

    A distance in mm and one in pixels are never averaged: each unit that occurs has its own block. A site where some
    cases have another unit, and a fold that was not run, is None, and so is the average over sites.

    Raises:
        UserError: if there is no result, one comes twice, or phantom and real data or two selection rules meet.
        ValueError: if the rows are of another site, or of a seen one.
    """
    data, selection = (_one(results, key) for key in ("data", "selection"))
    runs = _by_run(results)
    methods, sites = (tuple(dict.fromkeys(key[place] for key in runs)) for place in (0, 1))
    methods, sites = sorted(methods, key=lambda name: name != baseline), sorted(sites)
    seeds = tuple(sorted({seed for _, _, seed in runs}))
    blocks = tuple(
        _block(runs, methods, sites, structure, measure, baseline)
        for structure in structures
        for measure in MEASURES
        if any(row[measure[0]] is not None for rows in runs.values() for row in rows if row["structure"] == structure)
    )
    head, notes = _head(data, selection, seeds, blocks), _notes(runs, methods, sites, seeds, baseline, blocks)
    return Table(data, selection, seeds, tuple(sites), baseline, head, blocks, notes)


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


def _by_run(results: Sequence[dict]) -> Runs:
    runs: Runs = {}
    for result in results:
        key = (result["method"], result["unseen_site"], result["seed"])
        if key in runs:
            raise UserError(f"method {key[0]}, unseen site {key[1]}, seed {key[2]} comes twice; leave one out")
        wrong = [row for row in result["rows"] if row["site"] != key[1] or row["role"] != "unseen"]
        if wrong:
            found = f"{wrong[0]['role']} site {wrong[0]['site']!r}"
            raise ValueError(f"a row of {found} is among those of the unseen site {key[1]!r}")
        runs[key] = result["rows"]
    return runs


def _block(runs: Runs, methods, sites, structure: str, measure: tuple, baseline: str) -> Block:
    metric, name, unit, factor, higher = measure
    of_structure = {key: [row for row in rows if row["structure"] == structure] for key, rows in runs.items()}
    lines = tuple(_line(of_structure, method, sites, metric, factor, baseline) for method in methods)
    return Block(structure, metric, name, unit, higher, lines)


def _line(runs: Runs, method: str, sites: Sequence[str], metric: str, factor: float, baseline: str) -> Line:
    own = {key: rows for key, rows in runs.items() if key[0] == method}
    means = {key[1:]: factor * mean for key, rows in own.items() if (mean := _mean_of(rows, metric)) is not None}
    cells = tuple(_cell([mean for (where, _), mean in means.items() if where == site]) for site in sites)
    rows = [row for rows in own.values() for row in rows]
    test = {"p": None, "n": None, "reason": "the baseline"}
    if baseline not in {key[0] for key in runs}:
        test["reason"] = f"the baseline {baseline} was not run"
    elif method != baseline:
        test = paired_significance(_over_seeds(runs, method, metric), _over_seeds(runs, baseline, metric), metric)
    n_missed = sum(row["status"] == "missed" for row in rows)
    n_cases = sum(row["status"] != "absent" for row in rows)
    average = _average(cells, means, sites)
    return Line(method, cells, average, test["p"], test["n"], test["reason"], n_missed, n_cases)


def _mean_of(rows: Sequence[dict], metric: str) -> float | None:
    values = [row[metric] for row in rows if row["status"] != "absent"]
    return None if not values or None in values else fmean(values)


def _cell(means: Sequence[float]) -> Cell | None:
    return Cell(fmean(means), stdev(means) if len(means) > 1 else None, len(means)) if means else None


def _average(cells: Sequence[Cell | None], means: dict[tuple[str, int], float], sites: Sequence[str]) -> Cell | None:
    """Mean over sites, each weighing the same; its spread is that of the seeds that all sites have."""
    if None in cells:
        return None
    seeds = [seed for seed in {seed for _, seed in means} if all((site, seed) in means for site in sites)]
    whole = _cell([fmean(means[site, seed] for site in sites) for seed in sorted(seeds)])
    return Cell(fmean(cell.mean for cell in cells), whole and whole.sd, len(seeds))


def _over_seeds(runs: Runs, method: str, metric: str) -> list[dict]:
    """Each unseen patient once, the metric averaged over the seeds that know it."""
    found: dict[tuple, list[dict]] = {}
    for key, rows in runs.items():
        if key[0] == method:
            for row in rows:
                found.setdefault((row["site"], row["patient"], row["structure"]), []).append(row)
    known = ([row for row in rows if row[metric] is not None] for rows in found.values())
    return [rows[0] | {metric: fmean(row[metric] for row in rows)} for rows in known if rows]


def _head(data: str, selection: str, seeds: Sequence[int], blocks: Sequence[Block]) -> tuple[str, ...]:
    units = " and ".join(dict.fromkeys(block.unit for block in blocks if block.metric != "dice")) or "none known"
    spread = ", ± sd over seeds" if len(seeds) > 1 else ""
    return (
        kind_of_data(data),
        f"a column is the site left out; round chosen by the rule '{selection}'; seeds: {', '.join(map(str, seeds))}",
        f"mean over seeds of the mean over cases{spread}; distances in: {units}",
        HD95,
        WORST,
    )


def _notes(runs: Runs, methods, sites, seeds, baseline: str, blocks: Sequence[Block]) -> tuple[str, ...]:
    missing = [(m, s, seed) for m in methods for s in sites for seed in seeds if (m, s, seed) not in runs]
    notes = [f"not run: {m}, unseen {s}, seed {seed}" for m, s, seed in missing]
    for site in sites:
        patients = {frozenset(row["patient"] for row in rows) for key, rows in runs.items() if key[1] == site}
        if len(patients) > 1:
            notes.append(f"{site}: the runs do not score the same patients; their means cannot be compared")
    if baseline in methods and len(methods) > 1:
        notes.append(
            f"p: Wilcoxon signed-rank against {baseline}, two-sided, over all n unseen patients (each averaged over "
            "seeds first), not corrected for the number of methods"
        )
    lines = [line for block in blocks for line in block.lines]
    reasons = {(line.method, line.reason) for line in lines if line.reason and line.n is not None}
    notes += [f"{method}: no p for some measure: {reason}" for method, reason in sorted(reasons)]
    if any(None in line.cells for line in lines):
        notes.append("-: not run, or not all of a site's cases have this unit; then there is no average either")
    return tuple(notes)
