"""Write one HTML page that shows finished runs and comparisons; it needs no network and no other file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import main_of, new_parser, require_paths


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "report",
        __doc__,
        ("runs/prostate-elcfs-unseen_UCL-seed1337", "report.html in the folder of the run"),
        ("runs/prostate-leave_one_site_out runs/other --out both.html", "a comparison and a run on one page"),
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="folder of a finished run, or of a comparison"
    )
    where = "file of the page (default: report.html in RUN, or in this folder for several runs)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=where)
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    return parser


def _report(args: argparse.Namespace) -> int:
    require_paths("a folder that medfed.train or medfed.evaluate wrote", *args.runs)
    from medfed.api import write_report

    page = write_report(args.runs, args.out, progress=not args.quiet)
    if not args.quiet:
        size = page.stat().st_size / 1e6
        print(f"The page is {page} ({size:.1f} MB). Open it in a browser; it needs no network and no other file.")
    return 0


main = main_of("report", parser, _report)

if __name__ == "__main__":
    sys.exit(main())
