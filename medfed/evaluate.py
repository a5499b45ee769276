"""Compare methods: leave each site out in turn, or two, for every method and seed, and make the papers' table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.program import add_common_flags, overrides, run_program
from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.experiments.grid import Grid, check_rows, parse_varied, validation_sites
from medfed.experiments.leave_one_out import run_folds, write_table
from medfed.experiments.setup import progress_bar


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when every fold is done, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.evaluate", description=__doc__)
    parser.add_argument("config", type=Path, help="a YAML file, for example configs/prostate.yaml")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--leave-one-site-out", action="store_true", help="each site is the unseen one in turn")
    which.add_argument("--leave-two-sites-out", action="store_true",
                       help="each site is the unseen one in turn, and the next one the validation site")
    parser.add_argument("--pairs", nargs="+", metavar="UNSEEN/VALIDATION",
                        help="with --leave-two-sites-out: these pairs in place of all neighbours")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "elcfs"], metavar="NAME",
                        help="default: fedavg elcfs. With settings: ccst:k=1,style=single. Several at once: "
                             "ccst+elcfs. all: every method that works on this task, as it is by default")
    parser.add_argument("--vary", action="append", default=[], metavar="KEY=V1,V2,...",
                        help="run every method with each of these values of a setting, as rows of their own; given "
                             "several times, with each combination: --vary federation.participating=1,2,3")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each fold: seed, seed + 1, ...")
    parser.add_argument("--sites", nargs="+", metavar="SITE", help="leave out these sites only")
    add_common_flags(parser)
    args = parser.parse_args(argv)
    return run_program("medfed.evaluate", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    if not (args.leave_one_site_out or args.leave_two_sites_out):
        raise UserError("say what to compare: --leave-one-site-out trains and tests every method on every unseen site, "
                        "--leave-two-sites-out does so with a validation site beside it")
    if args.pairs and (args.sites or not args.leave_two_sites_out):
        raise UserError("--pairs is for --leave-two-sites-out, without --sites: each pair names its unseen site")
    if args.seeds < 1:
        raise UserError(f"--seeds {args.seeds}: at least 1 is needed")
    varied = parse_varied(args.vary)
    config = load(args.config, overrides(args))
    left = "two_sites" if args.leave_two_sites_out else "one_site"
    out = args.out or Path("runs") / f"{Path(config.source).stem}-leave_{left}_out"
    dataset = config.data.ensure_available(None if args.quiet else progress_bar("making the phantom"))
    names = dataset.site_names()
    grid = Grid(config)
    methods: list[str] = args.methods
    refused: dict[str, str] = {}
    if methods == ["all"]:
        methods, refused = grid.compatible_methods(dataset)
    validates = validation_sites(names, args.pairs or (), config.data.root) if args.leave_two_sites_out else {}
    chosen = args.sites or (args.pairs and list(validates))
    folds = grid.plan(out, methods, args.seeds, names, chosen, validates, varied)
    if out.exists() and not args.resume and any(fold.folder.path.exists() for fold in folds):
        raise UserError(f"{out}: holds runs of this comparison; go on with --resume, or start another with --out")
    check_rows(folds)
    left_out = run_folds(folds, args.quiet)
    print(write_table(folds, out, args.leave_two_sites_out))
    if left_out:
        print(f"\n{len(left_out)} of {len(folds)} runs are locked by another process; once it is done, --resume "
              "completes the table.")
    for name, sentence in refused.items():
        print(f"\nnot compared: {name}: {sentence}")
    more = "; of the validation sites: validation.csv, validation.json" if args.leave_two_sites_out else ""
    print(f"\nThe table is in {out}: table.md, table.csv, table.json, table.tex{more}; costs: cost.csv; each run has "
          "its own folder below it.")
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
