"""The list of all tables and figures of the papers, as text for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from medfed.reproduction.entries import PAPERS, Entry, Part, commands_of, load_paper
from medfed.results.text_tables import text_table, to_terminal

WIDTH = 116
NOTE = """\
States: runs: the command makes it, partly: the command makes a part of it, cannot: it cannot be made.

`python -m medfed.reproduce PAPER` prints the data, commands and differences of each table and figure.
`python -m medfed.reproduce PAPER ENTRY` runs one; with --small in minutes, on few, small images."""


def list_papers() -> str:
    """One line for each table and figure of each paper."""
    tables = []
    for name in PAPERS:
        paper = load_paper(name)
        rows = []
        for entry in paper.entries:
            title = textwrap.shorten(entry.title, 62, placeholder=" ...")
            rows.append([entry.name, entry.state, ", ".join(entry.sources) or "-", title])
        table = to_terminal(text_table("", ["entry", "state", "data", "title"], rows, n_words=4))
        tables.append(f"{_wrapped(f'{name}: {paper.citation}')}\n{table}")
    return "\n\n".join([*tables, NOTE])


def describe_paper(name: str) -> str:
    paper = load_paper(name)
    head = "\n".join(map(_wrapped, (f"{paper.title}: {paper.citation}", f"Read: {paper.read}")))
    return "\n\n".join([head, *(describe_entry(name, entry, commands_of(entry)) for entry in paper.entries)])


def describe_entry(name: str, entry: Entry, commands: Sequence[Part]) -> str:
    """What a table or figure needs, its commands, and how it differs from the paper."""
    lines = [f"{name} {entry.name}: {entry.title} [{entry.state}]"]
    lines += [_wrapped(f"data {key}: {source.title}. {source.where}", "  ") for key, source in entry.sources.items()]
    lines += [f"  {part.name}: {part.command()}" for part in commands]
    lines += [_wrapped(f"departs: {text}", "  ") for text in entry.departs]
    lines += [_wrapped(f"not made: {entry.missing}", "  ")] * bool(entry.missing)
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
