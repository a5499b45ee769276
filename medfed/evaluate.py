"""Compare methods: leave each site out in turn, train every method with every seed, and write one table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_common_flags, add_config_argument, add_jobs_flag, overrides, run_program
from medfed.core.errors import UserError
from medfed.results.row import BASELINE


def main(argv: list[str] | None = None) -> int:
    """Run `medfed evaluate` (`argv` None: `sys.argv`) and return its exit code, 1 if runs failed or are locked."""
    parser = argparse.ArgumentParser(prog="python -m medfed.evaluate", description=__doc__)
    add_config_argument(parser)
    which = parser.add_mutually_exclusive_group()
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
        help="default: fedavg elcfs. With settings: ccst:k=1,style=single. Several stacked: "
        "ccst+elcfs. all: every method that works on this task, with its default settings. "
        "pooled: all images in one place; local: each site alone; fedavg@steps=METHOD: FedAvg "
        "with as many steps and images as METHOD",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help="run every method with each of these values, one row for each; repeat the flag to run "
        "each combination: --vary federation.participating=1,2,3",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="number of runs of each method and unseen site: seed, seed + 1, ...",
    )
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
    add_jobs_flag(parser, "runs")
    parser.add_argument("--explain", action="store_true", help="also print what the columns mean")
    add_common_flags(parser)
    args = parser.parse_args(argv)
    return run_program("medfed.evaluate", lambda: _evaluate(args), args.allow_code)


def _evaluate(args: argparse.Namespace) -> int:
    """Run the comparison that `args` describes, print its table, and return the exit code."""
    if not (args.leave_one_site_out or args.leave_two_sites_out):
        raise UserError(
            "choose --leave-one-site-out (each site is the unseen site in turn) or --leave-two-sites-out "
            "(with a validation site as well)"
        )
    from medfed import api
    from medfed.config.overrides import Override
    from medfed.config.schema import load
    from medfed.results.render import explanations, first_screen

    config = load(api.find_config(args.config), overrides(args))
    number = "two_sites" if args.leave_two_sites_out else "one_site"
    comparison = api.compare(
        config,
        args.methods,
        args.out or Path("runs") / f"{Path(config.source).stem}-leave_{number}_out",
        leave_two_out=args.leave_two_sites_out,
        seeds=args.seeds,
        sites=args.sites,
        resume=args.resume,
        pairs=[pair.partition("/")[::2] for pair in args.pairs] if args.pairs else None,
        varied=[Override.parse_each(text, "--vary") for text in args.vary],
        jobs=args.jobs,
        progress=not args.quiet,
        baseline=args.baseline,
        equal_effort=not args.no_equal_effort,
    )
    print(first_screen(comparison.tables, colours=sys.stdout.isatty()))
    if args.explain:
        print("\n" + "\n".join(f"- {sentence}" for sentence in explanations(comparison.tables)))
    if comparison.n_locked:
        print(
            f"{comparison.n_locked} runs are locked by another process; --resume completes the table when it is done."
        )
    for name, reason in comparison.failed.items():
        print(f"failed: {name}: {reason}. --resume repeats it.")
    for name, reason in comparison.incompatible.items():
        print(f"not compared: {name}: {reason}")
    table = comparison.folder / "table.md"
    print(f"\nAll metrics, p values, failures and costs: {table} (.csv, .json, .tex). --explain: what columns mean.")
    return 1 if comparison.n_locked or comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main())
