"""Turn a finished run into a MONAI bundle that a hospital runs without medfed, or check one before running it."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from medfed.cli.program import run_program
from medfed.outputs.bundle.check import check_bundle
from medfed.outputs.bundle.export import export
from medfed.tasks.factory import TASKS

ENDINGS = tuple(f"_{name}" for name in TASKS)


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when the work is done, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.export", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run; with --check, a bundle or its zip")
    parser.add_argument("--out", type=Path, metavar="FOLDER",
                        help="the bundle (default: in RUN/bundle, named by what it finds)")
    parser.add_argument("--check", action="store_true", help="only check that a bundle is whole and can run no code")
    parser.add_argument("--quiet", action="store_true", help="no word unless something is wrong")
    args = parser.parse_args(argv)
    return run_program("medfed.export", lambda: _check(args) if args.check else _export(args))


def _check(args: argparse.Namespace) -> int:
    check_bundle(args.run)
    if not args.quiet:
        print(f"{args.run}: a whole bundle; its configs name only classes that the check knows, and no code")
    return 0


def _export(args: argparse.Namespace) -> int:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        out = export(args.run, args.out)
    for notice in said:
        if "model.ts" in str(notice.message):
            print(f"note: {notice.message}", file=sys.stderr)
    if not args.quiet:
        if not out.name.endswith(ENDINGS):
            print(f"note: MONAI Label infers the task from the name: let it end in {' or '.join(ENDINGS)}",
                  file=sys.stderr)
        print(f"The bundle is {out}. A hospital needs this folder and no medfed; docs/README.md tells how to run it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
