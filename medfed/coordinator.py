"""The program of a coordinator: prepare a federation of real hospitals, and run it over NVIDIA FLARE."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_code_flag, add_common_flags, run_program
from medfed.deployment.coordinate import run_coordinator
from medfed.deployment.prepare import prepare_federation


def main(argv: list[str] | None = None) -> int:
    """Run the program `medfed coordinator`, which prepares a federation of real hospitals or runs it with NVIDIA FLARE.

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
    args = parser.parse_args(argv)
    work = {"prepare": prepare_federation, "run": run_coordinator}[args.command]
    return run_program("medfed.coordinator", lambda: work(args), args.allow_code)


if __name__ == "__main__":
    sys.exit(main())
