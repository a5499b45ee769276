"""Run a table or figure of a paper: its comparisons, then our scores beside the numbers that the paper printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from medfed import api
from medfed.core.files import write_atomically
from medfed.experiments.resume import check_cache_folder
from medfed.outputs.published.beside import beside, our_rows
from medfed.outputs.published.tables import PublishedBlock
from medfed.outputs.tables.cost import NOTE, cost_rows
from medfed.reproduction.entries import Entry, Paper, Part
from medfed.results.comparison import Comparison as Tables
from medfed.results.notes import PHANTOM
from medfed.results.render import notes_and_conclusions, score_tables
from medfed.results.scores import ALL
from medfed.results.text_tables import text_table, to_terminal

SMALL = "SMALL RUN: few, small images and few rounds, to see that everything works; it says nothing about the paper"
RESULT = "result.txt"


def run_entry(
    paper: Paper,
    entry: Entry,
    parts: Sequence[Part],
    out: Path,
    *,
    small: bool = False,
    resume: bool = False,
    jobs: int | None = None,
    progress: bool = False,
    show: Callable[[str], None] = print,
) -> int:
    """Run a table or figure, write and show our scores beside the paper's; return the number of unfinished runs."""
    configs = [part.load() for part in parts]
    for config in configs:
        check_cache_folder(config.cache, config.data, out, config.source)
    texts, n_unfinished = list[str](), 0

    def add(*lines: str) -> None:
        texts.append("\n\n".join(filter(None, lines)))
        show(f"{texts[-1]}\n")

    add("\n".join([f"{paper.title}, {entry.heading}: {entry.title}", *[SMALL] * small]))
    for part, config in zip(parts, configs, strict=True):
        folder = out / (part.name + "-small" * small)
        comparison = api.compare(
            config,
            part.methods,
            folder,
            leave_two_out=bool(part.pairs),
            pairs=[pair.partition("/")[::2] for pair in part.pairs] or None,
            seeds=part.seeds,
            sites=list(part.sites) or None,
            vary=list(part.vary),
            resume=resume and folder.exists(),
            jobs=jobs,
            progress=progress,
            equal_effort=False,
        )
        n_unfinished += len(comparison.failed) + comparison.n_locked
        add(
            f"{part.name}: {part.command(folder)}",
            f"The images are {part.stand_in}." * bool(part.stand_in),
            PHANTOM * (comparison.tables.data == "phantom"),
            part_text(part, comparison),
            "\n".join(notes_and_conclusions(comparison.tables)),
        )
    departs = [f"departs from the paper: {text}" for text in entry.departs]
    missing = [f"not made: {entry.missing}"] * bool(entry.missing)
    add(*(paper_text(result.published()) for result in entry.printed), "\n".join([*departs, *missing]))
    write_atomically(out / RESULT, "\n\n".join(filter(None, texts)) + "\n")
    show(f"All files are in {out}; this text is {out / RESULT}.")
    return n_unfinished


def part_text(part: Part, comparison: api.Comparison) -> str:
    """The scores of a finished part, each beside the paper's number, and the files with more."""
    texts = [result_text(comparison.tables, result.published()) for result in part.results]
    if part.costs:
        head, *rows = cost_rows(comparison.costs)
        texts.append(f"{to_terminal(text_table('cost, ours', head, rows))}\n  note: {NOTE}")
    for name in part.figures:
        drawn = [path for run in comparison.runs if (path := run.folder / "figures" / name).is_file()]
        texts += [f"figure: {path}" for path in drawn] or [f"figure: no run has written {name}"]
    texts += [f"failed: {name}: {why}" for name, why in comparison.failed.items()]
    return "\n\n".join(texts)


def result_text(tables: Tables, block: PublishedBlock) -> str:
    """The numbers of a block, with ours in the same columns; ours apart if there are no such sites or settings."""
    own = [table for role in block.roles for table in score_tables(tables, role, block.structure, block.metric)]
    name = block.metric if block.structure == ALL else f"{block.structure} {block.metric}"
    if missing := [role for role in block.roles if not tables.sites(role)]:
        texts = [f"{name}: these runs have no {missing[0]} site"]
    elif not own:
        texts = [f"{name}: these runs have no such score"]
    elif ours := our_rows(tables, block):
        return paper_text(block, ours)
    else:
        texts = list(map(to_terminal, own))
    return "\n\n".join([*texts, *[paper_text(block)] * bool(block.rows)])


def paper_text(block: PublishedBlock, ours: Mapping[str, Sequence[str]] | None = None) -> str:
    """The paper's numbers of a block, with ours if there are any, and its notes."""
    return "\n".join([to_terminal(beside(block, ours or {})), *(f"  {note}" for note in block.footnotes)])


def printed_numbers(entry: Entry) -> list[str]:
    """The paper's numbers of all blocks of an entry."""
    results = [result for part in entry.parts for result in part.results if result.table]
    return [paper_text(result.published()) for result in (*results, *entry.printed)]
