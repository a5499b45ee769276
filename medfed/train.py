"""Train a federation, test it on the unseen site, and write scores, figures and the model to a folder."""

from __future__ import annotations

import argparse
import shlex
import sys

from medfed.cli.program import add_common_flags, add_config_argument, add_jobs_flag, overrides, run_program


def main(argv: list[str] | None = None) -> int:
    """Run `medfed train` (`argv` None: `sys.argv`) and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m medfed.train", description=__doc__)
    add_config_argument(parser)
    parser.add_argument(
        "--accept-config-change", action="store_true", help="resume although a setting differs from that of the run"
    )
    add_jobs_flag(parser, "sites")
    parser.add_argument("--explain", action="store_true", help="also print what the columns mean")
    add_common_flags(parser)
    args = parser.parse_args(argv)
    return run_program("medfed.train", lambda: _train(args), args.allow_code)


def _train(args: argparse.Namespace) -> int:
    """Train a run as `args` says, print its scores, and return the exit code."""
    from medfed import api
    from medfed.config.schema import load
    from medfed.experiments.run import default_folder
    from medfed.outputs.tables.run_table import closing_table
    from medfed.results.notes import did_not_learn

    config = load(api.find_config(args.config), overrides(args))
    run = api.run(
        config,
        args.out or default_folder(config),
        resume=args.resume,
        accept_config_change=args.accept_config_change,
        jobs=args.jobs,
        progress=not args.quiet,
    )
    print(closing_table(run.summary, args.explain))
    print(f"\nAll files are in {run.folder}: cases.csv, summary.json, figures/, model.safetensors, ledger.csv.")
    export = f"python -m medfed.export {shlex.quote(str(run.folder))}"
    print(
        f"The model did not learn. To write a MONAI bundle in spite of that: {export} --force"
        if did_not_learn(run.summary)
        else f"To write a MONAI bundle: {export}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
