"""List the tables and figures of four papers, and run one: our scores beside the paper's."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_code_flag, add_jobs_flag, main_of, new_parser
from medfed.core.errors import UserError
from medfed.reproduction.entries import PAPERS, commands_of, describe_entry, describe_paper, list_papers, load_paper


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "reproduce",
        __doc__,
        ("elcfs table_2 --dry-run", "data, commands and the paper's numbers; nothing is trained"),
        ("elcfs table_2 --small", "the table with phantoms, in minutes"),
    )
    parser.add_argument("paper", nargs="?", help=f"one of {', '.join(PAPERS)}; without it, all are listed")
    parser.add_argument(
        "entry",
        nargs="?",
        help="a table or figure to run, for example table_2; without it, those of the paper are described",
    )
    parser.add_argument("--dry-run", action="store_true", help="print data, commands and the paper's numbers only")
    parser.add_argument(
        "--small",
        action="store_true",
        help="few, small images and few rounds: minutes on two cores; uses phantoms unless --data is given",
    )
    parser.add_argument("--data", metavar="FOLDER", help="folder of the images, if it is not the one in the config")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="run these parts of the entry only")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds instead of the entry's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of all runs")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder for the results (default: runs/PAPER-ENTRY)")
    parser.add_argument("--resume", action="store_true", help="continue the runs in that folder")
    add_code_flag(parser)
    add_jobs_flag(parser, "runs")
    return parser


def _reproduce(args: argparse.Namespace) -> int:
    if args.seeds is not None and args.seeds < 1:
        raise UserError(f"--seeds {args.seeds}: expected a whole number of at least 1")
    if args.entry is None:
        for flag in ("data", "only", "seeds", "set", "out"):
            if getattr(args, flag):
                raise UserError(f"--{flag}: name a table or figure, for example {args.paper or 'elcfs'} table_2")
        print(list_papers() if args.paper is None else describe_paper(args.paper))
        return 0
    paper = load_paper(args.paper)
    entry = paper.entry(args.entry)
    commands = commands_of(entry, args.only, small=args.small, folder=args.data, more=args.set, seeds=args.seeds)
    if args.dry_run:
        for command in commands:
            command.load()  # a setting that the run would refuse is refused here, too
        from medfed.reproduction.running import printed_numbers  # imports torch, which the lists do not need

        print("\n\n".join([describe_entry(args.paper, entry, commands), *printed_numbers(entry)]))
        return 0
    if not commands:
        raise UserError(f"{args.paper} {entry.name} cannot be run{' small' * args.small}: {entry.missing}")
    from medfed.reproduction.running import run_entry  # imports torch, which the lists do not need

    out = args.out or Path("runs") / f"{args.paper}-{entry.name}{'-small' * args.small}"
    n_unfinished = run_entry(
        paper, entry, commands, out, small=args.small, resume=args.resume, jobs=args.jobs, progress=not args.quiet
    )
    return 1 if n_unfinished else 0


main = main_of("reproduce", parser, _reproduce)

if __name__ == "__main__":
    sys.exit(main())
