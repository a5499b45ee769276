"""Markdown of the generated pages: tables, and docstrings as Markdown."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from medfed.config.search import describe_schema

TITLE = r"^(Departures|Volumes|Segmentation|Readings)\b.*?(?:[:.]$|:(?= )|\.(?= [A-Z`]))"
SECTION = re.compile(r"^(Args|Attributes|Example|Raises|Returns):$", re.MULTILINE)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown texts; a `|` in a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(value: object) -> str:
    """A value of a config as code, as it is written in JSON."""
    text = value if isinstance(value, str) else as_json(value)
    return f"`{text}`" if text else ""


def as_json(value: object) -> str:
    """A value of a config in JSON; a number with a long fraction, such as 1/3, has four decimals."""
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"\b\d+\.\d{10,}\b(?!e)", lambda number: f"{float(number[0]):.4f}", text)


def sentence(text: str) -> str:
    """The text with a capital letter at its start."""
    return text[:1].upper() + text[1:]


def settings_table(settings: Mapping[str, Mapping[str, Any]], meanings: Mapping[str, str] | None = None) -> str:
    """The settings of a block, a method, a network or a dataset, as the JSON Schema of a config describes them.

    A row has the key, the type and range, and the default, below each other, then the meaning.
    """
    rows = []
    for key, schema in settings.items():
        default = f"default `{as_json(schema.get('default'))}`"
        kind = "name or dotted name" if key == "name" and "anyOf" in schema else describe_schema(schema)
        values = [f"**`{key}`**", re.sub(r'("[^"]*")', r"`\1`", kind), default if "default" in schema else "required"]
        meaning = (meanings or {}).get(key, schema["description"])
        rows.append(["<br>".join(values), linked(sentence(meaning))])
    return table(["setting", "meaning"], rows)


def body_of(docstring: str) -> str:
    """The paragraphs of a docstring without its sections, such as `Args:`."""
    lines, in_section = [], False
    for line in inspect.cleandoc(docstring).splitlines():
        if SECTION.match(line):
            in_section = True
        elif line and not line.startswith(" "):
            in_section = False
        if not in_section:
            lines.append(line)
    return "\n".join(lines).strip()


def paragraphs(text: str) -> str:
    """A docstring's text as Markdown: paragraphs on one line each, equations and examples as blocks of code.

    The first words of a paragraph on departures, volumes, segmentation or readings are bold.
    """
    blocks: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if lines[0].startswith(("- ", "* ")):
            blocks.append(block)
        elif lines[0].startswith(">>>"):
            blocks.append(f"```pycon\n{block}\n```")
        elif all(line.startswith("    ") for line in lines):
            blocks.append("\n".join(["```text", *_with_numbers([line[4:] for line in lines]), "```"]))
        else:
            paragraph = linked(" ".join(line.strip() for line in lines))
            blocks.append(re.sub(TITLE, r"**\g<0>**", paragraph))
    return "\n\n".join(blocks)


def _with_numbers(lines: list[str]) -> list[str]:
    """Equations with their numbers, such as "(eq. 2)", in one column two spaces behind the longest equation."""
    parts = [re.fullmatch(r"(.*?\S)\s{2,}(\([^()]*\))", line) for line in lines]
    width = max((len(part[1]) for part in parts if part), default=0)
    return [f"{part[1]:<{width}}  {part[2]}" if part else line for part, line in zip(parts, lines, strict=True)]


def linked(text: str) -> str:
    """The text with its web addresses as links."""
    return re.sub(r"(?<![`<(])https://[^\s,;)]*[^\s,;).]", lambda url: f"<{url[0]}>", text)
