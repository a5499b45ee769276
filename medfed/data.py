"""List and describe datasets, check the images in a folder, and prepare a dataset."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_command, add_image_flags, add_json_flag, main_of, new_parser, require_paths
from medfed.core import registry
from medfed.core.errors import UserError

OTHER_TABLES = (".xlsx", ".xls", ".ods", ".txt")


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "data",
        __doc__,
        ("check images", "read all images in the folder images/, and report every problem"),
        ("fetch prostate_phantom", "generate a phantom; without a command, all datasets are listed"),
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    card = add_command(
        commands,
        "card",
        "Describe a dataset: its licence, its folder layout, how to get it.",
        ("prostate", "prostate MRI of six sites"),
        ("folder", "your own images: how folders and files are arranged"),
    )
    card.add_argument("name", help="name in a config: prostate, folder, ...")
    checks = add_command(
        commands,
        "check",
        "Read all images and report every problem.",
        ("images --set 'data.image={site}/{case}_T2.nii.gz'", "a folder, with the pattern of its image files"),
        ("my.yaml --patients patients.csv", "the images of a config; also write the files of each patient"),
    )
    checks.add_argument("path", type=Path, help="a folder with images of two or more sites, a table, or a config")
    add_json_flag(checks, "the report, case by case,")
    patients = "also write a table with the files of each patient and case, which must stay at the site"
    checks.add_argument("--patients", type=Path, metavar="FILE", help=patients)
    add_image_flags(checks)
    fetch = add_command(
        commands,
        "fetch",
        "Generate a phantom, or explain how to get a dataset.",
        ("prostate_phantom", "in data/prostate_phantom"),
        ("fundus", "no phantom: print how to get the images, and into which folders"),
    )
    fetch.add_argument("name", help="name in a config: prostate, prostate_phantom, ...")
    fetch.add_argument("--to", type=Path, metavar="FOLDER", help="target folder (default: data/NAME)")
    fetch.add_argument("--quiet", action="store_true", help="draw no progress bar")
    prepare = add_command(
        commands,
        "prepare",
        "Write original downloads in the layout of a dataset. The original collections are found in folders with "
        "unpacked downloads; docs/how_to/collections.md lists them.",
        ("prostate downloads data/prostate", "all collections below one folder"),
        ("fundus Drishti RIM-ONE REFUGE data/fundus", "one folder for each download"),
    )
    prepare.add_argument("name", choices=("prostate", "fundus"), help="name in a config")
    prepare.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="a folder with unpacked downloads")
    prepare.add_argument("out", type=Path, metavar="OUT", help="new folder, for example data/prostate")
    prepare.add_argument("--quiet", action="store_true", help="print only the result, no progress")
    masks = add_command(
        commands,
        "dicom-seg",
        "Store masks of a bundle as DICOM SEG objects of their series.",
        ("predictions series --out dicom_seg", "one object for each series, with one segment for each structure"),
        ("bundle/eval series --out dicom_seg", "the folder in which a bundle writes its masks without --output_dir"),
    )
    masks.add_argument("masks", type=Path, help="folder of the masks: SERIES_STRUCTURE.nii.gz, as a bundle writes")
    masks.add_argument("series", type=Path, help="folder with one folder for each series, which the bundle has read")
    masks.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="new folder for the objects")
    return parser


def _run(args: argparse.Namespace) -> int:
    runs = {"check": _check, "fetch": _fetch, "prepare": _prepare, "dicom-seg": _write_dicom_seg}
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


def _fetch(args: argparse.Namespace) -> int:
    from medfed.cli.progress import case_bar
    from medfed.outputs.dataset_cards import format_card
    from medfed.phantoms.synthesis.synthetic import SyntheticDataset

    folder = args.to or Path("data") / args.name
    dataset = registry.resolve("datasets", args.name)(root=str(folder))
    if isinstance(dataset, SyntheticDataset):
        dataset.ensure_available(case_bar("making the phantom", args.quiet))
        print(f"The phantom is in {folder}.")
    else:
        print(format_card(args.name))
    return 0


def _prepare(args: argparse.Namespace) -> int:
    from medfed.cli.progress import case_bar
    from medfed.preparation import fundus, prostate
    from medfed.preparation.prepare import format_summary, prepare

    collections = prostate.COLLECTIONS if args.name == "prostate" else fundus.COLLECTIONS
    print(format_summary(collections, prepare(collections, args.sources, args.out, case_bar("preparing", args.quiet))))
    print(f"The dataset is in {args.out}; to check it: python -m medfed.data check {args.out} --dataset {args.name}")
    return 0


def _write_dicom_seg(args: argparse.Namespace) -> int:
    from medfed.preparation.dicom_masks import write_segmentations

    n_objects = write_segmentations(args.masks, args.series, args.out)
    written = f"Wrote {n_objects} DICOM SEG object{'' if n_objects == 1 else 's'}"
    print(f"{written}. They contain the identifiers of the patients, as the series do.")
    return 0


main = main_of("data", parser, _run)

if __name__ == "__main__":
    sys.exit(main())
