"""Build the leave-one-site-out table: methods by unseen sites, averaged over seeds, with intervals and paired tests.

`medfed.outputs.tables.table` formats the table. Every table states whether the data are a phantom, which rule selected
the round, which seeds were used, and what its metrics mean (`medfed.tasks.scoring`).
"""

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
from medfed.outputs.tables.run_notes import lacks_failures, run_notes
from medfed.tasks.factory import scoring_of
from medfed.tasks.scoring import COMPARISON, Scoring


def build_table(
    results: Sequence[dict],
    structures: Sequence[str],
    baseline: str = BASELINE,
    role: str = "unseen",
    planned: Set[Key] = frozenset(),
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
            "baseline" can give the label of the baseline with the same settings. The key "row" (`ComparisonRow`) is
            needed for the row `local`, which has several runs for each site and seed, and for a row that is compared
            with FedAvg of equal effort. The key "unadapted" can hold the
            rows of the unseen site without the adaptation to its images (`medfed.outputs.tables.adaptation`).
        structures: names of the structures in the order of the table; ["all"] for classification.
        baseline: label of the method with which all other methods are compared.
        role: which sites are the columns of the table: "unseen" or "validation".
        planned: the label, the site and the seed of each run of the comparison's plan. A note names each of them that
            is not in `results`. If it is empty, every method is expected at every site with every seed in `results`.

    Raises:
        UserError: if there are no results, if a run occurs twice, or if phantom (synthetic) and real data, two tasks,
            two selection rules or two limits of a failure are mixed.
        ValueError: if a row belongs to another site or has another role.
    """
    each, results = results, merge_local(results, role)
    scorings = [scoring_of(result.get("summary", {})) for result in results]
    tasks = [{"task": scoring.task} for scoring in scorings]
    data, selection, _ = _one(results, "data"), _one(results, "selection"), _one(tasks, "task")
    scoring = _joined(results, scorings)
    runs = _by_run(results, role)
    groups = {
        (result["method"], site, result["seed"]): result.get("summary", {}).get(role, {}).get("sites", {}).get(site, {})
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
    not_learned = sorted({result["method"] for result in each if did_not_learn(result.get("summary") or {})})
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
    """Return the scores of a prediction that ignores the image, as means over the federated runs; None without any."""
    of_site: dict[str, list[float]] = {site: [] for site in sites}
    names = set()
    for result in filter(lambda result: is_federated(result["method"]), results):
        scores = result.get("summary", {}).get("trivial", {})
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
    """Return the methods whose runs all have the configs of the baseline or of an earlier method, with this method.

    A row such as `fedavg@steps=ccst` is a copy of `fedavg` if CCST takes no more steps.
    """
    configs: dict[str, dict[tuple[str, int], str | None]] = {}
    for result in results:
        key = (result[f"{role}_site"], result["seed"])
        configs.setdefault(result["method"], {})[key] = result.get("summary", {}).get("config_sha256")
    copies: dict[str, str] = {}
    for method, baseline in baselines.items():
        earlier = list(baselines)[: list(baselines).index(method)]
        originals = [baseline, *(other for other in earlier if baselines[other] == baseline and other not in copies)]
        same = [other for other in originals if other != method and configs[method] == configs.get(str(other))]
        if baseline and method != baseline and None not in configs[method].values() and same:
            copies[method] = str(same[0])
    return copies


def _joined(results: Sequence[dict], scorings: Sequence[Scoring]) -> Scoring:
    """Return a scoring with the metrics of all runs, those of the first run first, and their limit of a failure.

    The failures of a run of an older version, which did not record its limit, are counted with that of the others.
    """
    pairs = zip(results, scorings, strict=True)
    recorded = [scoring for result, scoring in pairs if not lacks_failures(result)] or scorings
    limits = [{"the limit of a failure": ", ".join(scoring.failure_titles.values())} for scoring in recorded]
    _one(limits, "the limit of a failure")
    metrics = {metric.name: metric for scoring in reversed(scorings) for metric in scoring.metrics}
    names = dict.fromkeys(metric.name for scoring in scorings for metric in scoring.metrics)
    chosen = dict.fromkeys(name for scoring in scorings for name in scoring.chosen)
    return replace(recorded[0], metrics=tuple(metrics[name] for name in names), chosen=tuple(chosen))


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


def _by_run(results: Sequence[dict], role: str) -> dict[Key, list[dict]]:
    """Return the rows of every run by method, site and seed, after checking that they belong to the site."""
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
    """Return the rows of one structure of every run."""
    return {key: [row for row in rows if scoring.structure_of(row) == structure] for key, rows in runs.items()}
