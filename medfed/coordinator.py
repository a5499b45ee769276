"""Prepare a federation of real hospitals, run it over NVIDIA FLARE, and print the scores that hospitals sent."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_code_flag, add_command, add_setting_flags, main_of, new_parser


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "coordinator",
        __doc__,
        (
            "prepare my.yaml --sites BMC HK UCL --host coordinator.example --out fed",
            "write the plan and a folder for each hospital",
        ),
        ("run fed", "train with the hospitals"),
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepares = add_command(
        commands,
        "prepare",
        "Write the plan, a folder for each hospital, and FLARE's project file.",
        ("my.yaml --sites BMC HK UCL --host coordinator.example --out fed", "the hospitals have the images"),
        ("my.yaml --out fed", "a federation on this computer, to try it out: the sites are those of data.root"),
    )
    prepares.add_argument("config", help="a YAML file, or the name of a config that comes with medfed")
    prepares.add_argument(
        "--sites", nargs="+", metavar="SITE", help="names of the hospitals; by default those in data.root"
    )
    prepares.add_argument(
        "--host", default="localhost", help="host name or address under which the hospitals reach the coordinator"
    )
    prepares.add_argument(
        "--port", type=int, default=8002, help="port of FLARE's server; the next port is for FLARE's admin console"
    )
    prepares.add_argument("--out", type=Path, metavar="FOLDER", help="new folder (default: federations/NAME)")
    add_setting_flags(prepares)
    runs = add_command(
        commands,
        "run",
        "Start FLARE's server, wait for the hospitals, and train.",
        ("fed --join-seconds 3600", "wait an hour for the hospitals"),
        ("fed --resume --reply-seconds 900", "continue after the last finished round, with another limit for replies"),
    )
    runs.add_argument("folder", type=Path, help="the folder that prepare wrote")
    runs.add_argument(
        "--kits", type=Path, help="the folder with one kit for each participant, which `nvflare provision` wrote"
    )
    runs.add_argument(
        "--join-seconds",
        type=float,
        default=600.0,
        help="seconds to wait for the hospitals to join and to read their data",
    )
    runs.add_argument(
        "--reply-seconds",
        type=float,
        metavar="S",
        help="seconds that a hospital may take to reply, 0 for no limit; by default "
        "federation.reply_timeout_s of the plan. It may be changed with --resume",
    )
    runs.add_argument("--resume", action="store_true", help="continue after the last finished round")
    add_code_flag(runs)
    summaries = add_command(
        commands,
        "summaries",
        "Print one table of the summary.json files that hospitals wrote with medfed.score.",
        ("BMC/summary.json HK/summary.json", "one row for each hospital"),
        ("BMC/summary.json HK/summary.json --min-patients 10", "without scores of fewer than ten patients"),
    )
    summaries.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a summary.json of a hospital")
    summaries.add_argument(
        "--min-patients", type=int, default=5, metavar="N", help="leave out scores of fewer patients (default: 5)"
    )
    return parser


def _work(args: argparse.Namespace) -> int:
    from medfed.deployment.coordinate import run_coordinator
    from medfed.deployment.prepare import prepare_federation
    from medfed.scoring.summaries import print_summaries

    return {"prepare": prepare_federation, "run": run_coordinator, "summaries": print_summaries}[args.command](args)


main = main_of("coordinator", parser, _work)

if __name__ == "__main__":
    sys.exit(main())
