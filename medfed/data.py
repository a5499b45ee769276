"""List and describe datasets, check the images in a folder, and prepare a dataset."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from medfed.cli.program import add_code_flag, run_program
from medfed.core import registry
from medfed.core.errors import UserError
from medfed.core.files import write_atomically

if TYPE_CHECKING:
    from medfed.datasets.base import Progress

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

OTHER_TABLES = (".xlsx", ".xls", ".ods", ".txt")


def main(argv: list[str] | None = None) -> int:
    """Run `medfed data` (`argv` None: `sys.argv`) and return its exit code, 2 also for a problem in the data."""
    parser = argparse.ArgumentParser(prog="python -m medfed.data", description=__doc__)
    parser.set_defaults(allow_code=False, run=_card, name="")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    card = commands.add_parser("card", help="describe a dataset: its licence, its folder layout, how to get it")
    card.add_argument("name", help="name in a config: prostate, folder, ...")
    _add_check(commands)
    _add_fetch(commands)
    _add_prepare(commands)
    _add_dicom_seg(commands)
    args = parser.parse_args(argv)
    return run_program("medfed.data", lambda: args.run(args), args.allow_code)


def _card(args: argparse.Namespace) -> int:
    """Print the card of a dataset, or a list of all datasets."""
    from medfed.outputs.dataset_cards import all_cards, format_card

    print(format_card(args.name) if args.name else all_cards())
    return 0


def _add_check(commands: Commands) -> None:
    checks = commands.add_parser("check", help="read all images and report every problem")
    checks.set_defaults(run=_check)
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
        dataset = load(args.path, args.set).data.ensure_available(_progress_bar("making the phantom", args.quiet))
    else:
        dataset = load_dataset(args.path, args.dataset, [Override.parse(text) for text in args.set])
    if args.patients:
        write_case_table(dataset, args.patients)
    report = check_dataset(dataset, _progress_bar("reading", args.quiet))
    print(format_data_block(dataset), to_text(report), sep="\n")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.json, to_json(report))
    return 2 if report.problems else 0


def _add_fetch(commands: Commands) -> None:
    command = commands.add_parser("fetch", help="make a phantom, or explain how to get a dataset")
    command.set_defaults(run=_fetch)
    command.add_argument("name", help="name in a config: prostate, prostate_phantom, ...")
    command.add_argument("--to", type=Path, metavar="FOLDER", help="target folder (default: data/NAME)")
    command.add_argument("--quiet", action="store_true", help="draw no progress bar")


def _fetch(args: argparse.Namespace) -> int:
    """Make a phantom, or print how to get a dataset."""
    from medfed.outputs.dataset_cards import format_card
    from medfed.phantoms.synthesis.synthetic import SyntheticDataset

    folder = args.to or Path("data") / args.name
    dataset = registry.resolve("datasets", args.name)(root=str(folder))
    if isinstance(dataset, SyntheticDataset):
        dataset.ensure_available(_progress_bar("making the phantom", args.quiet))
        print(f"The phantom is in {folder}.")
    else:
        print(format_card(args.name))
    return 0


def _add_prepare(commands: Commands) -> None:
    command = commands.add_parser(
        "prepare",
        help="write original downloads in the layout of a dataset",
        description="Find original collections in folders with unpacked downloads, and write "
        "their cases in the layout that a dataset reads. Nothing is overwritten. "
        "docs/collections.md lists the downloads.",
    )
    command.set_defaults(run=_prepare)
    command.add_argument("name", help="name in a config: prostate or fundus")
    command.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="a folder with unpacked downloads")
    command.add_argument("out", type=Path, metavar="OUT", help="the folder to write, for example data/prostate")
    command.add_argument("--quiet", action="store_true", help="print only the result, no progress")


def _prepare(args: argparse.Namespace) -> int:
    """Write the prepared dataset, print what was done, and return the exit code."""
    from medfed.preparation.prepare import format_summary, prepare

    summary = prepare(args.name, args.sources, args.out, _progress_bar("preparing", args.quiet))
    print(format_summary(summary))
    print(f"The dataset is in {args.out}; to check it: python -m medfed.data check {args.out} --dataset {args.name}")
    return 0


def _add_dicom_seg(commands: Commands) -> None:
    command = commands.add_parser("dicom-seg", help="store masks of a bundle as DICOM SEG objects of their series")
    command.set_defaults(run=_dicom_seg)
    command.add_argument("masks", type=Path, help="folder of the masks: SERIES_STRUCTURE.nii.gz, as a bundle writes")
    command.add_argument("series", type=Path, help="folder with one folder for each series, which the bundle has read")
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="new folder for the objects")


def _dicom_seg(args: argparse.Namespace) -> int:
    """Write predicted masks as DICOM SEG objects, and return the exit code."""
    from medfed.preparation.dicom_masks import write_segmentations

    n_objects = write_segmentations(args.masks, args.series, args.out)
    print(
        f"Wrote {n_objects} DICOM SEG object{'' if n_objects == 1 else 's'}. They contain the identifiers of the "
        "patients, as the series do."
    )
    return 0


def _progress_bar(text: str, quiet: bool) -> Progress:
    """Return a bar over cases with a text such as "reading"."""
    from medfed.cli.progress import ProgressBar

    return lambda items: ProgressBar(items, desc=text, unit="case", disable=quiet, leave=False)


if __name__ == "__main__":
    sys.exit(main())
