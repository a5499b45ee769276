"""Score a MONAI bundle on your own labelled images; nothing is trained, and no code of the bundle runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_image_flags, add_json_flag, main_of, new_parser, only_json, require_paths
from medfed.core.errors import UserError


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "score",
        __doc__,
        ("prostate_segmentation images", "score the bundle on the labelled images in the folder images/"),
        (
            "prostate_segmentation table.csv --name gland=prostate --out scores/own --json",
            "images of a table, whose structure has another name; print the scores as JSON",
        ),
    )
    parser.add_argument("bundle", type=Path, help="folder of an unpacked MONAI bundle, from medfed.export or others")
    parser.add_argument("folder", type=Path, help="a folder with images of one or more sites, or a table")
    out = "folder for the results (default: scores/BUNDLE-FOLDER)"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=out)
    name = "the bundle's name of one of your structures or classes: --name gland=prostate"
    parser.add_argument("--name", action="append", default=[], metavar="OWN=BUNDLE", help=name)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add_json_flag(parser, "the scores")
    add_image_flags(parser)
    return parser


def _score(args: argparse.Namespace) -> int:
    names = dict(_pair(text) for text in args.name)
    out = args.out or Path("scores") / f"{args.bundle.resolve().name}-{args.folder.resolve().stem}"
    require_paths("the folder of a bundle", args.bundle)
    require_paths("a folder with images, or a table", args.folder)
    from medfed.api import score_bundle
    from medfed.scoring.page import PAGE

    with only_json(args.json) as print_json:
        scores = score_bundle(
            args.bundle,
            args.folder,
            out,
            names=names,
            dataset=args.dataset,
            settings=args.set,
            device=args.device,
            progress=not args.quiet,
        )
        print(scores)
        print(f"\nThe results are in {out}: summary.json, cases.csv, figures/ and the page {PAGE}.")
        print_json({"folder": str(out), **scores.summary})
    return 0


def _pair(text: str) -> tuple[str, str]:
    """The two names in `OWN=PREDICTED`; UserError for another form."""
    own, sign, predicted = text.partition("=")
    if not (own and sign and predicted):
        raise UserError(f"--name {text}: expected YOUR_NAME=NAME_IN_THE_BUNDLE, such as --name gland=prostate")
    return own, predicted


main = main_of("score", parser, _score)

if __name__ == "__main__":
    sys.exit(main())
