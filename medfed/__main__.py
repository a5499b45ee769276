"""The command `medfed`: `medfed train` runs `python -m medfed.train`; without arguments it lists what there is."""

from __future__ import annotations

import importlib
import sys

from medfed import __version__
from medfed.cli.program import module_of, programs, run_program
from medfed.core.errors import UserError
from medfed.core.registry import KINDS, known_names, suggestion


def main(argv: list[str] | None = None) -> int:
    """Run the medfed program whose name is the first argument, or print the list of programs.

    Args:
        argv: name of a program, such as `train`, and the program's own arguments; None reads `sys.argv`. No argument,
            `-h` or `--help` prints the list; `--version` prints the version.

    Returns:
        The exit code: 0 after the list or the version, 2 if there is no such program, otherwise the exit code of the
        program.
    """
    arguments = sys.argv[1:] if argv is None else argv
    return run_program("medfed", lambda: _dispatch(arguments))


def listing() -> str:
    """Return a text with medfed's version and all programs, methods, datasets, networks, engines and metrics.

    Each name stands on one line with a short description, which is the first line of the docstring in its file. No file
    is imported.
    """
    groups = {"programs": programs(), **{kind: known_names(kind) for kind in KINDS}}
    width = max(len(name) for names in groups.values() for name in names)
    lines = [f"medfed {__version__}: `medfed PROGRAM --help` (or `python -m medfed.PROGRAM --help`) shows its flags"]
    for group, names in groups.items():
        lines += ["", group, *(f"  {name:<{width}}  {description}".rstrip() for name, description in names.items())]
    return "\n".join(lines)


def _dispatch(arguments: list[str]) -> int:
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help", "--version"):
        print(f"medfed {__version__}" if name == "--version" else listing())
        return 0
    if name not in programs():
        raise UserError(f"no program '{name}'. {suggestion(name, programs())}")
    return importlib.import_module(module_of(name)).main(rest)


if __name__ == "__main__":
    sys.exit(main())
