"""The program of a coordinator: prepare a federation of real hospitals, run it over NVIDIA FLARE, and score models."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_code_flag, add_common_flags, run_program
from medfed.deployment.coordinate import run_coordinator
from medfed.deployment.prepare import prepare_federation
from medfed.deployment.score_hospitals import NETWORK, score_at_hospitals
from medfed.experiments.resume import check_no_other_files
from medfed.scoring.arguments import add_scoring_arguments, minimum_of_sites, scoring_inputs
from medfed.scoring.federated import ENGINES, SCORES, score_at_sites, write_site_scores
from medfed.scoring.score import check_output
from medfed.scoring.site import DEFAULT_MIN_PATIENTS


def main(argv: list[str] | None = None) -> int:
    """Run the program `medfed coordinator`, which prepares or runs a federation of hospitals, or scores a model.

    Args:
        argv: the command-line arguments; None reads `sys.argv`.

    Returns:
        The exit code: 0 on success, 2 after an error that the user can correct.
    """
    parser = argparse.ArgumentParser(prog="python -m medfed.coordinator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepares = commands.add_parser(
        "prepare", help="write the plan, a folder for each hospital, and FLARE's project file"
    )
    prepares.add_argument("config", type=Path, help="a YAML file, as for medfed.train")
    prepares.add_argument("--sites", nargs="+", metavar="SITE",
                          help="names of the hospitals; by default those in data.root")
    prepares.add_argument("--host", default="localhost",
                          help="host name or address under which the hospitals reach the coordinator")
    prepares.add_argument("--port", type=int, default=8002,
                          help="port of FLARE's server; the next port is for FLARE's admin console")
    add_common_flags(prepares)
    runs = commands.add_parser("run", help="start FLARE's server, wait for the hospitals, and train")
    runs.add_argument("folder", type=Path, help="the folder that prepare wrote")
    runs.add_argument("--kits", type=Path,
                      help="the folder with one kit for each participant, which `nvflare provision` wrote")
    runs.add_argument("--join-seconds", type=float, default=600.0,
                      help="seconds to wait for the hospitals to join and to read their data")
    runs.add_argument("--reply-seconds", type=float, metavar="S",
                      help="seconds that a hospital may take to reply, 0 for no limit; by default "
                           "federation.reply_timeout_s of the plan. It may be changed with --resume")
    runs.add_argument("--resume", action="store_true", help="continue after the last finished round")
    add_code_flag(runs)
    runs.add_argument("--quiet", action="store_true", help="show no progress, only the result")
    scores = commands.add_parser(
        "score", help="score a MONAI bundle at the sites of a folder; each site returns means over its patients only"
    )
    add_scoring_arguments(scores)
    scores.add_argument("--min-patients", action="append", default=[], metavar="N or SITE=N",
                        help="minimum group size of all sites, or of one: with fewer patients, a site returns no score "
                             f"(default: {DEFAULT_MIN_PATIENTS})")
    scores.add_argument("--engine", choices=[*ENGINES, NETWORK], default=ENGINES[0],
                        help="whether the sites work in this process, or each in a process of its own, or are the "
                             f"hospitals ({NETWORK}) of the federation that `prepare` wrote to FOLDER")
    scores.add_argument("--kits", type=Path, help="as for run")
    scores.add_argument("--join-seconds", type=float, default=600.0, help="as for run")
    add_code_flag(scores)
    args = parser.parse_args(argv)
    work = {"prepare": prepare_federation, "run": run_coordinator, "score": _score_at_sites}[args.command]
    return run_program("medfed.coordinator", lambda: work(args), args.allow_code)


def _score_at_sites(args: argparse.Namespace) -> int:
    """Score a bundle at the sites of a folder, and print and write the aggregates."""
    inputs = scoring_inputs(args)
    out = args.out or inputs.default_out()
    if args.engine == NETWORK:
        check_no_other_files(out)
        scores = score_at_hospitals(args)
    else:
        check_output(out, dataset := inputs.load_dataset())
        scores = score_at_sites(inputs, minimum_of_sites(args.min_patients, dataset.site_names()), args.engine)
    write_site_scores(scores, out)
    print(scores.to_text())
    print(f"\nThe results are in {out}: {SCORES}, summary.json and ledger.csv.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
