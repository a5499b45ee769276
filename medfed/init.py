"""Plan a run for your own images: look at the sites that train, and write a config with a reason for every value."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from medfed.cli.defaults import METHOD
from medfed.cli.program import add_image_flags, main_of, new_parser, require_paths


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "init",
        __doc__,
        ("images", "look at the folder images/, and write my.yaml"),
        ("images --unseen munich --method elcfs --out elcfs.yaml", "choose the unseen site, the method and the file"),
    )
    parser.add_argument("folder", type=Path, help="a folder with images of two or more sites, or a table")
    out = "the config to write (default: my.yaml); an existing file is not overwritten"
    parser.add_argument("--out", type=Path, default=Path("my.yaml"), metavar="FILE", help=out)
    unseen = "the site that does not train and is tested (default: the last in alphabetical order)"
    parser.add_argument("--unseen", metavar="SITE", help=unseen)
    parser.add_argument("--method", default=METHOD, metavar="NAME", help=f"the federated method (default: {METHOD})")
    add_image_flags(parser)
    return parser


def _init(args: argparse.Namespace) -> int:
    require_paths("a folder with images, or a table", args.folder)
    from medfed.api import make_plan
    from medfed.datasets.collections.folder import Folder

    written = make_plan(
        args.folder,
        args.out,
        unseen=args.unseen,
        method=args.method,
        dataset=args.dataset,
        settings=args.set,
        progress=not args.quiet,
    )
    data = written.config.data
    print("The images:")
    for site in data.site_names():
        source = f", {data.source_of(site)}" if isinstance(data, Folder) else ""
        n_images = len(data.contents.cases[site])
        print(f"  {site}: {n_images} image{'s' * (n_images != 1)}{source}")
    print(f"\nThe sites that train:\n{written.summary}")
    for note in written.notes:
        print(f"Note: {note}.")
    size = f"images of {data.image_size} pixels"
    if data.patch_size:
        size = f"3-D patches of {' x '.join(map(str, data.patch_size))} voxels"
    print(
        f"\nPlan: {size}, {written.plan.whole_steps} training steps of "
        f"the sites {', '.join(written.plan.site_steps)}; the config explains every value."
    )
    config = shlex.quote(str(args.out))
    print(f"Check all files first: python -m medfed.data check {config}")
    print(f"Train: python -m medfed.train {config}")
    return 0


main = main_of("init", parser, _init)

if __name__ == "__main__":
    sys.exit(main())
