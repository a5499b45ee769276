"""Measure on a site's own images, before it joins, what the statistics that it would share reveal."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from medfed.auditing.audit import N_GALLERY, N_IMAGES, audit
from medfed.auditing.page import build_page
from medfed.auditing.report_text import to_text
from medfed.cli.program import overrides, run_program
from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.experiments.setup import build_experiment


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when all was measured, 2 for a mistake that the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m medfed.audit", description=__doc__)
    parser.add_argument("config", type=Path, help="a YAML file, for example configs/prostate.yaml")
    parser.add_argument("--site", metavar="NAME", help="whose images; default: the first source site")
    parser.add_argument("--images", type=int, default=N_IMAGES, metavar="N",
                        help=f"images to reconstruct (default {N_IMAGES}; some ten seconds each)")
    parser.add_argument("--gallery", type=int, default=N_GALLERY, metavar="N",
                        help=f"images to find a second look among (default {N_GALLERY})")
    parser.add_argument("--out", type=Path, metavar="FOLDER",
                        help="for audit.json and audit.html (default: runs/audit_CONFIG)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="change one value of the config")
    parser.add_argument("--seed", type=int, help="short for --set seed=...")
    parser.add_argument("--device", help="short for --set device=...: auto, cpu or cuda")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")
    args = parser.parse_args(argv)
    return run_program("medfed.audit", lambda: _work(args))


def _work(args: argparse.Namespace) -> int:
    for flag, number, least in (("--images", args.images, 1), ("--gallery", args.gallery, 2)):
        if number < least:
            raise UserError(f"{flag}: expected at least {least}, got {number}")
    config = load(args.config, overrides(args))
    out = args.out or Path("runs") / f"audit_{args.config.stem}"
    out.mkdir(parents=True, exist_ok=True)
    experiment = build_experiment(config, None, args.quiet)
    result, found = audit(config, experiment, args.site, args.images, args.gallery, args.quiet)
    axes = None if experiment.dataset.intensity_range else "RA"  # prepared slices of scanners are RAS
    write_atomically(out / "audit.json", json.dumps(result, indent=2, allow_nan=False) + "\n")
    write_atomically(out / "audit.html", build_page(result, found, axes))
    print(to_text(result))
    if not args.quiet:
        print(f"Pictures, and how the numbers were found: {out / 'audit.html'}; numbers alone: {out / 'audit.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
