"""The section of a comparison that shows the tables which papers published about its dataset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from medfed.config import strict_yaml
from medfed.config.overrides import split
from medfed.outputs.published.tables import PublishedBlock, PublishedRow, PublishedTable, load_table, table_names
from medfed.outputs.tables.run_notes import PHANTOM

DATASETS = {  # name in the published tables of a config's dataset (for a phantom: of its real dataset)
    "prostate": "prostate MRI",
    "prostate_phantom": "prostate MRI",
    "fundus": "fundus, optic disc and cup",
    "fundus_phantom": "fundus, optic disc and cup",
    "camelyon17": "Camelyon17",
    "camelyon17_phantom": "Camelyon17",
    "pacs": "PACS",
    "officehome": "OfficeHome",
    "vlcs": "VLCS",
    "digits_dg": "Digits-DG",
}
FOLDERS = {  # the same for `folder`, by the last folder of `data.root` (lower-case letters and digits only)
    "pacs": "PACS",
    "officehome": "OfficeHome",
    "vlcs": "VLCS",
    "digitsdg": "Digits-DG",
    "domainnet": "DomainNet",
    "iwildcam": "IWildCam",
}
WARNING = (
    "Do not rank numbers of different papers or protocols together, and do not rank them with the numbers of this "
    "comparison: networks, data splits, numbers of rounds, and who ran the baselines differ."
)
PHANTOM_WARNING = (
    f"This comparison uses {PHANTOM.partition(':')[0]}: its numbers cannot be compared with any published number."
)
ALSO_RUN_HERE = " (also run here)"


@dataclass(frozen=True)
class CompletedRun:
    """Method and settings of one run of a comparison, to find published results of the same method and settings."""

    name: str
    changes: tuple[str, ...]  # dotted keys, such as `method.k`, that differ from the comparison's config
    settings: Mapping[str, Any]  # all values of the config's block `method`
    unseen_scores: Mapping[str, Any] = field(default_factory=dict)  # the entry "unseen" of `summary.json`

    def matches(self, row: PublishedRow) -> bool:
        """Whether the run has the row's method and settings, and no other difference from the comparison's config."""
        name, _, written = row.method.partition(":")
        wanted = dict(setting.split("=", 1) for setting in split(written, ",") if setting)
        same = all(
            key in self.settings and self.settings[key] == strict_yaml.parse(value, row.method)
            for key, value in wanted.items()
        )
        return name == self.name and same and set(self.changes) <= {f"method.{key}" for key in wanted}


def published_name_of(data: Mapping[str, Any]) -> str | None:
    """The name of a config's data in the published tables, such as "prostate MRI", also for its phantom; None without
    one."""
    if data.get("name") == "folder":
        return FOLDERS.get(re.sub("[^a-z0-9]", "", Path(str(data.get("root", ""))).name.lower()))
    return DATASETS.get(str(data.get("name")))


def tables_of_dataset(dataset: str | None) -> list[PublishedTable]:
    """The published tables with results on a dataset (`published_name_of`), without their results on other datasets."""
    tables = []
    for table in map(load_table, table_names()) if dataset else ():
        blocks = tuple(block for block in table.blocks if block.dataset == dataset)
        if blocks:
            tables.append(replace(table, blocks=blocks))
    return tables


def comparison_warnings(data: str) -> tuple[str, ...]:
    """Which numbers must not be ranked together; "phantom" (synthetic images) adds a second warning."""
    return (WARNING, PHANTOM_WARNING) if data == "phantom" else (WARNING,)


def table_facts(table: PublishedTable) -> tuple[str, ...]:
    """Citation, network, data split, who ran the compared methods, and notes."""
    return (
        table.citation,
        f"network: {table.backbone}",
        f"split: {table.split}",
        f"who ran it: {table.baselines}",
        *table.notes,
    )


def block_title(block: PublishedBlock) -> str:
    """For example "Disc Dice (%), higher is better; each column: unseen site"."""
    part = f", {block.part}" if block.part and block.part not in block.title.lower() else ""
    metric = "" if block.metric.lower() in block.title.lower().split() else f"{block.metric} "
    measured = f" ({metric}{block.unit})" if metric or block.unit else ""
    return f"{block.title}{part}{measured}, {block.direction} is better; each column: {block.column}"


def block_rows(table: PublishedTable, block: PublishedBlock, runs: Iterable[CompletedRun]) -> list[list[str]]:
    """A block of a published table as rows of text: a header, then one row for each method ("-" for a missing number).
    "(also run here)" marks a method that a run has, a dagger (†) a printed average that is not the mean of its row."""
    runs, misprinted = list(runs), {misprint.method for misprint in table.misprints if misprint.block == block.title}
    averaged = any(row.average is not None for row in block.rows)
    rows = [["method", "printed as", *block.columns, *["average"] * averaged]]
    for row in block.rows:
        here = ALSO_RUN_HERE if any(run.matches(row) for run in runs) else ""
        mark = "†" if row.method in misprinted else ""
        average = row.text(row.average) + mark
        values = [row.text(value) for value in row.values]
        rows.append([row.method + here, row.printed, *values, *[average] * averaged])
    return rows


def footnotes(table: PublishedTable, block: PublishedBlock, runs: Iterable[CompletedRun] = ()) -> tuple[str, ...]:
    """The averages that are not the mean of their row, the long names of the columns, and this comparison's scores."""
    printed = {row.method: row.printed for row in block.rows}
    notes = [
        f"† {printed[wrong.method]}: the printed average is {wrong.printed:.2f}, but the row's mean is {wrong.mean:.2f}"
        for wrong in table.misprints
        if wrong.block == block.title
    ]
    if block.legend:
        notes.append(", ".join(f"{short}: {name}" for short, name in block.legend.items()))
    return (*notes, *_scores_here(block, list(runs)))


def _scores_here(block: PublishedBlock, runs: Sequence[CompletedRun]) -> Iterator[str]:
    """This comparison's means at the unseen sites in the definition of the block, one text for each method."""
    if not block.measured_as or not runs:
        return
    means: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        of_method = means.setdefault(", ".join((run.name, *run.changes)), {})
        for site, of_site in run.unseen_scores.get("sites", {}).items():
            mean = of_site.get(block.structure, {}).get(block.measured_as, {}).get("mean")
            if mean is not None:
                of_method.setdefault(site, []).append(mean)
    for method, of_method in means.items():
        if of_method:
            listed = ", ".join(f"{site} {fmean(values):.2f}" for site, values in sorted(of_method.items()))
            yield f"{method} in this comparison, `{block.measured_as}`: {listed}"
    if not any(means.values()):
        yield f"evaluation.also_on: prepared adds this comparison's {block.metric} in the same definition"


def to_published_markdown(data: Mapping[str, Any], kind: str, runs: Sequence[CompletedRun]) -> str:
    """The Markdown section "As published"; "" without published tables. `kind` "phantom" adds a second warning."""
    tables = tables_of_dataset(published_name_of(data))
    parts = ["", "## As published", "  \n".join(comparison_warnings(kind))]
    for table in tables:
        parts += [f"### {table.paper}, Table {table.table}", _listed(table_facts(table))]
        for block in table.blocks:
            head, *rows = block_rows(table, block, runs)
            ruled = [head, ["---", "---", *["---:"] * (len(head) - 2)], *rows]
            parts += [f"#### {block_title(block)}", "\n".join(f"| {' | '.join(line)} |" for line in ruled)]
            parts += filter(None, [_listed(footnotes(table, block, runs))])
    return "\n\n".join(parts)[1:] + "\n" if tables else ""


def _listed(notes: Iterable[str]) -> str:
    return "\n".join(f"- {note}" for note in notes)
