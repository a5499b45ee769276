"""Compare methods: leave each site out in turn, train every method with every seed, and write one table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from medfed.cli import program
from medfed.results.row import BASELINE


def parser() -> argparse.ArgumentParser:
    parser = program.new_parser(
        "evaluate",
        __doc__,
        ("prostate --leave-one-site-out --methods fedavg elcfs --seeds 3", "two methods with three seeds"),
        (
            "my.yaml --leave-one-site-out --methods all --sites BMC --jobs 4 --resume",
            "all methods, one unseen site, four runs at a time; continue a comparison that was stopped",
        ),
    )
    program.add_config_argument(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--leave-one-site-out", action="store_true", help="each site is the unseen site in turn")
    which.add_argument(
        "--leave-two-sites-out",
        action="store_true",
        help="each site is the unseen site in turn, and the next one is the validation site",
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        metavar="UNSEEN/VALIDATION",
        help="with --leave-two-sites-out: run these pairs instead of all neighbours",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["fedavg", "elcfs"],
        metavar="NAME",
        help="default: fedavg elcfs. With settings: ccst:k=1,style=single. Stacked: ccst+elcfs. all: every method that "
        "works on this task, with its default settings. pooled: all images in one place; local: each site alone; "
        "fedavg@steps=METHOD: FedAvg with as many steps and images as METHOD",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help="run every method with each of these values: --vary federation.rounds=20,50; repeat for combinations",
    )
    seeds = "number of runs of each method and unseen site: seed, seed + 1, ..."
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help=seeds)
    parser.add_argument("--sites", nargs="+", metavar="SITE", help="leave out these sites only")
    parser.add_argument(
        "--baseline",
        default=BASELINE,
        metavar="NAME",
        help=f"one of the methods, with which all others are compared; default: {BASELINE}",
    )
    parser.add_argument(
        "--no-equal-effort",
        action="store_true",
        help="do not add FedAvg with as many steps and images as each method that takes more; such a "
        "method is then compared with FedAvg of less effort",
    )
    program.add_jobs_flag(parser, "runs")
    parser.add_argument("--explain", action="store_true", help="also print what the columns mean")
    program.add_json_flag(parser, "the tables")
    program.add_common_flags(parser)
    return parser


def _evaluate(args: argparse.Namespace) -> int:
    from medfed.config.early import check_config

    check_config(args.config, program.overrides(args))
    from medfed import api
    from medfed.results.render import explanations, first_screen

    config = api.load_config(args.config, program.overrides(args))
    number = "two_sites" if args.leave_two_sites_out else "one_site"
    with program.only_json(args.json) as print_json:
        comparison = api.compare(
            config,
            args.methods,
            args.out or Path("runs") / f"{Path(config.source).stem}-leave_{number}_out",
            leave_two_out=args.leave_two_sites_out,
            pairs=[pair.partition("/")[::2] for pair in args.pairs] if args.pairs else None,
            seeds=args.seeds,
            sites=args.sites,
            vary=args.vary,
            resume=args.resume,
            jobs=args.jobs,
            progress=not args.quiet,
            baseline=args.baseline,
            equal_effort=not args.no_equal_effort,
        )
        print(first_screen(comparison.tables, colours=sys.stdout.isatty()))
        if args.explain:
            print("\n" + "\n".join(f"- {sentence}" for sentence in explanations(comparison.tables)))
        if n_locked := comparison.n_locked:
            print(f"{n_locked} runs are locked by another process; --resume completes the table when it is done.")
        for name, reason in comparison.failed.items():
            print(f"failed: {name}: {reason}. --resume repeats it.")
        for name, reason in comparison.incompatible.items():
            print(f"not compared: {name}: {reason}")
        table = comparison.folder / "table"
        more = "" if args.explain else " --explain: column names."
        print(f"\nAll metrics, p values, failures and costs: {table}.md (.csv, .json, .tex).{more}")
        unfinished = {"n_locked": n_locked, "failed": comparison.failed, "incompatible": comparison.incompatible}
        content = json.loads(table.with_suffix(".json").read_text("utf-8"))
        print_json({"folder": str(comparison.folder), **content, **unfinished})
    return 1 if comparison.n_locked or comparison.failed else 0


main = program.main_of("evaluate", parser, _evaluate)

if __name__ == "__main__":
    sys.exit(main())
