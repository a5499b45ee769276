"""The rows of a result: the paper's numbers, and ours in the same columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from medfed.config.overrides import split
from medfed.outputs.published.tables import PublishedBlock
from medfed.outputs.tables.comparison_data import Block, Cell, Line, Table

MISSING = "-"
Rows = list[list[str]]
_VARIED = re.compile(r"[\w.]+=.*")  # a column that is a varied value KEY=VALUE


@dataclass(frozen=True)
class Scores:
    """Our scores of one structure and metric: each table that has them, with the block of the scores."""

    parts: tuple[tuple[Table, Block], ...]

    @classmethod
    def of(cls, tables: Sequence[Table], structure: str, metric: str) -> Scores | None:
        """The scores in the tables of the unseen sites, the validation sites, or both; None without this structure and
        metric."""
        parts = tuple(
            (table, block)
            for table in tables
            for block in table.blocks
            if (block.structure, block.metric) == (structure, metric)
        )
        return cls(parts) if parts else None

    @property
    def decimals(self) -> int:
        return self.parts[0][1].decimals

    def labels(self) -> list[str]:
        """The methods of the comparison, without varied settings."""
        return list(dict.fromkeys(line.method.partition(", ")[0] for line in self.parts[0][1].lines))

    def cell(self, label: str, column: str) -> Cell | None:
        """`column` is a site; KEY=VALUE, for the average over sites with this value; or "average", over the sites."""
        varied, averaged = _VARIED.fullmatch(column) is not None, column == "average"
        name = f"{label}, {column}" if varied else label
        for table, block in self.parts:
            for line in block.lines:
                if line.method == name and (varied or averaged or column in table.sites):
                    return line.average if varied or averaged else line.cells[table.sites.index(column)]
        return None


def mean_scores(parts: Sequence[Scores]) -> Scores:
    """The mean of the averages of several scores in the same metric, as the only column, "mean"; None if one is
    unknown."""
    table, block = parts[0].parts[0]
    lines = []
    for label in parts[0].labels():
        cells = [scores.cell(label, "average") for scores in parts]
        known = [cell for cell in cells if cell]
        mean = Cell(sum(cell.mean for cell in known) / len(cells), None, known[0].n_seeds) if known else None
        lines.append(Line(label, (mean if len(known) == len(cells) else None,), None, 0, 0))
    return Scores(((replace(table, sites=("mean",)), replace(block, lines=tuple(lines))),))


def paper_rows(block: PublishedBlock) -> Rows:
    """The paper's numbers: a header row, then one row for each method."""
    averaged = _is_averaged(block)
    rows = [["paper", *block.columns, *["average"] * averaged]]
    for row in block.rows:
        rows.append([row.printed, *map(row.text, row.values), *[row.text(row.average)] * averaged])
    return rows


def our_rows(scores: Scores) -> Rows:
    """A header row, then one row for each method and varied value."""
    table, block = scores.parts[0]
    cells = {line.method: (*line.cells, line.average) for line in block.lines}
    lines = [[method, *(_text(cell, block.decimals) for cell in row)] for method, row in cells.items()]
    return [["ours", *table.sites, "average"], *lines]


def paired_rows(block: PublishedBlock, scores: Scores, columns: Mapping[str, str]) -> Rows:
    """Two rows for each method, the paper's numbers and ours below them, and our further methods at the end.

    `columns` gives our site or varied value KEY=VALUE for each column of the paper. Our average is shown only if each
    column has a number.
    """
    averaged, shown = _is_averaged(block), set()
    rows = [["", "", *block.columns, *["average"] * averaged]]
    for row, (name, *values) in zip(block.rows, paper_rows(block)[1:], strict=True):
        rows.append([name, "paper", *values])
        if (label := match(row.method, scores.labels())) is not None:
            shown.add(label)
            rows.append(["", "ours", *_our_values(block, scores, columns, label)])
    further = [label for label in scores.labels() if label not in shown]
    return rows + [[label, "ours", *_our_values(block, scores, columns, label)] for label in further]


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


def _is_averaged(block: PublishedBlock) -> bool:
    """Whether the paper's rows have an average."""
    return any(row.average is not None for row in block.rows)


def _our_values(block: PublishedBlock, scores: Scores, columns: Mapping[str, str], label: str) -> list[str]:
    """Our numbers of one method in the columns of the paper."""
    cells = [scores.cell(label, columns[name]) for name in block.columns]
    known = [cell.mean for cell in cells if cell]
    average = f"{sum(known) / len(known):.{scores.decimals}f}" if known and len(known) == len(cells) else MISSING
    return [*(_text(cell, scores.decimals) for cell in cells), *[average] * _is_averaged(block)]


def _text(cell: Cell | None, decimals: int) -> str:
    """Mean and standard deviation."""
    if cell is None:
        return MISSING
    return f"{cell.mean:.{decimals}f}" + (f" ± {cell.sd:.{decimals}f}" if cell.sd is not None else "")
