"""Our scores beside the numbers that the paper printed, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from medfed.api import Comparison
from medfed.outputs.published.section import block_title as published_title
from medfed.outputs.published.section import footnotes
from medfed.outputs.published.tables import PublishedBlock, PublishedTable, load_table
from medfed.outputs.tables.comparison_data import Table
from medfed.outputs.tables.cost import NOTE, cost_rows
from medfed.outputs.tables.table import align_columns
from medfed.outputs.tables.table_rows import block_title
from medfed.reproduction.commands import Command
from medfed.reproduction.entries import Entry, Overall, Part, Result, load_source
from medfed.reproduction.rows import Rows, Scores, mean_scores, our_rows, paired_rows, paper_rows
from medfed.reproduction.trivial import Trivial, baseline_score, planned_sites, trivial_scores


@dataclass(frozen=True)
class Outcome:
    """The finished comparison of one part of an entry."""

    command: Command
    comparison: Comparison

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables of scores by the role of their sites: "unseen", and "validation" if two sites are left out."""
        both = {"unseen": self.comparison.tables.unseen, "validation": self.comparison.tables.validation}
        return {role: table for role, table in both.items() if table is not None}

    @cached_property
    def trivial(self) -> dict[str, dict[str, Trivial]]:
        """The score of the best trivial predictor for each role of the sites and each structure."""
        return trivial_scores(self.comparison, tuple(self.tables))

    def no_result(self, structure: str, roles: Sequence[str] = ("unseen",)) -> str:
        """Why the scores of a structure are no result; "" if FedAvg is above the trivial predictor. Both are compared
        at all planned sites of a role; roles that no site of the comparison has are left out."""
        for role in (role for role in roles if role in self.tables):
            sites = planned_sites(self.comparison, role)
            baseline = baseline_score(self.tables[role], structure, sites)
            if baseline is None:
                return f"no result: FedAvg has not finished (it needs a score at {', '.join(sites)})"
            metric, score = baseline
            if score <= (trivial := self.trivial[role][structure]).score:
                return (
                    f"no result: FedAvg reaches {score:.2f} % {metric}, and a trivial predictor "
                    f"({trivial.name}) {trivial.score:.2f} %; train longer or on more images"
                )
        return ""

    def to_text(self) -> str:
        """The scores of the part, each beside the paper's number, and the files with more."""
        parts = [result_text(self, result) for result in self.command.part.results]
        if self.command.part.costs:
            parts.append(f"cost, ours\n{_aligned(cost_rows(self.comparison.tables.costs))}\n  note: {NOTE}")
            parts += _published_costs(self.command.part)
        files = [run.folder / "figures" / name for run in self.comparison.runs for name in self.command.part.figures]
        if drawn := [path for path in files if path.is_file()]:
            parts.append("figures\n" + "\n".join(f"  {path}" for path in drawn))
        absent = [name for name in self.command.part.figures if name not in {path.name for path in drawn}]
        parts += [f"figures: no run has written {name}" for name in absent]
        parts += [f"failed: {name}: {why}" for name, why in self.comparison.failed.items()]
        return "\n\n".join(parts)


def published_text(part: Part) -> str:
    """The paper's numbers for all results of a part; "" if none can be read."""
    scores = [_paper_alone(*_published(result)) for result in part.results if result.table]
    return "\n\n".join([*scores, *_published_costs(part)])


def published_table(name: str) -> str:
    """The paper's numbers of all blocks of a table, such as "fisc_table_3"."""
    table = load_table(name)
    return "\n\n".join(_paper_alone(table, block) for block in table.blocks)


def result_text(outcome: Outcome, result: Result) -> str:
    """One block of scores: ours, beside the paper's where its columns are the same sites or settings. If the block is
    of validation sites and the runs have none, the text says so and has the paper's numbers alone."""
    table, block = _published(result) if result.table else (None, None)
    tables = [outcome.tables[role] for role in result.roles if role in outcome.tables]
    alone = [_paper_alone(table, block)] if table and block else []
    if not tables:
        return "\n\n".join([f"{result.structure} {result.metric}: these runs have no validation site", *alone])
    scores = Scores.of(tables, result.structure, result.metric)
    reason = outcome.no_result(result.structure, result.roles)
    columns = result.columns or load_source(outcome.command.part.data).columns
    same_columns = block is not None and all(name in columns for name in block.columns)
    if scores and table and block and same_columns and not reason and not outcome.command.stand_in:
        return f"{published_title(block)}\n{_aligned(paired_rows(block, scores, columns), 2)}{_footnotes(table, block)}"
    if scores is None:
        parts = [f"{result.structure} {result.metric}: these runs have no such score"]
    else:
        title = "validation sites, " * (result.at == "validation") + block_title(scores.parts[0][1])
        parts = [f"{title}: {reason}" if reason else f"{title}\n{_aligned(our_rows(scores))}"]
    return "\n\n".join([*parts, *alone])


def overall_text(entry: Entry, outcomes: Sequence[Outcome], overall: Overall) -> str:
    """The mean of several averages: ours beside the paper's, or the paper's alone with the reason for that."""
    table = load_table(overall.table)
    block, alone = table.block(overall.block), published_overall(overall)
    if absent := [part.name for part in entry.parts if part not in [outcome.command.part for outcome in outcomes]]:
        return f"no mean of ours: {', '.join(absent)} was not run\n\n{alone}"
    found = []
    for outcome in outcomes:
        sites = set(load_source(outcome.command.part.data).columns.values())
        if not sites <= set(outcome.comparison.tables.unseen.sites):
            return f"no mean of ours: {outcome.command.part.name} was not run at all sites of the paper\n\n{alone}"
        for structure in overall.structures:
            scores = Scores.of([outcome.tables["unseen"]], structure, overall.metric)
            if scores is None or outcome.no_result(structure):
                return f"no mean of ours: {outcome.command.part.name} has no result\n\n{alone}"
            found.append(scores)
    rows = paired_rows(block, mean_scores(found), dict.fromkeys(block.columns, "mean"))
    return f"{published_title(block)}\n{_aligned(rows, 2)}{_footnotes(table, block)}"


def published_overall(overall: Overall) -> str:
    """The paper's numbers of a block of means."""
    table = load_table(overall.table)
    return _paper_alone(table, table.block(overall.block))


def _published_costs(part: Part) -> list[str]:
    """The paper's times and bytes, one text for each block; empty if it has none."""
    table = load_table(part.cost_table) if part.cost_table else None
    return [_paper_alone(table, block) for block in table.blocks if block.unit != "%"] if table else []


def _published(result: Result) -> tuple[PublishedTable, PublishedBlock]:
    """The paper's table and the block in it that belong to a result."""
    table = load_table(result.table)
    return table, table.block(result.block)


def _paper_alone(table: PublishedTable, block: PublishedBlock) -> str:
    """The paper's numbers of a block with its notes."""
    return f"{published_title(block)}, as printed\n{_aligned(paper_rows(block))}{_footnotes(table, block)}"


def _aligned(rows: Rows, n_left: int = 1) -> str:
    return align_columns([[(text, "") for text in row] for row in rows], False, n_left)


def _footnotes(table: PublishedTable, block: PublishedBlock) -> str:
    return "".join(f"\n  {note}" for note in footnotes(table, block))
