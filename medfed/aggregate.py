"""Average bundles that hospitals trained without medfed, and write the result as a bundle."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from medfed.cli.defaults import RULES
from medfed.cli.program import main_of, new_parser, require_paths
from medfed.federation.settings import Federation


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "aggregate",
        __doc__,
        ("BMC HK UCL --start start_bundle --out round_1", "the mean of three hospitals' bundles"),
        (
            "BMC HK --start start_bundle --out round_1 --images 120 80 --on-bad-update drop",
            "weighted by the numbers of images; weights that fail a check are left out",
        ),
    )
    trained = "bundles that the hospitals trained, in folders named after the hospital"
    parser.add_argument("sites", type=Path, nargs="+", metavar="SITE", help=trained)
    parser.add_argument("--start", type=Path, required=True, metavar="BUNDLE", help="the bundle from which all started")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder of the bundle to create")
    images = "training images of each hospital, in the same order; default: all hospitals count alike"
    parser.add_argument("--images", type=int, nargs="+", metavar="N", help=images)
    parser.add_argument("--rule", choices=RULES, default="fedavg", help="default: fedavg, the weighted mean")
    bad = "what happens if a hospital's weights fail a check; default: stop"
    parser.add_argument("--on-bad-update", choices=("stop", "drop"), default="stop", help=bad)
    parser.add_argument(
        "--largest-change",
        type=float,
        default=Federation.largest_change,
        metavar="X",
        help="with three or more hospitals: a change of the weights may be at most X times the median; "
        f"default: {Federation.largest_change:g}",
    )
    unchecked = "accept a start whose configs may run code, such as a bundle that is not medfed's"
    parser.add_argument("--allow-unchecked-configs", action="store_true", help=unchecked)
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    return parser


def _aggregate(args: argparse.Namespace) -> int:
    require_paths("a bundle", *args.sites, args.start)
    from medfed.deployment.bundle_aggregation import aggregate_bundles

    result = aggregate_bundles(
        args.sites,
        args.start,
        args.out,
        images=args.images,
        rule=args.rule,
        on_bad_update=args.on_bad_update,
        largest_change=args.largest_change,
        allow_unchecked_configs=args.allow_unchecked_configs,
    )
    for text in [*result.notices, *(f"left out: {rejection}" for rejection in result.left_out.values())]:
        print(f"note: {text}", file=sys.stderr)
    if not args.quiet:
        print(f"{'hospital':<24}  {'images':>10}  {'L2 norm of the change':>22}")
        for name, norm in result.changes.items():
            print(f"{name:<24}  {result.images.get(name, 'not stated'):>10}  {norm:>22.4g}")
        print(f"The bundle is {args.out}; docs/ledger.csv lists what was read. Its weights are not tested yet.")
    return 0


main = main_of("aggregate", parser, _aggregate)

if __name__ == "__main__":
    sys.exit(main())
