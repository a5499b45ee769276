"""Train a federation, test it on the site that took no part, draw and keep the result."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from medfed.cli.program import add_common_flags, overrides, run_program
from medfed.config.schema import load, resolved
from medfed.experiments.resume import check_run_folder
from medfed.experiments.run import default_folder, run
from medfed.outputs.run_folder import RunFolder
from medfed.outputs.tables.run_table import closing_table


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when the work is done, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.train", description=__doc__)
    parser.add_argument("config", type=Path, help="a YAML file, for example configs/prostate.yaml")
    parser.add_argument("--accept-config-change", action="store_true", help="resume although the config differs")
    add_common_flags(parser)
    args = parser.parse_args(argv)
    return run_program("medfed.train", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    config = load(args.config, overrides(args))
    folder = RunFolder(args.out or default_folder(config))
    with folder.locked():
        check_run_folder(folder, resolved(config), args.resume, args.accept_config_change)
        try:
            result = run(config, folder, args.quiet)
        except KeyboardInterrupt as stop:
            if str(stop) or not (folder.path / "config.yaml").is_file():
                raise
            raise type(stop)(
                f"stopped; {folder.path} holds all rounds. Go on with the same command and --resume"
            ) from stop
    print(closing_table(result))
    print(f"\nEverything is in {folder.path}: cases.csv, summary.json, figures/, model.safetensors, ledger.csv.")
    print(f"A MONAI bundle for a hospital: python -m medfed.export {shlex.quote(str(folder.path))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
