"""Print a script with which a shell completes programs, flags and names of configs when you press the tab key."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping
from unittest.mock import patch

from medfed.cli.program import programs, run_program
from medfed.core.errors import UserError
from medfed.core.registry import shipped_configs

SHELLS = ("bash", "zsh", "tcsh")
EXAMPLES = "for bash: medfed completion bash > ~/.local/share/bash-completion/completions/medfed"
_CONFIGS = {"bash": "_medfed_configs", "zsh": "_files", "tcsh": "f"}  # what completes the argument `config`


class _Captured(Exception):
    """Carries the parser of a program out of the program's function `main`."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m medfed.completion", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("shell", choices=SHELLS)
    args = parser.parse_args(argv)
    return run_program("medfed.completion", lambda: _print_script(args.shell))


def _print_script(shell: str) -> int:
    """Print the completion script for a shell, such as "bash", and return the exit code."""
    try:
        import shtab
    except ImportError:
        raise UserError("the package shtab, which writes the script, is not installed; pip install shtab") from None
    names = " ".join(shipped_configs())
    preamble = {"bash": f'_medfed_configs() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}'}
    print(shtab.complete(_parser_of_all({name: parser_of(name) for name in programs()}), shell, preamble=preamble))
    return 0


def parser_of(program: str) -> argparse.ArgumentParser:
    """Return the parser of a program such as "train", with all its flags and commands."""

    def capture(parser: argparse.ArgumentParser, *args: object) -> None:
        raise _Captured(parser)

    # Each program creates its parser in its function `main`, so that nothing slow is imported before the flags are
    # checked. `main` is therefore run until it parses its arguments.
    with patch.object(argparse.ArgumentParser, "parse_args", capture):
        try:
            importlib.import_module(f"medfed.{program}").main([])
        except _Captured as captured:
            parser = captured.args[0]
            assert isinstance(parser, argparse.ArgumentParser)
            return parser
    raise TypeError(f"the program {program} parses no arguments")


def _parser_of_all(parsers: Mapping[str, argparse.ArgumentParser]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="medfed")
    commands = parser.add_subparsers()
    for name, inner in parsers.items():
        commands.add_parser(name, help=programs()[name], parents=[inner], add_help=False, conflict_handler="resolve")
        for action in commands.choices[name]._actions:
            if action.dest == "config" and not action.option_strings:
                action.complete = _CONFIGS  # type: ignore[attr-defined]
    return parser


if __name__ == "__main__":
    sys.exit(main())
