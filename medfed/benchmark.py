"""Compare the speed with other libraries, with one process, and with lower limits."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from medfed.benchmarks import NAMES
from medfed.cli.program import main_of, new_parser, whole_number
from medfed.core.files import write_atomically


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "benchmark",
        __doc__,
        ("", "all measurements, with as many processes as cores allow"),
        ("--only one_round jobs --out runs/benchmark", "two measurements; the raw numbers are in benchmark.json"),
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=NAMES,
        metavar="NAME",
        default=NAMES,
        help=f"measure only these: {', '.join(NAMES)}",
    )
    parser.add_argument(
        "--jobs",
        type=whole_number(2),
        metavar="N",
        help="number of processes of the measurement 'jobs', at least 2; the others use one process. "
        "Default: as many as cores and memory allow, at least 2",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder for benchmark.json, the raw numbers")
    parser.add_argument("--quiet", action="store_true", help="print nothing; for use with --out")
    return parser


def _measure(args: argparse.Namespace) -> int:
    from medfed.benchmarks import measurements

    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in args.only:
        measure = getattr(measurements, name)
        rows = measure(args.jobs) if name == "jobs" else measure()
        results[name] = [{**asdict(row), "ratio": row.ratio} for row in rows]
        if not args.quiet:
            title = measure.__doc__.partition("\n")[0]
            print(measurements.table(f"{name}: {title}", rows), end="\n\n", flush=True)
    if args.out is not None:
        write_atomically(args.out / "benchmark.json", json.dumps(results, indent=2) + "\n")
    return 0


main = main_of("benchmark", parser, _measure)

if __name__ == "__main__":
    sys.exit(main())
