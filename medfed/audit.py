"""Measure, on a site's own images and before it joins, what the statistics and weights that it would send reveal."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from medfed.cli.defaults import N_GALLERY, N_IMAGES, N_WEIGHTS_STEPS
from medfed.cli.program import add_config_argument, add_setting_flags, main_of, new_parser, overrides, whole_number
from medfed.core.errors import UserError
from medfed.core.files import write_atomically


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "audit",
        __doc__,
        ("my.yaml --site BMC --own-images", "what site BMC would reveal; only its images are read"),
        (
            "my.yaml --weights-steps 0 --model runs/my --out runs/audit",
            "without the attack on updates, with a test who took part in a model's training",
        ),
    )
    add_config_argument(parser)
    parser.add_argument("--site", metavar="NAME", help="site whose images are used (default: the first source site)")
    parser.add_argument(
        "--images",
        type=whole_number(1),
        default=N_IMAGES,
        metavar="N",
        help=f"number of images to reconstruct (default {N_IMAGES}; about ten seconds each)",
    )
    parser.add_argument(
        "--gallery",
        type=whole_number(2),
        default=N_GALLERY,
        metavar="N",
        help=f"number of images among which a changed copy is searched (default {N_GALLERY})",
    )
    parser.add_argument(
        "--weights-steps",
        type=whole_number(0),
        default=N_WEIGHTS_STEPS,
        metavar="N",
        help=f"steps of the attack on updates (default {N_WEIGHTS_STEPS}: minutes; 0 leaves it out)",
    )
    model = "folder of a run, or weights (.safetensors): also measure who took part in its training"
    parser.add_argument("--model", type=Path, metavar="RUN_OR_WEIGHTS", help=model)
    own = "read the images of this site only; the other sites need not be in the folder"
    parser.add_argument("--own-images", action="store_true", help=own)
    out = "folder for audit.json and audit.html (default: runs/audit_CONFIG)"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=out)
    add_setting_flags(parser)
    return parser


def _audit(args: argparse.Namespace) -> int:
    from medfed.config.early import check_config

    check_config(args.config, overrides(args))
    from medfed import api
    from medfed.auditing.audit import audit, own_images_only
    from medfed.auditing.measures import to_text
    from medfed.auditing.page import build_page
    from medfed.experiments.setup import build_experiment

    config = api.load_config(args.config, overrides(args))
    config = own_images_only(config, args.site) if args.own_images else config
    out = args.out or Path("runs") / f"audit_{args.config.stem}"
    if config.data.patch_size:
        raise UserError(f"{config.source}: data.patch_size: the audit looks at slices; remove it for the audit")
    out.mkdir(parents=True, exist_ok=True)
    experiment = build_experiment(config, None, args.quiet)
    audited = audit(
        config, experiment, args.site, args.images, args.gallery, args.quiet, args.weights_steps, args.model
    )
    write_atomically(out / "audit.json", json.dumps(audited.result, indent=2, allow_nan=False) + "\n")
    write_atomically(out / "audit.html", build_page(audited))
    print(to_text(audited.result))
    if not args.quiet:
        print(f"Figures and explanations: {out / 'audit.html'}; the numbers: {out / 'audit.json'}")
    return 0


main = main_of("audit", parser, _audit)

if __name__ == "__main__":
    sys.exit(main())
