"""Train a federation, test it on the unseen site, and write scores, figures and the model to a folder."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from medfed.cli import program
from medfed.outputs.run_files import check_may_start

if TYPE_CHECKING:
    from medfed.config.schema import Config


def parser() -> argparse.ArgumentParser:
    parser = program.new_parser(
        "train",
        __doc__,
        ("prostate", "train the config that comes with medfed; generates its phantom if the images are missing"),
        (
            "my.yaml --set training.learning_rate=0.001 --out runs/slow",
            "one setting changed; with --resume, the run in this folder continues after its last round",
        ),
    )
    program.add_config_argument(parser)
    parser.add_argument(
        "--accept-config-change", action="store_true", help="resume although a setting differs from that of the run"
    )
    program.add_jobs_flag(parser, "sites")
    parser.add_argument("--explain", action="store_true", help="also print what the columns mean")
    program.add_json_flag(parser, "the summary of the run")
    program.add_common_flags(parser)
    return parser


def _train(args: argparse.Namespace) -> int:
    from medfed.config.early import check_config

    check_config(args.config, program.overrides(args))
    if args.out:
        check_may_start(args.out, resume=args.resume)  # before torch is imported
    from medfed import api
    from medfed.outputs.tables.run_table import closing_table
    from medfed.results.notes import did_not_learn

    config = api.load_config(args.config, program.overrides(args))
    with program.only_json(args.json) as print_json:
        run = api.run(
            config,
            args.out or _default_folder(config),
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
        print_json({"folder": str(run.folder), **run.summary})
    return 0


def _default_folder(config: Config) -> Path:
    """Return `runs/CONFIG-METHOD-unseen_SITE-seedN`, with `-validation_SITE` if there is a validation site."""
    unseen, validation = config.federation.unseen_site or "none", config.federation.validation_site
    sites = f"unseen_{unseen}" + (f"-validation_{validation}" if validation else "")
    return Path("runs") / f"{Path(config.source).stem}-{config.method_name}-{sites}-seed{config.seed}"


main = program.main_of("train", parser, _train)

if __name__ == "__main__":
    sys.exit(main())
