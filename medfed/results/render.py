"""A comparison as text: the first screen of a terminal, and the files `table.md`, `.tex`, `.csv` and `.json`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
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
    Cell,
    TextTable,
    interval,
    number,
    text_table,
    to_latex,
    to_markdown,
    to_terminal,
    with_marks,
)

WIDTH = 110  # of text in a terminal
MAX_ROWS = 15  # of a table in a terminal
MAX_MISSING = 5  # sentences about runs that are not finished
FAILURES = {"low_dice": "Dice < {}", "missed": "missed", "false_alarm": "false alarm"}
ROLES = {"unseen": "unseen sites", "validation": "validation sites", "seen": "own test"}
EXPLANATIONS = (
    "[ ]: 95 % interval over patients (Student t; for a score with two limits, such as Dice, on the logit scale). It "
    "is about new patients of these sites, scored by these trained models, and too narrow if there are rare failures "
    "that no patient here shows.",
    "±: standard deviation over seeds.",
    "difference: over the patients and runs that both rows have; each patient is averaged over images and seeds first.",
    "p: two-sided Wilcoxon signed-rank test over n patients, corrected by Holm's method for the methods of a table "
    "(averages apart from single sites), not for the number of metrics.",
    "better or worse: the corrected p is below 0.05, the interval of the average difference is on one side of 0, and "
    f"all seeds have its sign (with fewer than {MIN_SEEDS} seeds, the verdict has their number). A method that is "
    "worse than the baseline of less effort is never better.",
    "over seeds: 95 % interval of the mean of the seeds' differences (Student t). detectable: the smallest true "
    "difference that this comparison finds with a probability of 80 %.",
    "rank: by the average, among the compared methods and the baseline.",
    "failures: patients for whom a segmentation failed; [ ]: exact binomial 95 % interval (Clopper and Pearson).",
    "pooled: one model, trained on the images of all source sites in one place. local: one model of each source site "
    "alone; a score is the mean over these models. Neither is federated, ranked or tested.",
    "gain from joining: method minus local; cost of not pooling: pooled minus method; own test: test patients of the "
    "sites that train.",
    "-: not run, not all cases of the site have this unit, no image shows the structure, or the metric is undefined, "
    "such as AUROC with one class; there is no average and no verdict then.",
)


def block_title(metric: Metric, structure: str, unit: str) -> str:
    """For example "prostate: Dice (%), higher is better"."""
    name = metric.label if structure == ALL else f"{structure}: {metric.label}"
    return f"{name}{f' ({unit})' * bool(unit)}, {'higher' if metric.higher_is_better else 'lower'} is better"


def first_screen(comparison: Comparison, colours: bool = False) -> str:
    """The main table of each structure, what joining gives, and the conclusions, which come last."""
    parts = [_head(comparison)]
    main = comparison.shown[0]
    for role in ("unseen", "validation"):
        structures = [name for name in comparison.structures if _blocks(comparison, role, name, main)]
        parts += [to_terminal(main_table(comparison, structure, role), colours) for structure in structures]
    parts += [to_terminal(table) for table in joining_tables(comparison)]
    lines = notes_and_conclusions(comparison)
    bullets = [textwrap.fill(line, WIDTH, initial_indent="- ", subsequent_indent="  ") for line in lines]
    return "\n\n".join([*parts, *["\n".join([CONCLUSIONS, *bullets])] * bool(bullets)])


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


def main_table(comparison: Comparison, structure: str, role: str = "unseen") -> TextTable:
    """The main metric at the sites of a role with the differences, and the averages of other metrics."""
    first, *others = (comparison.metrics[name] for name in comparison.on_screen)
    block = _blocks(comparison, role, structure, first.name)[0]
    second = [b for metric in others for b in _blocks(comparison, role, structure, metric.name)]
    sites = comparison.sites(role)
    several = sites if len(sites) > 1 else []
    scores, *further = (comparison.blocks[one] for one in (block, *second))
    titles = [_heading(comparison, one) for one in second]
    head = ["", *several, "average" if several else sites[0], *titles, "minus", "difference", "verdict"]
    rows = []
    labels = _labels(comparison, block)
    for label in labels[:MAX_ROWS]:
        means = [number(_value(scores, label, site), first.decimals) for site in several]
        more = [
            number(_value(table, label, AVERAGE), comparison.metrics[b[1]].decimals)
            for table, b in zip(further, second)
        ]
        own, less = (_difference(comparison, block, label, AVERAGE, kind) for kind in ("method", "effort"))
        own = own or less
        difference = ["", "", ""] if own is None else [own.minus, _with_interval(own, first), verdict_text(own)]
        rows.append([_name(label), *means, _cell(scores, label, AVERAGE, first), *more, *difference])
    left_out = f"; {len(labels) - MAX_ROWS} more rows: table.md" * (len(labels) > MAX_ROWS)
    return text_table(f"{block_title(first, structure, block[2])}; each column: {role} site{left_out}", head, rows)


def joining_tables(comparison: Comparison) -> list[TextTable]:
    """Gain from joining and cost of not pooling in the main metric, one table; [] without `local` and `pooled`."""
    table = comparison.differences
    if table.empty or not table.kind.isin([GAIN, COST]).any():
        return []
    metric = comparison.metrics[comparison.shown[0]]
    own = table[table.kind.isin([GAIN, COST]) & (table.metric == metric.name) & (table.site == AVERAGE)]
    several = own.structure.nunique() > 1
    rows = []
    for (kind, row, minus, structure), group in own.groupby(["kind", "row", "minus", "structure"], sort=False):
        texts = {line.role: _with_interval(line, metric) for line in group.itertuples()}
        name = f"{structure}: " * several + f"{kind}, {row} - {minus}"
        name += " (did not learn)" * bool({row, minus} & set(comparison.not_learned))
        rows.append([name, *(texts.get(role, "-") for role in ("seen", "unseen"))])
    return [text_table("", [f"{metric.label}, average over sites", "own test", "unseen"], rows)]


def full_tables(comparison: Comparison) -> list[TextTable]:
    """Scores and differences of each structure and metric, then the failures, and joining at each site."""
    tables = []
    for role in ("unseen", "validation"):
        for structure in comparison.structures:
            for name in comparison.shown:
                for block in _blocks(comparison, role, structure, name):
                    tables += [_score_table(comparison, block), *_difference_tables(comparison, block)]
            tables += _failure_tables(comparison, role, structure)
    return tables + _joining_by_site(comparison)


def to_markdown_file(comparison: Comparison, more: Sequence[TextTable] = (), notes: Sequence[str] = ()) -> str:
    """The content of `table.md`; `more` are tables after those of scores, `notes` the sentences below them."""
    lines = notes_and_conclusions(comparison)
    parts = [f"**{_head(comparison)}**", *[f"### {CONCLUSIONS}", _listed(lines)] * bool(lines)]
    parts += [to_markdown(table) for table in (*full_tables(comparison), *more)]
    parts += [_listed(notes)] * bool(notes)
    return "\n\n".join([*parts, "### Explanations", _listed(explanations(comparison))]) + "\n"


def to_latex_file(comparison: Comparison) -> str:
    """The content of `table.tex`: conclusions and notes as comments above the tables."""
    lines = notes_and_conclusions(comparison)
    label = data_label(comparison.data)
    tables = [to_latex(table, label) for table in full_tables(comparison)]
    return "\n\n".join(["\n".join(f"% {line}" for line in (_head(comparison), *lines)), *tables]) + "\n"


def to_json_file(comparison: Comparison) -> str:
    """The content of `table.json`: scores and differences as lists of objects, with the conclusions and notes."""
    content = {
        "data": comparison.data,
        "selection": comparison.selection,
        "baseline": comparison.baseline,
        "seeds": list(comparison.seeds),
        "scores": json.loads(comparison.scores.to_json(orient="records", double_precision=15)),
        "differences": json.loads(as_file(comparison.differences).to_json(orient="records", double_precision=15)),
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


def score_tables(comparison: Comparison, role: str, structure: str, metric: str) -> list[TextTable]:
    """The scores in a metric at the sites of a role, one table for each unit."""
    return [_score_table(comparison, block) for block in _blocks(comparison, role, structure, metric)]


def _score_table(comparison: Comparison, block: tuple) -> TextTable:
    """The scores of a block at each site; the best is bold and the second underlined."""
    role, (structure, name, unit) = block[3], block[:3]
    metric, scores, sites = comparison.metrics[name], comparison.blocks[block], comparison.sites(role)
    several = len(sites) > 1
    columns = [*sites, *[AVERAGE] * several]
    head = [ROLES[role], *sites, *["average", "worst site", "rank"] * several]
    rows = []
    for label, cells in zip(_labels(comparison, block), _marked(comparison, scores, columns, metric, block)):
        more = [_worst(scores, label, sites, metric), number(_value(scores, label, AVERAGE, "rank"), 0)] * several
        rows.append([Cell(_name(label)), *cells, *map(Cell, more)])
    return text_table(block_title(metric, structure, unit), head, rows)


def _difference_tables(comparison: Comparison, block: tuple) -> list[TextTable]:
    """The differences of the compared methods in a block."""
    metric, sites = comparison.metrics[block[1]], comparison.sites(block[3])
    several = sites if len(sites) > 1 else []
    rows = []
    for label in comparison.rows:
        for kind in ("method", "effort"):
            own = {site: _difference(comparison, block, label, site, kind) for site in (*sites, AVERAGE)}
            average = own[AVERAGE]
            known = [difference for difference in own.values() if difference is not None]
            if not known:
                continue
            cells = ["-" if own[site] is None else _with_interval(own[site], metric) for site in (*several, AVERAGE)]
            test = ["", "", "", ""]
            if average is not None and kind == "method":
                seeds = number(average.seeds_low, metric.decimals, "+")
                seeds += f" to {number(average.seeds_high, metric.decimals, '+')}" if seeds != "-" else ""
                p = "-" if average.n != average.n else f"{_p(average.p_holm)} ({average.n:.0f})"
                test = [seeds, p, verdict_text(average), number(average.detectable, metric.decimals)]
            rows.append([f"{label} - {known[0].minus}", *cells, *test])
    if not rows:
        return []
    unit = {"%": "points"}.get(block[2], block[2])
    name = metric.label if block[0] == ALL else f"{block[0]}: {metric.label}"
    head = [
        ROLES[block[3]],
        *several,
        "average" if several else sites[0],
        "over seeds",
        "p (n)",
        "verdict",
        "detectable",
    ]
    better = "higher" if metric.higher_is_better else "lower"
    return [text_table(f"{name}{f' ({unit})' * bool(unit)}, differences, {better} is better", head, rows)]


def _failure_tables(comparison: Comparison, role: str, structure: str) -> list[TextTable]:
    """The shares of patients with a failure, in percent; kinds that no row has are left out."""
    tables = []
    table, sites = comparison.scores, comparison.sites(role)
    several = sites if len(sites) > 1 else []
    for kind, title in FAILURES.items():
        own = table[(table.role == role) & (table.structure == structure) & (table.metric == kind)]
        if not own["mean"].any():
            continue
        cells = {
            (line.row, line.site): f"{line.mean:.0f}{interval(line.low, line.high, 0)}" for line in own.itertuples()
        }
        rows = [
            [_name(label), *(cells.get((label, site), "-") for site in (*several, AVERAGE))]
            for label in comparison.rows
        ]
        tables.append(
            text_table(
                f"{structure}: {title.format(comparison.dice_below)}, % of patients",
                [ROLES[role], *several, "all" if several else sites[0]],
                rows,
            )
        )
    return tables


def _joining_by_site(comparison: Comparison) -> list[TextTable]:
    """Gain from joining and cost of not pooling at each site in the main metric."""
    table = comparison.differences
    if table.empty:
        return []
    metric, tables = comparison.metrics[comparison.shown[0]], []
    own = table[table.kind.isin([GAIN, COST]) & (table.metric == metric.name)]
    for (kind, role, structure), group in own.groupby(["kind", "role", "structure"], sort=False):
        sites = sorted(set(group.site) - {AVERAGE})
        several = sites if len(sites) > 1 else []
        cells = {(line.row, line.minus, line.site): _with_interval(line, metric) for line in group.itertuples()}
        names = list(dict.fromkeys((line.row, line.minus) for line in group.itertuples()))
        rows = [
            [f"{row} - {minus}", *(cells.get((row, minus, site), "-") for site in (*several, AVERAGE))]
            for row, minus in names
        ]
        name = metric.label if structure == ALL else f"{structure}: {metric.label}"
        tables.append(text_table(f"{name}, {kind}", [ROLES[role], *several, "average" if several else sites[0]], rows))
    return tables


def _blocks(comparison: Comparison, role: str, structure: str, metric: str) -> list[tuple]:
    """(structure, metric, unit, role) of each unit in which there are scores."""
    return [block for block in comparison.blocks if (*block[:2], block[3]) == (structure, metric, role)]


def _labels(comparison: Comparison, block: tuple) -> list[str]:
    """The rows of a block's table; the trivial prediction comes last."""
    found = comparison.blocks[block].index.get_level_values("row")
    return [*comparison.rows, *dict.fromkeys(label for label in found if label.startswith(TRIVIAL))]


def _marked(
    comparison: Comparison, scores: pd.DataFrame, columns: Sequence[str], metric: Metric, block: tuple
) -> list[list[Cell]]:
    """The cells of each row at some sites, with the marks of each column."""
    labels = _labels(comparison, block)
    competing = [label in comparison.compared for label in labels]
    marked = []
    for site in columns:
        values = [round(_value(scores, label, site), metric.decimals) for label in labels]
        texts = [_cell(scores, label, site, metric) for label in labels]
        marked.append(with_marks(texts, values, competing, metric.higher_is_better))
    return [list(cells) for cells in zip(*marked)]


def _cell(scores: pd.DataFrame, label: str, site: str, metric: Metric) -> str:
    if (label, site) not in scores.index:
        return "-"
    line = scores.loc[(label, site)]
    sd = "" if pd.isna(line.sd) else f" ± {line.sd:.{metric.decimals}f}"
    return f"{line['mean']:.{metric.decimals}f}{sd}{interval(line.low, line.high, max(0, metric.decimals - 1))}"


def _value(scores: pd.DataFrame, label: str, site: str, column: str = "mean") -> float:
    return float(scores[column].get((label, site), float("nan")))


def _worst(scores: pd.DataFrame, label: str, sites: Sequence[str], metric: Metric) -> str:
    values = {site: _value(scores, label, site) for site in sites}
    if any(value != value for value in values.values()):
        return "-"
    site = (min if metric.higher_is_better else max)(values, key=lambda site: values[site])
    return f"{values[site]:.{metric.decimals}f} ({site})"


def _difference(comparison: Comparison, block: tuple, label: str, site: str, kind: str = "method") -> Any:
    return comparison.difference_at.get((*block, label, site, kind))


def _with_interval(difference: Any, metric: Metric) -> str:
    text = number(difference.difference, metric.decimals, "+")
    return text + interval(difference.low, difference.high, metric.decimals)


def _heading(comparison: Comparison, block: tuple) -> str:
    label = comparison.metrics[block[1]].label
    return f"{label} ({block[2]})" if block[2] else label


def _name(label: str) -> str:
    return label if is_federated(label) or label.startswith(TRIVIAL) else f"{label} (not federated)"


def _p(p: float) -> str:
    return "-" if p != p else "<0.001" if p < 0.001 else f"{p:.3f}"


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
