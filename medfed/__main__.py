"""`medfed`: without a word, what there is; with one, that program (`medfed train` is `python -m medfed.train`)."""

from __future__ import annotations

import importlib
import os
import sys

from medfed import __version__
from medfed.cli.program import module_of, programs, run_program
from medfed.core.errors import UserError
from medfed.core.registry import KINDS, known_names, suggestion


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: that of the program, 0 for the list, 2 for an unknown word."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program("medfed", lambda: _dispatch(arguments))


def listing() -> str:
    """Version, programs, methods, datasets, networks and engines, one a line. Imports none of them."""
    groups = {"programs": programs(), **{kind: known_names(kind) for kind in KINDS}}
    width = max(len(name) for names in groups.values() for name in names)
    lines = [f"medfed {__version__}: `medfed PROGRAM --help` (or `python -m medfed.PROGRAM --help`) tells more"]
    for group, names in groups.items():
        lines += ["", group, *(f"  {name:<{width}}  {description}".rstrip() for name, description in names.items())]
    return "\n".join(lines)


def _dispatch(arguments: list[str]) -> int:
    word, *rest = arguments or ["--help"]
    if word in ("-h", "--help", "--version"):
        print(f"medfed {__version__}" if word == "--version" else listing())
        return 0
    if word not in programs():
        raise UserError(f"no program '{word}'. {suggestion(word, programs())}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # `python -m` has it: a dotted name in a config may mean a file here
    return importlib.import_module(module_of(word)).main(rest)


if __name__ == "__main__":
    sys.exit(main())
