"""List and describe datasets, check the images in a folder, and download a dataset or explain how to get it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import run_program
from medfed.cli.progress import ProgressBar
from medfed.config.schema import load
from medfed.core import registry
from medfed.core.files import write_atomically
from medfed.datasets import base, datalists
from medfed.datasets.check_report import to_json, to_text
from medfed.datasets.checking import check_dataset
from medfed.datasets.fetching import download
from medfed.datasets.recognition import recognise
from medfed.outputs.dataset_cards import all_cards, format_card, format_data_block, format_paragraph
from medfed.phantoms.synthetic import SyntheticDataset


def main(argv: list[str] | None = None) -> int:
    """List, describe, check or download datasets: run the program `medfed data` and return its exit code.

    The arguments are `argv` (None reads `sys.argv`). The exit code is 0 on success, and 2 after an error that the user
    can correct or if the command `check` finds a problem in the data.
    """
    parser = argparse.ArgumentParser(prog="python -m medfed.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    card = commands.add_parser("card", help="describe a dataset: its licence, its folder layout, how to get it")
    card.add_argument("name", help="name in a config: prostate, folder, ...")
    checks = commands.add_parser("check", help="read all images and report every problem")
    checks.add_argument("path", type=Path, help="a folder with one folder per site, a datalist, or a config")
    checks.add_argument("--dataset", metavar="NAME", help="name in a config (default: recognised by the folder layout)")
    checks.add_argument("--allow-duplicates", action="store_true", help="accept images that occur twice")
    checks.add_argument("--json", type=Path, metavar="FILE", help="also write the report, case by case, to this file")
    checks.add_argument("--quiet", action="store_true", help="print only the report, no progress")
    get = commands.add_parser("fetch", help="download a dataset, or explain how to get it")
    get.add_argument("name", help="name in a config: prostate, prostate_phantom, ...")
    get.add_argument("--to", type=Path, metavar="FOLDER", help="target folder (default: data/NAME)")
    get.add_argument("--quiet", action="store_true", help="draw no progress bar")
    args = parser.parse_args(argv)
    return run_program("medfed.data", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    if args.command in ("check", "fetch"):
        return (_check if args.command == "check" else _fetch)(args)
    print(format_card(args.name) if args.command else all_cards())
    return 0


def _check(args: argparse.Namespace) -> int:
    if args.path.is_file() and args.path.suffix.lower() not in datalists.SUFFIXES:
        dataset = load(args.path).data.ensure_available(_bar("making the phantom", args.quiet))
    else:
        dataset = recognise(args.path, args.dataset)
    report = check_dataset(dataset, args.allow_duplicates, _bar("reading", args.quiet))
    print(format_data_block(dataset), to_text(report), sep="\n")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.json, to_json(report))
    return 2 if report.problems else 0


def _fetch(args: argparse.Namespace) -> int:
    folder = args.to or Path("data") / args.name
    dataset = registry.resolve("datasets", args.name)(root=str(folder))
    card = dataset.card
    if isinstance(dataset, SyntheticDataset):
        dataset.ensure_available(_bar("making the phantom", args.quiet))
        print(f"The phantom is in {folder}.")
    elif card.url is None:
        print(f"There is no direct download of {args.name}.", format_paragraph("how to get", card.how_to_get),
              format_paragraph("licence", card.licence), sep="\n")
    else:
        target = folder / card.url.rpartition("/")[2]
        digest = download(card.url, target, card.sha256, args.quiet)
        print(f"{target} (SHA-256 {digest})\n{format_paragraph('layout', card.layout)}")
    return 0


def _bar(text: str, quiet: bool) -> base.Progress:
    return lambda items: ProgressBar(items, desc=text, unit="case", disable=quiet, leave=False)


if __name__ == "__main__":
    sys.exit(main())
