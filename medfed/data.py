"""List and describe datasets, check the images in a folder, and prepare a dataset."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_code_flag, run_program
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.preparation.commands import (
    add_dicom_seg_command,
    add_fetch_command,
    add_prepare_command,
    progress_bar,
    run_dicom_seg,
    run_fetch,
    run_prepare,
)

OTHER_TABLES = (".xlsx", ".xls", ".ods", ".txt")


def main(argv: list[str] | None = None) -> int:
    """Run `medfed data` (`argv` None: `sys.argv`) and return its exit code, 2 also for a problem in the data."""
    parser = argparse.ArgumentParser(prog="python -m medfed.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    card = commands.add_parser("card", help="describe a dataset: its licence, its folder layout, how to get it")
    card.add_argument("name", help="name in a config: prostate, folder, ...")
    checks = commands.add_parser("check", help="read all images and report every problem")
    checks.add_argument("path", type=Path, help="a folder with images of two or more sites, a table, or a config")
    checks.add_argument("--dataset", metavar="NAME", help="name in a config (default: found by the names of the files)")
    checks.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting: 'data.image={site}/{case}_T2.nii.gz'",
    )
    checks.add_argument("--json", type=Path, metavar="FILE", help="also write the report, case by case, to this file")
    checks.add_argument(
        "--patients",
        type=Path,
        metavar="FILE",
        help="also write a table with the files of each patient and case, which must stay at the site",
    )
    add_code_flag(checks)
    checks.add_argument("--quiet", action="store_true", help="print only the report, no progress")
    add_fetch_command(commands)
    add_prepare_command(commands)
    add_dicom_seg_command(commands)
    parser.set_defaults(allow_code=False)
    args = parser.parse_args(argv)
    return run_program("medfed.data", lambda: _run(args), args.allow_code)


def _run(args: argparse.Namespace) -> int:
    """Run the command `check`, `fetch`, `prepare`, `dicom-seg` or `card`, and return the exit code."""
    runs = {"check": _check, "fetch": run_fetch, "prepare": run_prepare, "dicom-seg": run_dicom_seg}
    if args.command in runs:
        return runs[args.command](args)
    from medfed.outputs.dataset_cards import all_cards, format_card

    print(format_card(args.name) if args.command else all_cards())
    return 0


def _check(args: argparse.Namespace) -> int:
    """Check the dataset in `args.path`, print the report, and return the exit code: 2 if there are problems."""
    if args.path.is_file() and args.path.suffix.lower() in OTHER_TABLES:
        raise UserError(
            f"{args.path}: tables in this format are not read; expected a CSV file; save it in UTF-8 (in "
            "Excel with 'Save as', file type 'CSV UTF-8'), and check the new file"
        )
    from medfed.config.overrides import Override
    from medfed.config.schema import load, load_dataset
    from medfed.datasets import table
    from medfed.datasets.case_table import write_case_table
    from medfed.datasets.check_report import to_json, to_text
    from medfed.datasets.checking import check_dataset
    from medfed.outputs.dataset_cards import format_data_block

    if args.path.is_file() and args.path.suffix.lower() not in table.SUFFIXES:
        dataset = load(args.path, args.set).data.ensure_available(progress_bar("making the phantom", args.quiet))
    else:
        dataset = load_dataset(args.path, args.dataset, [Override.parse(text) for text in args.set])
    if args.patients:
        write_case_table(dataset, args.patients)
    report = check_dataset(dataset, progress_bar("reading", args.quiet))
    print(format_data_block(dataset), to_text(report), sep="\n")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.json, to_json(report))
    return 2 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
