"""Score a MONAI bundle on your own labelled images; nothing is trained, and no code of the bundle runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_code_flag, run_program
from medfed.core.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Run `medfed score` (`argv` None: `sys.argv`) and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m medfed.score", description=__doc__)
    parser.add_argument("bundle", type=Path, help="folder of an unpacked MONAI bundle, from medfed.export or others")
    parser.add_argument(
        "folder", type=Path, help="a folder with images of one or more sites, or a table, as for medfed.data check"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder for the results (default: scores/BUNDLE-FOLDER)"
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="OWN=BUNDLE",
        help="the bundle's name of one of your structures or classes: --name gland=prostate",
    )
    parser.add_argument("--dataset", metavar="NAME", help="name in a config (default: found by the names of the files)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the images: 'data.image={site}/{case}_T2.nii.gz'",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add_code_flag(parser)
    parser.add_argument("--quiet", action="store_true", help="print only the result, no progress")
    args = parser.parse_args(argv)
    return run_program("medfed.score", lambda: _score(args), args.allow_code)


def _score(args: argparse.Namespace) -> int:
    """Score the bundle on the images of the folder in `args`, write the scores, and return the exit code."""
    from medfed.config.overrides import Override
    from medfed.config.schema import load_dataset
    from medfed.scoring.page import PAGE
    from medfed.scoring.score import check_output, score_bundle, write_results

    named = dict(_pair(text) for text in args.name)
    out = args.out or Path("scores") / f"{args.bundle.resolve().name}-{args.folder.resolve().stem}"
    dataset = load_dataset(args.folder, args.dataset, [Override.parse(text) for text in args.set])
    check_output(out, dataset)
    scores = score_bundle(args.bundle, dataset, named, args.device, args.quiet)
    write_results(scores, out)
    print(scores.to_text())
    print(f"\nThe results are in {out}: summary.json, cases.csv, figures/ and the page {PAGE}.")
    return 0


def _pair(text: str) -> tuple[str, str]:
    """The two names in `OWN=PREDICTED`; UserError for another form."""
    own, sign, predicted = text.partition("=")
    if not (own and sign and predicted):
        raise UserError(f"--name {text}: expected YOUR_NAME=NAME_IN_THE_BUNDLE, such as --name gland=prostate")
    return own, predicted


if __name__ == "__main__":
    sys.exit(main())
