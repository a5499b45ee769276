"""What papers printed about the data set of a comparison, to stand beside its own numbers and never among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from medfed.config import strict_yaml
from medfed.outputs.published.tables import PublishedBlock, PublishedRow, PublishedTable, load_table, table_names
from medfed.outputs.tables.comparison import PHANTOM

DATASETS = {  # the data set of a config, or the real twin of a phantom, as the published blocks call it
    "prostate": "prostate MRI",
    "prostate_phantom": "prostate MRI",
    "fundus": "fundus, optic disc and cup",
    "fundus_phantom": "fundus, optic disc and cup",
    "camelyon17": "Camelyon17",
    "camelyon17_phantom": "Camelyon17",
}
FOLDERS = {  # the last folder of `data.root`, small letters and digits alone, of `folder_classes`
    "pacs": "PACS",
    "officehome": "OfficeHome",
    "vlcs": "VLCS",
    "digitsdg": "Digits-DG",
    "iwildcam": "IWildCam",
}
WARNING = (
    "Numbers of different papers or protocols (network, split, rounds, who ran the baselines) are not to be ranked "
    "together, nor with those of this comparison."
)
PHANTOM_WARNING = (
    f"This comparison is of {PHANTOM.partition(':')[0]}: its numbers cannot be compared with any of these."
)
ALSO_RUN_HERE = " (also run here)"


@dataclass(frozen=True)
class CompletedRun:
    """What was run, to be found again among the published rows.

    name: of the method in the config.
    changes: dotted keys that were set for its row, beside the config that all rows share.
    settings: every value of the config's `method`.
    """

    name: str
    changes: tuple[str, ...]
    settings: Mapping[str, Any]

    def matches(self, row: PublishedRow) -> bool:
        """Whether it has the settings that a published row names, and was changed in no other."""
        name, _, written = row.method.partition(":")
        wanted = dict(setting.split("=", 1) for setting in written.split(",") if setting)
        same = all(
            key in self.settings and self.settings[key] == strict_yaml.parse(value, row.method)
            for key, value in wanted.items()
        )
        return name == self.name and same and set(self.changes) <= {f"method.{key}" for key in wanted}


def published_name_of(data: Mapping[str, Any]) -> str | None:
    """The name that published blocks have for a config's `data`; None if no paper's tables are known to be of it."""
    if data.get("name") == "folder_classes":
        return FOLDERS.get(re.sub("[^a-z0-9]", "", Path(str(data.get("root", ""))).name.lower()))
    return DATASETS.get(str(data.get("name")))


def tables_of_dataset(dataset: str | None) -> list[PublishedTable]:
    """The tables that have blocks of a data set, with these blocks alone."""
    found = []
    for table in map(load_table, table_names()) if dataset else ():
        blocks = tuple(block for block in table.blocks if block.dataset == dataset)
        if blocks:
            found.append(replace(table, blocks=blocks))
    return found


def comparison_warnings(data: str) -> tuple[str, ...]:
    """What stands above the tables; `data` is "phantom" or "real"."""
    return (WARNING, PHANTOM_WARNING) if data == "phantom" else (WARNING,)


def table_facts(table: PublishedTable) -> tuple[str, ...]:
    """Where a table is from, and how its numbers came about."""
    return (table.citation, f"network: {table.backbone}", f"split: {table.split}", f"who ran it: {table.baselines}",
            *table.notes)  # fmt: skip


def block_title(block: PublishedBlock) -> str:
    """The block's title, unit and direction, and what a column is."""
    part = f", {block.part}" if block.part and block.part not in block.title.lower() else ""
    metric = "" if block.metric.lower() in block.title.lower().split() else f"{block.metric} "
    return f"{block.title}{part} ({metric}{block.unit}), {block.direction} is better; a column: {block.column}"


def block_rows(table: PublishedTable, block: PublishedBlock, ran: Iterable[CompletedRun]) -> list[list[str]]:
    """Head and rows as text; a row that was also run says so, and a misprinted average has a mark."""
    ran, wrong = list(ran), {misprint.method for misprint in table.misprints if misprint.block == block.title}
    averaged = any(row.average is not None for row in block.rows)
    found = [["method", "printed as", *block.columns, *["average"] * averaged]]
    for row in block.rows:
        here = ALSO_RUN_HERE if any(one.matches(row) for one in ran) else ""
        mark = "†" if row.method in wrong else ""
        average = "-" if row.average is None else _printed(row.average, row) + mark
        values = [_printed(value, row) for value in row.values]
        found.append([row.method + here, row.printed, *values, *[average] * averaged])
    return found


def footnotes(table: PublishedTable, block: PublishedBlock) -> tuple[str, ...]:
    """Misprinted averages, and the long names of columns."""
    printed = {row.method: row.printed for row in block.rows}
    notes = [f"† {printed[wrong.method]}: printed {wrong.printed:.2f}, but the mean of the row is {wrong.mean:.2f}"
             for wrong in table.misprints if wrong.block == block.title]  # fmt: skip
    if block.legend:
        notes.append(", ".join(f"{short}: {name}" for short, name in block.legend.items()))
    return tuple(notes)


def to_published_markdown(data: Mapping[str, Any], kind: str, ran: Sequence[CompletedRun]) -> str:
    """The section "As published", with an empty line before it; nothing where no table is known.

    Args:
        data: the config's `data`.
        kind: "phantom" or "real".
        ran: what the comparison ran.
    """
    tables = tables_of_dataset(published_name_of(data))
    parts = ["", "## As published", "  \n".join(comparison_warnings(kind))]
    for table in tables:
        parts += [f"### {table.paper}, Table {table.table}", _listed(table_facts(table))]
        for block in table.blocks:
            head, *rows = block_rows(table, block, ran)
            ruled = [head, ["---", "---", *["---:"] * (len(head) - 2)], *rows]
            parts += [f"#### {block_title(block)}", "\n".join(f"| {' | '.join(line)} |" for line in ruled)]
            parts += filter(None, [_listed(footnotes(table, block))])
    return "\n\n".join(parts)[1:] + "\n" if tables else ""


def _listed(notes: Iterable[str]) -> str:
    return "\n".join(f"- {note}" for note in notes)


def _printed(value: float, row: PublishedRow) -> str:
    return f"{value:.{1 if row.rounded_to == 0.1 else 2}f}"
