"""List and describe datasets, check the images in a folder, and prepare a dataset."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_image_flags, add_json_flag, require_paths, run_program
from medfed.core.errors import UserError
from medfed.preparation import commands as files

OTHER_TABLES = (".xlsx", ".xls", ".ods", ".txt")


def main(argv: list[str] | None = None) -> int:
    """Run `medfed data` (`argv` None: `sys.argv`) and return its exit code, 2 also for a problem in the data."""
    parser = argparse.ArgumentParser(prog="python -m medfed.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    card = commands.add_parser("card", help="describe a dataset: its licence, its folder layout, how to get it")
    card.add_argument("name", help="name in a config: prostate, folder, ...")
    checks = commands.add_parser("check", help="read all images and report every problem")
    checks.add_argument("path", type=Path, help="a folder with images of two or more sites, a table, or a config")
    add_json_flag(checks, "the report, case by case,")
    patients = "also write a table with the files of each patient and case, which must stay at the site"
    checks.add_argument("--patients", type=Path, metavar="FILE", help=patients)
    add_image_flags(checks)
    files.add_fetch_command(commands)
    files.add_prepare_command(commands)
    files.add_dicom_seg_command(commands)
    parser.set_defaults(allow_code=False)
    args = parser.parse_args(argv)
    return run_program("medfed.data", lambda: _run(args), args.allow_code)


def _run(args: argparse.Namespace) -> int:
    runs = {"check": _check, "fetch": files.run_fetch, "prepare": files.run_prepare, "dicom-seg": files.run_dicom_seg}
    if args.command in runs:
        return runs[args.command](args)
    from medfed.outputs.dataset_cards import all_cards, format_card

    print(format_card(args.name) if args.command else all_cards())
    return 0


def _check(args: argparse.Namespace) -> int:
    if args.path.is_file() and args.path.suffix.lower() in OTHER_TABLES:
        raise UserError(
            f"{args.path}: tables in this format are not read; expected a CSV file; save it in UTF-8 (in "
            "Excel with 'Save as', file type 'CSV UTF-8'), and check the new file"
        )
    require_paths("a folder with images, a table or a config", args.path)
    from medfed.api import check_data
    from medfed.datasets.check_report import to_json

    settings, progress = args.set, not args.quiet
    report = check_data(args.path, args.dataset, settings, patients=args.patients, progress=progress)
    print(to_json(report) if args.json else report, end="" if args.json else "\n")
    return 2 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
