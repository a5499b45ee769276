"""The numbers of a published table beside the scores of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from medfed.config.overrides import split
from medfed.outputs.published.tables import PublishedBlock, tables_of_data
from medfed.results.comparison import TRIVIAL, Comparison
from medfed.results.notes import PHANTOM
from medfed.results.statistics import AVERAGE
from medfed.results.text_tables import TextTable, number, text_table, to_markdown

WARNING = (
    "Do not rank numbers of different papers or protocols together, and do not rank them with the numbers of this "
    "comparison (ours): networks, data splits, numbers of rounds, and who ran the baselines differ."
)
PHANTOM_WARNING = (
    f"This comparison uses {PHANTOM.partition(':')[0]}: its numbers cannot be compared with any published number."
)


def our_scores(comparison: Comparison, block: PublishedBlock) -> pd.DataFrame:
    """Our scores in the metric of a block: `mean` and `sd` by method and site. The average of a row with a varied
    setting is that of its method at the "site" KEY=VALUE."""
    table = comparison.scores
    own = table[(table.structure == block.structure) & (table.metric == block.metric) & table.role.isin(block.roles)]
    own = own[~own.row.str.startswith(TRIVIAL)]
    parts = own.row.str.split(", ", n=1)
    setting = parts.str[1]  # NaN if none is varied
    own = own.assign(row=parts.str[0], site=own.site.where(setting.isna(), setting), average=own.site == AVERAGE)
    own = own[setting.isna() | own.average]
    return own.drop_duplicates(["row", "site"]).set_index(["row", "site"])[["mean", "sd"]]


def in_columns_of(block: PublishedBlock, scores: pd.DataFrame, method: str) -> pd.DataFrame:
    """The scores of one of our methods in the columns of a block; NaN where it has none."""
    return scores.loc[method].reindex(list(block.columns.values()))


def has_columns_of(block: PublishedBlock, scores: pd.DataFrame) -> bool:
    return bool(set(block.columns.values()) & set(scores.index.get_level_values("site")))


def beside(
    block: PublishedBlock, scores: pd.DataFrame | None = None, decimals: int = 2, who: str = "ours"
) -> TextTable:
    """The paper's numbers, ours (`our_scores`) below those of the same method, and our further methods at the end.

    Our average is shown only if each column has a number. Without our scores in any column, the paper's stand alone. A
    dagger (†) marks a printed average that is not the mean of its row.
    """
    scores = scores if scores is not None and has_columns_of(block, scores) else None
    labels = [] if scores is None else list(dict.fromkeys(scores.index.get_level_values("row")))
    ours = {}
    for label in labels:
        own = in_columns_of(block, scores, label)
        cells = [
            number(mean, decimals) + ("" if np.isnan(sd) else f" ± {sd:.{decimals}f}") for mean, sd in own.to_numpy()
        ]
        average = number(own["mean"].mean(skipna=False), decimals)
        ours[label] = [label, who, *cells, *[average] * block.is_averaged]
    rows, shown = [], set()
    for row in block.rows:
        average = row.text(row.average) + "†" * (row.misprint is not None)
        rows.append([row.printed, "paper", *map(row.text, row.values), *[average] * block.is_averaged])
        if (label := match(row.method, labels)) is not None:
            rows.append(ours[label])
            shown.add(label)
    rows += [ours[label] for label in labels if label not in shown]
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
        parts += [f"### {table.title}", _listed(table.facts)]
        for block in table.blocks:
            parts += [to_markdown(beside_comparison(block, comparison), 4)]
            parts += [_listed(block.footnotes)] * bool(block.footnotes)
    return "\n\n".join(parts) + "\n" if tables else ""


def _listed(notes: Sequence[str]) -> str:
    return "\n".join(f"- {note}" for note in notes)
