"""Score a MONAI bundle on your own images, or predict its scores without labels; no training, no code of the bundle."""

from __future__ import annotations

import argparse
import sys

from medfed.cli.program import add_code_flag, run_program
from medfed.scoring.arguments import add_scoring_arguments, scoring_inputs


def main(argv: list[str] | None = None) -> int:
    """Run the program `medfed score`, which scores a bundle on all labelled images of a folder.

    Args:
        argv: the command-line arguments; None reads `sys.argv`.

    Returns:
        The exit code: 0 on success, 2 after an error that the user can correct.
    """
    parser = argparse.ArgumentParser(prog="python -m medfed.score", description=__doc__)
    add_scoring_arguments(parser)
    parser.add_argument(
        "--no-labels",
        action="store_true",
        help="predict the Dice from the agreement of the sites' local models; no label is read",
    )
    parser.add_argument(
        "--check-prediction",
        action="store_true",
        help="predict the Dice as --no-labels does, then read the labels and compare",
    )
    add_code_flag(parser)
    parser.add_argument("--quiet", action="store_true", help="print only the result, no progress")
    args = parser.parse_args(argv)
    return run_program("medfed.score", lambda: _score(args), args.allow_code)


def _score(args: argparse.Namespace) -> int:
    from medfed.scoring.no_labels import PREDICTIONS, predict_for
    from medfed.scoring.page import PAGE
    from medfed.scoring.score import check_output, score_bundle, write_scores

    inputs = scoring_inputs(args)
    if args.no_labels or args.check_prediction:
        predictions, out = predict_for(inputs, args.out, args.check_prediction, args.quiet)
        print(predictions.to_text())
        print(f"\nThe results are in {out}: summary.json, {PREDICTIONS} and figures/.")
        return 0
    out, dataset = args.out or inputs.default_out(), inputs.load_dataset()
    check_output(out, dataset)
    scores = score_bundle(args.bundle, dataset, inputs.named, args.device, args.quiet)
    write_scores(scores, out)
    print(scores.to_text())
    print(f"\nThe results are in {out}: summary.json, cases.csv, figures/ and the page {PAGE}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
