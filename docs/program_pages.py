"""Write the page of the command-line programs from their argparse parsers."""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medfed.cli.program import EXAMPLES, programs

DOCS = Path(__file__).parent
QUOTES = "'`"
# An example in quotes or backticks, a flag with or without its example, a setting with a value
CODE = (
    r"('[^' ]+'|`[^`]+`|(?<![\w-])--(?:set|vary|name) [\w.]+=(?:\.\.\.|[\w.,]*\w)|(?<![\w-])--[a-z][a-z-]*"
    r"|\b[a-z_]+\.[a-z_.]+=[\w.]*\w)"
)
INTRODUCTION = """# Programs

Look up the arguments of every program.

`medfed PROGRAM` and `python -m medfed.PROGRAM` are the same, except that `python -m` runs the code of a folder `medfed`
in the current folder: in a folder that somebody else has sent, use `medfed PROGRAM`. `medfed` alone lists the programs,
and `medfed PROGRAM --help` prints what is on this page."""


def programs_page() -> str:
    """Return the page in Markdown: for each program its usage, its arguments, its examples, and its commands."""
    with _terminal_width(100):
        sections = [INTRODUCTION, *(_program(name) for name in programs())]
    return "\n\n".join(sections) + "\n"


def _program(name: str) -> str:
    parser = importlib.import_module(f"medfed.{name}").parser()
    commands = [_section(command, "###") for command in _commands(parser).values()]
    return "\n\n".join([_section(parser, "##"), *commands])


def _section(parser: argparse.ArgumentParser, heading: str) -> str:
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    usage = re.sub(r"\n {7}", "\n", usage)  # the indent below the word "usage: "
    _, _, examples = (parser.epilog or "").partition(f"{EXAMPLES}\n")
    parts = [
        f"{heading} {parser.prog}",
        _escape(parser.description or ""),
        f"```text\n{usage}\n```",
        _table(parser),
        "```sh\n" + "\n".join(line.removeprefix("  ") for line in examples.splitlines()) + "\n```",
    ]
    return "\n\n".join(filter(None, parts))


def _table(parser: argparse.ArgumentParser) -> str:
    """The arguments without --help; for a program with commands, the commands."""
    formatter = argparse.HelpFormatter(parser.prog)
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            rows += [(choice.dest, choice.help) for choice in action._choices_actions]
        elif not isinstance(action, argparse._HelpAction):
            meaning = formatter._expand_help(action) + _default(action)
            rows.append((formatter._format_action_invocation(action), meaning))
    if not rows:
        return ""
    lines = [f"| `{name.replace('|', chr(92) + '|')}` | {_escape(meaning or '')} |" for name, meaning in rows]
    return "\n".join([f"| {'command' if _commands(parser) else 'argument'} | meaning |", "|---|---|", *lines])


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def _escape(text: str) -> str:
    """Text without Markdown's markup. Flags with their example, and words in quotes or backticks, become code; names of
    pages become links."""
    parts = re.split(CODE, text)  # every second part is to become code
    escaped = [re.sub(r"([\\`*_{}\[\]<>|#$])", r"\\\1", part) for part in parts]
    escaped[1::2] = [f"`{part.strip(QUOTES)}`" for part in parts[1::2]]
    return re.sub(r"docs/((?:\w|\\_|/)+\.md)", _link, "".join(escaped))


def _link(page: re.Match[str]) -> str:
    """A link to a page, whose path begins with "docs/", with its title."""
    path = page[1].replace("\\", "")
    title = (DOCS / path).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"[{title}](../{path})"


def _default(action: argparse.Action) -> str:
    """The default value of an argument, if it has one that its help does not name."""
    has_default = isinstance(action.default, str | int | float) and not isinstance(action.default, bool)
    if not has_default or action.default in ("", argparse.SUPPRESS) or "default" in (action.help or ""):
        return ""
    value = f"{action.default:g}" if isinstance(action.default, float) else action.default
    return f" (default: {value})"


@contextmanager
def _terminal_width(columns: int) -> Iterator[None]:
    """argparse breaks the lines of a usage at the width of the terminal."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(columns)
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
