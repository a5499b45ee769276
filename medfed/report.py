"""Show finished runs and comparisons in one HTML page that needs nothing else: no network, no server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from medfed.cli.program import run_program
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.outputs.report.page import build_page
from medfed.outputs.report.run_data import read_runs

NAME = "report.html"


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when the page is written, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN",
                        help="the folder of a finished run, or of a comparison that medfed.evaluate wrote")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help=f"the page (default: {NAME} in RUN; here, if there are several)")
    parser.add_argument("--quiet", action="store_true", help="no word unless something is wrong")
    args = parser.parse_args(argv)
    return run_program("medfed.report", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    for path in args.runs:
        if not path.is_dir():
            raise UserError(f"{path}: is no folder; name one that medfed.train or medfed.evaluate wrote")
    out = args.out or (args.runs[0] / NAME if len(args.runs) == 1 else Path(NAME))
    _check_place(out)
    size = write_report(args.runs, out, args.quiet)
    if not args.quiet:
        print(f"The page is {out} ({size / 1e6:.1f} MB). Open it in a browser; it needs no network and no other file.")
    return 0


def write_report(runs: list[Path], out: Path, quiet: bool = True) -> int:
    """Read the folders and write the page; how many bytes it has.

    Raises:
        UserError: if one is neither a finished run nor a comparison with one, or a file in it is damaged.
    """
    def shown(jobs: list) -> tqdm:
        return tqdm(jobs, desc="reading", unit="run", disable=quiet or len(jobs) < 2, leave=False, dynamic_ncols=True)

    page = build_page(*read_runs(runs, shown)).encode()
    write_atomically(out, page)
    return len(page)


def _check_place(out: Path) -> None:
    """Before the work: a page is written over a page only, and into a folder that is there."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder; name a file in it, for example {out / NAME}")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: expected a name that ends in .html")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it, or name another place")


if __name__ == "__main__":
    sys.exit(main())
