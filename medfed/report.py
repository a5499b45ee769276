"""Write one HTML page that shows finished runs and comparisons; it needs no network and no other file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import run_program
from medfed.core.errors import UserError
from medfed.core.files import write_atomically

NAME = "report.html"


def main(argv: list[str] | None = None) -> int:
    """Run `medfed report` (`argv` None: `sys.argv`) and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m medfed.report", description=__doc__)
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="the folder of a finished run, or of a comparison that medfed.evaluate wrote",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"file of the page (default: {NAME} in RUN, or in this folder for several runs)",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    args = parser.parse_args(argv)
    return run_program("medfed.report", lambda: _report(args))


def _report(args: argparse.Namespace) -> int:
    """Write the page as `args` says, print its path, and return the exit code."""
    for path in args.runs:
        if not path.is_dir():
            raise UserError(f"{path}: not a folder; name a folder that medfed.train or medfed.evaluate wrote")
    out = args.out or (args.runs[0] / NAME if len(args.runs) == 1 else Path(NAME))
    _check_out(out)
    size = write_report(args.runs, out, args.quiet)
    if not args.quiet:
        print(f"The page is {out} ({size / 1e6:.1f} MB). Open it in a browser; it needs no network and no other file.")
    return 0


def write_report(runs: list[Path], out: Path, quiet: bool = True) -> int:
    """Write one HTML page about these folders of runs and comparisons, and return its size in bytes."""
    from medfed.cli.progress import ProgressBar
    from medfed.outputs.report.page import build_page
    from medfed.outputs.report.run_data import read_runs

    def with_progress(jobs: list) -> ProgressBar:
        return ProgressBar(jobs, desc="reading", unit="run", disable=quiet or len(jobs) < 2, leave=False)

    page = build_page(*read_runs(runs, with_progress)).encode()
    write_atomically(out, page)
    return len(page)


def _check_out(out: Path) -> None:
    """Raise UserError unless `out` is an HTML file in a folder that exists, before the runs are read."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder; name a file in it, for example {out / NAME}")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: expected a name that ends in .html")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; create it, or choose another path")


if __name__ == "__main__":
    sys.exit(main())
