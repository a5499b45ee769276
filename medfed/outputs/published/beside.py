"""The numbers of a published table beside the scores of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def our_rows(comparison: Comparison, block: PublishedBlock) -> dict[str, list[str]]:
    """Our scores in the columns of a block as texts, by method; empty if no column has one.

    The average of a row with a varied setting is in the column KEY=VALUE of its method.
    """
    table = comparison.scores
    own = table[(table.structure == block.structure) & (table.metric == block.metric) & table.role.isin(block.roles)]
    own = own[~own.row.str.startswith(TRIVIAL)]
    parts = own.row.str.split(", ", n=1)
    setting = parts.str[1]  # NaN if none is varied
    is_shown = setting.isna() | (own.site == AVERAGE)
    own = own.assign(row=parts.str[0], site=own.site.where(setting.isna(), setting))[is_shown]
    columns = list(block.columns.values())
    if not set(columns) & set(own.site):
        return {}
    metric = comparison.metrics.get(block.metric)
    digits = metric.decimals if metric else 2
    rows = {}
    for label, of_row in own.drop_duplicates(["row", "site"]).groupby("row", sort=False):
        scores = of_row.set_index("site")[["mean", "sd"]].reindex(columns)
        cells = [
            number(line.mean, digits) + f" ± {line.sd:.{digits}f}" * (line.sd == line.sd)
            for line in scores.itertuples()
        ]
        average = number(scores["mean"].mean(skipna=False), digits)
        rows[label] = [*cells, *[average] * block.is_averaged]
    return rows


def beside(block: PublishedBlock, ours: Mapping[str, Sequence[str]], who: str = "ours") -> TextTable:
    """The paper's numbers with ours (`our_rows`) below; a dagger marks a printed average that is not its row's mean."""
    rows, shown = [], set()
    for row in block.rows:
        average = row.text(row.average) + "†" * (row.misprint is not None)
        rows.append([row.printed, "paper", *map(row.text, row.values), *[average] * block.is_averaged])
        if (label := match(row.method, list(ours))) is not None:
            rows.append([label, who, *ours[label]])
            shown.add(label)
    rows += [[label, who, *cells] for label, cells in ours.items() if label not in shown]
    return text_table(block.heading, ["", "", *block.columns, *["average"] * block.is_averaged], rows, n_words=2)


def match(published: str, labels: Sequence[str]) -> str | None:
    """The label of our row with the methods and all settings of a published row, and the fewest others, or None."""
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


def to_published_markdown(data: object, comparison: Comparison) -> str:
    """The Markdown section "As published" for a config's block `data`; "" without published tables."""
    tables, is_phantom = tables_of_data(data), comparison.data == "phantom"
    parts = ["## As published", "  \n".join([WARNING, *[PHANTOM_WARNING] * is_phantom])]
    for table in tables:
        parts += [f"### {table.title}", bullets(table.details)]
        for block in table.blocks:
            rows = beside(block, our_rows(comparison, block), "ours" + ", PHANTOM" * is_phantom)
            parts += [to_markdown(rows, 4), bullets(block.footnotes)]
    return "\n\n".join(filter(None, parts)) + "\n" if tables else ""
