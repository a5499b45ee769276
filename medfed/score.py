"""Score a MONAI bundle on your own labelled images; nothing is trained, and no code of the bundle runs."""

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
    add_code_flag(parser)
    parser.add_argument("--quiet", action="store_true", help="print only the result, no progress")
    args = parser.parse_args(argv)
    return run_program("medfed.score", lambda: _score(args), args.allow_code)


def _score(args: argparse.Namespace) -> int:
    from medfed.scoring.page import PAGE
    from medfed.scoring.score import check_output, score_bundle, write_scores

    inputs = scoring_inputs(args)
    out, dataset = args.out or inputs.default_out(), inputs.load_dataset()
    check_output(out, dataset)
    scores = score_bundle(args.bundle, dataset, inputs.named, args.device, args.quiet)
    write_scores(scores, out)
    print(scores.to_text())
    print(f"\nThe results are in {out}: summary.json, cases.csv, figures/ and the page {PAGE}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
