"""The program of a hospital: check the data, show what would leave, ask for agreement, and join the federation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import main_of, new_parser


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "site",
        __doc__,
        ("BMC.yaml --dry-run", "check the data and show what would leave; nothing is sent"),
        ("BMC.yaml", "ask for agreement, then join the federation"),
    )
    parser.add_argument(
        "file", type=Path, help="this hospital's YAML file, as medfed.coordinator prepare writes it and you complete it"
    )
    parser.add_argument("--yes", action="store_true", help="agree without being asked")
    parser.add_argument("--dry-run", action="store_true", help="check the data and show what would leave; send nothing")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def _work(args: argparse.Namespace) -> int:
    from medfed.deployment.take_part import run_site

    return run_site(args)


main = main_of("site", parser, _work)

if __name__ == "__main__":
    sys.exit(main())
