"""The command `medfed`: `medfed train` runs `python -m medfed.train`; without arguments it lists what there is."""

from __future__ import annotations

import importlib
import sys
import textwrap

from medfed import __version__
from medfed.cli.program import programs, run_program
from medfed.core.errors import UserError
from medfed.core.registry import KINDS, known_names, suggestion


def main(argv: list[str] | None = None) -> int:
    """Run the program that the first argument names, such as `train`, or print the list of programs or the version."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program("medfed", lambda: _dispatch(arguments))


def listing() -> str:
    """Return the text of `medfed --help`: a sentence about each program, and the names that a config may hold."""
    width = max(map(len, programs()))
    head = f"medfed {__version__}: `medfed PROGRAM --help` (or `python -m medfed.PROGRAM --help`) shows its flags"
    lines = [head, "", "programs"]
    lines += [f"  {name:<{width}}  {description}" for name, description in programs().items()]
    lines += ["", "`medfed keys NAME` describes one of:"]
    for kind in KINDS:
        names = textwrap.wrap(", ".join(known_names(kind)), 100)
        lines += ["", kind.replace("_", " "), *(f"  {line}" for line in names)]
    return "\n".join(lines)


def _dispatch(arguments: list[str]) -> int:
    """Run the program that the first argument names with the other arguments; return its exit code."""
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help", "--version"):
        print(f"medfed {__version__}" if name == "--version" else listing())
        return 0
    if name not in programs():
        raise UserError(f"no program '{name}'. {suggestion(name, programs())}")
    return importlib.import_module(f"medfed.{name}").main(rest)


if __name__ == "__main__":
    sys.exit(main())
