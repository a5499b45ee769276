"""Plan a run for your own images: look at the sites that train, and write a config with a reason for every value."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from medfed.cli.defaults import METHOD
from medfed.cli.program import add_code_flag, run_program
from medfed.core.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Run `medfed init` (`argv` None: `sys.argv`) and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m medfed.init", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder with images of two or more sites, or a table")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("my.yaml"),
        metavar="FILE",
        help="the config to write (default: my.yaml); an existing file is not overwritten",
    )
    parser.add_argument(
        "--unseen",
        metavar="SITE",
        help="the site that does not train and is tested (default: the last in alphabetical order)",
    )
    parser.add_argument("--dataset", metavar="NAME", help="name in a config (default: found by the names of the files)")
    parser.add_argument("--method", default=METHOD, metavar="NAME", help=f"the federated method (default: {METHOD})")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="choose a value yourself: --set data.image_size=128; the plan follows",
    )
    add_code_flag(parser)
    parser.add_argument("--quiet", action="store_true", help="print only the result, no progress")
    args = parser.parse_args(argv)
    return run_program("medfed.init", lambda: _init(args), args.allow_code)


def _init(args: argparse.Namespace) -> int:
    """Plan and write a config for the folder in `args`, print the plan, and return the exit code."""
    if args.unseen == "":
        raise UserError("--unseen: expected the name of a site")
    from medfed.cli.progress import ProgressBar
    from medfed.datasets.collections.folder import Folder
    from medfed.planning.initialise import write_config

    written = write_config(
        args.folder,
        args.out,
        args.unseen,
        args.method,
        args.set,
        args.dataset,
        progress=lambda cases: ProgressBar(cases, desc="reading", unit="case", disable=args.quiet, leave=False),
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
    print(
        f"\nPlan: images of {data.image_size} pixels, {written.plan.whole_steps} training steps of "
        f"the sites {', '.join(written.plan.site_steps)}; the config explains every value."
    )
    print(f"Check all files first: {_check_command(args)}")
    print(f"Train: python -m medfed.train {shlex.quote(str(args.out))}")
    return 0


def _check_command(args: argparse.Namespace) -> str:
    """Return the command that checks the files of all sites, read with the user's settings."""
    settings = [word for text in args.set if text.startswith("data.") for word in ("--set", text)]
    dataset = ["--dataset", args.dataset] if args.dataset else []
    return shlex.join(["python", "-m", "medfed.data", "check", str(args.folder), *dataset, *settings])


if __name__ == "__main__":
    sys.exit(main())
