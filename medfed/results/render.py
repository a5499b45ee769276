"""A comparison as text: the first screen of a terminal, and the files `table.md`, `.tex`, `.csv` and `.json`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from medfed.metrics.metric import Metric
from medfed.results.comparison import COST, GAIN, TRIVIAL, Comparison
from medfed.results.conclusions import CONCLUSIONS, conclusions_of
from medfed.results.notes import data_label
from medfed.results.row import is_federated
from medfed.results.scores import ALL
from medfed.results.statistics import AVERAGE, MIN_SEEDS, verdict_text
from medfed.results.text_tables import (
    TextTable,
    bullets,
    difference_text,
    interval,
    number,
    score_text,
    text_table,
    to_latex,
    to_markdown,
    to_terminal,
    with_marks,
)
from medfed.tasks.scoring import FAILURES

WIDTH = 110  # of text in a terminal
MAX_ROWS = 15  # of a table in a terminal
MAX_MISSING = 5  # sentences about runs that are not finished
ROLES = {"unseen": "unseen sites", "validation": "validation sites", "seen": "own test"}
Block = tuple[str, str, str, str]  # structure, metric, unit, role
EXPLANATIONS = (
    "[ ]: 95 % interval over patients (Student t; for a score with two limits, such as Dice, on the logit scale). It "
    "is about new patients of these sites, scored by these trained models, and too narrow if there are rare failures "
    "that no patient here shows.",
    "±: standard deviation over seeds.",
    "difference: over the patients and runs that both rows have; each patient is averaged over images and seeds first.",
    "p: two-sided Wilcoxon signed-rank test over n patients, corrected by Holm's method for the methods of a table "
    "(averages apart from single sites), not for the number of metrics.",
    "better or worse: the corrected p is below 0.05, the interval of the average difference is on one side of 0, and "
    f"the ranks of the test and all seeds have its sign (with fewer than {MIN_SEEDS} seeds, the verdict has their "
    "number). A method that is worse than the baseline of less effort is never better. In brackets after 'not "
    "decided': the condition that does not hold although the interval excludes 0.",
    "over seeds: 95 % interval of the mean of the seeds' differences (Student t). detectable: the smallest true "
    "difference that this comparison finds with a probability of 80 %.",
    "rank: by the average, among the compared methods and the baseline.",
    "failures: patients for whom a segmentation failed; [ ]: exact binomial 95 % interval (Clopper and Pearson).",
    "pooled: one model, trained on the images of all source sites in one place. local: one model of each source site "
    "alone; a score is the mean over these models. Neither is federated, ranked or tested.",
    "gain from joining: method minus local; cost of not pooling: pooled minus method; own test: test patients of the "
    "sites that train.",
    "-: not run, not all cases of the site have this unit, no image shows the structure, or the metric is undefined, "
    "such as AUROC with one class; there is no average then. There is no p if fewer than six patients differ.",
    "no verdict: a model of the row or of its baseline did not learn.",
    "bold and underlined: the best and the second best of the ranked rows; references are not ranked.",
)


def first_screen(comparison: Comparison, colours: bool = False) -> str:
    """The main table of each structure, what joining gives, and the conclusions, which come last."""
    parts = [_head(comparison)]
    main = comparison.shown[0]
    for role in ("unseen", "validation"):
        structures = [name for name in comparison.structures if _blocks(comparison, role, name, main)]
        parts += [to_terminal(main_table(comparison, structure, role), colours) for structure in structures]
    parts += [to_terminal(table) for table in _joining_tables(comparison)]
    lines = notes_and_conclusions(comparison)
    wrapped = [textwrap.fill(line, WIDTH, initial_indent="- ", subsequent_indent="  ") for line in lines]
    return "\n\n".join([*parts, *["\n".join([CONCLUSIONS, *wrapped])] * bool(lines)])


def _head(comparison: Comparison) -> str:
    """The first line of every output: whether the images are synthetic, the seeds, and the rule of the round."""
    seeds = f"seed{'s' * (len(comparison.seeds) > 1)} {', '.join(map(str, comparison.seeds))}"
    return f"{data_label(comparison.data)}; {seeds}; round by the rule '{comparison.selection}'"


def notes_and_conclusions(comparison: Comparison) -> list[str]:
    """Sentences that are always shown: missing runs, notes about the runs, and the conclusions."""
    missing = [f"not run: {text}" for text in comparison.missing]
    if len(missing) > MAX_MISSING:
        missing = [*missing[:MAX_MISSING], f"not run: {len(missing) - MAX_MISSING} more, listed in table.json"]
    return [" ".join(line.split()) for line in (*missing, *comparison.notes, *conclusions_of(comparison))]


def explanations(comparison: Comparison) -> list[str]:
    """What the columns and marks mean, and the definitions of the metrics."""
    return [*EXPLANATIONS, *filter(None, (comparison.metrics[name].note for name in comparison.shown))]


def full_tables(comparison: Comparison) -> list[TextTable]:
    """Scores, differences and failures of each structure and metric, and what joining gives at the own test."""
    tables = []
    for role in ("unseen", "validation"):
        for structure in comparison.structures:
            for name in comparison.shown:
                for block in _blocks(comparison, role, structure, name):
                    tables += [_score_table(comparison, block), *_difference_tables(comparison, block)]
            tables += _failure_tables(comparison, role, structure)
    for structure in comparison.structures:
        for block in _blocks(comparison, "seen", structure, comparison.shown[0]):
            tables += _difference_tables(comparison, block, (GAIN, COST))
    return tables


def score_tables(comparison: Comparison, role: str, structure: str, metric: str) -> list[TextTable]:
    """The scores in a metric at the sites of a role, one table for each unit."""
    return [_score_table(comparison, block) for block in _blocks(comparison, role, structure, metric)]


def to_markdown_file(comparison: Comparison, more: Sequence[TextTable] = (), notes: Sequence[str] = ()) -> str:
    """The content of `table.md`; `more` are tables after those of scores, `notes` the sentences below them."""
    lines = notes_and_conclusions(comparison)
    parts = [f"**{_head(comparison)}**", *[f"### {CONCLUSIONS}", bullets(lines)] * bool(lines)]
    parts += [to_markdown(table) for table in (*full_tables(comparison), *more)]
    parts += [bullets(notes)] * bool(notes)
    return "\n\n".join([*parts, "### Explanations", bullets(explanations(comparison))]) + "\n"


def to_latex_file(comparison: Comparison) -> str:
    """The content of `table.tex`: conclusions and notes as comments above the tables."""
    lines = [f"% {line}" for line in (_head(comparison), *notes_and_conclusions(comparison))]
    label = data_label(comparison.data)
    return "\n\n".join(["\n".join(lines), *(to_latex(table, label) for table in full_tables(comparison))]) + "\n"


def to_json_file(comparison: Comparison) -> str:
    """The content of `table.json`: scores and differences as lists of objects, with the conclusions and notes."""
    scores, differences = (
        json.loads(as_file(table).to_json(orient="records", double_precision=15))
        for table in (comparison.scores, comparison.differences)
    )
    content = {
        "data": comparison.data,
        "selection": comparison.selection,
        "baseline": comparison.baseline,
        "seeds": list(comparison.seeds),
        "scores": scores,
        "differences": differences,
        "not_run": list(comparison.missing),
        "did_not_learn": list(comparison.not_learned),
        "conclusions": conclusions_of(comparison),
        "notes": list(comparison.notes),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def to_csv_file(table: pd.DataFrame, data: str) -> str:
    """The content of `table.csv` (scores) or `differences.csv`; the first column says whether images are synthetic."""
    table = as_file(table).assign(data=data)
    return table[["data", *table.columns[:-1]]].to_csv(index=False, lineterminator="\n")


def as_file(table: pd.DataFrame) -> pd.DataFrame:
    """Differences with the number of seeds in each verdict, and the differences of the seeds as text."""
    if "of_seeds" not in table:
        return table
    of_seeds = [" ".join(f"{value:+.6g}" for value in values) for values in table.of_seeds]
    return table.assign(verdict=[verdict_text(line) for line in table.itertuples()], of_seeds=of_seeds)


def _blocks(comparison: Comparison, role: str, structure: str, metric: str) -> list[Block]:
    """One block for each unit in which there are scores."""
    return [block for block in comparison.blocks if (*block[:2], block[3]) == (structure, metric, role)]


def _title(comparison: Comparison, block: Block, what: str = "") -> str:
    """For example "prostate: Dice (%), higher is better"."""
    structure, metric, unit = block[0], comparison.metrics[block[1]], block[2]
    name = metric.label if structure == ALL else f"{structure}: {metric.label}"
    better = "higher" if metric.higher_is_better else "lower"
    return f"{name}{f' ({unit})' * bool(unit)}{what}, {better} is better"


def _rows(comparison: Comparison, block: Block) -> dict[str, dict[str, Any]]:
    """The scores of a block by row and site; rows without any are empty, and the trivial prediction comes last."""
    rows: dict[str, dict[str, Any]] = {label: {} for label in comparison.rows}
    for line in comparison.blocks[block]:
        rows.setdefault(line.row, {})[line.site] = line
    return rows


def _sites(comparison: Comparison, role: str) -> tuple[list[str], list[str]]:
    """The sites of a role with the "average", and their titles; of a single site only this one."""
    sites = comparison.sites(role)
    return ([*sites, AVERAGE], [*sites, AVERAGE]) if len(sites) > 1 else ([AVERAGE], sites)


def main_table(comparison: Comparison, structure: str, role: str = "unseen") -> TextTable:
    """The main metric at the sites of a role with the differences, and the averages of other metrics."""
    first, *others = (_blocks(comparison, role, structure, name) for name in comparison.on_screen)
    metric, more = comparison.metrics[first[0][1]], [block for blocks in others for block in blocks]
    further = [_rows(comparison, block) for block in more]
    titles = [f"{comparison.metrics[name].label}{f' ({unit})' * bool(unit)}" for _, name, unit, _ in more]
    (*sites, _), (*heads, last) = _sites(comparison, role)
    scores = _rows(comparison, first[0])
    differences = {line.row: line for line in comparison.differences_of(first[0], ("effort", "method"), [AVERAGE])}
    rows = []
    for label, lines in list(scores.items())[:MAX_ROWS]:
        means = [_mean(lines, site, metric) for site in sites]
        averages = [_mean(own.get(label, {}), AVERAGE, comparison.metrics[b[1]]) for own, b in zip(further, more)]
        cells = ["", "", ""]
        if own := differences.get(label):
            cells = [own.minus, difference_text(own, metric), verdict_text(own)]
        rows.append([_name(label), *means, score_text(lines.get(AVERAGE), metric), *averages, *cells])
    left_out = f"; {len(scores) - MAX_ROWS} more rows: table.md" * (len(scores) > MAX_ROWS)
    title = f"{_title(comparison, first[0])}; each column: {role} site{left_out}"
    return text_table(title, ["", *heads, last, *titles, "minus", "difference", "verdict"], rows)


def _score_table(comparison: Comparison, block: Block) -> TextTable:
    """The scores of a block at each site; the best is bold and the second underlined."""
    metric, (sites, heads) = comparison.metrics[block[1]], _sites(comparison, block[3])
    several, rows = len(sites) > 1, _rows(comparison, block)
    columns: list[list[Any]] = [[_name(label) for label in rows]]
    for site in sites:
        lines = [own.get(site) for own in rows.values()]
        values = [float("nan") if line is None else round(line.mean, metric.decimals) for line in lines]
        texts = [score_text(line, metric) for line in lines]
        columns.append(with_marks(texts, values, [label in comparison.compared for label in rows], metric))
    head = [ROLES[block[3]], *heads]
    if several:
        head += ["worst site", "rank"]
        columns.append([_worst(own, sites[:-1], metric) for own in rows.values()])
        columns.append([number(own[AVERAGE].rank if AVERAGE in own else None, 0) for own in rows.values()])
    return text_table(_title(comparison, block), head, list(zip(*columns)))


def _difference_tables(
    comparison: Comparison, block: Block, kinds: Sequence[str] = ("method", "effort", GAIN, COST)
) -> list[TextTable]:
    """The differences of these kinds in a block, with the test of those of the kind "method"."""
    metric, (sites, heads) = comparison.metrics[block[1]], _sites(comparison, block[3])
    pairs: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in comparison.differences_of(block, kinds, sites):
        pairs.setdefault((line.row, line.minus, line.kind), {})[line.site] = line
    rows = []
    for (label, minus, kind), own in pairs.items():
        average, test = own.get(AVERAGE), ["", "", "", ""]
        if average is not None and kind == "method":
            seeds = number(average.seeds_low, metric.decimals, "+")
            seeds += f" to {number(average.seeds_high, metric.decimals, '+')}" if seeds != "-" else ""
            p = "-" if pd.isna(average.n) else f"{_p(average.p_holm)} ({average.n:.0f})"
            test = [seeds, p, verdict_text(average), number(average.detectable, metric.decimals)]
        name = f"{label} - {minus}{f' ({kind})' * (kind in (GAIN, COST))}"
        rows.append([name, *(difference_text(own.get(site), metric) for site in sites), *test])
    head = [ROLES[block[3]], *heads, "over seeds", "p (n)", "verdict", "detectable"]
    in_points = (*block[:2], {"%": "points"}.get(block[2], block[2]), block[3])
    return [text_table(_title(comparison, in_points, ", differences"), head, rows)] * bool(rows)


def _failure_tables(comparison: Comparison, role: str, structure: str) -> list[TextTable]:
    """The shares of patients with a failure, in percent; kinds that no row has are left out."""
    tables, (sites, heads) = [], _sites(comparison, role)
    heads = [*heads[:-1], "all"] if len(heads) > 1 else heads
    for kind, title in FAILURES.items():
        for block in _blocks(comparison, role, structure, kind):
            if not any(line.mean for line in comparison.blocks[block]):
                continue
            rows = [
                [_name(label), *(_share(own.get(site)) for site in sites)]
                for label, own in _rows(comparison, block).items()
            ]
            name = f"{structure}: {title.format(comparison.dice_below)}, % of patients"
            tables.append(text_table(name, [ROLES[role], *heads], rows))
    return tables


def _joining_tables(comparison: Comparison) -> list[TextTable]:
    """Gain from joining and cost of not pooling in the main metric, one table; [] without `local` and `pooled`."""
    metric = comparison.metrics[comparison.shown[0]]
    texts: dict[str, dict[str, str]] = {}
    for block in [block for block in comparison.blocks if block[1] == metric.name]:
        for line in comparison.differences_of(block, (GAIN, COST), [AVERAGE]):
            name = f"{block[0]}: " * (len(comparison.structures) > 1) + f"{line.kind}, {line.row} - {line.minus}"
            name += " (did not learn)" * bool({line.row, line.minus} & {*comparison.not_learned})
            texts.setdefault(name, {})[block[3]] = difference_text(line, metric)
    rows = [[name, *(own.get(role, "-") for role in ("seen", "unseen"))] for name, own in texts.items()]
    return [text_table("", [f"{metric.label}, average over sites", "own test", "unseen"], rows)] * bool(rows)


def _mean(lines: Mapping[str, Any], site: str, metric: Metric) -> str:
    return number(lines[site].mean if site in lines else None, metric.decimals)


def _share(line: Any) -> str:
    return "-" if line is None else f"{line.mean:.0f}{interval(line.low, line.high, 0)}"


def _worst(lines: Mapping[str, Any], sites: Sequence[str], metric: Metric) -> str:
    if not sites or not {*sites} <= {*lines}:
        return "-"
    site = (min if metric.higher_is_better else max)(sites, key=lambda site: lines[site].mean)
    return f"{lines[site].mean:.{metric.decimals}f} ({site})"


def _name(label: str) -> str:
    return label if is_federated(label) or label.startswith(TRIVIAL) else f"{label} (not federated)"


def _p(p: float) -> str:
    return "-" if pd.isna(p) else "<0.001" if p < 0.001 else f"{p:.3f}"
