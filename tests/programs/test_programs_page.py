"""The help of the programs, and their page in the documentation, which is made from their parsers."""

import argparse
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest

from medfed.cli.program import programs

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def page(monkeypatch) -> str:
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    monkeypatch.setenv("COLUMNS", "40")  # the width of a terminal has no influence
    return importlib.import_module("program_pages").programs_page()


def sections_of(page: str) -> dict[str, str]:
    titles = re.findall(r"^#{2,3} (.*)$", page, re.MULTILINE)
    return dict(zip(titles, re.split(r"^#{2,3} .*$", page, flags=re.MULTILINE)[1:], strict=True))


def parsers(parser: argparse.ArgumentParser):
    yield parser
    for action in parser._actions:
        for command in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from parsers(command)


@pytest.mark.parametrize("name", programs())
def test_the_help_of_every_program_and_command_ends_with_two_examples_that_it_accepts(name):
    program = importlib.import_module(f"medfed.{name}").parser()
    for parser in parsers(program):
        lines = parser.format_help().partition("\nexamples:\n")[2].splitlines()
        comments, commands = lines[::2], lines[1::2]
        assert len(commands) == 2 and all(line.startswith("  # ") for line in comments)
        for command in commands:
            words = shlex.split(command)
            assert words[:2] == ["medfed", name] and command.startswith(f"  {parser.prog}")
            program.parse_args(words[2:])


def test_the_page_has_every_program_command_argument_and_example(page):
    sections = sections_of(page)
    expected = [parser for name in programs() for parser in parsers(importlib.import_module(f"medfed.{name}").parser())]
    assert list(sections) == [parser.prog for parser in expected] and len(expected) > len(programs())
    for parser in expected:
        text = sections[parser.prog]
        assert text.count("\n```") == 4 and all(len(line) <= 100 for line in text.split("```")[1].splitlines())
        for action in parser._actions[1:]:
            shown = action.option_strings or [] if action.metavar is None else [*action.option_strings, action.metavar]
            assert all(f"`{name}" in text or f" {name}" in text for name in shown if isinstance(name, str))
        for line in parser.epilog.splitlines()[1:]:
            assert f"\n{line.strip()}\n" in text


def test_a_row_has_no_markup_but_the_flags(page):
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert "| run every method with each of these values: `--vary federation.rounds=20,50`; repeat" in page
    for row in rows:
        assert re.sub(r"\\.", "", row).count("|") == 3, row
