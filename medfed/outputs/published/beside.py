"""The numbers of a published table beside the scores of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from medfed.config.overrides import split
from medfed.outputs.published.tables import PublishedBlock, tables_of_data
from medfed.results.comparison import TRIVIAL, Comparison
from medfed.results.notes import PHANTOM
from medfed.results.statistics import AVERAGE
from medfed.results.text_tables import TextTable, bullets, number, text_table, to_markdown

WARNING = (
    "Do not rank numbers of different papers or protocols together, and do not rank them with the numbers of this "
    "comparison (ours): networks, data splits, numbers of rounds, and who ran the baselines differ."
)
PHANTOM_WARNING = (
    f"This comparison uses {PHANTOM.partition(':')[0]}: its numbers cannot be compared with any published number."
)
Scores = tuple[pd.DataFrame, pd.DataFrame]  # mean and standard deviation by method and column


def our_scores(comparison: Comparison, block: PublishedBlock) -> Scores | None:
    """Our scores in the columns of a block; None if no column has one. The average of a row with a varied setting is in
    the column KEY=VALUE of its method."""
    table = comparison.scores
    own = table[(table.structure == block.structure) & (table.metric == block.metric) & table.role.isin(block.roles)]
    own = own[~own.row.str.startswith(TRIVIAL)]
    parts = own.row.str.split(", ", n=1)
    setting = parts.str[1]  # NaN if none is varied
    is_shown = setting.isna() | (own.site == AVERAGE)
    own = own.assign(row=parts.str[0], site=own.site.where(setting.isna(), setting))[is_shown]
    columns = list(block.columns.values())
    if not set(columns) & set(own.site):
        return None
    scores = own.drop_duplicates(["row", "site"]).set_index(["row", "site"])[["mean", "sd"]].unstack()
    means, sds = (scores.loc[own.row.unique(), name].reindex(columns=columns) for name in ("mean", "sd"))
    return means, sds


def beside(block: PublishedBlock, ours: Scores | None = None, decimals: int = 2, who: str = "ours") -> TextTable:
    """The paper's numbers, ours (`our_scores`) below those of the same method, and our further methods at the end.

    Our average is shown only if each column has a number. A dagger (†) marks a printed average that is not the mean of
    its row.
    """
    lines = {}
    for label in ours[0].index if ours else ():
        mean, sd = (table.loc[label] for table in ours or ())
        cells = [number(value, decimals) + f" ± {sd:.{decimals}f}" * (sd == sd) for value, sd in zip(mean, sd)]
        lines[label] = [label, who, *cells, *[number(mean.mean(skipna=False), decimals)] * block.is_averaged]
    rows, shown = [], set()
    for row in block.rows:
        average = row.text(row.average) + "†" * (row.misprint is not None)
        rows.append([row.printed, "paper", *map(row.text, row.values), *[average] * block.is_averaged])
        if (label := match(row.method, list(lines))) is not None:
            rows.append(lines[label])
            shown.add(label)
    rows += [line for label, line in lines.items() if label not in shown]
    return text_table(block.heading, ["", "", *block.columns, *["average"] * block.is_averaged], rows, n_words=2)


def match(published: str, labels: Sequence[str]) -> str | None:
    """The label of our row that stands for a published row such as "ccst:style=overall,k=3"; None if there is none. It
    has the same methods and all settings of the published row, and the fewest further settings."""
    wanted = [_settings(text) for text in split(published, "+")]
    found: list[tuple[int, str]] = []
    for label in labels:
        own = [_settings(text) for text in split(label, "+")]
        names = [name for name, _ in own] == [name for name, _ in wanted]
        if names and all(few <= many for (_, few), (_, many) in zip(wanted, own)):
            found.append((sum(len(settings) for _, settings in own), label))
    return min(found)[1] if found else None


def _settings(text: str) -> tuple[str, frozenset[str]]:
    """Name and settings of a method, such as ("ccst", {"k=3"})."""
    name, _, written = text.partition(":")
    return name, frozenset(filter(None, split(written, ",")))


def beside_comparison(block: PublishedBlock, comparison: Comparison) -> TextTable:
    metric = comparison.metrics.get(block.metric)
    who = "ours, PHANTOM" if comparison.data == "phantom" else "ours"
    return beside(block, our_scores(comparison, block), metric.decimals if metric else 2, who)


def comparison_warnings(comparison: Comparison) -> list[str]:
    """Which numbers must not be ranked together."""
    return [WARNING, *[PHANTOM_WARNING] * (comparison.data == "phantom")]


def to_published_markdown(data: object, comparison: Comparison) -> str:
    """The Markdown section "As published" for a config's block `data`; "" without published tables."""
    tables = tables_of_data(data)
    parts = ["## As published", "  \n".join(comparison_warnings(comparison))]
    for table in tables:
        parts += [f"### {table.title}", bullets(table.facts)]
        for block in table.blocks:
            parts += [to_markdown(beside_comparison(block, comparison), 4), bullets(block.footnotes)]
    return "\n\n".join(filter(None, parts)) + "\n" if tables else ""
