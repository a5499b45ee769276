"""Write one HTML page that shows finished runs and comparisons; it needs no network and no other file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import require_paths, run_program


def main(argv: list[str] | None = None) -> int:
    """Run `medfed report` (`argv` None: `sys.argv`) and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m medfed.report", description=__doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="folder of a finished run, or of a comparison"
    )
    where = "file of the page (default: report.html in RUN, or in this folder for several runs)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=where)
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    args = parser.parse_args(argv)
    return run_program("medfed.report", lambda: _report(args))


def _report(args: argparse.Namespace) -> int:
    require_paths("a folder that medfed.train or medfed.evaluate wrote", *args.runs)
    from medfed.api import write_report

    page = write_report(args.runs, args.out, progress=not args.quiet)
    if not args.quiet:
        size = page.stat().st_size / 1e6
        print(f"The page is {page} ({size:.1f} MB). Open it in a browser; it needs no network and no other file.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
