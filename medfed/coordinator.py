"""A coordinator's side: prepare a federation of real hospitals, and run it over NVIDIA FLARE."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_common_flags, run_program
from medfed.deployment.coordinate import run_coordinator
from medfed.deployment.prepare import prepare_federation


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when the work is done, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.coordinator", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    prepares = commands.add_parser("prepare", help="write the plan, a file for each hospital, and what FLARE needs")
    prepares.add_argument("config", type=Path, help="a YAML file, as for medfed.train")
    prepares.add_argument("--sites", nargs="+", metavar="SITE", help="the hospitals; those in data.root, if not given")
    prepares.add_argument("--host", default="localhost", help="the name under which hospitals reach the coordinator")
    prepares.add_argument("--port", type=int, default=8002,
                          help="the port for that; the next one is for FLARE's console")
    add_common_flags(prepares)
    runs = commands.add_parser("run", help="be the coordinator: start FLARE's server and train with whoever joined")
    runs.add_argument("folder", type=Path, help="what prepare wrote")
    runs.add_argument("--kits", type=Path, help="what `nvflare provision` wrote (the folder with one kit each)")
    runs.add_argument("--join-seconds", type=float, default=600.0, help="how long to wait for the hospitals")
    runs.add_argument("--resume", action="store_true", help="go on after the last finished round")
    runs.add_argument("--quiet", action="store_true", help="no progress, only the result")
    args = parser.parse_args(argv)
    work = {"prepare": prepare_federation, "run": run_coordinator}[args.command]
    return run_program("medfed.coordinator", lambda: work(args))


if __name__ == "__main__":
    sys.exit(main())
