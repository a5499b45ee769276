"""The commands of `python -m medfed.data` that write files: get a dataset, or store masks as DICOM SEG objects.

The program imports this module before it parses its flags, so nothing slow is imported at its top.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from medfed.core import registry

if TYPE_CHECKING:
    from medfed.datasets.base import Progress

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_fetch_command(commands: Commands) -> None:
    command = commands.add_parser("fetch", help="make a phantom, or explain how to get a dataset")
    command.add_argument("name", help="name in a config: prostate, prostate_phantom, ...")
    command.add_argument("--to", type=Path, metavar="FOLDER", help="target folder (default: data/NAME)")
    command.add_argument("--quiet", action="store_true", help="draw no progress bar")


def run_fetch(args: argparse.Namespace) -> int:
    """Make a phantom, or print how to get a dataset."""
    from medfed.outputs.dataset_cards import format_card
    from medfed.phantoms.synthesis.synthetic import SyntheticDataset

    folder = args.to or Path("data") / args.name
    dataset = registry.resolve("datasets", args.name)(root=str(folder))
    if isinstance(dataset, SyntheticDataset):
        dataset.ensure_available(progress_bar("making the phantom", args.quiet))
        print(f"The phantom is in {folder}.")
    else:
        print(format_card(args.name))
    return 0


def add_prepare_command(commands: Commands) -> None:
    command = commands.add_parser(
        "prepare",
        help="write original downloads in the layout of a dataset",
        description="Find original collections in folders with unpacked downloads, and write "
        "their cases in the layout that a dataset reads. docs/collections.md lists the downloads.",
    )
    command.add_argument("name", choices=("prostate", "fundus"), help="name in a config")
    command.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="a folder with unpacked downloads")
    command.add_argument("out", type=Path, metavar="OUT", help="new folder, for example data/prostate")
    command.add_argument("--quiet", action="store_true", help="print only the result, no progress")


def run_prepare(args: argparse.Namespace) -> int:
    """Write the prepared dataset, print what was done, and return the exit code."""
    from medfed.preparation import fundus, prostate
    from medfed.preparation.prepare import format_summary, prepare

    collections = prostate.COLLECTIONS if args.name == "prostate" else fundus.COLLECTIONS
    summary = prepare(collections, args.sources, args.out, progress_bar("preparing", args.quiet))
    print(format_summary(collections, summary))
    print(f"The dataset is in {args.out}; to check it: python -m medfed.data check {args.out} --dataset {args.name}")
    return 0


def add_dicom_seg_command(commands: Commands) -> None:
    command = commands.add_parser("dicom-seg", help="store masks of a bundle as DICOM SEG objects of their series")
    command.add_argument("masks", type=Path, help="folder of the masks: SERIES_STRUCTURE.nii.gz, as a bundle writes")
    command.add_argument("series", type=Path, help="folder with one folder for each series, which the bundle has read")
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="new folder for the objects")


def run_dicom_seg(args: argparse.Namespace) -> int:
    """Write predicted masks as DICOM SEG objects, and return the exit code."""
    from medfed.preparation.dicom_masks import write_segmentations

    n_objects = write_segmentations(args.masks, args.series, args.out)
    print(
        f"Wrote {n_objects} DICOM SEG object{'' if n_objects == 1 else 's'}. They contain the identifiers of the "
        "patients, as the series do."
    )
    return 0


def progress_bar(text: str, quiet: bool) -> Progress:
    """Return a bar over cases with a text such as "reading"."""
    from medfed.cli.progress import ProgressBar

    return lambda items: ProgressBar(items, desc=text, unit="case", disable=quiet, leave=False)
