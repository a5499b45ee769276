"""The list of all tables and figures of the papers, as text for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from medfed.reproduction.commands import Command, commands_of
from medfed.reproduction.entries import PAPERS, Entry, load_paper, load_source

WIDTH = 116
STATES = {
    "runs": "the command makes it",
    "partly": "the command makes a part of it",
    "cannot": "it cannot be made",
}


def list_papers() -> str:
    """One line for each table and figure of each paper: name, state, datasets, title."""
    parts = []
    for name in PAPERS:
        paper = load_paper(name)
        rows = [(entry.name, entry.state, ", ".join(_datasets(entry)) or "-") for entry in paper.entries]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = _wrapped(f"{name}: {paper.citation}", "")
        for entry, row in zip(paper.entries, rows):
            start = "  ".join(f"{text:<{width}}" for text, width in zip(row, widths))
            lines += textwrap.wrap(
                entry.title, WIDTH, initial_indent=f"  {start}  ", subsequent_indent=" " * (len(start) + 4)
            )
        parts.append("\n".join(lines))
    states = ", ".join(f"{state}: {meaning}" for state, meaning in STATES.items())
    parts += [
        f"States: {states}.",
        "`python -m medfed.reproduce PAPER` prints the data, commands and differences of each table and figure.\n"
        "`python -m medfed.reproduce PAPER ENTRY` runs one; with --small in minutes, on few, small images.",
    ]
    return "\n\n".join(parts)


def describe_paper(name: str) -> str:
    paper = load_paper(name)
    entries = (describe_entry(name, entry, commands_of(entry)) for entry in paper.entries)
    head = ["\n".join(_wrapped(text, "")) for text in (f"{paper.title}: {paper.citation}", f"Read: {paper.read}")]
    return "\n\n".join([*head, *entries])


def describe_entry(name: str, entry: Entry, commands: Sequence[Command], numbers: bool = False) -> str:
    """What a table or figure needs, its commands, and how it differs from the paper; `numbers` adds the paper's
    numbers."""
    lines = [f"{name} {entry.name}: {entry.title} [{entry.state}]"]
    for dataset in _datasets(entry):
        source = load_source(dataset)
        lines += _wrapped(f"data {dataset}: {source.title}. {source.where}", "  ")
    for command in commands:
        lines += [f"  {command.part.name}: {command.to_text()}"]
    if entry.parts or entry.printed:
        lines.append(f"  numbers: {_readable(entry)}")
    lines += [line for text in entry.departs for line in _wrapped(f"departs: {text}", "  ")]
    lines += _wrapped(f"not made: {entry.missing}", "  ") if entry.missing else []
    if numbers:
        from medfed.reproduction.results import published_overall, published_table, published_text  # need torch

        lines += [f"\n{published_table(table)}" for table in entry.printed]
        lines += [f"\n{text}" for part in entry.parts if (text := published_text(part))]
        lines += [f"\n{published_overall(overall)}" for overall in entry.overall]
    return "\n".join(lines)


def _readable(entry: Entry) -> str:
    """Say whether the paper's numbers can be read."""
    if entry.printed:
        return "in the paper's text; --dry-run prints them"
    if any(part.cost_table or result.table for part in entry.parts for result in part.results):
        return "in the paper's text, and printed beside ours"
    has_scores = any(part.results for part in entry.parts)
    return "not legible in the paper's text" if has_scores else "none; compare the figures"


def _datasets(entry: Entry) -> list[str]:
    return list(dict.fromkeys(part.data for part in entry.parts))


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
