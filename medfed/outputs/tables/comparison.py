"""Build the leave-one-site-out table: methods by unseen sites, averaged over seeds, with intervals and paired tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from statistics import fmean

from medfed.core.errors import UserError
from medfed.metrics.metric import Column
from medfed.outputs.tables.block_statistics import BlockStatistics, Key, Runs
from medfed.outputs.tables.comparison_data import Block, Cell, Line, Table
from medfed.outputs.tables.comparison_notes import head_of, notes_of
from medfed.outputs.tables.comparison_row import BASELINE, is_compared, is_federated
from medfed.outputs.tables.conclusions import conclusions_of, decisions_of
from medfed.outputs.tables.differences import without_verdicts
from medfed.outputs.tables.failures import failure_blocks
from medfed.outputs.tables.learning import did_not_learn
from medfed.outputs.tables.local_runs import merge_local
from medfed.outputs.tables.run_notes import run_notes
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import COMPARISON, Scoring


def build_table(
    results: Sequence[dict],
    structures: Sequence[str],
    baseline: str = BASELINE,
    role: str = "unseen",
    planned: Set[Key] = frozenset(),
) -> Table:
    """Compare methods in a table with one column per unseen site, or per validation site.

    A cell is the mean over the seeds of a method's score at one site. There is one block for each structure, metric and
    unit: distances in mm and in percent of the image's diagonal are never averaged. A cell is None if the method has no
    run for the site or if some of the site's cases have another unit; the average over sites is then None too.

    Args:
        results: one dict for each run, with the keys "method" (label of the row), "unseen_site" ("validation_site" if
            `role` is "validation"), "seed", "rows" (of this site in `cases.csv`), "selection" (rule that selected the
            round) and "data" ("phantom" or "real"). Optional keys: "summary" (`summary.json`; without it the task is
            segmentation), "baseline" (label of the baseline if settings are varied), "row" (`ComparisonRow`; required
            for `local` and for rows that are compared with FedAvg of equal effort), and "unadapted" (rows of the unseen
            site without an adaptation).
        structures: names of the structures in the order of the table; ["all"] for classification.
        planned: label, site and seed of each planned run; a note names the missing ones. If empty, every method is
            expected at every site with every seed in `results`.

    Raises:
        UserError: if there are no results, if a run occurs twice, or if phantom and real data, two tasks, two
            selection rules or two limits of a failure are mixed.
    """
    each, results = results, merge_local(results, role)
    scorings = [scoring_of(result["summary"]) for result in results]
    tasks = [{"task": scoring.task} for scoring in scorings]
    data, selection, _ = _one(results, "data"), _one(results, "selection"), _one(tasks, "task")
    scoring = _joined(scorings)
    runs = _by_run(results, role)
    groups = {
        (result["method"], site, result["seed"]): result["summary"].get(role, {}).get("sites", {}).get(site, {})
        for result in results
        for site in [result[f"{role}_site"]]
    }
    against = {
        method: result.get("baseline", baseline) if is_federated(method) else None
        for result in results
        for method in [result["method"]]
    }
    less_effort = {
        result["method"]: str(against[result["method"]])
        for result in each
        if "row" in result and result["row"].equal_effort
    }
    copies = _copies(results, against, role)
    against |= {method: None for method in against if not is_compared(method) and method != baseline}
    against |= {result["method"]: result["row"].equal_effort for result in each if result["method"] in less_effort}
    against |= dict.fromkeys(copies, None)
    baselines = dict(
        sorted(against.items(), key=lambda entry: (not is_federated(entry[0]), entry[1] is None, entry[0] != entry[1]))
    )
    sites = sorted({site for _, site, _ in runs})
    seeds = tuple(sorted({seed for _, _, seed in runs}))
    not_learned = sorted({result["method"] for result in each if did_not_learn(result["summary"])})
    blocks, failures = [], []
    for structure in structures:
        of_structure = _of_structure(runs, scoring, structure)
        failures += failure_blocks(of_structure, scoring, structure, list(baselines), sites)
        for column in scoring.columns_in(COMPARISON):
            if any(scoring.has_value(rows, column.key) for rows in of_structure.values()):
                statistics = BlockStatistics(scoring, column, structure, sites, baselines, less_effort)
                metric = column.metric
                lines = without_verdicts(statistics.lines(of_structure, groups), not_learned)
                trivial = _trivial(results, structure, column, sites, role)
                blocks.append(
                    Block(
                        structure,
                        column.key,
                        metric.label,
                        column.unit,
                        metric.higher_is_better,
                        lines,
                        metric.decimals,
                        statistics.n_tests,
                        trivial,
                    )
                )
    notes = (
        *notes_of(runs, planned, baselines, sites, seeds, baseline, blocks, scoring, role),
        *(
            f"{method}: the same training as {other}, config by config, so it is neither ranked nor tested"
            for method, other in copies.items()
        ),
    )
    table = Table(
        data,
        selection,
        seeds,
        tuple(sites),
        baseline,
        head_of(data, selection, seeds, blocks, scoring, role),
        tuple(blocks),
        (*notes, *run_notes(each)),
        scoring.failure_heading,
        tuple(failures),
        not_learned=tuple(not_learned),
    )
    return replace(table, conclusions=conclusions_of(decisions_of(blocks, baseline), table))


def _trivial(results: Sequence[dict], structure: str, column: Column, sites: Sequence[str], role: str) -> Line | None:
    """Scores of a prediction that ignores the image, as means over the federated runs; None without any."""
    of_site: dict[str, list[float]] = {site: [] for site in sites}
    names = set()
    for result in filter(lambda result: is_federated(result["method"]), results):
        scores = result["summary"].get("trivial", {})
        site = result[f"{role}_site"]
        value = scores.get(role, {}).get(site, {}).get(structure, {}).get(column.key)
        if value is not None:
            names.add(scores["prediction"])
            of_site[site].append(column.scale * value)
    if not names:
        return None
    cells = tuple(Cell(fmean(values), None, len(values)) if values else None for values in of_site.values())
    known = [cell for cell in cells if cell is not None]
    average = Cell(fmean(cell.mean for cell in known), None, 1) if len(known) == len(cells) else None
    prediction = names.pop() if len(names) == 1 else "the best at the source sites"
    return Line(f"trivial: {prediction}", cells, average, 0, 0)


def _copies(results: Sequence[dict], baselines: Mapping[str, str | None], role: str) -> dict[str, str]:
    """Methods whose runs all have the configs of the baseline or of an earlier method, by that method; for example,
    `fedavg@steps=ccst` is a copy of `fedavg` if CCST takes no more steps."""
    configs: dict[str, dict[tuple[str, int], str | None]] = {}
    for result in results:
        key = (result[f"{role}_site"], result["seed"])
        configs.setdefault(result["method"], {})[key] = result["summary"].get("config_sha256")
    copies: dict[str, str] = {}
    for method, baseline in baselines.items():
        earlier = list(baselines)[: list(baselines).index(method)]
        originals = [baseline, *(other for other in earlier if baselines[other] == baseline and other not in copies)]
        same = [other for other in originals if other != method and configs[method] == configs.get(str(other))]
        if baseline and method != baseline and None not in configs[method].values() and same:
            copies[method] = str(same[0])
    return copies


def _joined(scorings: Sequence[Scoring]) -> Scoring:
    """A scoring with the metrics of all runs and their common limit of a failure."""
    limits = [{"the limit of a failure": ", ".join(scoring.failure_titles.values())} for scoring in scorings]
    _one(limits, "the limit of a failure")
    metrics = {metric.name: metric for scoring in reversed(scorings) for metric in scoring.metrics}
    names = dict.fromkeys(metric.name for scoring in scorings for metric in scoring.metrics)
    chosen = dict.fromkeys(name for scoring in scorings for name in scoring.chosen)
    return replace(scorings[0], metrics=tuple(metrics[name] for name in names), chosen=tuple(chosen))


def _one(results: Sequence[dict], key: str) -> str:
    """The value of a key that all results share; UserError if they differ."""
    values = sorted({result[key] for result in results})
    if not values:
        raise UserError("there is no finished run for a table; finish at least one run first")
    if len(values) > 1:
        raise UserError(
            f"the runs differ in {key} ({' and '.join(map(repr, values))}), so they cannot be in one table; make one "
            "table for each value"
        )
    return values[0]


def _by_run(results: Sequence[dict], role: str) -> dict[Key, list[dict]]:
    """Group the rows by (method, site, seed), after checking that they belong to the site."""
    runs: dict[Key, list[dict]] = {}
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
    return {key: [row for row in rows if scoring.structure_of(row) == structure] for key, rows in runs.items()}
